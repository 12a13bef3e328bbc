"""What is read of a log: the requests of a branch, the bytes that the model saw, and the conversation as a recorded
session.

Laws
  Bytes are those that were sent, by their digest, or there are none: MissingError where the log has not all of them any
  more, DamagedError where what it has makes other bytes.
  A branch is the line of messages that leads to one; the newest request is on the newest branch.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from policies.dialects.segments import joined, raw_of
from proxy.addons.archive.recordings import session_of
from proxy.addons.archive.sent_requests import BESIDE, RequestEntry, beside_texts, read_entries
from proxy.memory import MESSAGES, Key, Store, StoredText


class MissingError(Exception):
    """The log does not hold what is wanted. The message says why."""


class DamagedError(Exception):
    """What the log holds does not make what was sent. The message says so."""


@dataclass
class ConversationLog:
    """The log of a conversation, as far as its reader may see it. `texts`: its entries, without their texts."""

    store: Store
    key: Key
    texts: Sequence[StoredText]
    by_name: Mapping[str, StoredText] = field(init=False)

    def __post_init__(self) -> None:
        self.by_name = {text.name: text for text in self.texts}

    @cached_property
    def entries(self) -> Sequence[StoredText]:
        """What says what was sent, oldest first."""
        return [text for text in self.texts if text.about["index"] == BESIDE["request"]]

    def newest(self, branch: str = "") -> StoredText:
        """The newest request of the branch with the message of this name; "" for the newest branch. Raises
        MissingError."""
        behind = self._behind(branch) if branch else {""}
        for entry in reversed(self.entries):
            if not entry.about["round"] and (not branch or entry.about["parent"] in behind):
                return entry
        raise MissingError(
            "The log has no request with a message of this name: `branch` is the name of one, as the log and the list"
            " of requests have it; without it the newest branch is meant."
            if branch
            else "The log has no request: it was begun by an earlier release, or its oldest entries are gone."
        )

    def requests(self, branch: str = "") -> Mapping[int, Sequence[StoredText]]:
        """The requests of a branch by their numbers, counted from 1: each the newest that was sent, and the rounds in
        which its reply went on after a recall. Raises MissingError."""
        line = {"", *self._line(self.newest(branch))}
        rows: dict[int, list[StoredText]] = {}
        for entry in self.entries:
            if str(entry.about["parent"]) in line:
                row = rows.setdefault(int(entry.about["number"]), [])
                if not entry.about["round"]:
                    row.clear()
                row.append(entry)
        return dict(sorted(rows.items()))

    def replies(self, entry: StoredText) -> Sequence[StoredText]:
        """The messages of the newest reply to a request, as long as no request has brought it back."""
        after = entry.about["parent"]
        texts = [text for text in self.texts if "reply" in text.about and text.about["after"] == after]
        return [text for text in texts if text.about["reply"] == texts[-1].about["reply"]]

    async def body(self, number: int, round_: int = 0, branch: str = "") -> bytes:
        """The bytes that the model saw as the request of this number. Raises MissingError, DamagedError,
        StoreTrouble."""
        row = self.requests(branch).get(number, ())
        entry = next((entry for entry in row if entry.about["round"] == round_), None)
        if entry is None:
            numbers = [*self.requests(branch)]
            what = f"round {round_} of request {number}" if round_ else f"request {number}"
            there = f"{numbers[0]} to {numbers[-1]} are there, but for those that were not compacted"
            raise MissingError(f"The log has no {what} of this branch: {there}.")
        content = await self._read(entry)
        at = {piece if isinstance(piece, int) else piece[0] for piece in content.pieces if not isinstance(piece, str)}
        names = {place: content.names[place] for place in at if isinstance(place, int) and place >= 0}
        texts = await self._texts([*names.values(), *content.beside.values()])
        raws = {place: raw_of(texts[name]) for place, name in names.items()}
        try:
            body = await asyncio.to_thread(joined, content.pieces, raws | beside_texts(content.beside, texts))
        except (KeyError, ValueError) as error:
            raise DamagedError("The log is damaged: an entry does not fit the others.") from error
        if sha256(body).hexdigest() != entry.about["sent"]:
            raise DamagedError(
                "What the log holds makes other bytes than were sent: a message was written by two replicas, or anew."
            )
        return body

    async def session(self, branch: str = "") -> Mapping[str, Any]:
        """The conversation as a recorded session: its newest request, and the reply. Raises MissingError,
        StoreTrouble."""
        entry = self.newest(branch)
        content, replies = await self._read(entry), self.replies(entry)
        texts = await self._texts([*content.names, *content.beside.values(), *(reply.name for reply in replies)])
        if "frame" not in content.beside:
            raise MissingError("The parameters of this request are too long for the log.")
        frame = json.loads(texts[content.beside["frame"]])
        history = ",".join(texts[name] for name in content.names)
        beside = {0: history, -1: texts.get(content.beside.get("tools", ""), ""), -2: ""}
        beside[-2] = texts.get(content.beside.get("lead", ""), "")
        body = "".join(beside[part] if isinstance(part, int) else part for part in frame)
        return await asyncio.to_thread(
            session_of, str(entry.about["dialect"]), body, [texts[reply.name] for reply in replies]
        )

    def _behind(self, name: str) -> set[str]:
        """The names of a message and of all that follow it; of a reply that no request has brought back, also of the
        message before."""
        named = self.by_name.get(name)
        behind = {name, str(named.about["after"])} if named is not None and "reply" in named.about else {name}
        for text in self.texts:
            if int(text.about["index"]) >= 0 and text.about["parent"] in behind:
                behind.add(text.name)
        return behind

    def _line(self, entry: StoredText) -> Sequence[str]:
        """The names of the messages of a request, the newest first; system text aside."""
        names: list[str] = []
        name = str(entry.about["parent"])
        while name:
            names.append(name)
            name = str(self.by_name[name].about["parent"]) if name in self.by_name else ""
        return names

    async def _read(self, entry: StoredText) -> RequestEntry:
        chain = [entry]
        while before := str(chain[-1].about["before"]):
            if before not in self.by_name:
                raise MissingError(_GONE)
            chain.append(self.by_name[before])
        names = [each.name for each in reversed(chain)]
        texts = await self._texts(names)
        try:
            return await asyncio.to_thread(read_entries, [texts[name] for name in names])
        except ValueError as error:
            raise DamagedError(f"The log is damaged: {error}.") from error

    async def _texts(self, names: Iterable[str]) -> Mapping[str, str]:
        """All of these texts. Raises MissingError, StoreTrouble."""
        wanted = list(dict.fromkeys(names))
        texts = await self.store.texts(self.key, MESSAGES, wanted)
        if len(texts) < len(wanted):
            raise MissingError(_GONE)
        return texts


_GONE = (
    "The log no longer holds all of it: the oldest entries go where it is full (`history_limit`), or after the `ttl`."
)

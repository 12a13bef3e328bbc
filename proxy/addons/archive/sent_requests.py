"""Requests as they were sent, as entries of the log: pieces of the texts that are logged, by their names.

Laws
  An entry holds what its request has beyond the one before it in its branch, and now and then all of it.
  It holds the digest of the body that was sent, so that whoever puts the body together again knows whether it is the
  same: there are those bytes, or none. MissingError where the log has not all of them any more, DamagedError where
  what it has makes other bytes.
  A branch is the line of messages that leads to one; the newest request is on the newest branch.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import takewhile
from typing import Any

from policies.dialects import DIALECTS, Request
from policies.dialects.common import as_json
from policies.dialects.segments import LEAD, TOOLS, Piece, Segment, joined, pieces_of, raw_of, rest_in, segments
from proxy.addons.archive.recordings import session_of
from proxy.addons.archive.request_times import RequestMoments, reply_starts, time_fields
from proxy.addons.archive.texts import common_items
from proxy.memory import MESSAGES, Key, Store, StoredText

BESIDE: Mapping[str, int] = {"lead": -1, "tools": -2, "frame": -3, "request": -4, "end": -5}
"""Places in the log of what is no message: the text that leads the prompt, the tools, the request with its parameters
but without all these, what was sent, and that the reply to a request has ended."""
_LONGEST_CHAIN = 64


@dataclass(slots=True)
class SentTrail:
    """The newest request of a branch whose entry is in the log."""

    entry: str = ""
    """Its name; empty where there is none."""
    length: int = 0
    """How many entries it follows from."""
    round: int = 0
    names: Sequence[str] = ()
    parts: list[tuple[int, int, int]] = field(default_factory=list)
    """For each segment of the body a hash, the newest message that stands up to it, and how many are of the rest."""


@dataclass(frozen=True, slots=True)
class SentBody:
    digest: str
    segments: Sequence[Segment]
    hashes: Sequence[int]
    common: int
    """With how many segments both begin."""
    newest: int
    """The newest message among these."""


def read_body(dialect: str, body: bytes, received: Request, names: Sequence[str], trail: SentTrail) -> SentBody:
    """A body in segments, compared with the request before it. `names`: of the messages that the client sent."""
    request = DIALECTS[dialect].split(body, received, False)
    parts: list[Segment] = [("rest", body)] if request is None else [*segments(request)]
    hashes = [hash(raw) for _, raw in parts]
    before = trail.parts if trail.entry and trail.length < _LONGEST_CHAIN else []
    same = common_items(trail.names, names)
    before = list(takewhile(lambda part: part[1] < same, before))
    common = common_items([part[0] for part in before], hashes)
    return SentBody(sha256(body).hexdigest(), parts, hashes, common, before[common - 1][1] if common else -1)


def entry_of(
    body: SentBody, texts: Mapping[int, bytes], names: Sequence[str], beside: Mapping[str, str], trail: SentTrail
) -> str:
    """The text of an entry; the trail goes on behind it. `texts`: those of the messages after the newest one that the
    bodies have in common, and beside them."""
    before = trail.parts[: body.common]
    _, newest, rest = before[-1] if before else (0, -1, 0)
    pieces: list[Piece] = []
    parts = list(before)
    rows = pieces_of(body.segments[body.common :], texts, newest, rest)
    for digest, (piece, at, count) in zip(body.hashes[body.common :], rows, strict=True):
        pieces.append(piece)
        parts.append((digest, at, count))
    is_whole = not body.common
    shared = 0 if is_whole else common_items(trail.names, names)
    trail.length = 0 if is_whole else trail.length + 1
    trail.names, trail.parts = names, parts
    content = {"names": [shared, list(names[shared:])], "pieces": [body.common, pieces], **beside}
    return as_json(content).decode()


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """An entry, put together with those before it: the names of the messages that the client sent, the pieces of what
    was sent, and the names of tools, leading text and frame."""

    names: Sequence[str]
    pieces: Sequence[Piece]
    beside: Mapping[str, str]


def read_entries(texts: Sequence[str]) -> RequestEntry:
    """The last of these entries, each of which follows from the one before. Raises ValueError for what is none."""
    names: list[str] = []
    pieces: list[Piece] = []
    beside: dict[str, str] = {}
    try:
        for text in texts:
            content = json.loads(text)
            (shared, more), (common, new) = content["names"], content["pieces"]
            names = [*names[:shared], *more]
            pieces = [*pieces[:common], *new]
            beside = {name: str(content[name]) for name in ("tools", "lead", "frame") if name in content}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("an entry of the log cannot be read") from error
    return RequestEntry(names, pieces, beside)


def is_message(text: StoredText) -> bool:
    """True where an entry of the log is a message, or text that leads the prompt."""
    return int(text.about["index"]) >= -1


# --- what is read of a log ---


class MissingError(Exception):
    """The log does not hold what is wanted. The message says why."""


class DamagedError(Exception):
    """The texts of the log do not make the request that was sent. The message says so."""


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
        return [text for text in self.texts if text.about["index"] == BESIDE["request"]]

    def newest(self, branch: str = "") -> StoredText:
        """The newest request of the branch with the message of this name; "" for the newest. Raises MissingError."""
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
        """The bytes that the model saw. Raises MissingError, DamagedError, StoreTrouble."""
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
        raws, beside = {place: raw_of(texts[name]) for place, name in names.items()}, content.beside
        try:
            raws |= {
                at: raw_of(texts[beside[name]]) for name, at in (("tools", TOOLS), ("lead", LEAD)) if name in beside
            }
            raws |= rest_in(json.loads(texts[beside["frame"]]) if "frame" in beside else ())
            body = await asyncio.to_thread(joined, content.pieces, raws)
        except (KeyError, ValueError) as error:
            raise DamagedError("The log is damaged: an entry does not fit the others.") from error
        if sha256(body).hexdigest() != entry.about["sent"]:
            raise DamagedError(
                "What the log holds makes other bytes than were sent: a message was written by two replicas, or anew."
            )
        return body

    async def session(self, branch: str = "") -> Mapping[str, Any]:
        """The newest request, and the reply, as a recorded session. Raises MissingError, StoreTrouble."""
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
        dialect = str(entry.about["dialect"])

        def timed() -> Mapping[str, Any]:
            session = session_of(dialect, body, [texts[reply.name] for reply in replies])
            return {**session, **time_fields(self._moments(entry), len(reply_starts(dialect, session)))}

        return await asyncio.to_thread(timed)

    def _moments(self, newest: StoredText) -> Mapping[int, RequestMoments]:
        """When the requests that led to this one came; of one that was sent again, when that was."""
        line, entries = {"", *self._line(newest)}, self.entries
        ends = {
            (each.about["parent"], each.about["came"]): float(each.about["at"])
            for each in self.texts
            if each.about["index"] == BESIDE["end"]
        }
        moments: dict[int, RequestMoments] = {}
        first = int(newest.about["number"])
        for about in (entry.about for entry in reversed(entries[: entries.index(newest) + 1])):
            at = int(about["number"]) - 1
            if at < first and about["parent"] in line and not about["round"] and "came" in about:
                end = ends.get((about["parent"], about["came"]))
                first, moments[at] = at, RequestMoments(float(about["came"]), float(about["at"]), end)
        return moments

    def _behind(self, name: str) -> set[str]:
        """The names of a message and of all that follow it; of a reply that is not back, also of the message before."""
        message = self.by_name.get(name)
        behind = {name, str(message.about["after"])} if message is not None and "reply" in message.about else {name}
        for text in self.texts:
            if int(text.about["index"]) >= 0 and text.about["parent"] in behind:
                behind.add(text.name)
        return behind

    def _line(self, entry: StoredText) -> Sequence[str]:
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

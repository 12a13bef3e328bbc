"""The log of a conversation: every message as the client sent it, each once.

Laws
  Stored behind the request, as `TextQueue` does; a request costs what is new in it, though it brings the whole history.
  A message is named by the messages before it and by its own text, so that one that was edited, and what follows it,
  is a branch of its own beside the first. System text does not count as a message before: a prompt that contains the
  time makes no branch. Cache marks and spacing make none either.
  What an owner sent is that owner's log.
  A message has the digest by which summaries name it among their sources.
"""

import asyncio
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from cachetools import LRUCache

from policies.model.summary_record import short_digest
from proxy.archive.texts import ArchiveServices, Make, TextQueue
from proxy.requests import ParsedRequest
from proxy.store import MESSAGES, Key, StoredText
from proxy.store.forgetting import forget_in

_LOGGED = 100_000
"""Messages, in all logs that are continued without asking the store how far they go."""
_BRANCHES = 4
"""Branches of each, the newest: agents that share a conversation's name take turns."""
_LONGEST = 40
"""Characters of a role: it comes from clients."""


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """A message in its place: its name, and that of the message before it, empty where it is the first."""

    name: str
    parent: str
    last: str
    """The newest message that is no system text: the parent of the next one."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """What was logged of one history: digests of its messages, their places, and a digest of the text that leads the
    prompt where it is no message."""

    digests: tuple[bytes, ...]
    messages: tuple[LoggedMessage, ...]
    lead: bytes


_NONE = _Branch((), (), b"")


class MessageLog:
    """Stores logs. `limit`: bytes of a conversation."""

    def __init__(self, services: ArchiveServices, limit: int) -> None:
        self._services = services
        self._limit = limit
        self._branches: LRUCache[tuple[Key, str], tuple[_Branch, ...]] = LRUCache(_LOGGED, getsizeof=_size)
        """By conversation and owner, the newest first."""
        self.queue = TextQueue(services, "history", MESSAGES, limit)
        services.forgets.register_cache(self._branches)

    def keep(self, key: Key, owner: str, dialect: str, parsed: ParsedRequest) -> None:
        """Log what is new in a request. Never raises."""
        messages, branches = parsed.conversation.messages, self._branches.get((key, owner), ())
        digests = tuple(message.digest for message in messages)
        nearest = max(branches, key=lambda branch: _shared(branch.digests, digests), default=_NONE)
        shared = _shared(nearest.digests, digests)
        before = nearest.messages[:shared]
        logged, last = [*before], before[-1].last if before else ""
        for message in messages[shared:]:
            name = self._name(owner, last, message.role, message.digest)
            logged.append(LoggedMessage(name, last, last if message.role in ("system", "developer") else name))
            last = logged[-1].last
        lead = parsed.request.instructions
        branch = _Branch(digests, tuple(logged), sha256(lead).digest())
        new = [at for at in range(shared, len(messages)) if self._fits(parsed.request.raw(at))]
        lead = lead if branch.lead != nearest.lead and self._fits(lead) else b""
        size = len(lead) + sum(len(parsed.request.raw(at)) for at in new)
        about: dict[str, str | int | float] = {"owner": owner, "dialect": dialect, "at": self._services.clock()}
        make = partial(self._texts, parsed, logged, new, lead, about)
        make_new: Make = partial(asyncio.to_thread, make) if branches else partial(self._missing, key, make)
        if not (new or lead) or self.queue.put(key, size, make_new, partial(self._give_up, key)):
            others = (each for each in branches if each is not nearest or shared < len(nearest.digests))
            branches = (branch, *others)[:_BRANCHES]
            if _size(branches) <= _LOGGED // 8:
                self._branches[key, owner] = branches

    def _fits(self, raw: bytes) -> bool:
        """Whether it can be stored at all; what is longer than a log would drive out all the rest."""
        if len(raw) > self._limit:
            self._services.telemetry.metrics.store_trouble("history_large")
        return len(raw) <= self._limit

    async def _missing(self, key: Key, make: Callable[[], Sequence[StoredText]]) -> Sequence[StoredText]:
        """The texts that the store has not, where nothing of the conversation is cached: what comes before a message
        that was logged was logged too, though it may have gone since. Raises StoreTrouble."""
        texts = await asyncio.to_thread(make)
        stored = {text.name for text in await self._services.store.list_texts(key, MESSAGES)}
        last = max((at for at, text in enumerate(texts) if text.name in stored), default=-1)
        return texts[last + 1 :]

    def _texts(
        self,
        parsed: ParsedRequest,
        logged: Sequence[LoggedMessage],
        new: Sequence[int],
        lead: bytes,
        about: Mapping[str, str | int | float],
    ) -> list[StoredText]:
        """The new messages as the client wrote them, after the text that leads the prompt, where that is new."""
        texts = []
        if lead:
            name = self._name(str(about["owner"]), "", "lead", lead)
            texts.append(StoredText(name, _text(lead), {**about, "index": -1, "parent": "", "role": "system"}))
        for at in new:
            role = parsed.conversation.messages[at].role[:_LONGEST]
            text = _text(parsed.request.raw(at))
            digest = short_digest(parsed.conversation.messages[at])
            place = {**about, "index": at, "parent": logged[at].parent, "role": role, "digest": digest}
            texts.append(StoredText(logged[at].name, text, place))
        return texts

    def _name(self, owner: str, last: str, role: str, content: bytes) -> str:
        place = f"log\0{owner}\0{last}\0{role}\0".encode("utf-8", "surrogatepass")
        return hmac.digest(self._services.secret, place + content, "sha256").hex()[:32]

    def _give_up(self, key: Key) -> None:
        """What was not written is missing before what waits, so give that up, too: all comes with the next request."""
        self.queue.forget(key.tenant, key.conversation)
        forget_in(self._branches, key.tenant, key.conversation)


def _shared(old: Sequence[bytes], new: Sequence[bytes]) -> int:
    """How many leading messages are the same."""
    pairs = zip(old, new, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(old), len(new)))


def _size(branches: Sequence[_Branch]) -> int:
    """How many messages these are, and one more for each branch."""
    return sum(1 + len(branch.digests) for branch in branches)


def _text(raw: bytes) -> str:
    """The bytes of a client, UTF-8 or not, as text; `surrogateescape` makes them bytes again."""
    return raw.decode("utf-8", "surrogateescape")

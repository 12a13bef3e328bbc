"""The log of a conversation: every message as the client sent it, each once.

Laws
  Behind the request, as TextQueue says; a request costs what is new in it, though it brings the whole history.
  A message is named by what was said before it and by what it says, so that one that was edited, and what follows it,
  is a branch of its own beside the first. System text does not count towards what was said before: a prompt that tells
  the time makes no branch. Cache marks and spacing make none either.
  What an owner sent is that owner's log.
"""

import asyncio
import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from cachetools import LRUCache

from policies.model.conversation import Message
from proxy.archive.queue import ArchiveServices, TextQueue
from proxy.requests import ParsedRequest
from proxy.store import Key, Leaf
from proxy.store.forgetting import forget_in

_LOGGED = 100_000
"""Messages, in all logs that are continued without asking the store how far they go."""
_BRANCHES = 4
"""Branches of each, the newest: agents that share a conversation's name take turns."""
_LONGEST = 40
"""Characters of a role: it comes from clients."""


_About = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in its place: its name, and that of the message before it, empty where it is the first."""

    name: str
    parent: str
    last: str
    """The newest message that is no system text: what the next one follows."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """What was logged of one history: digests of its messages, their places, and a digest of the text that leads the
    prompt where it is no message."""

    said: tuple[bytes, ...]
    entries: tuple[Entry, ...]
    lead: bytes


_NONE = _Branch((), (), b"")


class MessageLog:
    """Keeps logs, and reads them for a person."""

    def __init__(self, services: ArchiveServices, most: int) -> None:
        """`most`: bytes of a conversation."""
        self._services = services
        self._most = most
        self._branches: LRUCache[tuple[Key, str], tuple[_Branch, ...]] = LRUCache(_LOGGED, getsizeof=_size)
        self.queue = TextQueue(services, "history", MESSAGES, most)
        services.forgets.register_cache(self._branches)

    def keep(self, key: Key, owner: str, dialect: str, taken: ParsedRequest) -> None:
        """Log what is new in a request. Never raises."""
        messages, before = taken.conversation.messages, self._branches.get((key, owner), ())
        said = tuple(message.digest for message in messages)
        known = max(before, key=lambda branch: _shared(branch.said, said), default=_NONE)
        shared = _shared(known.said, said)
        entries = (*known.entries[:shared], *self._entries(owner, known.entries[:shared], messages[shared:]))
        branch = _Branch(said, entries, sha256(taken.request.instructions).digest())
        about: _About = {"owner": owner, "dialect": dialect, "at": self._services.clock()}
        new = [at for at in range(shared, len(messages)) if self._fits(taken.request.raw(at))]
        lead = taken.request.instructions
        lead = lead if branch.lead != known.lead and self._fits(lead) else b""
        make = partial(self._leaves, owner, taken, entries, new, lead, about)
        size = len(lead) + sum(len(taken.request.raw(at)) for at in new)
        made, lost = partial(self._missing, key, make, not before), partial(self._lost, key)
        if not (new or lead) or self.queue.put(key, size, made, lost):
            others = (each for each in before if each is not known or shared < len(known.said))
            branches = (branch, *others)[:_BRANCHES]
            if _size(branches) <= _LOGGED // 8:
                self._branches[key, owner] = branches

    def _fits(self, raw: bytes) -> bool:
        """Whether it can be kept at all; what is longer than a log would drive out all the rest."""
        if len(raw) > self._most:
            self._services.telemetry.metrics.store_trouble("history_large")
        return len(raw) <= self._most

    async def _missing(self, key: Key, make: Callable[[], Sequence[Leaf]], unsure: bool) -> Sequence[Leaf]:
        """What of these the store has not, where nobody here can know: what comes before a message that was logged was
        logged too, though it may have gone since. Raises StoreTrouble."""
        leaves = await asyncio.to_thread(make)
        if not unsure:
            return leaves
        have = {leaf.name for leaf in await self._services.store.leaves(key, "message")}
        last = max((at for at, leaf in enumerate(leaves) if leaf.name in have), default=-1)
        return leaves[last + 1 :]

    def _entries(self, owner: str, before: Sequence[Entry], messages: Iterable[Message]) -> Iterable[Entry]:
        """The names of messages that follow these."""
        last = before[-1].last if before else ""
        for message in messages:
            name = self._name(owner, last, message.role, message.digest)
            entry = Entry(name, last, last if message.role in ("system", "developer") else name)
            last = entry.last
            yield entry

    def _leaves(
        self, owner: str, taken: ParsedRequest, entries: Sequence[Entry], new: Sequence[int], lead: bytes, about: _About
    ) -> list[Leaf]:
        """The new messages as the client wrote them, after what leads the prompt, where that is none and is new."""
        found = []
        if lead:
            told = {**about, "index": -1, "parent": "", "role": "system"}
            found.append(Leaf(self._name(owner, "", "lead", lead), _text(lead), told))
        for at in new:
            role = taken.conversation.messages[at].role[:_LONGEST]
            told = {**about, "index": at, "parent": entries[at].parent, "role": role}
            found.append(Leaf(entries[at].name, _text(taken.request.raw(at)), told))
        return found

    def _name(self, owner: str, last: str, role: str, said: bytes) -> str:
        place = f"log\0{owner}\0{last}\0{role}\0".encode("utf-8", "surrogatepass")
        return hmac.digest(self._services.secret, place + said, "sha256").hex()[:32]

    def _lost(self, key: Key) -> None:
        """What was not written is missing before what waits: all of it comes with the next request."""
        self.queue.forget(key.tenant, key.conversation)
        forget_in(self._branches, key.tenant, key.conversation)


def _shared(old: Sequence[bytes], new: Sequence[bytes]) -> int:
    """How many leading messages are the same."""
    pairs = zip(old, new, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(old), len(new)))


def _size(branches: Sequence[_Branch]) -> int:
    """How many messages these are, and one for each: nothing is for nothing."""
    return sum(1 + len(branch.said) for branch in branches)


def _text(raw: bytes) -> str:
    """What a client wrote, be it UTF-8 or not; `surrogateescape` makes it bytes again."""
    return raw.decode("utf-8", "surrogateescape")

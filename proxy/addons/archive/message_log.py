"""The log of a conversation: every message as the client sent it, each once; the newest reply, before a request brings
it back; tools and parameters, each version once; and what was sent of all that, request by request.

Laws
  Where it is full its oldest entries go, but for the tools and parameters that its newest requests have.
  Stored behind the request, as `TextQueue` does; a request costs what is new in it, though it brings the whole history.
  A message is named by the messages before it and by its own text, so that one that was edited, and what follows it,
  is a branch of its own beside the first. System text does not count as a message before: a prompt that contains the
  time makes no branch. Cache marks and spacing make none either.
  A reply is logged when it is whole; the request that brings it back takes its place. One that no request brings back
  stays, beside the branch that went on without it.
  What an owner sent is that owner's log.
  A message has the digest by which summaries name it among their sources.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from policies.dialects import DIALECTS
from policies.dialects.common import as_json
from policies.dialects.segments import LEAD, TOOLS, frame_of, raw_of, rest_in, text_of
from policies.model.summary_record import short_digest
from policies.restore import digest_of
from proxy.addons.archive import sent_requests
from proxy.addons.archive.sent_requests import SentBody, SentTrail
from proxy.addons.archive.texts import ArchiveMemory, TextQueue, common_items
from proxy.kernel.addons import HeldReply
from proxy.memory import MESSAGES, Key, StoredText
from proxy.memory.conversation import ParsedRequest
from proxy.memory.opening import StoreAccess

_LONGEST_LOG = 6_250
"""Messages of a log that is continued without asking the store how far it goes."""
_BRANCHES = 4
"""Branches of each, the newest: agents that share a conversation's name take turns."""
_LONGEST = 40
"""Characters of a role: it comes from clients."""
_UNRETURNED = 8
"""Items of a reply that its client may leave out."""

_About = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """A message in its place: its name, and that of the message before it, empty where it is the first."""

    name: str
    parent: str
    last: str
    """The newest message that is no system text: the parent of the next one."""


@dataclass(slots=True)
class _Versions:
    """The tools, frames and leading texts that the store has of a conversation."""

    size: int = 0
    """Characters that were stored of the conversation."""
    places: dict[str, int] = field(default_factory=dict)
    """How many of them came before each version, by its name."""


@dataclass(slots=True)
class _Trail:
    """The part of a branch that the store has. Only writes behind the requests, one after the other, change it."""

    origin: "_Trail | None" = None
    """That of the branch from which this one parts, as long as it is not taken over."""
    is_read: bool = False
    """True where the store was asked how far the log goes."""
    raws: dict[str, bytes] = field(default_factory=dict)
    """The digests of the bytes that stand there, by the names of messages."""
    versions: _Versions = field(default_factory=_Versions)
    sent: SentTrail = field(default_factory=SentTrail)

    def begin(self, names: Sequence[str]) -> None:
        """Take over what the store has of both branches. `names`: of the messages of this one."""
        if (origin := self.origin) is not None:
            origin.begin(names)
            self.is_read, self.versions = origin.is_read, origin.versions
            self.raws = {name: origin.raws[name] for name in names if name in origin.raws}
            self.origin = None


@dataclass(frozen=True, slots=True)
class LogBranch:
    """One history as it is logged: digests of its messages, and their places."""

    digests: tuple[bytes, ...]
    messages: tuple[LoggedMessage, ...]
    trail: _Trail = field(default_factory=_Trail)

    @property
    def last(self) -> str:
        return self.messages[-1].last if self.messages else ""


@dataclass(frozen=True, slots=True)
class _Arrival:
    key: Key
    about: _About
    parsed: ParsedRequest
    branch: LogBranch
    new: Sequence[int]
    """The messages that the branch did not have, but for those that are too long."""
    sent: bytes | None
    is_round: bool


class MessageLog:
    """`limit`: bytes of a conversation."""

    def __init__(self, services: StoreAccess, memory: ArchiveMemory, limit: int) -> None:
        self._services, self._memory = services, memory
        self.limit = limit
        self._entries = LogEntries(services, limit)
        self.queue = TextQueue(services, "history", MESSAGES, limit)

    def keep(
        self,
        key: Key,
        owner: str,
        dialect: str,
        parsed: ParsedRequest,
        sent: bytes | None = None,
        *,
        came: float,
        is_round: bool = False,
    ) -> None:
        """Log what is new in a request that `came`, and what was `sent`. `is_round`: after a recall. Never raises."""
        entry, messages = self._memory.of(key), parsed.conversation.messages
        branches = entry.branches.get(owner, ())
        digests = tuple(message.digest for message in messages)
        nearest = max(branches, key=lambda branch: common_items(branch.digests, digests), default=LogBranch((), ()))
        shared = common_items(nearest.digests, digests)
        logged, last = [*nearest.messages[:shared]], nearest.messages[shared - 1].last if shared else ""
        for message in messages[shared:]:
            name = self._entries.name(owner, last, message.role, message.digest)
            logged.append(LoggedMessage(name, last, last if message.role in ("system", "developer") else name))
            last = logged[-1].last
        extends = shared == len(nearest.digests)
        branch = LogBranch(digests, tuple(logged), nearest.trail if extends else _Trail(nearest.trail))
        new = [at for at in range(shared, len(messages)) if self._entries.fits(parsed.request.raw(at))]
        size = len(sent or b"") + sum(len(parsed.request.raw(at)) for at in new)
        about = self._about(owner, dialect, came)
        arrival = _Arrival(key, about, parsed, branch, new=new, sent=sent, is_round=is_round)
        make = _once(partial(self._entries.of_request, arrival))
        if self.queue.put(key, size, make, partial(self._give_up, key)):
            others = (each for each in branches if each is not nearest or not extends)
            branches = (branch, *others)[:_BRANCHES]
            if sum(1 + len(each.digests) for each in branches) <= _LONGEST_LOG:
                entry.branches[owner] = branches
                self._memory.put(key, entry)

    def keep_reply(
        self, key: Key, owner: str, dialect: str, parsed: ParsedRequest, reply: HeldReply, came: float
    ) -> None:
        """Log the reply to the request that `came` then."""
        digests = tuple(message.digest for message in parsed.conversation.messages)
        branches = self._memory.of(key).branches.get(owner, ())
        branch = next((branch for branch in branches if branch.digests == digests), None)
        if branch is not None and reply.size:
            make = partial(asyncio.to_thread, self._entries.of_reply, self._about(owner, dialect, came), branch, reply)
            self.queue.put(key, reply.size, _once(make), partial(self._give_up, key))

    def _about(self, owner: str, dialect: str, came: float) -> _About:
        return {"owner": owner, "dialect": dialect, "at": self._services.clock(), "came": came}

    def _give_up(self, key: Key) -> None:
        """Texts that wait need those before them, so give them up, too: all comes with the next request."""
        self.queue.forget(key.tenant, key.conversation)
        self._memory.of(key).branches.clear()


class LogEntries:
    """Makes the entries of requests and replies, behind them."""

    def __init__(self, services: StoreAccess, limit: int) -> None:
        self._services, self._limit = services, limit

    def fits(self, raw: bytes) -> bool:
        """True where it can be stored at all; what is longer than a log would drive out all the rest."""
        if len(raw) > self._limit:
            self._services.telemetry.metrics.store_trouble("history_large")
        return len(raw) <= self._limit

    def name(self, owner: str, last: str, role: str, content: bytes) -> str:
        place = f"log\0{owner}\0{last}\0{role}\0".encode("utf-8", "surrogatepass")
        return hmac.digest(self._services.secret, place + content, "sha256").hex()[:32]

    async def of_request(self, arrival: _Arrival) -> Sequence[StoredText]:
        """The entries of a request that the store has not. Raises StoreTrouble."""
        trail = arrival.branch.trail
        trail.begin([message.name for message in arrival.branch.messages])
        rows = () if trail.is_read else await self._services.store.list_texts(arrival.key, MESSAGES)
        messages, versions, replies = await asyncio.to_thread(self._read, arrival, rows)
        if surplus := [*replies, *self._aged(versions.values(), trail.versions)]:
            await self._services.store.delete_texts(arrival.key, MESSAGES, surplus)
        beside = [text for text in versions.values() if text.name not in trail.versions.places]
        entries = [await self._sent(arrival, arrival.sent, versions)] if arrival.sent is not None else []
        if not all(self.fits(raw_of(text.text)) for text in entries):
            trail.sent, entries = SentTrail(), []
        trail.versions.places.update((text.name, trail.versions.size) for text in beside)
        trail.versions.size += sum(len(text.text) for text in (*beside, *messages, *entries))
        return [*beside, *messages, *entries]

    def _aged(self, wanted: Iterable[StoredText], versions: _Versions) -> Sequence[str]:
        """Versions to be stored anew: the oldest entries go where a log is full, and each request needs its tools."""
        size = versions.size
        versions.places = {name: at for name, at in versions.places.items() if at > size - self._limit}  # others went
        aged = [text.name for text in wanted if versions.places.get(text.name, size) < size - self._limit // 2]
        for name in aged:
            del versions.places[name]
        return aged

    def _read(
        self, arrival: _Arrival, rows: Sequence[StoredText]
    ) -> tuple[Sequence[StoredText], Mapping[str, StoredText], Sequence[str]]:
        """The messages that are to be stored, what stands beside them, and the names of replies that came back."""
        trail, messages, replies = arrival.branch.trail, self._messages(arrival), [*self._returned(arrival)]
        if not trail.is_read:
            trail.is_read = True
            # nobody knows how old they are: a quarter of a log on they are stored anew
            at = trail.versions.size - self._limit // 4
            trail.versions.places.update((text.name, at) for text in rows if int(text.about["index"]) < 0)
            names = {text.name for text in rows}
            replies = [name for name in replies if name in names]
            # what comes before a message that was logged was logged too, though it may have gone since
            last = max((at for at, text in enumerate(messages) if text.name in names), default=-1)
            messages = messages[last + 1 :]
        names = {text.name for text in messages}
        for logged, message in zip(arrival.branch.messages, arrival.parsed.conversation.messages, strict=True):
            if logged.name in names:
                trail.raws[logged.name] = message.raw
        return messages, self._versions(arrival), replies

    def _returned(self, arrival: _Arrival) -> Iterator[str]:
        """The names that replies which this request brings back have until it does. Others may have logged them."""
        conversation, owner = arrival.parsed.conversation, str(arrival.about["owner"])
        first = arrival.new[0] if arrival.new else len(conversation.messages)
        for step in reversed(range(conversation.steps - 1)):
            reply = conversation.reply(step)
            if reply.start < first:
                return
            digest = digest_of(conversation.messages[reply.start : reply.stop])
            before = arrival.branch.messages[reply.start].parent
            yield from (self._reply_name(owner, before, digest, at) for at in range(len(reply) + _UNRETURNED))

    def _messages(self, arrival: _Arrival) -> list[StoredText]:
        texts = []
        for at in arrival.new:
            message, logged = arrival.parsed.conversation.messages[at], arrival.branch.messages[at]
            place: _About = {"index": at, "parent": logged.parent, "role": message.role[:_LONGEST]}
            text = text_of(arrival.parsed.request.raw(at))
            texts.append(StoredText(logged.name, text, {**arrival.about, **place, "digest": short_digest(message)}))
        return texts

    def _versions(self, arrival: _Arrival) -> Mapping[str, StoredText]:
        """Leading text, tools, and the frame of the request with its parameters, as far as there are any."""
        request, owner = arrival.parsed.request, str(arrival.about["owner"])
        frame = as_json(frame_of(request))
        raws = {"lead": request.instructions, "tools": request.tool_list, "frame": frame}
        texts = {}
        for role, raw in raws.items():
            if raw and self.fits(raw):
                shows_as = "system" if role == "lead" else role
                place: _About = {"index": sent_requests.BESIDE[role], "parent": "", "role": shows_as}
                texts[role] = StoredText(self.name(owner, "", role, raw), text_of(raw), {**arrival.about, **place})
        return texts

    async def _sent(self, arrival: _Arrival, body: bytes, versions: Mapping[str, StoredText]) -> StoredText:
        """The entry of what was sent. Raises StoreTrouble."""
        branch, trail, received = arrival.branch, arrival.branch.trail, arrival.parsed.request
        names = [message.name for message in branch.messages]
        dialect = str(arrival.about["dialect"])
        request_body = await asyncio.to_thread(sent_requests.read_body, dialect, body, received, names, trail.sent)
        raws = [message.raw for message in arrival.parsed.conversation.messages]
        # a client that moves its cache marks writes a message otherwise than it was logged
        others = [name for name, raw in zip(names, raws, strict=True) if trail.raws.get(name) != raw]
        others = [*set(others).intersection(names[request_body.newest + 1 :])]
        texts = await self._services.store.texts(arrival.key, MESSAGES, others)
        before = trail.sent.entry if request_body.common else ""
        text = await asyncio.to_thread(_entry, arrival, request_body, names, versions, texts)
        place: _About = {"index": sent_requests.BESIDE["request"], "parent": branch.last, "role": "request"}
        step = {"number": arrival.parsed.conversation.steps, "round": trail.sent.round}
        about = {**arrival.about, **place, **step, "sent": request_body.digest, "before": before}
        trail.sent.entry = self.name(str(about["owner"]), trail.sent.entry, "request", repr(about).encode())
        return StoredText(trail.sent.entry, text, about)

    def of_reply(self, about: _About, branch: LogBranch, reply: HeldReply) -> Sequence[StoredText]:
        dialect, last, texts = str(about["dialect"]), branch.last, []
        raws = DIALECTS[dialect].messages_in(reply.content)
        messages = [DIALECTS[dialect].read(raw, len) for raw in raws]
        digest = digest_of(messages)
        for at, (raw, message) in enumerate(zip(raws, messages, strict=True), len(branch.messages)):
            name = self._reply_name(str(about["owner"]), branch.last, digest, at - len(branch.messages))
            place: _About = {
                "index": at,
                "parent": last,
                "role": message.role[:_LONGEST],
                "digest": short_digest(message),
            }
            texts.append(StoredText(name, text_of(raw), {**about, **place, "reply": digest, "after": branch.last}))
            last = name
        name = self.name(str(about["owner"]), branch.last, "end", repr(about["came"]).encode())
        end: _About = {"index": sent_requests.BESIDE["end"], "parent": branch.last, "role": "end"}
        texts.append(StoredText(name, "", {**about, **end}))
        return texts if sum(len(text.text) for text in texts) <= self._limit else texts[-1:]

    def _reply_name(self, owner: str, before: str, digest: str, at: int) -> str:
        return self.name(owner, before, "reply", f"{digest}\0{at}".encode())


def _entry(
    arrival: _Arrival,
    request_body: SentBody,
    names: Sequence[str],
    versions: Mapping[str, StoredText],
    rows: Mapping[str, str],
) -> str:
    """The text of the entry of what was sent, from the messages as they are logged."""
    trail, request = arrival.branch.trail, arrival.parsed.request
    for name, text in rows.items():
        trail.raws[name] = sha256(raw_of(text)).digest()
    texts: dict[int, bytes] = {}
    for at in range(request_body.newest + 1, len(names)):
        if names[at] in rows:
            texts[at] = raw_of(rows[names[at]])
        elif trail.raws.get(names[at]) == arrival.parsed.conversation.messages[at].raw:
            texts[at] = request.raw(at)
    texts |= {TOOLS: request.tool_list} if "tools" in versions else {}
    texts |= {LEAD: request.instructions} if "lead" in versions else {}
    texts |= rest_in(frame_of(request)) if "frame" in versions else {}
    trail.sent.round = trail.sent.round + 1 if arrival.is_round else 0
    beside = {role: text.name for role, text in versions.items()}
    return sent_requests.entry_of(request_body, texts, names, beside, trail.sent)


def _once(make: Callable[[], Awaitable[Sequence[StoredText]]]) -> Callable[[], Awaitable[Sequence[StoredText]]]:
    """Texts are made once, also where the store takes them only the second time."""
    texts: list[Sequence[StoredText]] = []

    async def made_once() -> Sequence[StoredText]:
        if not texts:
            texts.append(await make())
        return texts[0]

    return made_once

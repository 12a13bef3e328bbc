"""The shared store: Redis or Valkey, one server, Sentinel or a cluster. `redis_url` says how they are named.

Laws
  Each operation is one round trip; only what nobody can read costs a second one, and what people ask for (an original
  of any conversation, to forget) a few.
  A conversation lives in keys of one hash tag, and so in one slot: `steps`, a hash with fields for each step, `ages`,
  when they were last used, and `originals`. A request loads the fields of its own path and no others, however many
  share the conversation's name. Steps that are not used for the time to live go, and so does the whole.
  The indexes (a tenant's conversations, the tenants, the conversations that keep an original) are sorted by last write.
  They stand in other slots, are written in the same trip, and hold nothing that a request needs.
  Names in keys are digests: what a client writes cannot forge a key, and keys tell nothing.
"""

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain, islice
from typing import Any, ParamSpec, TypeVar

from policies.context import Memory, StepRecord
from policies.edits import Insert
from proxy.store import INSERTS, Key, StoreTrouble, records
from proxy.store import redis_scripts as lua
from proxy.store.redis_link import Link
from proxy.store.redis_scripts import Argument, Command
from proxy.store.redis_url import Address, address

_AT_ONCE = 200
"""Originals or conversations in one trip."""
_ENTRY = re.compile(rb"(\d{1,9}):(\d{1,9}):")

P = ParamSpec("P")
T = TypeVar("T")


def from_url(url: str, *, patience: float = 0.05) -> "RedisStore":
    """See `redis_url`. Raises ValueError."""
    return RedisStore(address(url), patience=patience)


@dataclass(frozen=True, slots=True)
class _Place:
    """The keys of a conversation."""

    steps: str
    ages: str
    originals: str

    @property
    def keys(self) -> tuple[str, str, str]:
        return self.steps, self.ages, self.originals


class RedisStore:
    """A Store in Redis; see the contract for what each method promises."""

    def __init__(self, where: Address, *, patience: float = 0.05, clock: Callable[[], float] = time.time) -> None:
        self._prefix = where.prefix
        self._ttl = where.ttl
        self._clock = clock
        self._link = Link(where, patience)
        self._unreadable = 0

    @property
    def misses(self) -> int:
        return self._unreadable + self._link.misses

    async def open(self) -> None:
        await self._link.open(self._probe)

    async def close(self) -> None:
        await self._link.close()

    async def ready(self) -> bool:
        try:
            await self._link.trip(self._probe)
        except StoreTrouble:
            return False
        return True

    async def memory(self, key: Key, anchors: Sequence[str]) -> Memory:
        if not anchors:
            return Memory()
        place = self._place(*_names(key))
        asked = lua.framed([_name(anchor) for anchor in anchors])
        ((lengths, found),) = await self._link.trip(lua.READ.on((place.steps, place.ages), self._clock(), *asked))
        steps: dict[str, StepRecord] = {}
        inserts: dict[str, tuple[Insert, ...]] = {}
        for number, (decision, sent, at, behind) in lua.fields(lengths, found):
            anchor = anchors[number]
            if decision is not None and (record := self._read(anchor, decision, sent, at)) is not None:
                steps[anchor] = record
            if behind is not None and (replies := self._inserts(anchor, behind)):
                inserts[anchor] = replies
        return Memory(steps, inserts)

    async def remember(self, key: Key, record: StepRecord) -> None:
        await self.claim(key, record)

    async def claim(self, key: Key, record: StepRecord) -> StepRecord:
        row = await self._keep(key, record)
        won = self._read(record.anchor, *row)
        if won is None:  # nobody can follow what nobody can read: the next writer is the first
            steps = self._place(*_names(key)).steps
            decision = records.decision_bytes(record)
            await self._link.trip(lua.MEND.on([steps], b"d" + _name(record.anchor), row[0], decision))
            won = self._read(record.anchor, *await self._keep(key, record))
        return won or record

    async def insert(self, key: Key, insert: Insert) -> None:
        content = (_name(insert.after), _name(insert.reply), records.insert_bytes(insert), INSERTS)
        await self._write(key, lua.INSERT, *content)

    async def keep_originals(self, key: Key, originals: Mapping[str, str]) -> None:
        tenant, name = _names(key)
        steps, ages, texts = self._place(tenant, name).keys
        rows = ((_name(ref), records.original_bytes(ref, text)) for ref, text in originals.items())
        for some in _some(rows):
            keep = lua.KEEP_ORIGINALS.on((texts, steps, ages), self._ttl, *chain.from_iterable(some))
            index = [self._note(self._ref(tenant, ref), name) for ref, _ in some]
            others, *_ = await self._link.trip(keep, *self._noted(tenant, name), *index)
            new = dict(some)
            spoilt = [(ref, there) for ref, there in others if not records.is_original(there)]
            self._unreadable += len(spoilt)
            await self._several(lua.MEND.on([texts], ref, there, new[ref]) for ref, there in spoilt)

    async def original(self, tenant: str, ref: str, conversation: str | None) -> Mapping[str, str]:
        owner, text = _name(tenant), _name(ref)
        if conversation is None:
            (names,) = await self._link.trip(("ZRANGE", self._ref(owner, text), 0, -1))
        else:
            names = [_name(conversation)]
        rows = await self._several(("HGET", self._place(owner, name).originals, text) for name in names)
        found = (self._readable(_original, ref, name, row) for name, row in zip(names, rows, strict=True))
        return dict(kept for kept in found if kept is not None)

    async def delete(self, key: Key) -> int:
        tenant, name = _names(key)
        return await self._forget(tenant, [name])

    async def delete_tenant(self, tenant: str) -> int:
        owner = _name(tenant)
        gone = await self._forget_all(owner, ("ZRANGE", self._tenant(owner), 0, _AT_ONCE - 1))
        await self._link.trip(("ZREM", self._tenants, owner))
        return gone

    async def sweep(self, older_than: float) -> int:
        (tenants,) = await self._link.trip(("ZRANGE", self._tenants, 0, -1))
        old = ("-inf", f"({older_than}", "LIMIT", 0, _AT_ONCE)
        return sum(
            [await self._forget_all(tenant, ("ZRANGEBYSCORE", self._tenant(tenant), *old)) for tenant in tenants]
        )

    async def secret(self, name: str) -> bytes:
        made = lua.MADE_ONCE.on([f"{self._prefix}:secret:{name}"], secrets.token_bytes(32))
        (value,) = await self._link.trip(made)
        assert isinstance(value, bytes)
        return value

    async def _keep(self, key: Key, record: StepRecord) -> list[Any]:
        """Write what is not there; the row as it then stands."""
        decision, sent = records.decision_bytes(record), records.sent_bytes(record.sent)
        row: list[Any] = await self._write(key, lua.KEEP, _name(record.anchor), decision, sent or b"", record.at)
        return row

    async def _write(self, key: Key, script: lua.Script, *arguments: Argument) -> Any:
        """A script on the conversation, and the note of it in the indexes."""
        tenant, name = _names(key)
        written = script.on(self._place(tenant, name).keys, self._ttl, self._clock(), *arguments)
        return (await self._link.trip(written, *self._noted(tenant, name)))[0]

    def _noted(self, tenant: bytes, name: bytes) -> tuple[Command, Command]:
        return self._note(self._tenant(tenant), name), self._note(self._tenants, tenant)

    def _note(self, index: str, member: bytes) -> Command:
        return lua.NOTE.on([index], self._ttl, self._clock(), member)

    async def _forget_all(self, tenant: bytes, question: Command) -> int:
        """What the question names, until it names nothing."""
        gone = 0
        while names := (await self._link.trip(question))[0]:
            gone += await self._forget(tenant, names)
        return gone

    async def _forget(self, tenant: bytes, names: Sequence[bytes]) -> int:
        """The indexes before the conversations: who writes meanwhile is found again."""
        places = [self._place(tenant, name) for name in names]
        refs = await self._link.trip(*(("HKEYS", place.originals) for place in places))
        named = ((name, ref) for name, kept in zip(names, refs, strict=True) for ref in kept)
        await self._several(("ZREM", self._ref(tenant, ref), name) for name, ref in named)
        await self._link.trip(("ZREM", self._tenant(tenant), *names))
        gone = await self._link.trip(*(("UNLINK", *place.keys) for place in places))
        return sum(map(bool, gone))

    async def _several(self, commands: Iterator[Command]) -> list[Any]:
        """As many trips as they need."""
        return [reply for some in _some(commands) for reply in await self._link.trip(*some)]

    def _read(self, anchor: str, decision: object, sent: object, at: object) -> StepRecord | None:
        """The record of a step, or what can be read of it; what cannot is a miss."""
        decided = self._readable(records.decision, anchor, decision)
        if decided is None:
            return None
        when = self._readable(_seconds, at)
        return replace(decided, sent=self._readable(records.sent, sent), at=when or 0.0)

    def _inserts(self, anchor: str, stored: bytes) -> tuple[Insert, ...]:
        """What stands behind the replies to a step; what cannot be read is a miss."""
        found, at = [], 0
        while at < len(stored):
            entry = _ENTRY.match(stored, at)
            if entry is None:
                self._unreadable += 1
                break
            start = entry.end() + int(entry[1])
            at = start + int(entry[2])
            found.append(self._readable(records.insert, anchor, stored[start:at]))
        return tuple(insert for insert in found if insert is not None)

    def _readable(self, read: Callable[P, T | None], *stored: P.args, **more: P.kwargs) -> T | None:
        """What `read` makes of it; what is not there is nothing, and what cannot be read is a miss."""
        if stored[-1] is None:
            return None
        try:
            return read(*stored, **more)
        except (records.UnreadableError, UnicodeDecodeError):
            self._unreadable += 1
            return None

    @property
    def _probe(self) -> Command:
        """Fails where nothing can be written."""
        return "SET", f"{self._prefix}:ready", 1, "PX", 60_000

    @property
    def _tenants(self) -> str:
        return f"{self._prefix}:tenants"

    def _tenant(self, tenant: bytes) -> str:
        return f"{self._prefix}:{{{_digest(tenant)}}}:conversations"

    def _ref(self, tenant: bytes, ref: bytes) -> str:
        return f"{self._prefix}:{{{_digest(tenant, b'ref', ref)}}}:kept"

    def _place(self, tenant: bytes, name: bytes) -> _Place:
        tag = f"{self._prefix}:{{{_digest(tenant, name)}}}"
        return _Place(f"{tag}:steps", f"{tag}:ages", f"{tag}:originals")


def _name(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _names(key: Key) -> tuple[bytes, bytes]:
    return _name(key.tenant), _name(key.conversation)


def _original(ref: str, name: bytes, content: object) -> tuple[str, str]:
    """A conversation, and the text that it keeps. Raises UnreadableError, UnicodeDecodeError."""
    return name.decode("utf-8", "surrogatepass"), records.original(ref, content)


def _digest(*names: bytes) -> str:
    """One for each sequence of names, whatever stands in them."""
    return sha256(b"".join(b"%d:%s" % (len(name), name) for name in names)).hexdigest()[:32]


def _seconds(stored: object) -> float:
    """Raises UnreadableError."""
    try:
        return float(str(stored, "ascii")) if isinstance(stored, bytes) else 0.0
    except ValueError as error:
        raise records.UnreadableError("it is no time") from error


def _some(rows: Iterator[T]) -> Iterator[list[T]]:
    """A few of them, again and again."""
    return iter(lambda: list(islice(rows, _AT_ONCE)), [])

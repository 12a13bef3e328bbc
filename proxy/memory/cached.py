"""The store as requests use it: asked where this process does not remember a history, and written behind requests.

Laws
  A history that was served here is continued without a round trip. Any other asks the store for the newest snapshot of
  it, and for the steps on its own path; a first request asks for nothing.
  The store has a deadline, and is not asked at all while it is in trouble: requests never wait for it.
  Decisions that follow from the history are written behind the request, those of several requests together; here they
  are read as if they were written. Those that do not follow from it are claimed: written before their bytes are sent.
  Where other processes serve the same conversations, a reply waits until what was decided for it is stored, or late.
  Snapshots are taken as often as a history has grown by so much that another process would feel it.
  No request fails by a write behind it. Writes happen in the order in which they came: one by one, or those in a row
  that can be made together at once. What meets trouble is tried again after a pause.
  The writes that wait are bounded; those of a forgotten (deleted) conversation are not made any more.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice, takewhile
from operator import methodcaller
from time import monotonic
from typing import Any, TypeVar

from policies.model.conversation import Conversation
from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import SummaryRecord
from policies.money.prices import Prices
from policies.planning.prefix import untouched
from policies.planning.state import PlanState
from proxy.memory import DEADLINE, UNTOUCHED, Key, Snapshot, Store, StoreTrouble, snapshots
from proxy.memory.breaker import GuardedStore
from proxy.memory.conversation import STEPS, Conversations, Inserts, LiveConversation, Place, SentStep, fits, put_newest
from proxy.memory.forgetting import ForgetRegistry
from proxy.telemetry import Telemetry

# --- the queue of writes behind the requests ---


_PAUSE = 5.0
"""Seconds between two tries."""
_LAST_SECONDS = 2.0
_TOGETHER = 64
"""Writes that are made at once."""


@dataclass(slots=True, eq=False)
class PendingWrite:
    """A write that waits. `write` raises StoreTrouble where it should be tried again; a write of several parts asks
    `is_forgotten` before each of them."""

    key: Key
    write: Callable[[Any], Awaitable[None]]
    size: int = 1
    on_give_up: Callable[[], None] = lambda: None
    """Called where the last try has failed."""
    record: object = None
    """The record that `write` writes, where it makes several writes together."""
    together: bool = False
    """True where `write` takes a list: this write and those right behind it that have the same `write`."""
    without_conversation: Callable[[Any], object] | None = None
    """The part of `record` that is written all the same where its conversation is deleted, though not its tenant."""
    name: str = ""
    """Of writes of one conversation that follow each other and have this same name, only the newest is made."""
    end: asyncio.Future[None] | None = None
    """Is over once it is made, where a request waits for that."""
    is_forgotten: bool = False
    is_begun: bool = False
    failures: int = 0


@dataclass(eq=False)
class WriteBehindQueue:
    """Holds at most `limit` writes, and `size_limit` of their sizes, though always one write."""

    telemetry: Telemetry
    _: KW_ONLY
    limit: int
    size_limit: float = math.inf
    tries: int | None = 2
    """After how many failures a write is given up; None: never."""
    closing_seconds: float | None = None
    trouble: str | None = None
    """The names in metrics of a write that failed, and one that was refused."""
    full: str | None = None
    interval: float = 0.0
    """Seconds from one time that all is written to the next, so that more is written together."""

    def __post_init__(self) -> None:
        self._next = 0.0
        self._pending: deque[PendingWrite] = deque()
        self._by_key: dict[Key, deque[PendingWrite]] = {}
        self._size = 0
        self._writer: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._wake = asyncio.Event()
        self._late: asyncio.Future[None] | None = None
        """The end of the write that a request has waited for in vain."""

    def put(self, pending: PendingWrite) -> bool:
        """True where it will be written: not where there is no room, nor once the queue is closed."""
        is_full = len(self._pending) >= self.limit or self._size + pending.size > self.size_limit
        if self._closing.is_set() or (self._size and is_full):
            if self.full is not None:
                self.telemetry.metrics.store_trouble(self.full)
            return False
        last = next(reversed(self._by_key.get(pending.key, ())), None)
        if last is not None and pending.name and last.name == pending.name and not (last.is_begun or last.is_forgotten):
            last.record = pending.record
            return True
        self._pending.append(pending)
        self._by_key.setdefault(pending.key, deque()).append(pending)
        self._size += pending.size
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())
        return True

    def waiting(self, key: Key) -> Sequence[PendingWrite]:
        """The writes that still wait of a conversation, the oldest first, and what of it is forgotten."""
        return tuple(self._by_key.get(key, ()))

    def forget(self, tenant: str, conversation: str | None = None) -> None:
        """Do not write what waits of a conversation, or of a whole tenant."""
        for pending in self._pending:
            if pending.key.tenant == tenant and conversation in (None, pending.key.conversation):
                if conversation is None or pending.without_conversation is None:
                    pending.is_forgotten = True
                else:
                    pending.record = pending.without_conversation(pending.record)

    def hurry(self) -> None:
        """Make the next write now."""
        self._wake.set()

    async def settle(self, key: Key, seconds: float) -> None:
        """Make now what waits of a conversation and has a record, and wait for that, for so many seconds at most."""
        newest = next((each for each in reversed(self._by_key.get(key, ())) if each.record is not None), None)
        if newest is None or (self._late is not None and not self._late.done()):
            return
        self.hurry()
        end = newest.end = newest.end or asyncio.get_running_loop().create_future()
        await asyncio.wait([end], timeout=seconds)
        self._late = None if end.done() else end

    async def close(self) -> int:
        """Write what waits, for a few seconds at most. Returns how many writes were lost."""
        self._closing.set()
        self._wake.set()
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=self.closing_seconds or _LAST_SECONDS)
            self._writer.cancel()
            with suppress(asyncio.CancelledError):
                await self._writer
        lost = len(self._pending)
        self._pending.clear()
        self._by_key.clear()
        return lost

    async def _write_all(self) -> None:
        loop, due = asyncio.get_running_loop(), 0
        while self._pending:
            if due <= 0 and self.interval:
                await self._wait(self._next - loop.time())
                self._next, due = loop.time() + self.interval, len(self._pending)
            row = self._row()
            for pending in row:
                pending.is_begun = True
            try:
                if left := [pending for pending in row if not pending.is_forgotten]:
                    await left[0].write(left if left[0].together else left[0])
            except StoreTrouble as error:
                if self.trouble is not None:
                    self.telemetry.metrics.store_trouble(self.trouble)
                row[0].failures += 1
                if row[0].failures > 1:  # once is only a busy disk
                    self.telemetry.write_trouble(str(error))
                if row[0].failures != self.tries:
                    if self._closing.is_set() and (self.closing_seconds or _LAST_SECONDS) <= _PAUSE:
                        return  # there is no time for another try
                    await self._pause()
                    continue
                row[0].on_give_up()
            except Exception as error:  # one write is no reason to stop all others
                self.telemetry.log.error("write_failed", exc_info=error)
            due -= len(row)
            for pending in row:
                if pending.end is not None:
                    pending.end.set_result(None)
                self._pending.popleft()
                self._size -= pending.size
                self._by_key[pending.key].popleft()
                if not self._by_key[pending.key]:
                    del self._by_key[pending.key]

    def _row(self) -> Sequence[PendingWrite]:
        """The writes that are to be made next."""
        first = self._pending[0]
        same = takewhile(lambda each: each.together and each.write == first.write, self._pending)
        return list(islice(same, _TOGETHER)) or [first]

    async def _pause(self) -> None:
        """Wait before the next try; closing ends the wait, so that there is a last one."""
        if self._closing.is_set():
            await asyncio.sleep(_PAUSE)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE):
                await self._closing.wait()

    async def _wait(self, seconds: float) -> None:
        """Wait, at most until it is closed or has to hurry."""
        if seconds > 0 and not self._closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        self._wake.clear()


# --- look-ups ---


_PATIENCE = 0.05
"""Seconds that a request waits for the store."""
_PENDING = 4096
"""Writes that may wait; beyond it they are dropped, and replay makes up for them."""
_CLOSING_SECONDS = 5.0
_INTERVAL = 0.05
"""Seconds from one write behind requests to the next: those between are made together."""

NEAR_SECONDS = 600.0
"""How long summaries are remembered, so that one that was deleted in another replica goes out of use here."""
_OWNER_SECONDS = 6 * 3_600.0
"""After how long an owner is written to the store again."""
_SUMMARIES, _OWNERS = 32, 1_024
"""Beginnings with their summaries, and owners, that are remembered of one conversation."""
_AT_ONCE = 512
"""Steps that the store is asked for in one round trip."""
_SNAPSHOT_STEPS, _SNAPSHOT_TOKENS = 4, 8_000
"""After so many steps, or so many tokens in one of them, a snapshot is taken; a history is small below those tokens."""
_SNAPSHOT_REACH = 64
"""How many steps back a snapshot is looked for."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreLookup:
    """The answers of the store, and the anchors for which it was asked."""

    memory: Memory = field(default_factory=Memory)
    anchors: frozenset[str] = frozenset()
    complete: bool = True
    """True where the store could answer every question."""


NO_LOOKUP = StoreLookup()


@dataclass(eq=False)
class CachedStore:
    """Looks up what was decided for each history, and claims what cannot be derived. What is in `conversations` counts
    as read; what waits in `writes` as written."""

    store: Store
    telemetry: Telemetry
    forgets: ForgetRegistry
    conversations: Conversations
    patience: float | None = None
    """Seconds that a request waits for the store, instead of the default."""
    is_shared: bool = False
    """True where other processes serve the same conversations."""

    def __post_init__(self) -> None:
        self._guarded = GuardedStore(self.store, self.telemetry, "store")
        self.announcements = self.store.announcements
        more: dict[str, Any] = {"closing_seconds": _CLOSING_SECONDS, "full": "queue_full", "interval": _INTERVAL}
        self.writes = WriteBehindQueue(self.telemetry, limit=_PENDING, tries=None, **more)
        self.forgets.register(self.writes.forget)

    # The look-up of one request: exchanges(), then history() with what the store has answered so far.

    async def exchanges(
        self, live: LiveConversation, dialect: str, conversation: Conversation
    ) -> tuple[Inserts, StoreLookup]:
        """The recall exchanges behind the replies of this history, and what the store answered if it was asked. An
        exchange that was had in another API can only be put back in that one."""
        last = conversation.steps - 1
        near = live.exchanges_of(dialect, conversation, self.announcements.foreign())
        if near is not None:
            return near, NO_LOOKUP
        lookup = await self.look_up(live.key, _anchors(conversation, range(last + 1)))
        if not lookup.complete:  # what this process has put back before is put back again
            some = live.exchanges.get((dialect, conversation.end_anchor(last - 1), ""), {})
            ours = {after: tuple(inserts) for after, inserts in some.items()}
            lookup = replace(lookup, memory=replace(lookup.memory, inserts={**ours, **lookup.memory.inserts}))
        now = conversation.end_anchor(last)  # this very request may have had a reply before
        inserts = {
            after: tuple(insert for insert in some if insert.dialect == dialect)
            for after, some in lookup.memory.inserts.items()
            if after != now
        }
        return {after: some for after, some in inserts.items() if some}, lookup

    async def history(
        self, live: LiveConversation, fingerprint: str, conversation: Conversation, lookup: StoreLookup, prices: Prices
    ) -> tuple[PlanState | None, Memory]:
        """The newest plan state of this history that is remembered or stored, and the records from that step on.
        `fingerprint`: of the configuration that plans; `prices`: those in it."""
        key, last = live.key, conversation.steps - 1
        here = live.newest_planned(fingerprint, conversation, prices)
        again = live.steps.get((fingerprint, conversation.end_anchor(last)))
        near = {step.record.anchor: step.record for step in (here, again) if step is not None and step.record}
        shed = {anchor: step.record for anchor, step in live.sent.items() if step.record.shed}
        if not last:
            return None, Memory({**shed, **near})
        state = await self._snapshot(live, fingerprint, conversation, prices) if here is None else here.plan_state
        first = 0 if state is None else state.step - 1
        sent = live.sent.get(conversation.end_anchor(last - 1))
        is_unknown = here is not None and here.record is None and sent is None  # planned here, sent by another process
        if here is None or first < last - 1 or is_unknown:
            lookup = await self.look_up(key, _anchors(conversation, range(first, last + 1)), lookup)
        elif here.plan_state.wants:  # what was wanted may be there by now, or adopted elsewhere
            lookup = await self.look_up(key, _anchors(conversation, range(last, last + 1)), lookup)
        ours = {} if sent is None else {sent.record.anchor: sent.record}
        steps = {**shed, **ours, **lookup.memory.steps, **(near if here is not None else {})}
        return state, Memory(steps, summaries=_summaries_in(live, conversation, lookup))

    async def _snapshot(
        self, live: LiveConversation, fingerprint: str, conversation: Conversation, prices: Prices
    ) -> PlanState | None:
        """The state of this history that another process has stored last."""
        if conversation.steps <= _SNAPSHOT_STEPS:
            return None
        reach = range(max(0, conversation.steps - 1 - _SNAPSHOT_REACH), conversation.steps - 1)
        anchors = [conversation.end_anchor(step) for step in reach]
        try:
            snapshot = await self.ask("snapshot", methodcaller("snapshot", live.key, fingerprint, anchors))
        except StoreTrouble:
            return None
        state = None if snapshot is None else snapshots.unpacked(snapshot.state, prices)
        if snapshot is None or state is None or not fits(state, conversation, snapshot.anchor):
            return None
        _add_snapshot(live, (fingerprint, snapshot.anchor), state)
        return state

    async def summaries(self, key: Key, conversation: Conversation) -> tuple[SummaryRecord, ...]:
        """The summaries of this history, as the store has them now."""
        lookup = await self.look_up(key, [conversation.beginning])
        return _summaries_in(self.conversations.of(key), conversation, lookup)

    async def claim(self, key: Key, record: StepRecord) -> StepRecord | None:
        """Write a decision before its bytes are sent. The record that counts, the first; None: the store is away."""
        try:
            return await self.ask("claim", lambda store: store.claim(key, record))
        except StoreTrouble:
            return None

    async def supersede(self, key: Key, record: StepRecord) -> None:
        """Write a decision before its bytes are sent, in the place of one whose request was refused."""
        with suppress(StoreTrouble):  # it is written behind the request as well
            await self.ask("supersede", methodcaller("claim", key, record, supersedes=True))

    async def settle(self, key: Key) -> None:
        """Have stored what was decided for a conversation, where another process may serve its next request."""
        if self.is_shared:
            await self.writes.settle(key, self.patience or _PATIENCE)

    async def is_owner(self, key: Key, owner: str) -> bool:
        """True where this owner has sent the conversation before; not where the store cannot say it."""
        live = self.conversations.get(key)
        try:
            is_near = live is not None and monotonic() < live.owners.get(owner, 0.0)
            return is_near or owner in await self.ask("owners", methodcaller("owners", key))
        except StoreTrouble:
            return False

    async def look_up(self, key: Key, anchors: Sequence[str], lookup: StoreLookup = NO_LOOKUP) -> StoreLookup:
        """`lookup`, and what the store has for those anchors that were not asked for yet, or will have once all that
        waits is written; incomplete in trouble."""
        missing = [anchor for anchor in dict.fromkeys(anchors) if anchor not in lookup.anchors]
        steps, inserts, complete = dict(lookup.memory.steps), dict(lookup.memory.inserts), lookup.complete
        summaries = lookup.memory.summaries
        waiting = self.writes.waiting(key)  # before the store answers: what is written meanwhile waits no more
        try:
            for start in range(0, len(missing), _AT_ONCE):
                some = missing[start : start + _AT_ONCE]
                memory = await self.ask("memory", methodcaller("memory", key, some))
                steps.update(memory.steps)
                inserts.update(memory.inserts)
                summaries += memory.summaries
            if UNTOUCHED in missing:
                steps.setdefault(UNTOUCHED, StepRecord(UNTOUCHED))  # it has answered that there is none
        except StoreTrouble:
            complete = False
        _add_waiting(steps, waiting, frozenset(missing))
        return StoreLookup(Memory(steps, inserts, summaries), lookup.anchors.union(missing), complete)

    async def ask(self, operation: str, question: Callable[[Store], Awaitable[T]], *, waits: bool = True) -> T:
        """The store's answer; `waits`: a request waits for it. Raises StoreTrouble where there is none in time."""
        patience = self.patience or _PATIENCE
        return await self._guarded.ask(operation, question, self.patience or DEADLINE, patience if waits else None)

    async def close(self) -> None:
        """Write what is waiting, for a few seconds at most."""
        self._guarded.end_pause()  # for one more try
        lost = await self.writes.close()
        self._guarded.close()
        if lost:
            self.telemetry.log.warning("store_writes_lost", count=lost)


class StoreWriter:
    """Writes behind requests what was decided and sent. Each write is remembered as if it were done."""

    def __init__(self, store: CachedStore) -> None:
        self._store = store

    async def store_exchange(self, key: Key, insert: Insert) -> None:
        """Write an exchange before the client has all of the reply; behind the request where that fails."""
        self._store.announcements.add()
        self._store.writes.hurry()  # others who see the exchange look for what was sent with it
        write = methodcaller("insert", key, insert)
        try:
            await self._store.ask("insert", write)
        except StoreTrouble:
            self._write_behind("insert", key, write)

    def remember(
        self,
        live: LiveConversation,
        fingerprint: str,
        conversation: Conversation,
        plan_state: PlanState | None,
        record: StepRecord,
        *,
        supersedes: bool = False,
    ) -> None:
        """The newest step of a conversation was sent and accepted; `supersedes`: in the place of the one that its
        anchor has. `plan_state`: None where later requests cannot be planned from there."""
        self.note_sent(live, conversation, record)
        if supersedes:
            self._write_behind("supersede", live.key, methodcaller("claim", live.key, record, supersedes=True), record)
        else:
            self.note(live.key, record)
        if plan_state is not None:
            self._take_snapshot(live, (fingerprint, record.anchor), conversation, plan_state)

    def note_sent(
        self, live: LiveConversation, conversation: Conversation, record: StepRecord, *, is_quiet: bool = False
    ) -> None:
        """Note what was sent; where nothing was decided for it, write a digest of it."""
        if is_quiet and record.sent is not None:
            self.note(live.key, StepRecord(UNTOUCHED, sent=untouched(record.sent), at=record.at), UNTOUCHED)
        foreign = self._store.announcements.foreign() if record.recall else None
        live.add_sent(conversation, SentStep(record, foreign))

    def own(self, live: LiveConversation, owner: str) -> None:
        """This owner has sent the conversation: its bills alone do not say so where others send the same."""
        if live.owners.get(owner, 0.0) <= (now := monotonic()):
            put_newest(live.owners, owner, now + _OWNER_SECONDS, _OWNERS)
            self._write_behind("own", live.key, methodcaller("own", live.key, owner))

    def continued(self, live: LiveConversation, fingerprint: str, record: StepRecord, last: StepRecord) -> None:
        """A recall round followed: the request of `record` was asked again within its reply, and that of `last` was
        sent last. The next request is compared with that one, and the provider's cache is as old as that one."""
        if record.sent is None or last.sent is None:
            return
        sent = replace(last.sent, received=record.sent.received, received_digest=record.sent.received_digest)
        record = replace(record, sent=sent, at=last.at)
        live.change_record(fingerprint, record)
        self.note(live.key, record)

    def warmed(self, key: Key, fingerprint: str, record: StepRecord, at: float, *, is_quiet: bool) -> None:
        """The request of a step was sent again, at this time: the provider's cache is as old as that."""
        if record.sent is None:
            return
        record = replace(record, sent=replace(record.sent, warmed_at=at))
        if (live := self._store.conversations.get(key)) is not None:
            live.change_record(fingerprint, record)
        if not is_quiet:  # else none is stored
            self.note(key, record)

    def _take_snapshot(
        self, live: LiveConversation, place: Place, conversation: Conversation, plan_state: PlanState
    ) -> None:
        """Store the state of a history, where it has grown enough since the last time."""
        tokens = plan_state.ledger.original
        if tokens < _SNAPSHOT_TOKENS:
            return
        in_store = (
            (step, before, anchor)
            for (fingerprint, anchor), (step, before) in live.snapshots.items()
            if fingerprint == place[0] and step <= conversation.steps and conversation.end_anchor(step - 1) == anchor
        )
        step, before, former = max(in_store, default=(0, 0, ""))
        is_due = plan_state.step - step >= _SNAPSHOT_STEPS or tokens - before >= _SNAPSHOT_TOKENS
        packed = snapshots.packed(plan_state) if is_due or former == place[1] else None
        if packed is None:
            return
        _add_snapshot(live, place, plan_state, instead_of=former)

        async def write(store: Store) -> None:
            state = await asyncio.to_thread(snapshots.compressed, packed)
            await store.put_snapshot(live.key, Snapshot(place[1], place[0], state), former)

        self._write_behind("snapshot", live.key, write)

    def note(self, key: Key, record: StepRecord, name: str = "") -> None:
        """Write a record, also one of no step: the definitions of tools that a conversation begins with, or the last
        conversation of a beginning."""
        self._store.writes.put(PendingWrite(key, self._remember_all, record=record, together=True, name=name))

    async def _remember_all(self, row: Sequence[PendingWrite]) -> None:
        steps = [(pending.key, pending.record) for pending in row]
        await self._store.ask("remember", methodcaller("remember", steps), waits=False)

    def _write_behind(
        self, operation: str, key: Key, write: Callable[[Store], Awaitable[None]], record: StepRecord | None = None
    ) -> None:
        ask = self._store.ask
        self._store.writes.put(PendingWrite(key, lambda _: ask(operation, write, waits=False), record=record))


def _add_snapshot(live: LiveConversation, place: Place, plan_state: PlanState, instead_of: str = "") -> None:
    """Remember that there is a snapshot of a history in the store."""
    live.snapshots.pop((place[0], instead_of), None)
    put_newest(live.snapshots, place, (plan_state.step, plan_state.ledger.original), STEPS)


def _summaries_in(live: LiveConversation, conversation: Conversation, lookup: StoreLookup) -> tuple[SummaryRecord, ...]:
    """The summaries that were looked up; those looked up before where the store was not asked or did not answer."""
    name, now = conversation.beginning, monotonic()
    if lookup.complete and name in lookup.anchors:
        put_newest(live.summaries, name, (now + NEAR_SECONDS, lookup.memory.summaries), _SUMMARIES)
    until, summaries = live.summaries.get(name, (0.0, ()))
    return summaries if now < until else ()


def _anchors(conversation: Conversation, steps: range) -> list[str]:
    """The anchors that name the records of these steps, and the one that names the history's summaries."""
    ends = [conversation.end_anchor(step) for step in steps]
    return [*filter(None, [conversation.beginning]), UNTOUCHED, *ends]


def _add_waiting(steps: dict[str, StepRecord], waiting: Sequence[PendingWrite], anchors: Collection[str]) -> None:
    """Change records as the store will: the first decision stays, and what was sent last counts."""
    for pending in waiting:
        record = pending.record
        if isinstance(record, StepRecord) and record.anchor in anchors and not pending.is_forgotten:
            first = steps.get(record.anchor) if pending.together else None  # what is not together takes its place
            steps[record.anchor] = replace(first, sent=record.sent, at=max(first.at, record.at)) if first else record

"""The store as requests use it: what this process has served is cached, and what it decides is written behind.

Laws
  A history that was served here is continued without a round trip. Any other asks the store for the newest snapshot of
  it, and for the steps on its own path; a first request asks for nothing.
  The store has a deadline, and is not asked at all while it is in trouble: requests never wait for it.
  Decisions that follow from the history are written behind the request, those of several requests together; here they
  are read as if they were written. Those that do not follow from it are claimed: written before their bytes are sent.
  Where other processes serve the same conversations, a reply waits until what was decided for it is stored, or late.
  Snapshots are taken as often as a history has grown by so much that another process would feel it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import TypeVar

from cachetools import LRUCache, TTLCache

from policies.model.conversation import Conversation
from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import SummaryRecord
from policies.money.prices import Prices
from policies.planning.prefix import untouched
from policies.planning.state import PlanState
from policies.restore import digest_of
from proxy.memory import DEADLINE, UNTOUCHED, DecisionStore, Key, Snapshot, Store, StoreTrouble, snapshots
from proxy.memory.breaker import GuardedStore
from proxy.memory.forgetting import ForgetRegistry
from proxy.memory.served import CachedStep, Place, SentStep, ServedHistories, fits
from proxy.memory.write_behind import PendingWrite, WriteBehindQueue
from proxy.telemetry import Telemetry

_PATIENCE = 0.05
"""Seconds that a request waits for the store."""
_PENDING = 4096
"""Writes that may wait; beyond it they are dropped, and replay makes up for them."""
_CLOSING_SECONDS = 5.0
_INTERVAL = 0.05
"""Seconds from one write behind requests to the next: those between are made together."""

_EXCHANGES_BYTES = 32 * 2**20
_SUMMARIES_BYTES = 32 * 2**20
NEAR_SECONDS = 600.0
"""How long summaries are cached, so that one that was deleted in another replica goes out of use here."""
_OWNERS, _OWNER_SECONDS = 65_536, 6 * 3_600.0
"""Senders of conversations that are remembered, and after how long each is written again."""
_AT_ONCE = 512
"""Steps that the store is asked for in one round trip."""
_SNAPSHOT_STEPS, _SNAPSHOT_TOKENS = 4, 8_000
"""After so many steps, or so many tokens in one of them, a snapshot is taken; a history is small below those tokens."""
_SNAPSHOT_REACH = 64
"""How many steps back a snapshot is looked for."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreLookup:
    """What the store answered, and for which anchors it was asked."""

    memory: Memory = field(default_factory=Memory)
    anchors: frozenset[str] = frozenset()
    complete: bool = True
    """Whether the store could answer every question."""


NO_LOOKUP = StoreLookup()
Inserts = Mapping[str, Sequence[Insert]]
"""Recall exchanges by the anchor of what the client had sent."""


class CachedStore:
    """Looks up, caches and writes what was decided for each history."""

    def __init__(
        self,
        store: Store,
        telemetry: Telemetry,
        forgets: ForgetRegistry,
        patience: float | None = None,
        is_shared: bool = False,
    ) -> None:
        """`patience`: seconds that a request waits for the store, instead of the default; `is_shared`: whether other
        processes serve the same conversations."""
        self._store = GuardedStore(store, telemetry, "store")
        self._announcements: DecisionStore = store
        self._patience = patience
        self._is_shared = is_shared
        self._telemetry = telemetry
        self._writes = WriteBehindQueue(
            telemetry,
            limit=_PENDING,
            tries=None,
            closing_seconds=_CLOSING_SECONDS,
            full="queue_full",
            interval=_INTERVAL,
        )
        self._served = ServedHistories()
        self._exchanges: LRUCache[tuple[Key, str, str, str], Inserts] = LRUCache(_EXCHANGES_BYTES, getsizeof=_weight)
        """By conversation, dialect, anchor of what the client had sent, and digest of the reply to it; with an empty
        digest those of the reply that was given last."""
        self._summaries: TTLCache[tuple[Key, str], tuple[SummaryRecord, ...]] = TTLCache(
            _SUMMARIES_BYTES, NEAR_SECONDS, getsizeof=weight
        )
        """By conversation and the anchor of its beginning."""
        self._owners: TTLCache[tuple[Key, str], bool] = TTLCache(_OWNERS, _OWNER_SECONDS)
        """Who has sent which conversation, and whether that was written."""
        forgets.register(self._writes.forget)
        forgets.register_cache(*self._served.caches, self._exchanges, self._summaries, self._owners)

    # The look-up of one request: exchanges(), then history() with what the store has answered so far.

    async def exchanges(self, key: Key, dialect: str, conversation: Conversation) -> tuple[Inserts, StoreLookup]:
        """The recall exchanges behind the replies of this history, and what the store answered if it was asked. An
        exchange that was had in another API can only be put back in that one."""
        last = conversation.steps - 1
        cached = self.cached_exchanges(key, dialect, conversation)
        if cached is not None:
            return cached, NO_LOOKUP
        lookup = await self.look_up(key, _anchors(conversation, range(last + 1)))
        if not lookup.complete:  # what this process has put back before is put back again
            cached = self._exchanges.get((key, dialect, conversation.end_anchor(last - 1), ""), {})
            ours = {after: tuple(some) for after, some in cached.items()}
            lookup = replace(lookup, memory=replace(lookup.memory, inserts={**ours, **lookup.memory.inserts}))
        now = conversation.end_anchor(last)  # this very request may have had a reply before
        inserts = {
            after: tuple(insert for insert in some if insert.dialect == dialect)
            for after, some in lookup.memory.inserts.items()
            if after != now
        }
        return {after: some for after, some in inserts.items() if some}, lookup

    def cached_exchanges(self, key: Key, dialect: str, conversation: Conversation) -> Inserts | None:
        """The recall exchanges behind the replies of this history, where all of them are cached; None where not."""
        last = conversation.steps - 1
        if not last:
            return {}
        newest = conversation.reply(last - 1)
        digest, anchor = digest_of(conversation.messages[newest.start : newest.stop]), conversation.end_anchor(last - 1)
        cached = self._exchanges.get((key, dialect, anchor, digest))
        if cached is None and self.sent_last(key, anchor):  # the client alters its replies
            cached = self._exchanges.get((key, dialect, anchor, ""))
        return cached

    async def history(
        self, key: Key, fingerprint: str, conversation: Conversation, lookup: StoreLookup, prices: Prices
    ) -> tuple[PlanState | None, Memory]:
        """The newest plan state of this history that is cached or stored, and what is remembered from that step on.
        `fingerprint`: of the configuration that plans; `prices`: those in it."""
        last, here = conversation.steps - 1, self._served.newest_planned(key, fingerprint, conversation, prices)
        again = self._served.planned(key, (fingerprint, conversation.end_anchor(last)))
        cached = {step.record.anchor: step.record for step in (here, again) if step is not None and step.record}
        shed = self._served.shed(key)
        if not last:
            return None, Memory({**shed, **cached})
        state = await self._snapshot(key, fingerprint, conversation, prices) if here is None else here.plan_state
        first = 0 if state is None else state.step - 1
        sent = self._served.sent(key, conversation.end_anchor(last - 1))
        is_unknown = here is not None and here.record is None and sent is None  # planned here, sent by another process
        if here is None or first < last - 1 or is_unknown:
            lookup = await self.look_up(key, _anchors(conversation, range(first, last + 1)), lookup)
        elif here.plan_state.wants:  # what was wanted may be there by now, or adopted elsewhere
            lookup = await self.look_up(key, _anchors(conversation, range(last, last + 1)), lookup)
        ours = {} if sent is None else {sent.record.anchor: sent.record}
        steps = {**shed, **ours, **lookup.memory.steps, **(cached if here is not None else {})}
        return state, Memory(steps, summaries=self._summaries_in(key, conversation, lookup))

    async def _snapshot(
        self, key: Key, fingerprint: str, conversation: Conversation, prices: Prices
    ) -> PlanState | None:
        """The state of this history that another process has stored last."""
        if conversation.steps <= _SNAPSHOT_STEPS:
            return None
        reach = range(max(0, conversation.steps - 1 - _SNAPSHOT_REACH), conversation.steps - 1)
        anchors = [conversation.end_anchor(step) for step in reach]
        try:
            snapshot = await self._ask("snapshot", methodcaller("snapshot", key, fingerprint, anchors))
        except StoreTrouble:
            return None
        state = None if snapshot is None else snapshots.unpacked(snapshot.state, prices)
        if snapshot is None or state is None or not fits(state, conversation, snapshot.anchor):
            return None
        self._served.add_snapshot(key, (fingerprint, snapshot.anchor), state)
        return state

    def newest(self, key: Key) -> StepRecord | None:
        """The last step of the conversation that this process sent, in any branch of its history."""
        return self._served.newest_sent(key)

    def sent_last(self, key: Key, anchor: str) -> bool:
        """Whether this process sent the step that ends at `anchor`, and nobody else has had a recall exchange since: so
        what was sent last is what is cached here, though the store does not say so."""
        sent = self._served.sent(key, anchor)
        return sent is not None and sent.foreign is not None and sent.foreign == self._announcements.foreign_exchanges()

    async def summaries(self, key: Key, conversation: Conversation) -> tuple[SummaryRecord, ...]:
        """The summaries of this history, as the store has them now."""
        return self._summaries_in(key, conversation, await self.look_up(key, [conversation.beginning]))

    async def records(self, key: Key, firsts: Sequence[str]) -> tuple[SummaryRecord, ...]:
        """The summaries and digests for the prompt that begin with one of these anchors, as the store has them now."""
        return (await self.look_up(key, firsts)).memory.summaries

    # What is claimed or stored before bytes go out, and what is written behind the request.

    async def claim(self, key: Key, record: StepRecord) -> StepRecord | None:
        """Write a decision before its bytes are sent. Returns the record that counts, which is the first; None where
        the store does not answer."""
        try:
            return await self._ask("claim", lambda store: store.claim(key, record))
        except StoreTrouble:
            return None

    async def supersede(self, key: Key, record: StepRecord) -> None:
        """Write a decision before its bytes are sent, in the place of one whose request was refused."""
        with suppress(StoreTrouble):  # it is written behind the request as well
            await self._ask("supersede", methodcaller("supersede", key, record))

    async def store_exchange(self, key: Key, insert: Insert) -> None:
        """Write an exchange before the client has all of the reply; behind the request where that fails."""
        self._announcements.announce_exchange()
        self._writes.hurry()  # others who see the exchange look for what was sent with it
        write = methodcaller("insert", key, insert)
        try:
            await self._ask("insert", write)
        except StoreTrouble:
            self._write_behind("insert", key, write)

    def cache_exchanges(
        self, key: Key, dialect: str, after: str, reply: str, inserts: Inserts, *, complete: bool
    ) -> None:
        """The request that ends at `after` got this reply from here, with these exchanges up to and in it; `complete`:
        there is no other."""
        self._exchanges[key, dialect, after, ""] = inserts
        if complete:
            self._exchanges[key, dialect, after, reply] = inserts

    async def settle(self, key: Key) -> None:
        """Have stored what was decided for a conversation, where another process may serve its next request."""
        if self._is_shared:
            await self._writes.settle(key, self._patience or _PATIENCE)

    def planned(
        self, key: Key, fingerprint: str, conversation: Conversation, plan_state: PlanState, record: StepRecord
    ) -> None:
        """Cache how far a conversation was planned, whatever its upstream will say: to plan the same again costs
        nothing."""
        self._served.add_planned(key, (fingerprint, record.anchor), conversation, CachedStep(plan_state, record))

    def remember(
        self,
        key: Key,
        fingerprint: str,
        conversation: Conversation,
        plan_state: PlanState | None,
        record: StepRecord,
        *,
        supersedes: bool = False,
    ) -> None:
        """The newest step of a conversation was sent and accepted: write it behind the request; `supersedes`: in the
        place of the one that its anchor has. `plan_state`: None where later requests cannot be planned from there."""
        self.note_sent(key, conversation, record)
        if supersedes:
            self._write_behind("supersede", key, methodcaller("supersede", key, record), record)
        else:
            self._remember_behind(key, record)
        if plan_state is not None:
            self._take_snapshot(key, (fingerprint, record.anchor), conversation, plan_state)

    def remember_reached(self, key: Key, fingerprint: str, conversation: Conversation, plan_state: PlanState) -> None:
        """Cache how far a history was planned, for requests that extend it from there."""
        self._served.add_reached(key, (fingerprint, conversation.end_anchor(plan_state.step - 1)), plan_state)

    def note_sent(self, key: Key, conversation: Conversation, record: StepRecord, *, is_quiet: bool = False) -> None:
        """Cache what was sent; where nothing was decided for it, write a digest of it behind the request."""
        if is_quiet and record.sent is not None:
            self._remember_behind(key, StepRecord(UNTOUCHED, sent=untouched(record.sent), at=record.at), UNTOUCHED)
        foreign = self._announcements.foreign_exchanges() if record.recall else None
        self._served.add_sent(key, conversation, SentStep(record, foreign))

    def own(self, key: Key, owner: str) -> None:
        """Note behind the request that this owner has sent the conversation: its bills alone do not say so where
        others send the same."""
        if (key, owner) not in self._owners:
            self._owners[key, owner] = True
            self._write_behind("own", key, methodcaller("own", key, owner))

    def owned_here(self, tenant: str, owner: str) -> set[Key]:
        """The conversations that this owner has sent to this process lately: the store may not have them yet."""
        return {key for key, each in list(self._owners) if each == owner and key.tenant == tenant}

    async def is_owner(self, key: Key, owner: str) -> bool:
        """Whether this owner has sent the conversation before; not where the store cannot say it."""
        try:
            return (key, owner) in self._owners or owner in await self._ask("owners", methodcaller("owners", key))
        except StoreTrouble:
            return False

    def sent_before(self, key: Key, conversation: Conversation) -> StepRecord | None:
        """The record of the step before the newest one, where this process sent that."""
        sent = self._served.sent(key, conversation.previous_anchor) if conversation.steps > 1 else None
        return None if sent is None else sent.record

    def continued(self, key: Key, fingerprint: str, record: StepRecord, last: StepRecord) -> None:
        """A recall round followed: the request of `record` was asked again within its reply, and that of `last` was
        sent last. The next request is compared with that one, and the provider's cache is as old as that one."""
        if record.sent is None or last.sent is None:
            return
        sent = replace(last.sent, received=record.sent.received, received_digest=record.sent.received_digest)
        record = replace(record, sent=sent, at=last.at)
        self._served.change_record(key, (fingerprint, record.anchor), record)
        self._remember_behind(key, record)

    async def close(self) -> None:
        """Write what is waiting, for a few seconds at most."""
        self._store.end_pause()  # for one more try
        lost = await self._writes.close()
        self._store.close()
        if lost:
            self._telemetry.log.warning("store_writes_lost", count=lost)

    async def look_up(self, key: Key, anchors: Sequence[str], lookup: StoreLookup = NO_LOOKUP) -> StoreLookup:
        """`lookup`, and what the store has for those anchors that were not asked for yet, or will have once all that
        waits is written; incomplete in trouble."""
        missing = [anchor for anchor in dict.fromkeys(anchors) if anchor not in lookup.anchors]
        steps, inserts, complete = dict(lookup.memory.steps), dict(lookup.memory.inserts), lookup.complete
        summaries = lookup.memory.summaries
        waiting = self._writes.waiting(key)  # before the store answers: what is written meanwhile waits no more
        try:
            for start in range(0, len(missing), _AT_ONCE):
                some = missing[start : start + _AT_ONCE]
                memory = await self._ask("memory", methodcaller("memory", key, some))
                steps.update(memory.steps)
                inserts.update(memory.inserts)
                summaries += memory.summaries
            if UNTOUCHED in missing:
                steps.setdefault(UNTOUCHED, StepRecord(UNTOUCHED))  # it has answered that there is none
        except StoreTrouble:
            complete = False
        _add_waiting(steps, waiting, frozenset(missing))
        return StoreLookup(Memory(steps, inserts, summaries), lookup.anchors.union(missing), complete)

    def _summaries_in(self, key: Key, conversation: Conversation, lookup: StoreLookup) -> tuple[SummaryRecord, ...]:
        """The summaries that were looked up; the cached ones where the store was not asked or did not answer."""
        name = (key, conversation.beginning)
        if lookup.complete and conversation.beginning in lookup.anchors:
            self._summaries[name] = lookup.memory.summaries
        return self._summaries.get(name, ())

    def _remember_behind(self, key: Key, record: StepRecord, name: str = "") -> None:
        self._writes.put(PendingWrite(key, self._remember_all, record=record, together=True, name=name))

    async def _remember_all(self, row: Sequence[PendingWrite]) -> None:
        steps = [(pending.key, pending.record) for pending in row]
        await self._ask("remember", methodcaller("remember", steps), waits=False)

    def _take_snapshot(self, key: Key, place: Place, conversation: Conversation, plan_state: PlanState) -> None:
        """Store the state of a history behind the request, where it has grown enough since the last time."""
        tokens = plan_state.ledger.original
        if tokens < _SNAPSHOT_TOKENS:
            return
        former, step, before = self._served.newest_snapshot(key, place[0], conversation)
        is_due = plan_state.step - step >= _SNAPSHOT_STEPS or tokens - before >= _SNAPSHOT_TOKENS
        packed = snapshots.packed(plan_state) if is_due or former == place[1] else None
        if packed is None:
            return
        self._served.add_snapshot(key, place, plan_state, instead_of=former)

        async def write(store: Store) -> None:
            state = await asyncio.to_thread(snapshots.compressed, packed)
            await store.put_snapshot(key, Snapshot(place[1], place[0], state), former)

        self._write_behind("snapshot", key, write)

    def _write_behind(
        self, operation: str, key: Key, write: Callable[[Store], Awaitable[None]], record: StepRecord | None = None
    ) -> None:
        self._writes.put(PendingWrite(key, lambda _: self._ask(operation, write, waits=False), record=record))

    async def _ask(self, operation: str, question: Callable[[Store], Awaitable[T]], *, waits: bool = True) -> T:
        """The store's answer; `waits`: a request waits for it. Raises StoreTrouble where there is none in time."""
        patience = self._patience or _PATIENCE
        return await self._store.ask(operation, question, self._patience or DEADLINE, patience if waits else None)


def weight(records: tuple[SummaryRecord, ...]) -> int:
    """About what summaries take in memory, in bytes."""
    return 1_000 + sum(1_000 + 4 * len(record.content) + 80 * len(record.sources) for record in records)


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


def _weight(inserts: Inserts) -> int:
    """Bytes in memory, about, and no more than there is room for."""
    rounds = (round_ for some in inserts.values() for insert in some for round_ in insert.rounds)
    return min(_EXCHANGES_BYTES, sum((500 + 4 * len("".join((r.fields, *r.calls))) for r in rounds), 1_000))

"""The store as requests use it: what this process has served is cached, and what it decides is written behind.

Laws
  A history that was served here is continued without a round trip; any other asks the store once, for the steps on its
  own path.
  The store has a deadline, and is not asked at all while it is in trouble: requests never wait for it.
  Decisions that follow from the history are written behind the request. Those that do not are claimed: written before
  their bytes are sent.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import TypeVar

from cachetools import LRUCache, TTLCache

from policies.model.conversation import Conversation
from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.summary_record import SummaryRecord
from policies.planning.state import PlanState
from policies.restore import digest_of
from proxy.store import DecisionStore, Key, Store, StoreTrouble
from proxy.store.breaker import GuardedStore
from proxy.store.forgetting import ForgetRegistry
from proxy.store.write_behind import PendingWrite, WriteBehindQueue
from proxy.telemetry import Telemetry

_PATIENCE = 0.05
"""Seconds that a request waits for the store."""
_STEPS = 512
"""Histories whose newest plan states are cached."""
_PENDING = 4096
"""Writes that may wait; beyond it they are dropped, and replay makes up for them."""
_CLOSING_SECONDS = 5.0

_EXCHANGES_BYTES = 32 * 2**20
_SUMMARIES_BYTES = 32 * 2**20
NEAR_SECONDS = 600.0
"""How long summaries are cached, so that one that was deleted in another replica goes out of use here."""
_AT_ONCE = 512
"""Steps that the store is asked for in one round trip."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CachedStep:
    """A step of a history that was served here."""

    plan_state: PlanState
    record: StepRecord


@dataclass(frozen=True, slots=True)
class _SentStep:
    """A step that this process sent, and how many exchanges others had announced by then."""

    record: StepRecord
    foreign: int | None


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
        self, store: Store, telemetry: Telemetry, forgets: ForgetRegistry, patience: float | None = None
    ) -> None:
        """`patience`: seconds that a request waits for the store, instead of the default."""
        self._store = GuardedStore(store, telemetry, name="store", effect="requests are planned from replay alone")
        self._announcements: DecisionStore = store
        self._patience = patience
        self._telemetry = telemetry
        self._writes = WriteBehindQueue(
            telemetry, limit=_PENDING, tries=None, closing_seconds=_CLOSING_SECONDS, full="queue_full"
        )
        self._steps: LRUCache[tuple[Key, str, str], CachedStep] = LRUCache(_STEPS)
        """By conversation, fingerprint of the configuration, and anchor."""
        self._newest: LRUCache[Key, StepRecord] = LRUCache(8 * _STEPS)
        self._sent: LRUCache[tuple[Key, str], _SentStep] = LRUCache(8 * _STEPS)
        """What this process has really sent, by conversation and anchor: more steps than there are plan states, and
        there before the store has them."""
        self._exchanges: LRUCache[tuple[Key, str, str, str], Inserts] = LRUCache(_EXCHANGES_BYTES, getsizeof=_weight)
        """By conversation, dialect, anchor of what the client had sent, and digest of the reply to it; with an empty
        digest those of the reply that was given last."""
        self._summaries: TTLCache[tuple[Key, str], tuple[SummaryRecord, ...]] = TTLCache(
            _SUMMARIES_BYTES, NEAR_SECONDS, getsizeof=weight
        )
        """By conversation and the anchor of its beginning."""
        forgets.register(self._writes.forget)
        forgets.register_cache(self._steps, self._newest, self._sent, self._exchanges, self._summaries)

    # The look-up of one request: exchanges(), then history() with what the store has answered so far.

    async def exchanges(self, key: Key, dialect: str, conversation: Conversation) -> tuple[Inserts, StoreLookup]:
        """The recall exchanges behind the replies of this history, and what the store answered if it was asked. An
        exchange that was had in another API can only be put back in that one."""
        last = conversation.steps - 1
        if not last:
            return {}, NO_LOOKUP
        newest = conversation.reply(last - 1)
        digest = digest_of(conversation.messages[newest.start : newest.stop])
        cached = self._exchanges.get((key, dialect, conversation.end_anchor(last - 1), digest))
        if cached is not None:
            return cached, NO_LOOKUP
        lookup = await self._look_up(key, _anchors(conversation, range(last + 1)))
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

    async def history(
        self, key: Key, fingerprint: str, conversation: Conversation, lookup: StoreLookup
    ) -> tuple[PlanState | None, Memory]:
        """The newest cached plan state of this history, and what is remembered from that step on. `fingerprint`: of
        the configuration that plans."""

        def cached_at(step: int) -> CachedStep | None:
            return self._steps.get((key, fingerprint, conversation.end_anchor(step)))

        last = conversation.steps - 1
        step, newest = next(
            ((at, cached) for at in range(last - 1, -1, -1) if (cached := cached_at(at)) is not None), (-1, None)
        )
        sent = self._sent.get((key, conversation.end_anchor(last - 1))) if last else None
        ours = {sent.record.anchor: sent.record} if sent is not None else {}
        if newest is None:
            lookup = await self._look_up(key, _anchors(conversation, range(last + 1)), lookup)
            steps = {**ours, **lookup.memory.steps}
            return None, replace(lookup.memory, steps=steps, summaries=self._summaries_in(key, conversation, lookup))
        if step < last - 1:
            lookup = await self._look_up(key, _anchors(conversation, range(step, last + 1)), lookup)
        elif newest.plan_state.wants:  # what was wanted may be there by now, or adopted elsewhere
            lookup = await self._look_up(key, _anchors(conversation, range(last, last + 1)), lookup)
        here = {each.record.anchor: each.record for each in (newest, cached_at(last)) if each is not None}
        summaries = self._summaries_in(key, conversation, lookup)
        return newest.plan_state, Memory({**ours, **lookup.memory.steps, **here}, summaries=summaries)

    def newest(self, key: Key) -> StepRecord | None:
        """The last step of the conversation that this process sent, in any branch of its history."""
        return self._newest.get(key)

    def sent_last(self, key: Key, anchor: str) -> bool:
        """Whether this process sent the step that ends at `anchor`, and nobody else has had a recall exchange since: so
        what was sent last is what is cached here, though the store does not say so."""
        sent = self._sent.get((key, anchor))
        return sent is not None and sent.foreign is not None and sent.foreign == self._announcements.foreign_exchanges()

    async def summaries(self, key: Key, conversation: Conversation) -> tuple[SummaryRecord, ...]:
        """The summaries of this history, as the store has them now."""
        return self._summaries_in(key, conversation, await self._look_up(key, [conversation.beginning]))

    async def records(self, key: Key, firsts: Sequence[str]) -> tuple[SummaryRecord, ...]:
        """The summaries and digests for the prompt that begin with one of these anchors, as the store has them now."""
        return (await self._look_up(key, firsts)).memory.summaries

    # What is claimed or stored before bytes go out, and what is written behind the request.

    async def claim(self, key: Key, record: StepRecord) -> StepRecord | None:
        """Write a decision before its bytes are sent. Returns the record that counts, which is the first; None where
        the store does not answer."""
        try:
            return await self._ask("claim", lambda store: store.claim(key, record))
        except StoreTrouble:
            return None

    async def supersede(self, key: Key, record: StepRecord) -> None:
        """Write a decision before its bytes are sent, in the place of one whose request was refused; behind the request
        as well: the refused one may still wait there."""
        write = methodcaller("supersede", key, record)
        with suppress(StoreTrouble):
            await self._ask("supersede", write)
        self._write_behind("supersede", key, write)

    async def store_exchange(self, key: Key, insert: Insert) -> None:
        """Write an exchange before the client has all of the reply; behind the request where that fails."""

        self._announcements.announce_exchange()
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

    def remember(self, key: Key, fingerprint: str, plan_state: PlanState, record: StepRecord, *, behind: bool) -> None:
        """Cache a step; `behind`: it is really sent, so write it behind the request."""
        self._steps[key, fingerprint, record.anchor] = CachedStep(plan_state, record)
        if behind:
            self._newest[key] = record
            self._sent[key, record.anchor] = _SentStep(record, self._announcements.foreign_exchanges())
            self._write_behind("remember", key, lambda store: store.remember(key, record))

    def continued(self, key: Key, fingerprint: str, record: StepRecord, last: StepRecord) -> None:
        """A recall round followed: the request of `record` was asked again within its reply, and that of `last` was
        sent last. The next request is compared with that one, and the provider's cache is as old as that one."""
        if record.sent is None or last.sent is None:
            return
        sent = replace(last.sent, received=record.sent.received, received_digest=record.sent.received_digest)
        record = replace(record, sent=sent, at=last.at)
        cached = self._steps.get((key, fingerprint, record.anchor))
        if cached is not None:
            self._steps[key, fingerprint, record.anchor] = CachedStep(cached.plan_state, record)
        before = self._sent.get((key, record.anchor))
        if before is not None:
            self._sent[key, record.anchor] = replace(before, record=record)
        self._write_behind("remember", key, lambda store: store.remember(key, record))

    async def close(self) -> None:
        """Write what is waiting, for a few seconds at most."""
        self._store.end_pause()  # for one more try
        if lost := await self._writes.close():
            self._telemetry.log.warning("store_writes_lost", count=lost)

    async def _look_up(self, key: Key, anchors: Sequence[str], lookup: StoreLookup = NO_LOOKUP) -> StoreLookup:
        """`lookup`, and what the store has for those anchors that were not asked for yet; incomplete in trouble."""
        missing = [anchor for anchor in dict.fromkeys(anchors) if anchor not in lookup.anchors]
        steps, inserts, complete = dict(lookup.memory.steps), dict(lookup.memory.inserts), lookup.complete
        summaries = lookup.memory.summaries
        try:
            for start in range(0, len(missing), _AT_ONCE):
                some = missing[start : start + _AT_ONCE]
                memory = await self._ask("memory", methodcaller("memory", key, some))
                steps.update(memory.steps)
                inserts.update(memory.inserts)
                summaries += memory.summaries
        except StoreTrouble:
            complete = False
        return StoreLookup(Memory(steps, inserts, summaries), lookup.anchors.union(missing), complete)

    def _summaries_in(self, key: Key, conversation: Conversation, lookup: StoreLookup) -> tuple[SummaryRecord, ...]:
        """The summaries that were looked up; the cached ones where the store was not asked or did not answer."""
        name = (key, conversation.beginning)
        if lookup.complete and conversation.beginning in lookup.anchors:
            self._summaries[name] = lookup.memory.summaries
        return self._summaries.get(name, ())

    def _write_behind(self, operation: str, key: Key, write: Callable[[Store], Awaitable[None]]) -> None:
        self._writes.put(PendingWrite(key, lambda _: self._ask(operation, write)))

    async def _ask(self, operation: str, question: Callable[[Store], Awaitable[T]]) -> T:
        """The store's answer. Raises StoreTrouble where there is none in time."""
        return await self._store.ask(operation, question, self._patience or _PATIENCE)


def weight(records: tuple[SummaryRecord, ...]) -> int:
    """About what summaries take in memory, in bytes."""
    return 1_000 + sum(1_000 + 4 * len(record.content) + 80 * len(record.sources) for record in records)


def _anchors(conversation: Conversation, steps: range) -> list[str]:
    """The anchors that name the records of these steps, and the one that names the history's summaries."""
    ends = [conversation.end_anchor(step) for step in steps]
    return [conversation.beginning, *ends] if conversation.beginning else ends


def _weight(inserts: Inserts) -> int:
    """About what exchanges take in memory, in bytes."""
    rounds = (round_ for some in inserts.values() for insert in some for round_ in insert.rounds)
    return 1_000 + sum(500 + 4 * (len(round_.fields) + sum(map(len, round_.calls))) for round_ in rounds)

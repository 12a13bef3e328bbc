"""What this process knows of histories: the books of those it served, and the store behind them.

Laws
  A history served here is continued without a round trip; any other asks the store once, for the steps on its own path.
  The store is given a moment, and none at all while it is known to be in trouble: requests never wait for it.
  Decisions that follow from the history are written behind the request; those that do not are claimed before it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from cachetools import LRUCache, TTLCache

from policies.context import Memory, StepRecord
from policies.model.conversation import Conversation
from policies.model.edits import Insert
from policies.model.summary_record import SummaryRecord
from policies.planning.state import PlanState
from policies.restore import digest_of
from proxy.store import Key, Store, StoreTrouble
from proxy.telemetry import Telemetry

_PATIENCE = 0.05
"""Seconds that a request waits for the store."""
_PAUSE = 5.0
"""Seconds that a store in trouble is left alone."""
_KEPT = 512
"""Histories whose books are kept at hand."""
_QUEUED = 4096
"""Writes that may wait; beyond it they are dropped, and replay makes up for them."""

_INSERTS_BYTES = 32 * 2**20
_SUMMARIES_BYTES = 32 * 2**20
NEAR_SECONDS = 600.0
"""How long summaries are kept at hand: what was deleted in another replica is not used for ever."""
_AT_ONCE = 512
"""Steps that the store is asked for in one go."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CachedStep:
    """A step of a history that was served here: where its books stand, and the record of it."""

    plan_state: PlanState
    record: StepRecord


@dataclass(frozen=True, slots=True)
class StoreLookup:
    """What the store said, and for which steps it was asked."""

    memory: Memory = field(default_factory=Memory)
    asked: frozenset[str] = frozenset()
    whole: bool = True
    """Whether the store could say all that it was asked."""


NOTHING = StoreLookup()
Inserts = Mapping[str, Sequence[Insert]]
"""Recall exchanges by the anchor of what the client had sent."""


class CachedStore:
    """Looks up, keeps and writes down what was decided."""

    def __init__(self, store: Store, telemetry: Telemetry, patience: float | None = None) -> None:
        """`patience`: seconds that a request waits for the store, where nobody is in a hurry."""
        self._store = store
        self._patience = patience
        self._telemetry = telemetry
        self._served: LRUCache[tuple[str, ...], CachedStep] = LRUCache(_KEPT)
        self._inserts: LRUCache[tuple[Key, str, str, str], Inserts] = LRUCache(_INSERTS_BYTES, getsizeof=_weight)
        self._summaries: TTLCache[tuple[Key, str], tuple[SummaryRecord, ...]] = TTLCache(
            _SUMMARIES_BYTES, NEAR_SECONDS, getsizeof=weight
        )
        self._closed_until = 0.0
        self._trouble = False
        self._newest: LRUCache[Key, StepRecord] = LRUCache(8 * _KEPT)
        self._waiting: deque[tuple[str, Key, Callable[[], Awaitable[None]]]] = deque()
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    async def inserts(self, key: Key, dialect: str, conversation: Conversation) -> tuple[Inserts, StoreLookup]:
        """The recall exchanges behind the replies of this history, and what the store said if it was asked. One that
        was had in another API can be put back in that alone."""
        last = conversation.steps - 1
        if not last:
            return {}, NOTHING
        newest = conversation.reply(last - 1)
        digest = digest_of(conversation.messages[newest.start : newest.stop])
        known = self._inserts.get((key, dialect, conversation.end_anchor(last - 1), digest))
        if known is not None:
            return known, NOTHING
        found = await self._found(key, _path(conversation, range(last + 1)), NOTHING)
        now = conversation.end_anchor(last)  # this very request may have had a reply before
        here = {
            after: tuple(insert for insert in some if insert.dialect == dialect)
            for after, some in found.memory.inserts.items()
            if after != now
        }
        return {after: some for after, some in here.items() if some}, found

    def replied(self, key: Key, dialect: str, after: str, reply: str, inserts: Inserts) -> None:
        """The request that ends at `after` got this reply from here, with these exchanges up to and in it."""
        self._inserts[key, dialect, after, reply] = inserts

    async def insert(self, key: Key, insert: Insert) -> None:
        """Remember an exchange in the store, before the client knows the reply; behind it where that fails."""
        write = partial(self._store.insert, key, insert)
        try:
            await self._asked("insert", write)
        except StoreTrouble:
            self._behind("insert", key, write)

    def asked_on(self, key: Key, setup: str, record: StepRecord, last: StepRecord) -> None:
        """The request of this record was asked on within its reply, and that of the other was sent last: the next
        request is compared with that, and the provider's cache is as old as that."""
        if record.sent is None or last.sent is None:
            return
        given = replace(last.sent, given=record.sent.given, given_digest=record.sent.given_digest)
        record = replace(record, sent=given, at=last.at)
        name = (key.tenant, key.conversation, setup, record.anchor)
        served = self._served.get(name)
        if served is not None:
            self._served[name] = CachedStep(served.plan_state, record)
        self._behind("remember", key, partial(self._store.remember, key, record))

    async def known(
        self, key: Key, setup: str, conversation: Conversation, found: StoreLookup
    ) -> tuple[PlanState | None, Memory]:
        """The newest books of this history at hand, and what is remembered from the step before on."""
        last = conversation.steps - 1
        for step in range(last - 1, -1, -1):
            served = self._at(key, setup, conversation, step)
            if served is not None:
                if step < last - 1:
                    found = await self._found(key, _path(conversation, range(step, last + 1)), found)
                elif served.plan_state.wants:  # what was asked for may be there by now, or adopted elsewhere
                    found = await self._found(key, _path(conversation, range(last, last + 1)), found)
                again = self._at(key, setup, conversation, last)
                here = {each.record.anchor: each.record for each in (served, again) if each is not None}
                return served.plan_state, Memory(
                    {**found.memory.steps, **here}, summaries=self._made(key, conversation, found)
                )
        found = await self._found(key, _path(conversation, range(last + 1)), found)
        return None, replace(found.memory, summaries=self._made(key, conversation, found))

    def _at(self, key: Key, setup: str, conversation: Conversation, step: int) -> CachedStep | None:
        """A step of this very history that was served here."""
        return self._served.get((key.tenant, key.conversation, setup, conversation.end_anchor(step)))

    async def summaries(self, key: Key, conversation: Conversation) -> tuple[SummaryRecord, ...]:
        """What was made of this history, as the store knows it now."""
        return self._made(key, conversation, await self._found(key, [conversation.beginning], NOTHING))

    async def records(self, key: Key, firsts: Sequence[str]) -> tuple[SummaryRecord, ...]:
        """The summaries and digests for the prompt that begin with one of these, as the store knows them now."""
        return (await self._found(key, firsts, NOTHING)).memory.summaries

    def forget(self, tenant: str, conversation: str | None = None) -> None:
        """A conversation was deleted, or all of a tenant: what is at hand goes, too."""

        def is_meant(key: Key) -> bool:
            return key.tenant == tenant and conversation in (None, key.conversation)

        self._waiting = deque(each for each in self._waiting if not is_meant(each[1]))
        kept: tuple[tuple[MutableMapping[Any, Any], Callable[[Any], Key]], ...] = (
            (self._served, lambda name: Key(name[0], name[1])),
            (self._inserts, itemgetter(0)),
            (self._summaries, itemgetter(0)),
            (self._newest, lambda name: name),
        )
        for cache, key_of in kept:
            for name in [name for name in cache if is_meant(key_of(name))]:
                cache.pop(name, None)

    def _made(self, key: Key, conversation: Conversation, found: StoreLookup) -> tuple[SummaryRecord, ...]:
        """The summaries found; where nobody was asked, those found the last time."""
        name = (key, conversation.beginning)
        if found.whole and conversation.beginning in found.asked:
            self._summaries[name] = found.memory.summaries
        return self._summaries.get(name, ())

    async def _found(self, key: Key, anchors: Sequence[str], found: StoreLookup) -> StoreLookup:
        """What the store knows of these steps besides what was `found`; no more where it is in trouble."""
        missing = [anchor for anchor in dict.fromkeys(anchors) if anchor not in found.asked]
        steps, inserts, whole = dict(found.memory.steps), dict(found.memory.inserts), found.whole
        summaries = found.memory.summaries
        try:
            for start in range(0, len(missing), _AT_ONCE):
                some = missing[start : start + _AT_ONCE]
                memory = await self._asked("memory", partial(self._store.memory, key, some))
                steps.update(memory.steps)
                inserts.update(memory.inserts)
                summaries += memory.summaries
        except StoreTrouble:
            whole = False
        return StoreLookup(Memory(steps, inserts, summaries), found.asked.union(missing), whole)

    async def claim(self, key: Key, record: StepRecord) -> StepRecord | None:
        """Write a decision before its bytes are sent; the record that counts is the first. None where the store does
        not say."""
        try:
            return await self._asked("claim", partial(self._store.claim, key, record))
        except StoreTrouble:
            return None

    def newest(self, key: Key) -> StepRecord | None:
        """The last step of the conversation that was sent from here, on whatever path."""
        return self._newest.get(key)

    def keep(self, key: Key, setup: str, plan_state: PlanState, record: StepRecord, *, behind: bool) -> None:
        """Remember a step: here at once, and in the store behind the request if it was really sent."""
        self._served[(key.tenant, key.conversation, setup, record.anchor)] = CachedStep(plan_state, record)
        if not behind:
            return
        self._newest[key] = record
        self._behind("remember", key, partial(self._store.remember, key, record))

    def _behind(self, operation: str, key: Key, write: Callable[[], Awaitable[None]]) -> None:
        """Write it behind the requests, in order, and again where that fails."""
        if len(self._waiting) >= _QUEUED:
            self._telemetry.metrics.store_trouble("queue_full")
            return
        self._waiting.append((operation, key, write))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write what is waiting, for a few seconds at most."""
        self._closed_until = 0.0  # one more try, whatever was
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE):
                while self._waiting and await self._written():
                    pass
        if self._writer is not None:
            self._writer.cancel()
        if self._waiting:
            self._telemetry.log.warning("store_writes_lost", count=len(self._waiting))

    async def _write(self) -> None:
        """Behind the requests: what cannot be written now is tried again."""
        while self._waiting:
            if not await self._written():
                await asyncio.sleep(_PAUSE)

    async def _written(self) -> bool:
        """Whether the oldest waiting record could be written."""
        async with self._writing:
            if not self._waiting:
                return True
            operation, _, write = oldest = self._waiting[0]
            try:
                await self._asked(operation, write)
            except StoreTrouble:
                return False
            if self._waiting and self._waiting[0] is oldest:  # else it was forgotten meanwhile
                self._waiting.popleft()
            return True

    async def _asked(self, operation: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The store's answer. Raises StoreTrouble where it has none soon, and at once while it is known to be so."""
        now = asyncio.get_running_loop().time
        if now() < self._closed_until:
            raise StoreTrouble("left alone for a moment")
        try:
            async with asyncio.timeout(self._patience or _PATIENCE):
                answer = await ask()
        except (StoreTrouble, TimeoutError) as error:
            self._closed_until = now() + _PAUSE
            self._changed(trouble=True, fault=str(error) or "too slow")
            self._telemetry.metrics.store_trouble(operation)
            raise StoreTrouble(str(error)) from error
        if now() >= self._closed_until:  # else another question, asked meanwhile, found it in trouble
            self._changed(trouble=False, fault="")
        return answer

    def _changed(self, *, trouble: bool, fault: str) -> None:
        """One log line for each change of state."""
        if trouble and not self._trouble:
            self._telemetry.log.warning("store_trouble", fault=fault, effect="requests are planned from replay alone")
        elif self._trouble and not trouble:
            self._telemetry.log.info("store_recovered")
        self._trouble = trouble


def weight(records: tuple[SummaryRecord, ...]) -> int:
    """About what summaries take in memory, in bytes."""
    return 1_000 + sum(1_000 + 4 * len(record.content) + 80 * len(record.sources) for record in records)


def _path(conversation: Conversation, steps: range) -> list[str]:
    """What the records of these steps are named by, and what the history's summaries are."""
    named = [conversation.end_anchor(step) for step in steps]
    return [conversation.beginning, *named] if conversation.beginning else named


def _weight(inserts: Inserts) -> int:
    """About what exchanges take in memory, in bytes."""
    rounds = (round_ for some in inserts.values() for insert in some for round_ in insert.rounds)
    return 1_000 + sum(500 + 4 * (len(round_.fields) + sum(map(len, round_.calls))) for round_ in rounds)

"""What this process has served, by conversation: how far each history was planned, and what was sent last.

Laws
  Of each branch of a conversation the newest steps stay, for the next request and for one that is repeated. All others
  go: to forget a step costs time only.
  What one conversation takes, and all of them together, is bounded. Of those unused for longest only the newest step
  stays, packed; these are bounded, too.
"""

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from cachetools import LRUCache

from policies.model.conversation import Conversation
from policies.model.edits import Edit
from policies.model.memory import StepRecord
from policies.money.prices import Prices
from policies.planning.state import PlanState
from proxy.memory import Key, snapshots

_BYTES, _PACKED_BYTES = 24 * 2**20, 64 * 2**20
"""Of plan states, and of packed ones: together those of thousands of conversations of 100k tokens."""
_SENT_BYTES = 32 * 2**20
"""Of what was sent, which stays for longer than the plan states."""
_STEPS = 16
"""Steps of one conversation, in all its branches."""
_STAYING, _SENT_STAYING = 2, 8
"""Plan states of one branch, and steps that were sent: recall rounds are steps that the client may not have."""

Place = tuple[str, str]
"""The fingerprint of the configuration that planned a step, and the step's anchor."""
T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class CachedStep:
    """A step of a history that was served here."""

    plan_state: PlanState
    record: StepRecord | None
    """None where the request of this step was not served, but one that extends it."""
    texts: int = 0
    """Characters of the edits of the whole history."""
    weight: int = 0
    """About what else the state takes in memory, in bytes."""


@dataclass(frozen=True, slots=True)
class SentStep:
    """A step that this process sent, and how many exchanges others had announced by then."""

    record: StepRecord
    foreign: int | None


class StoredSnapshot(NamedTuple):
    """That there is a snapshot of a history: at this anchor, after so many steps and tokens that the client wrote."""

    anchor: str = ""
    step: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _Planned:
    """The steps of a conversation, and the snapshots of it that are in the store; the oldest first."""

    steps: dict[Place, CachedStep] = field(default_factory=dict)
    snapshots: dict[Place, StoredSnapshot] = field(default_factory=dict)


class _Packed(NamedTuple):
    """The newest step of a conversation that was not used for a while, its state packed."""

    place: Place
    record: StepRecord | None
    texts: int
    state: bytes
    snapshots: dict[Place, StoredSnapshot]


@dataclass(slots=True)
class _Sent:
    """What was sent of a conversation, by anchor, the oldest first; and the last of all."""

    steps: dict[str, SentStep] = field(default_factory=dict)
    newest: StepRecord | None = None


class _PlannedCache(LRUCache[Key, _Planned]):
    """Packs what it has no room for."""

    def __init__(self) -> None:
        super().__init__(_BYTES, getsizeof=_weight)
        self.packed: LRUCache[Key, _Packed] = LRUCache(_PACKED_BYTES, getsizeof=_packed_weight)

    def popitem(self) -> tuple[Key, _Planned]:
        key, planned = super().popitem()
        if planned.steps:
            place, step = next(reversed(planned.steps.items()))
            state = snapshots.packed(step.plan_state)
            if state is not None and len(state) < _PACKED_BYTES:
                stored = snapshots.compressed(state)
                self.packed[key] = _Packed(place, step.record, step.texts, stored, planned.snapshots)
        return key, planned

    def unpack(self, key: Key, prices: Prices) -> None:
        """Make room for a conversation that is used again."""
        packed = self.packed.pop(key, None)
        state = None if packed is None else snapshots.unpacked(packed.state, prices)
        if packed is not None and state is not None:
            steps = {packed.place: CachedStep(state, packed.record, packed.texts, _weight_of(state))}
            self[key] = _Planned(steps, packed.snapshots)


class ServedHistories:
    """Finds a step of a history among the few of its conversation."""

    def __init__(self) -> None:
        self._planned = _PlannedCache()
        self._sent: LRUCache[Key, _Sent] = LRUCache(_SENT_BYTES, getsizeof=_sent_weight)

    @property
    def caches(self) -> Sequence[MutableMapping[Key, Any]]:
        return self._planned, self._planned.packed, self._sent

    def newest_planned(
        self, key: Key, fingerprint: str, conversation: Conversation, prices: Prices
    ) -> CachedStep | None:
        """The newest step of this history before its last one. `prices`: those of the configuration."""
        self._planned.unpack(key, prices)
        planned = self._planned.get(key)
        steps = {} if planned is None else planned.steps
        mine = (
            step
            for (by, anchor), step in steps.items()
            if by == fingerprint and fits(step.plan_state, conversation, anchor)
        )
        return max(mine, key=lambda step: step.plan_state.step, default=None)

    def planned(self, key: Key, place: Place) -> CachedStep | None:
        planned = self._planned.get(key)
        return None if planned is None else planned.steps.get(place)

    def add_planned(self, key: Key, place: Place, conversation: Conversation, step: CachedStep) -> None:
        planned = self._planned.pop(key, None) or _Planned()
        before = planned.steps.get((place[0], _anchor(conversation, 2)))
        texts = _characters(step.plan_state.edits.values()) if before is None else before.texts
        texts += _characters(step.record.edits if step.record else ())
        _add(planned.steps, place, replace(step, texts=texts, weight=_weight_of(step.plan_state)))
        planned.steps.pop((place[0], _anchor(conversation, 1 + _STAYING)), None)
        self._planned[key] = planned

    def add_reached(self, key: Key, place: Place, plan_state: PlanState) -> None:
        """A step up to which a history was planned for a request that extends it; forgotten first."""
        planned = self._planned.pop(key, None) or _Planned()
        if place not in planned.steps:
            step = CachedStep(plan_state, None, _characters(plan_state.edits.values()), _weight_of(plan_state))
            others = islice(planned.steps.items(), max(0, len(planned.steps) + 1 - _STEPS), None)
            planned.steps = {place: step, **dict(others)}
        self._planned[key] = planned

    def change_record(self, key: Key, place: Place, record: StepRecord) -> None:
        """Something followed within the reply to this step."""
        planned, sent = self._planned.get(key), self._sent.get(key)
        if planned is not None and place in planned.steps:
            planned.steps[place] = replace(planned.steps[place], record=record)
        if sent is not None and record.anchor in sent.steps:
            sent.steps[record.anchor] = replace(sent.steps[record.anchor], record=record)

    def newest_snapshot(self, key: Key, fingerprint: str, conversation: Conversation) -> StoredSnapshot:
        """The newest snapshot of this history that is in the store."""
        planned = self._planned.get(key)
        stored = {} if planned is None else planned.snapshots
        mine = (each for (by, _), each in stored.items() if by == fingerprint and each.step <= conversation.steps)
        of_it = (each for each in mine if conversation.end_anchor(each.step - 1) == each.anchor)
        return max(of_it, key=lambda each: each.step, default=StoredSnapshot())

    def add_snapshot(self, key: Key, place: Place, plan_state: PlanState, instead_of: str = "") -> None:
        planned = self._planned.pop(key, None) or _Planned()
        planned.snapshots.pop((place[0], instead_of), None)
        _add(planned.snapshots, place, StoredSnapshot(place[1], plan_state.step, plan_state.ledger.original))
        self._planned[key] = planned

    def sent(self, key: Key, anchor: str) -> SentStep | None:
        sent = self._sent.get(key)
        return None if sent is None else sent.steps.get(anchor)

    def shed(self, key: Key) -> dict[str, StepRecord]:
        """The records of steps that were sent and at which nothing was decided, by anchor."""
        sent = self._sent.get(key)
        steps = {} if sent is None else sent.steps
        return {anchor: step.record for anchor, step in steps.items() if step.record.shed}

    def newest_sent(self, key: Key) -> StepRecord | None:
        sent = self._sent.get(key)
        return None if sent is None else sent.newest

    def add_sent(self, key: Key, conversation: Conversation, step: SentStep) -> None:
        sent = self._sent.pop(key, None) or _Sent()
        _add(sent.steps, step.record.anchor, step)
        sent.steps.pop(_anchor(conversation, 1 + _SENT_STAYING), None)
        sent.newest = step.record
        self._sent[key] = sent


def fits(state: PlanState, conversation: Conversation, anchor: str) -> bool:
    """Whether this is the state of an earlier step of the history, which ends at this anchor."""
    if not 0 < state.step < conversation.steps:
        return False
    end = conversation.ends[state.step - 1]
    return len(state.ledger.sent) == end and conversation.end_anchor(state.step - 1) == anchor


def _anchor(conversation: Conversation, back: int) -> str:
    """The anchor of a step, counted from the end; empty where there is none."""
    return conversation.end_anchor(conversation.steps - back) if conversation.steps >= back else ""


def _add(steps: dict[T, V], place: T, step: V) -> None:
    """As the newest; the oldest go where there are too many."""
    steps.pop(place, None)
    steps[place] = step
    while len(steps) > _STEPS:
        del steps[next(iter(steps))]


def _characters(edits: Iterable[Edit]) -> int:
    return sum(len(edit.text) for edit in edits)


def _weight(planned: _Planned) -> int:
    """About what it takes in memory, in bytes. States of one history share their edits and the texts of these."""
    steps = planned.steps.values()
    return min(_BYTES, 4_000 + sum(step.weight for step in steps) + max((step.texts for step in steps), default=0))


def _weight_of(state: PlanState) -> int:
    return 1_000 + 200 * len(state.ledger.sent) + 300 * len(state.edits)


def _packed_weight(packed: _Packed) -> int:
    return 2_000 + len(packed.state)


def _sent_weight(sent: _Sent) -> int:
    return min(_SENT_BYTES, 1_000 + sum(1_000 + 200 * len(step.record.edits) for step in sent.steps.values()))

"""All that this process remembers of conversations.

Laws
  To forget a conversation, or to pack it, costs time only: with the store there, the same bytes are sent.
  Of each branch of it the newest steps stay, for the next request and for one that is repeated. All else is bounded.
  What is remembered is bounded by one number, `most` bytes: those unused for longest go. They are packed once the
  others take more than `most_awake`.
  A request stays until one continues it. No conversation takes more than a quarter of the room.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from policies.dialects import Added, Consent
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Insert
from policies.model.memory import StepRecord
from policies.model.summary_record import SummaryRecord
from policies.model.tokens import Calibration
from policies.money.prices import Prices
from policies.planning.state import PlanSettings, PlanState
from policies.presets import Preset
from policies.restore import RestoredMessages, digest_of
from proxy.memory import Key, snapshots
from proxy.memory.branches import Branch, BranchIndex, PackedRequest, ParsedRequest, continues

_STEPS = 16
"""Steps of one conversation, in all its branches."""
_STAYING, _SENT_STAYING = 2, 8
"""Plan states of one branch, and steps that were sent: recall rounds are steps that the client may not have."""
_EXCHANGES = 32
"""Replies of one conversation with their recall exchanges."""
_NOTED = 256
"""Events of one conversation."""
_BARE = 8_000
"""Bytes of memory that a conversation takes without what is weighed of it."""
_MOST, _MOST_AWAKE = 320 * 2**20, 88 * 2**20
"""Bytes: some 40 conversations of 100,000 tokens as they are used, and 1,500 packed."""
_AT_ONCE = 32
"""Conversations that are packed together."""

Place = tuple[str, str]
"""The fingerprint of the configuration that planned a step, and the step's anchor."""
Inserts = Mapping[str, Sequence[Insert]]
"""Recall exchanges by the anchor of what the client had sent."""
T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Assembly:
    """What a request is planned under, besides what its provider has reported and what is stored."""

    settings: PlanSettings
    tool: Added | None
    consent: Consent
    lifetime: float
    preset: Preset
    policy: str
    fingerprint: str
    head: str
    """A digest of what stands before the messages: model, tools and instructions."""
    end: int
    """Where the messages ended in the body that this was worked out for."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step of a history that was served here."""

    plan_state: PlanState
    record: StepRecord | None
    """None where the request of this step was not served, but one that extends it."""
    texts: int = 0
    """Characters of the edits of the whole history."""

    @property
    def size(self) -> int:
        """About what the state takes in memory beside these texts, in bytes."""
        return 1_000 + 200 * len(self.plan_state.ledger.sent) + 300 * len(self.plan_state.edits)


class PackedStep(NamedTuple):
    """The newest step of a conversation that was not used for a while."""

    place: Place
    record: StepRecord | None
    texts: int
    state: bytes


Packed = tuple[Sequence[tuple[Branch, PackedRequest]], PackedStep | None]
"""What takes the place of requests, and of the newest step."""


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


@dataclass(slots=True, eq=False)
class LiveConversation:
    """What is remembered of a conversation, in all its branches. Of dicts with a bound the newest entries stay."""

    key: Key
    branches: list[Branch] = field(default_factory=list)
    """The one that was used last at the end."""
    steps: dict[Place, PlannedStep] = field(default_factory=dict)
    """How far its histories were planned."""
    packed_step: PackedStep | None = None
    snapshots: dict[Place, StoredSnapshot] = field(default_factory=dict)
    """The newest snapshots that are in the store."""
    sent: dict[str, SentStep] = field(default_factory=dict)
    """By anchor."""
    newest: StepRecord | None = None
    """The step that was sent last, in any branch."""
    exchanges: dict[tuple[str, str, str], Inserts] = field(default_factory=dict)
    """By dialect, anchor of what the client had sent, and digest of the reply to it: the exchanges up to and in this
    reply. With an empty digest those of the reply that was given last."""
    restored: Mapping[tuple[object, ...], RestoredMessages] = field(default_factory=dict)
    """What was put back for exchanges."""
    summaries: dict[str, tuple[float, tuple[SummaryRecord, ...]]] = field(default_factory=dict)
    """By the anchor of the history's beginning, and until when they count."""
    owners: dict[str, float] = field(default_factory=dict)
    """Who has sent it, which was written, and until when that need not be written again."""
    assemblies: dict[bool, tuple[tuple[object, ...], Assembly]] = field(default_factory=dict)
    """What it was planned under last, with and without recall exchanges, and everything that this follows from."""
    reserve: int | None = None
    """Tokens that the newest request allowed for the answer."""
    calibration: Calibration | None = None
    """None before its provider has reported anything."""
    cramped: tuple[int, int] = -1, 0
    """The newest step for which room was made, and how many steps in a row that is."""
    hidden: tuple[int, int] = -1, 0
    """The newest step that was looked at, and how many actions needed what was hidden."""
    recent_records: dict[str, tuple[float, tuple[SummaryRecord, ...]]] = field(default_factory=dict)
    """Summaries that were written or looked up here lately, by the name of their job, and until when they count.
    Digests stand with the conversation of their tenant that has no name: they hold in all others."""
    failed_jobs: dict[str, None] = field(default_factory=dict)
    digest_lookups: dict[str, None] = field(default_factory=dict)
    """Digests of the outputs for whose summaries the store was asked."""
    noted: dict[str, None] = field(default_factory=dict)
    """Events that were noted, so that none is noted twice."""
    no_budget_until: float = 0.0
    """Until when no money is taken for its summaries."""
    weight: int = 0
    """Bytes for which it was counted last."""
    is_idle: bool = False
    """Whether it is being packed, and was not used since that began."""

    def rest(self, packed: Packed) -> None:
        """It was not used for a while: what follows again goes."""
        requests, step = packed
        for branch, content in requests:
            branch.content = content
        self.packed_step = step or self.packed_step
        self.steps.clear()
        self.assemblies.clear()
        self.restored = {}

    # --- how far it was planned, and what was sent ---

    def newest_planned(self, fingerprint: str, conversation: Conversation, prices: Prices) -> PlannedStep | None:
        """The newest step of this history before its last one. `prices`: those of the configuration."""
        packed, self.packed_step = self.packed_step, None
        state = None if packed is None else snapshots.unpacked(packed.state, prices)
        if packed is not None and state is not None:
            self.steps.setdefault(packed.place, PlannedStep(state, packed.record, packed.texts))
        mine = (
            step
            for (by, anchor), step in self.steps.items()
            if by == fingerprint and fits(step.plan_state, conversation, anchor)
        )
        return max(mine, key=lambda step: step.plan_state.step, default=None)

    def add_planned(
        self, fingerprint: str, conversation: Conversation, plan_state: PlanState, record: StepRecord
    ) -> None:
        """How far it was planned, whatever its upstream will say: to plan the same again costs nothing."""
        before = self.steps.get((fingerprint, _anchor(conversation, 2)))
        texts = _characters(plan_state.edits.values()) if before is None else before.texts
        step = PlannedStep(plan_state, record, texts + _characters(record.edits))
        put_newest(self.steps, (fingerprint, record.anchor), step, _STEPS)
        self.steps.pop((fingerprint, _anchor(conversation, 1 + _STAYING)), None)

    def add_reached(self, fingerprint: str, conversation: Conversation, plan_state: PlanState) -> None:
        """A step up to which a history was planned for a request that extends it; forgotten first."""
        place = fingerprint, conversation.end_anchor(plan_state.step - 1)
        if place not in self.steps:
            step = PlannedStep(plan_state, None, _characters(plan_state.edits.values()))
            others = islice(self.steps.items(), max(0, len(self.steps) + 1 - _STEPS), None)
            self.steps = {place: step, **dict(others)}

    def add_sent(self, conversation: Conversation, step: SentStep) -> None:
        put_newest(self.sent, step.record.anchor, step, _STEPS)
        self.sent.pop(_anchor(conversation, 1 + _SENT_STAYING), None)
        self.newest = step.record

    def sent_before(self, conversation: Conversation) -> StepRecord | None:
        """The record of the step before the newest one, where this process sent that."""
        sent = self.sent.get(conversation.previous_anchor) if conversation.steps > 1 else None
        return None if sent is None else sent.record

    def change_record(self, fingerprint: str, record: StepRecord) -> None:
        """Something followed within the reply to this step."""
        place, anchor = (fingerprint, record.anchor), record.anchor
        if place in self.steps:
            self.steps[place] = replace(self.steps[place], record=record)
        if anchor in self.sent:
            self.sent[anchor] = replace(self.sent[anchor], record=record)

    def newest_snapshot(self, fingerprint: str, conversation: Conversation) -> StoredSnapshot:
        """The newest snapshot of this history that is in the store."""
        mine = (
            each for (by, _), each in self.snapshots.items() if by == fingerprint and each.step <= conversation.steps
        )
        of_it = (each for each in mine if conversation.end_anchor(each.step - 1) == each.anchor)
        return max(of_it, key=lambda each: each.step, default=StoredSnapshot())

    def add_snapshot(self, place: Place, plan_state: PlanState, instead_of: str = "") -> None:
        self.snapshots.pop((place[0], instead_of), None)
        snapshot = StoredSnapshot(place[1], plan_state.step, plan_state.ledger.original)
        put_newest(self.snapshots, place, snapshot, _STEPS)

    # --- recall exchanges ---

    def exchanges_of(self, dialect: str, conversation: Conversation, foreign: int | None) -> Inserts | None:
        """The recall exchanges behind the replies of this history, where all of them are remembered; None where not.
        `foreign`: how many exchanges others have announced by now."""
        last = conversation.steps - 1
        if not last:
            return {}
        newest = conversation.reply(last - 1)
        digest, anchor = digest_of(conversation.messages[newest.start : newest.stop]), conversation.end_anchor(last - 1)
        exchanges = self.exchanges.get((dialect, anchor, digest))
        if exchanges is None and self.sent_last(anchor, foreign):  # the client alters its replies
            exchanges = self.exchanges.get((dialect, anchor, ""))
        return exchanges

    def sent_last(self, anchor: str, foreign: int | None) -> bool:
        """Whether this process sent the step that ends at `anchor`, and nobody else has had a recall exchange since: so
        what was sent last is what is remembered here, though the store does not say so."""
        sent = self.sent.get(anchor)
        return sent is not None and sent.foreign is not None and sent.foreign == foreign

    def add_exchanges(self, dialect: str, after: str, reply: str, inserts: Inserts, *, complete: bool) -> None:
        """The request that ends at `after` got this reply from here, with these exchanges up to and in it; `complete`:
        there is no other."""
        put_newest(self.exchanges, (dialect, after, ""), inserts, _EXCHANGES)
        if complete:
            put_newest(self.exchanges, (dialect, after, reply), inserts, _EXCHANGES)


def put_newest(entries: dict[T, V], name: T, value: V, most: int) -> None:
    """Put an entry at the end; the oldest go where there are too many."""
    entries.pop(name, None)
    entries[name] = value
    while len(entries) > most:
        del entries[next(iter(entries))]


def note_first(live: LiveConversation, event: str) -> bool:
    """Whether an event is noted for the first time."""
    is_first = event not in live.noted
    put_newest(live.noted, event, None, _NOTED)
    return is_first


def fits(state: PlanState, conversation: Conversation, anchor: str) -> bool:
    """Whether this is the state of an earlier step of the history, which ends at this anchor."""
    if not 0 < state.step < conversation.steps:
        return False
    end = conversation.ends[state.step - 1]
    return len(state.ledger.sent) == end and conversation.end_anchor(state.step - 1) == anchor


def restored_weight(restored: Mapping[tuple[object, ...], RestoredMessages]) -> int:
    """About what was put back takes in memory, with the replies that it stands for."""
    return sum(1_000 + 4 * sum(map(len, each.raws)) for each in restored.values())


def weight_of(live: LiveConversation) -> int:
    """About what it takes in memory, in bytes. States of one history share their edits and the texts of these, and
    replies the exchanges before them."""
    origins = (part for origin, _ in live.assemblies.values() for part in origin if isinstance(part, bytes))
    lists = [records for _, records in chain(live.summaries.values(), live.recent_records.values())]
    newest = next(reversed(live.exchanges.values()), {})
    rounds = (each for some in newest.values() for insert in some for each in insert.rounds)
    names = len(live.owners) + len(live.exchanges) + len(live.snapshots)
    names += len(live.failed_jobs) + len(live.digest_lookups) + len(live.noted)
    return (
        _BARE
        + sum(branch.content.size for branch in live.branches)
        + sum(step.size for step in live.steps.values())
        + max((step.texts for step in live.steps.values()), default=0)
        + (len(live.packed_step.state) if live.packed_step else 0)
        + sum(1_000 + 200 * len(step.record.edits) for step in live.sent.values())
        + sum(500 + 4 * (len(each.fields) + sum(map(len, each.calls))) for each in rounds)
        + restored_weight(live.restored)
        + 1_000 * len(lists)
        + sum(1_000 + 4 * len(each.content) + 80 * len(each.sources) for each in chain(*lists))
        + sum(map(len, origins))
        + 200 * names
    )


def _anchor(conversation: Conversation, back: int) -> str:
    """The anchor of a step, counted from the end; empty where there is none."""
    return conversation.end_anchor(conversation.steps - back) if conversation.steps >= back else ""


def _characters(edits: Iterable[Edit]) -> int:
    return sum(len(edit.text) for edit in edits)


# --- what rests is packed ---


def pack(branches: Sequence[Branch], newest: tuple[Place, PlannedStep] | None) -> Packed:
    """The packed form of these requests, and of the newest step; takes a few milliseconds for each megabyte."""
    step = None
    if newest is not None:
        place, planned = newest
        state = snapshots.packed(planned.plan_state)
        if state is not None:
            step = PackedStep(place, planned.record, planned.texts, snapshots.compressed(state))
    return [(branch, branch.packed()) for branch in branches], step


# --- all of them ---


@dataclass(slots=True)
class _Shelf:
    """Conversations, the one that was used last at the end, and what they take together."""

    size: int = 0
    by_key: OrderedDict[Key, LiveConversation] = field(default_factory=OrderedDict)

    def put(self, live: LiveConversation) -> None:
        """Add it, or weigh it anew."""
        if self.by_key.get(live.key) is live:
            self.size -= live.weight
        live.weight = weight_of(live)
        self.size += live.weight
        self.by_key[live.key] = live

    def take(self, key: Key) -> LiveConversation | None:
        live = self.by_key.pop(key, None)
        self.size -= live.weight if live else 0
        return live


class Conversations:
    """All that is remembered in memory, by conversation."""

    def __init__(self, most: int = _MOST, most_awake: int = _MOST_AWAKE) -> None:
        self._most, self._most_awake = most, most_awake
        self._awake, self._resting = _Shelf(), _Shelf()
        self._index = BranchIndex()
        self._packing: asyncio.Task[None] | None = None

    def of(self, key: Key) -> LiveConversation:
        """What is remembered of a conversation; it is used now."""
        live = self._awake.by_key.get(key)
        if live is None:
            live = self._resting.take(key) or LiveConversation(key)
            self._awake.put(live)
        self._awake.by_key.move_to_end(key)
        live.is_idle = False
        return live

    def get(self, key: Key) -> LiveConversation | None:
        """The same, and not used by that; None where nothing is remembered."""
        return self._awake.by_key.get(key) or self._resting.by_key.get(key)

    def owned(self, tenant: str, owner: str) -> set[Key]:
        """The conversations that this owner has sent to this process lately: the store may not have them yet."""
        every = chain(self._awake.by_key.items(), self._resting.by_key.items())
        return {key for key, live in every if key.tenant == tenant and owner in live.owners}

    def settle(self, live: LiveConversation) -> None:
        """Weigh a conversation anew after it has changed, and make room."""
        if self._awake.by_key.get(live.key) is not live:
            return  # it was forgotten meanwhile
        self._awake.put(live)
        while live.weight > self._most // 4 and live.branches:
            self._drop(live, live.branches[0])
            self._awake.put(live)
        while self._awake.size + self._resting.size > self._most:
            oldest = self._resting if self._resting.by_key else self._awake
            self._remove(oldest, next(iter(oldest.by_key)))
        if self._packing is None and self._awake.size > self._most_awake and len(self._awake.by_key) > 1:
            self._packing = asyncio.create_task(self._pack())

    def find(self, kind: Hashable, body: bytes) -> tuple[Branch | None, bool]:
        """The earlier request of this kind with which the body has most in common, and whether it extends that: a
        packed one is not given else. None where there is none."""
        return self._index.find(kind, body)

    def put(self, kind: Hashable, parsed: ParsedRequest, earlier: Branch | None, before: Conversation | None) -> None:
        """Remember a request, in the place of the `earlier` one where it continues its conversation `before`."""
        if parsed.size > self._most // 8:
            return
        if earlier is not None and before is not None and continues(parsed.conversation, before):
            holder = self.get(earlier.key)
            if holder is not None and earlier in holder.branches:
                self._drop(holder, earlier)
        live = self.of(parsed.key)
        live.branches.append(self._index.add(kind, parsed))
        self.settle(live)

    def unpack(self, branch: Branch, parsed: ParsedRequest) -> None:
        """A packed request is used again."""
        if isinstance(branch.content, PackedRequest):  # nobody else was faster
            branch.content = parsed
            if self.get(branch.key) is not None:
                self.settle(self.of(branch.key))

    def forget(self, tenant: str, conversation: str | None = None) -> None:
        """Forget a conversation, or all of a tenant."""
        if conversation is not None and (shared := self.get(Key(tenant, ""))) is not None:
            for name, (_, records) in [*shared.recent_records.items()]:
                if any(record.conversation == conversation for record in records):
                    del shared.recent_records[name]
        for shelf in (self._awake, self._resting):
            for key in [*shelf.by_key]:
                if key.tenant == tenant and conversation in (None, key.conversation):
                    self._remove(shelf, key)

    async def _pack(self) -> None:
        """Pack those that were not used for longest; never the newest one."""
        try:
            while True:
                excess, idle = self._awake.size - self._most_awake, list[LiveConversation]()
                for live in islice(self._awake.by_key.values(), min(_AT_ONCE, len(self._awake.by_key) - 1)):
                    if excess > 0:
                        live.is_idle = True
                        idle.append(live)
                        excess -= live.weight
                if not idle:
                    break
                work = [([*live.branches], next(reversed(live.steps.items()), None)) for live in idle]
                results = await asyncio.to_thread(lambda work: [pack(*each) for each in work], work)
                for live, packed in zip(idle, results, strict=True):
                    if live.is_idle and self._awake.by_key.get(live.key) is live:
                        self._awake.take(live.key)
                        live.rest(packed)
                        self._resting.put(live)
        finally:
            self._packing = None

    def _remove(self, shelf: _Shelf, key: Key) -> None:
        live = shelf.take(key)
        for branch in live.branches if live else ():
            self._index.remove(branch)

    def _drop(self, live: LiveConversation, branch: Branch) -> None:
        live.branches.remove(branch)
        self._index.remove(branch)

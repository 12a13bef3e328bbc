"""All that this process remembers of one conversation.

Laws
  To forget it, or to pack it, costs time only: with the store there, the same bytes are sent.
  Of each branch of it the newest steps stay, for the next request and for one that is repeated. All else is bounded.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple, TypeVar
from zlib import crc32

import zstandard
from msgspec import Struct

from policies.dialects import Added, Consent, Dialect, Request
from policies.model.conversation import Conversation, converse
from policies.model.edits import Edit, Insert
from policies.model.memory import StepRecord
from policies.model.summary_record import SummaryRecord
from policies.model.tokens import Calibration, Counter
from policies.money.prices import Prices
from policies.planning.state import PlanSettings, PlanState
from policies.presets import Preset
from policies.restore import RestoredMessages, digest_of
from proxy.memory import Key, snapshots

_STEPS = 16
"""Steps of one conversation, in all its branches."""
_STAYING, _SENT_STAYING = 2, 8
"""Plan states of one branch, and steps that were sent: recall rounds are steps that the client may not have."""
_EXCHANGES = 32
"""Replies of one conversation with their recall exchanges."""
_BARE, _PACKED = 8_000, 3_000
"""Bytes of memory that a conversation takes without what is weighed of it, and a packed request without its body."""
_LEVEL = 1

Place = tuple[str, str]
"""The fingerprint of the configuration that planned a step, and the step's anchor."""
Inserts = Mapping[str, Sequence[Insert]]
"""Recall exchanges by the anchor of what the client had sent."""
T = TypeVar("T")
V = TypeVar("V")


class ParsedRequest(Struct, frozen=True):
    """A body split into messages, and the conversation they are, counted with one vocabulary."""

    request: Request
    count: Counter
    conversation: Conversation
    key: Key

    @property
    def size(self) -> int:
        """About what it takes in memory, in bytes: its body, its texts, and its blocks with their indexes."""
        return 2 * len(self.request.body) + 1_500 * len(self.conversation.blocks)


class PackedRequest(NamedTuple):
    """A request that was not used for a while."""

    body: bytes
    """Compressed."""
    count: Counter
    checks: Sequence[int]
    """Checksums of the body up to each of the tails."""

    @property
    def size(self) -> int:
        return _PACKED + len(self.body)

    def unpacked(self, dialect: Dialect, key: Key) -> ParsedRequest:
        body = zstandard.ZstdDecompressor().decompress(self.body)
        request = dialect.split(body, None, False)
        assert request is not None  # it was one when it was packed
        messages = [dialect.read(request.raw(at), self.count) for at in range(len(request.spans))]
        return ParsedRequest(request, self.count, converse(messages), key)


@dataclass(slots=True, eq=False)
class Branch:
    """An earlier request of a conversation, which later ones may continue."""

    key: Key
    content: ParsedRequest | PackedRequest
    pieces: Sequence[Hashable]
    """Names of the pieces of its body by which it is found."""
    tails: Sequence[tuple[int, bytes]]
    """The last bytes of the newest messages, and where they begin."""

    @property
    def parsed(self) -> ParsedRequest:
        assert isinstance(self.content, ParsedRequest)
        return self.content

    def packed(self) -> PackedRequest:
        if isinstance(self.content, PackedRequest):
            return self.content
        body, count = self.content.request.body, self.content.count
        checks = [crc32(memoryview(body)[: at + len(tail)]) for at, tail in self.tails]
        # a copy: what is compressed stands at the beginning of a buffer as large as the body, which would stay
        return PackedRequest(bytes(memoryview(zstandard.ZstdCompressor(_LEVEL).compress(body))), count, checks)


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
    weight: int = 0
    """Bytes for which it was counted last."""
    is_idle: bool = False
    """Whether it is being packed, and was not used since that began."""

    def weigh(self) -> int:
        """About what it takes in memory, in bytes. States of one history share their edits and the texts of these, and
        replies the exchanges before them."""
        origins = (part for origin, _ in self.assemblies.values() for part in origin if isinstance(part, bytes))
        return (
            _BARE
            + sum(branch.content.size for branch in self.branches)
            + sum(step.size for step in self.steps.values())
            + max((step.texts for step in self.steps.values()), default=0)
            + (len(self.packed_step.state) if self.packed_step else 0)
            + sum(1_000 + 200 * len(step.record.edits) for step in self.sent.values())
            + sum(map(_exchange_bytes, islice(reversed(self.exchanges.values()), 1)))
            + restored_weight(self.restored)
            + sum(summaries_weight(records) for _, records in self.summaries.values())
            + sum(map(len, origins))
            + 200 * (len(self.owners) + len(self.exchanges) + len(self.snapshots))
        )

    def rest(self, packed: "Packed") -> None:
        """It was not used for a while: what follows again goes."""
        for branch, content in packed.requests:
            branch.content = content
        self.packed_step = packed.step or self.packed_step
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


def fits(state: PlanState, conversation: Conversation, anchor: str) -> bool:
    """Whether this is the state of an earlier step of the history, which ends at this anchor."""
    if not 0 < state.step < conversation.steps:
        return False
    end = conversation.ends[state.step - 1]
    return len(state.ledger.sent) == end and conversation.end_anchor(state.step - 1) == anchor


def summaries_weight(records: Iterable[SummaryRecord]) -> int:
    """About what summaries take in memory, in bytes."""
    return 1_000 + sum(1_000 + 4 * len(record.content) + 80 * len(record.sources) for record in records)


def restored_weight(restored: Mapping[tuple[object, ...], RestoredMessages]) -> int:
    """About what was put back takes in memory, with the replies that it stands for."""
    return sum(1_000 + 4 * sum(map(len, each.raws)) for each in restored.values())


def _anchor(conversation: Conversation, back: int) -> str:
    """The anchor of a step, counted from the end; empty where there is none."""
    return conversation.end_anchor(conversation.steps - back) if conversation.steps >= back else ""


def _characters(edits: Iterable[Edit]) -> int:
    return sum(len(edit.text) for edit in edits)


def _exchange_bytes(inserts: Inserts) -> int:
    rounds = (round_ for some in inserts.values() for insert in some for round_ in insert.rounds)
    return sum(500 + 4 * (len(round_.fields) + sum(map(len, round_.calls))) for round_ in rounds)


# --- what rests is packed ---


class Packed(NamedTuple):
    """What takes the place of requests, and of the newest step."""

    requests: Sequence[tuple[Branch, PackedRequest]]
    step: PackedStep | None


def pack(branches: Sequence[Branch], newest: tuple[Place, PlannedStep] | None) -> Packed:
    """The packed form of these; takes a few milliseconds for each megabyte."""
    step = None
    if newest is not None:
        place, planned = newest
        state = snapshots.packed(planned.plan_state)
        if state is not None:
            step = PackedStep(place, planned.record, planned.texts, snapshots.compressed(state))
    return Packed([(branch, branch.packed()) for branch in branches], step)

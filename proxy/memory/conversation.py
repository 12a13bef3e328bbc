"""All that this process remembers of conversations; an earlier request is found by what a later one begins with.

Conversations may begin alike for many kilobytes (the same instructions, the same tools), so an earlier request is filed
under short pieces of its body at growing offsets. A later body is looked up from its end on: the farthest piece that
both have tells them apart best.

Laws
  To forget a conversation, or to pack it, costs time only: with the store there, the same bytes are sent.
  Of each branch of it the newest steps stay, for the next request and for one that is repeated. All else is bounded.
  What is remembered is bounded by one number, `most` bytes: those unused for longest go. They are packed once the
  others take more than `most_awake`.
  A request stays until one continues it. No conversation takes more than a quarter of the room.
  What a look-up costs grows with the length of the body only by the comparison of its bytes, and that is bounded,
  however many requests end alike.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import NamedTuple, TypeVar
from zlib import crc32

import zstandard
from msgspec import Struct

from policies.dialects import Added, Consent, Dialect, Request
from policies.dialects.deferring import DeferredTools
from policies.model.conversation import Conversation, converse
from policies.model.edits import Insert
from policies.model.memory import StepRecord
from policies.model.summary_record import SummaryRecord
from policies.model.tokens import Calibration, Counter
from policies.money.prices import Prices
from policies.planning.state import PlanSettings, PlanState
from policies.presets import Preset
from policies.restore import RestoredMessages, digest_of
from proxy.memory import Key, snapshots

_PACKED = 3_000  # bytes of memory that a packed request takes without its body
_PIECE = 64
_OFFSETS = (0, *(256 * 4**i for i in range(8)))
"""Where pieces of a body are looked at: up to 4 MB."""
_NEWEST = (1, 2, 4, 8)
"""The messages, from the last one on, at whose ends it is looked whether a body has the same bytes: a client may change
the last ones, where it moves its cache marks."""
_MOST_ALIKE = 256
"""Requests under one piece: the longer ones are filed under later pieces, too."""
_COMPARED = 64 * 2**20
"""Bytes that are compared in one look-up, beyond those of the body: a few milliseconds."""
_LEVEL = 1


class ParsedRequest(Struct, frozen=True):
    """A body split into messages, and the conversation they are, counted with one vocabulary."""

    request: Request
    count: Counter
    conversation: Conversation
    key: Key
    tools: DeferredTools | None = None

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


def _comparison(body: bytes) -> Callable[[Branch, int], bool]:
    """Compares a body with earlier ones, until it has cost too much: then none is the same any more."""
    left = len(body) + _COMPARED
    checks: dict[int, int] = {}  # of the body up to some places: of requests that end alike, many end at the same one

    def extends(branch: Branch, nth: int) -> bool:
        """True where the body has the same bytes up to the end of this tail; of a packed one, as far as is known."""
        nonlocal left
        at, tail = branch.tails[nth]
        if not body.startswith(tail, at):  # as a rule it is another
            return False
        end, content = at + len(tail), branch.content
        is_known = isinstance(content, PackedRequest) and end in checks
        left -= 0 if is_known else end
        if left < 0:
            return False
        if isinstance(content, PackedRequest):
            if not is_known:
                checks[end] = crc32(memoryview(body)[:end])
            return checks[end] == content.checks[nth]
        return body.startswith(memoryview(content.request.body)[:end])  # a slice of a view is no copy

    return extends


class _Index:
    """Requests by pieces of their bodies."""

    def __init__(self) -> None:
        self._by_piece: dict[Hashable, dict[int, Branch]] = {}

    def add(self, kind: Hashable, parsed: ParsedRequest) -> Branch:
        body, spans = parsed.request.body, parsed.request.spans
        ends = (spans[-back][1] for back in _NEWEST if back <= len(spans))
        tails = tuple((max(0, end - _PIECE), body[max(0, end - _PIECE) : end]) for end in ends)
        branch = Branch(parsed.key, parsed, tuple(_pieces(kind, body, spans[-1][1])), tails)
        for name in branch.pieces:
            alike = self._by_piece.setdefault(name, {})
            alike[id(branch)] = branch
            if len(alike) > _MOST_ALIKE:
                del alike[next(iter(alike))]
        return branch

    def remove(self, branch: Branch) -> None:
        for name in branch.pieces:
            alike = self._by_piece.get(name, {})
            alike.pop(id(branch), None)
            if not alike:
                self._by_piece.pop(name, None)

    def find(self, kind: Hashable, body: bytes) -> tuple[Branch | None, bool]:
        names = reversed([*_pieces(kind, body, len(body))])
        farthest, extends = [*islice(filter(None, map(self._by_piece.get, names)), 2)], _comparison(body)
        for branches in farthest:  # a short piece may be the same by chance
            for nth in range(len(_NEWEST)):  # first those of which it has most of the newest messages
                for branch in reversed(branches.values()):
                    if nth < len(branch.tails) and extends(branch, nth):
                        return branch, True
        alike = reversed(farthest[0].values()) if farthest else ()
        return next((each for each in alike if isinstance(each.content, ParsedRequest)), None), False


def _pieces(kind: Hashable, body: bytes, end: int) -> Iterator[Hashable]:
    """The names of the pieces of body[:end]."""
    return ((kind, at, body[at : at + _PIECE]) for at in _OFFSETS if at + _PIECE <= end)


def _continues(new: Conversation, old: Conversation) -> bool:
    """True where a request carries all that an earlier one did. Where it is of a later step, the newest turn of that
    may be another, because some clients write their last message anew each time."""
    end = old.ends[-2] if 1 < old.steps < new.steps else old.ends[-1]
    return 0 < end <= len(new.blocks) and new.blocks[end - 1].anchor == old.blocks[end - 1].anchor


# --- one conversation ---


STEPS = 16
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
    """The terms that a request is planned under, besides what its provider has reported and what is stored."""

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


@dataclass(slots=True, eq=False)
class LiveConversation:
    """All that is remembered of a conversation, in all its branches. Of dicts with a bound the newest entries stay."""

    key: Key
    branches: list[Branch] = field(default_factory=list)
    """The one that was used last at the end."""
    steps: dict[Place, PlannedStep] = field(default_factory=dict)
    """How far its histories were planned."""
    packed_step: PackedStep | None = None
    snapshots: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """The newest snapshots that are in the store: after so many steps and tokens that the client wrote."""
    sent: dict[str, SentStep] = field(default_factory=dict)
    """By anchor."""
    newest: StepRecord | None = None
    """The step that was sent last, in any branch."""
    exchanges: dict[tuple[str, str, str], Inserts] = field(default_factory=dict)
    """By dialect, anchor of what the client had sent, and digest of the reply to it: the exchanges up to and in this
    reply. With an empty digest those of the reply that was given last."""
    restored: Mapping[tuple[object, ...], RestoredMessages] = field(default_factory=dict)
    """The messages put back for exchanges."""
    summaries: dict[str, tuple[float, tuple[SummaryRecord, ...]]] = field(default_factory=dict)
    """By the anchor of the history's beginning, and until when they count."""
    owners: dict[str, float] = field(default_factory=dict)
    """Who has sent it, which was written, and until when that need not be written again."""
    assemblies: dict[bool, tuple[tuple[object, ...], Assembly]] = field(default_factory=dict)
    """The terms that it was planned under last, with and without recall exchanges, and what follows from them."""
    tools: dict[str, str] = field(default_factory=dict)
    """What was decided of its lists of tools, by their digests."""
    continues: dict[str, str] = field(default_factory=dict)
    """By owner, the conversation in whose place its history stands: another where it begins with a summary of that."""
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
    """True where it is being packed, and was not used since that began."""

    def rest(self, requests: Sequence[tuple[Branch, PackedRequest]], step: PackedStep | None) -> None:
        """It was not used for a while: what follows again goes."""
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

    def add_planned(self, fingerprint: str, conversation: Conversation, state: PlanState, record: StepRecord) -> None:
        """How far it was planned, whatever its upstream will say: to plan the same again costs nothing."""
        before = self.steps.get((fingerprint, _anchor(conversation, 2)))
        texts = sum(len(edit.text) for edit in state.edits.values()) if before is None else before.texts
        step = PlannedStep(state, record, texts + sum(len(edit.text) for edit in record.edits))
        put_newest(self.steps, (fingerprint, record.anchor), step, STEPS)
        self.steps.pop((fingerprint, _anchor(conversation, 1 + _STAYING)), None)

    def add_reached(self, fingerprint: str, conversation: Conversation, plan_state: PlanState) -> None:
        """A step up to which a history was planned for a request that extends it; forgotten first."""
        place = fingerprint, conversation.end_anchor(plan_state.step - 1)
        if place not in self.steps:
            step = PlannedStep(plan_state, None, sum(len(edit.text) for edit in plan_state.edits.values()))
            others = islice(self.steps.items(), max(0, len(self.steps) + 1 - STEPS), None)
            self.steps = {place: step, **dict(others)}

    def add_sent(self, conversation: Conversation, step: SentStep) -> None:
        put_newest(self.sent, step.record.anchor, step, STEPS)
        self.sent.pop(_anchor(conversation, 1 + _SENT_STAYING), None)
        self.newest = step.record

    def sent_before(self, conversation: Conversation) -> StepRecord | None:
        """The record of the step before the newest one, where this process sent that."""
        sent = self.sent.get(conversation.previous_anchor) if conversation.steps > 1 else None
        return None if sent is None else sent.record

    def change_record(self, fingerprint: str, record: StepRecord) -> None:
        """Something followed within the reply to this step, or after it."""
        place, anchor = (fingerprint, record.anchor), record.anchor
        if place in self.steps:
            self.steps[place] = replace(self.steps[place], record=record)
        if self.packed_step is not None and self.packed_step.place == place:
            self.packed_step = self.packed_step._replace(record=record)
        if anchor in self.sent:
            self.sent[anchor] = replace(self.sent[anchor], record=record)

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
        """True where this process sent the step that ends at `anchor`, and nobody else has had a recall exchange since:
        so what was sent last is what is remembered here, though the store does not say so."""
        sent = self.sent.get(anchor)
        return sent is not None and sent.foreign is not None and sent.foreign == foreign

    def add_exchanges(self, dialect: str, after: str, reply: str, inserts: Inserts, *, complete: bool) -> None:
        """The request that ends at `after` got this reply, with these exchanges; `complete`: there is no other."""
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
    """True where an event is noted for the first time."""
    is_first = event not in live.noted
    put_newest(live.noted, event, None, _NOTED)
    return is_first


def fits(state: PlanState, conversation: Conversation, anchor: str) -> bool:
    """True where this is the state of an earlier step of the history, which ends at this anchor."""
    is_earlier, last = 0 < state.step < conversation.steps, state.step - 1
    return is_earlier and len(state.ledger.sent) == conversation.ends[last] and conversation.end_anchor(last) == anchor


def restored_weight(restored: Mapping[tuple[object, ...], RestoredMessages]) -> int:
    """About what was put back takes in memory, with the replies that it stands for."""
    return sum(1_000 + 4 * sum(map(len, each.raws)) for each in restored.values())


def weight_of(live: LiveConversation) -> int:
    """About what it takes in memory, in bytes. States of one history share their edits and the texts of these, and
    replies the exchanges before them."""
    origins = (part for origin, _ in live.assemblies.values() for part in origin if isinstance(part, bytes))
    lists = [records for _, records in chain(live.summaries.values(), live.recent_records.values())]
    states = [step.plan_state for step in live.steps.values()]
    newest = next(reversed(live.exchanges.values()), {})
    rounds = (each for some in newest.values() for insert in some for each in insert.rounds)
    names = len(live.owners) + len(live.exchanges) + len(live.snapshots) + len(live.continues)
    names += len(live.failed_jobs) + len(live.digest_lookups) + len(live.noted)
    return (
        _BARE
        + sum(branch.content.size for branch in live.branches)
        + sum(1_000 + 200 * len(state.ledger.sent) + 300 * len(state.edits) for state in states)
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


def pack(
    branches: Sequence[Branch], newest: tuple[Place, PlannedStep] | None
) -> tuple[Sequence[tuple[Branch, PackedRequest]], PackedStep | None]:
    """The packed form of these requests, and of the newest step; takes a few milliseconds for each megabyte."""
    requests = [(branch, branch.packed()) for branch in branches]
    if newest is None or (state := snapshots.packed(newest[1].plan_state)) is None:
        return requests, None
    return requests, PackedStep(newest[0], newest[1].record, newest[1].texts, snapshots.compressed(state))


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
        self._index = _Index()
        self._packing: asyncio.Task[None] | None = None

    def of(self, key: Key) -> LiveConversation:
        """All that is remembered of a conversation; it is used now."""
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
        """The earlier request of this kind with which the body has most in common, if there is one, and whether it
        extends that: a packed one is not given else."""
        return self._index.find(kind, body)

    def put(self, kind: Hashable, parsed: ParsedRequest, earlier: Branch | None, before: Conversation | None) -> None:
        """Remember a request, in the place of the `earlier` one where it continues its conversation `before`."""
        if parsed.size > self._most // 8:
            return
        if earlier is not None and before is not None and _continues(parsed.conversation, before):
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
            for key, live in [*shelf.by_key.items()]:
                if key.tenant == tenant and conversation in (None, key.conversation, *live.continues.values()):
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
                        live.rest(*packed)
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

"""prepare(): from the bytes a client sent to the bytes that go upstream, and what to say about it.

Laws
  Fail open: whatever goes wrong here, the client's own bytes are forwarded; a header, a log line and a counter say so.
  Store trouble is not such a failure: the plan is derived from replay alone, and comes out the same.
  The cost follows what is new: messages are read once, histories are continued where their books are at hand.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal

from cachetools import LRUCache

from policies.context import Budget, Memory, Prices, StepRecord
from policies.conversation import Conversation
from policies.dialects import DIALECTS, Dialect, Reply, Request
from policies.edits import Edit, Replace
from policies.pipeline import Books, Plan, Setup, plan
from policies.prefix import Chains, outcome, sent_record
from policies.presets import PRESETS, described
from policies.prices import prices_for
from policies.stubs import MARK
from policies.tokens import Calibration
from policies.tools import writes
from proxy.config import Settings
from proxy.histories import Histories
from proxy.intake import Intake, Taken
from proxy.store import Key
from proxy.telemetry import Telemetry

_COLD_BYTES = 200_000
_COLD_STEPS, _COLD_BLOCKS = 16, 100
"""A larger message, more steps to replay or more new blocks are worked on in a thread, so that nobody else waits."""
_PIECES_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class Incoming:
    """A chat request as it came in, undone from its encoding."""

    dialect: str
    body: bytes
    tenant: str
    conversation: str | None
    mode: Literal["on", "off", "observe"]
    credential: str


@dataclass(slots=True)
class Prepared:
    """A request ready to go upstream; `headers` are those of the reply."""

    body: bytes
    headers: dict[str, str]
    dialect: str = "openai_chat"
    model: str = ""
    prices: Prices = field(default_factory=Prices)
    key: Key | None = None
    plain: int = 0
    """Exact tokens of what is sent."""
    whole: int = 0
    """Exact tokens of what the client sent."""
    conversation: Conversation | None = None
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class _Work:
    """A request in hand."""

    incoming: Incoming
    dialect: Dialect
    request: Request
    conversation: Conversation
    setup: Setup
    key: Key
    calibration: Calibration

    @property
    def fingerprint(self) -> str:
        """What decisions follow from besides the history."""
        setup = self.setup
        said = (setup.prices, setup.budget, setup.marks, setup.slots, setup.head, setup.text_protocol)
        return sha256(repr((said, described(setup.policies), self.incoming.mode)).encode()).hexdigest()[:32]

    @property
    def head(self) -> str:
        """What stands before the messages in the prompt."""
        return sha256(self.request.model.encode() + b"\0" + self.request.tools).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A changed message: its bytes, and a digest of what was done to it, cache marks apart."""

    raw: bytes
    stamp: bytes


_Pieces = MutableMapping[tuple[object, ...], _Piece]
"""Changed messages by the bytes and the edits that made them."""


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """A plan, and the messages it changes."""

    plan: Plan
    changed: Mapping[int, bytes]
    chains: Chains


class Compactor:
    """Prepares requests, and learns from what became of them."""

    def __init__(
        self,
        settings: Settings,
        intake: Intake,
        histories: Histories,
        telemetry: Telemetry,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._histories = histories
        self._telemetry = telemetry
        self._clock = clock
        self._prices: LRUCache[str, Prices] = LRUCache(1024)
        self._intake = intake
        self._pieces: LRUCache[tuple[object, ...], _Piece] = LRUCache(_PIECES_BYTES, getsizeof=lambda p: len(p.raw))
        self._calibrations: LRUCache[Key, Calibration] = LRUCache(4096)
        self._ratios: LRUCache[str, float] = LRUCache(1024)

    async def prepare(self, incoming: Incoming) -> Prepared:
        """What goes upstream instead of the client's body. Never raises."""
        began = time.perf_counter()
        if incoming.mode == "off":
            prepared = _unchanged(incoming, "bypassed", "bypassed")
        else:
            try:
                prepared = await self._compacted(incoming)
            except Exception as error:  # law 6: our trouble is never the client's
                self._telemetry.log.error("failed_open", fault=type(error).__name__, exc_info=True)
                prepared = _unchanged(incoming, "failed-open", "checkpoint:failed-open")
        prepared.headers["x-narrows-ms"] = f"{(time.perf_counter() - began) * 1000:.1f}"
        return prepared

    def reply(self, prepared: Prepared) -> Reply:
        """What reads the reply as it passes."""
        return DIALECTS[prepared.dialect].reply()

    async def record(self, prepared: Prepared, reader: Reply, status: int, ms: float) -> None:
        """Learn from what the provider billed."""
        if prepared.key is None or not 200 <= status < 300:
            return
        usage = reader.usage
        if usage is not None and self._settings.calibrate:
            learned = self._calibration(prepared.key, prepared.model).learn(prepared.plain, usage.prompt)
            self._calibrations[prepared.key] = learned
            self._ratios[prepared.model] = learned.ratio
        self._telemetry.billed(prepared.model, prepared.prices, usage, prepared.plain, prepared.whole)

    async def close(self) -> None:
        """Let what is being written be written."""
        await self._histories.close()

    async def _compacted(self, incoming: Incoming) -> Prepared:
        taken = await self._intake.take(incoming.dialect, incoming.body, incoming.tenant)
        if taken is None:
            return _unchanged(incoming, "untouched", "bypassed")
        work = self._work(incoming, taken)
        books, memory = await self._histories.known(work.key, work.fingerprint, work.conversation)
        work = replace(work, setup=replace(work.setup, cold=self._is_cold(work, memory)))
        outgoing = await self._planned(work, books, memory)
        if _underivable(work, outgoing.plan) and incoming.mode != "observe":
            mine = self._step_record(work, outgoing)
            won = await self._histories.claim(work.key, mine)
            if won.edits != mine.edits:
                memory = Memory({**memory.steps, won.anchor: won})
                outgoing = await self._planned(work, books, memory)
        return self._prepared(work, outgoing, memory)

    def _work(self, incoming: Incoming, taken: Taken) -> _Work:
        settings, dialect, request = self._settings, DIALECTS[incoming.dialect], taken.request
        prices, conversation = self._prices_of(request.model), taken.conversation
        key = Key(incoming.tenant, incoming.conversation or request.conversation or conversation.key)
        calibration = self._calibration(key, request.model)
        style = dialect.mark_style(request, conversation.messages) if settings.own_marks and prices.breakpoints else ""
        setup = Setup(
            PRESETS[settings.preset],
            prices,
            self._budget(prices, request),
            taken.count,
            text_protocol=settings.text_protocol,
            marks=style,
            slots=dialect.free_slots(request, conversation.messages) if style else 0,
            head=dialect.head_tokens(request, conversation.messages, taken.count),
            factor=calibration.ratio if settings.calibrate else 1.0,
        )
        return _Work(incoming, dialect, request, conversation, setup, key, calibration)

    def _budget(self, prices: Prices, request: Request) -> Budget:
        settings = self._settings
        return Budget.of(
            prices,
            unknown_window=settings.unknown_window,
            window=settings.window,
            reserve=settings.reserve if settings.reserve is not None else request.reserve,
            high=settings.high,
            low=settings.low,
            floor=settings.floor,
        )

    def _is_cold(self, work: _Work, memory: Memory) -> bool:
        """Whether the provider has forgotten this prompt: then a rewrite costs nothing."""
        if work.conversation.steps < 2:
            return False
        previous = memory.steps.get(work.conversation.end_anchor(work.conversation.steps - 2))
        return previous is not None and self._clock() - previous.at > self._settings.cold_seconds

    async def _planned(self, work: _Work, books: Books | None, memory: Memory) -> _Outgoing:
        ends, done = work.conversation.ends, books.step if books else 0
        steps, blocks = len(ends) - done, ends[-1] - (ends[done - 1] if done else 0)
        largest = max(end - start for start, end in work.request.spans)
        if steps > _COLD_STEPS or blocks > _COLD_BLOCKS or largest > _COLD_BYTES:
            # the cache of pieces is the event loop's alone: a thread fills one of its own
            fresh: dict[tuple[object, ...], _Piece] = {}
            outgoing = await asyncio.to_thread(_plan, work, books, memory, fresh)
            for name, piece in fresh.items():
                self._pieces[name] = piece
            return outgoing
        return _plan(work, books, memory, self._pieces)

    def _step_record(self, work: _Work, outgoing: _Outgoing) -> StepRecord:
        sent = sent_record(work.conversation, outgoing.chains, work.head, work.fingerprint)
        anchor = work.conversation.end_anchor(work.conversation.steps - 1)
        return StepRecord(anchor, outgoing.plan.new, outgoing.plan.reason, sent, self._clock())

    def _prepared(self, work: _Work, outgoing: _Outgoing, memory: Memory) -> Prepared:
        planned = outgoing.plan
        record = self._step_record(work, outgoing)
        assert record.sent is not None
        prefix = "first"
        if work.conversation.steps > 1:
            previous = memory.steps.get(work.conversation.end_anchor(work.conversation.steps - 2))
            newest = self._histories.newest(work.key)
            prefix = outcome(previous, newest, record.sent, outgoing.chains, planned.reason)
        observed = work.incoming.mode == "observe"
        self._histories.keep(work.key, work.fingerprint, planned.books, record, behind=not observed)
        body = work.incoming.body if observed else self._body(work, outgoing)
        head = work.setup.head
        headers = {
            "x-narrows-mode": "observed" if observed else "untouched" if body == work.incoming.body else "compacted",
            "x-narrows-prefix": prefix,
            "x-narrows-tokens-before": str(work.calibration.estimate(head + planned.before)),
            "x-narrows-tokens-after": str(work.calibration.estimate(head + planned.after)),
            "x-narrows-edits": _counted(planned),
            "x-narrows-conversation": work.key.conversation,
            **self._warning(work),
        }
        for edit in planned.new:
            self._telemetry.metrics.edited(edit.by)
        plain = head + (planned.before if observed else planned.after)
        return Prepared(
            body,
            headers,
            work.incoming.dialect,
            work.request.model,
            work.setup.prices,
            work.key,
            plain,
            head + planned.before,
            work.conversation,
            planned,
        )

    def _body(self, work: _Work, outgoing: _Outgoing) -> bytes:
        """The client's bytes, but for the changed messages and marks of ours."""
        changed = dict(outgoing.changed)
        for message in outgoing.plan.marks:
            raw = changed.get(message, work.request.raw(message))
            marked = work.dialect.marked(raw, work.setup.marks) if raw else None
            if marked is not None:
                changed[message] = marked
        return work.dialect.joined(work.request, changed) if changed else work.incoming.body

    def _warning(self, work: _Work) -> dict[str, str]:
        """Say so where the model has just written one of our references into a file."""
        newest = (block for block in work.conversation.blocks if block.turn == work.conversation.steps - 2)
        for block in newest:
            if block.kind == "call" and MARK in block.text and writes(block.tool, block.text):
                self._telemetry.metrics.marker_in_argument()
                self._telemetry.log.warning("marker_in_argument", conversation=work.key.conversation)
                return {"x-narrows-warning": "marker-in-argument"}
        return {}

    def _prices_of(self, model: str) -> Prices:
        if model not in self._prices:
            self._prices[model] = prices_for(model, self._settings.overrides)
        return self._prices[model]

    def _calibration(self, key: Key, model: str) -> Calibration:
        return self._calibrations.get(key) or Calibration(self._ratios.get(model, 1.0))


def _plan(work: _Work, books: Books | None, memory: Memory, pieces: _Pieces) -> _Outgoing:
    planned = plan(work.conversation, work.setup, memory, books)
    changed = _spliced(work, _by_message(work.conversation, planned), pieces)
    stamps = {message: piece.stamp for message, piece in changed.items()}
    raws = {message: piece.raw for message, piece in changed.items()}
    return _Outgoing(planned, raws, Chains(work.conversation.messages, stamps))


def _spliced(work: _Work, made: Mapping[int, list[Edit]], pieces: _Pieces) -> dict[int, _Piece]:
    """The changed messages; from `pieces` where the same edits met the same bytes before."""
    names = {message: (work.conversation.messages[message].raw, *edits) for message, edits in made.items()}
    known = {message: piece for message, name in names.items() if (piece := pieces.get(name)) is not None}
    unknown = [edit for message, edits in made.items() if message not in known for edit in edits]
    for message, raw in work.dialect.splice(work.request, work.conversation, unknown).items():
        known[message] = piece = _Piece(raw, _stamp(made.get(message, [])) if raw else b"")
        if message in names and isinstance(made[message][0], Replace) and len(raw) < _PIECES_BYTES // 8:
            pieces[names[message]] = piece
    return known


def _unchanged(incoming: Incoming, mode: str, prefix: str) -> Prepared:
    return Prepared(incoming.body, {"x-narrows-mode": mode, "x-narrows-prefix": prefix}, incoming.dialect)


def _underivable(work: _Work, planned: Plan) -> bool:
    """Whether the step was decided by more than the history: the time, or what the provider reported."""
    return planned.reason == "checkpoint:cold" or (planned.reason == "checkpoint:window" and work.setup.factor != 1.0)


def _by_message(conversation: Conversation, planned: Plan) -> dict[int, list[Edit]]:
    found: dict[int, list[Edit]] = {}
    for edit in planned.edits:
        at = edit.at if isinstance(edit, Replace) else edit.first
        found.setdefault(conversation.blocks[conversation.index[at]].message, []).append(edit)
    return found


def _stamp(edits: list[Edit]) -> bytes:
    """What the edits make of one message, cache marks apart: a client moves its marks, and that changes no prompt."""
    said = [(edit.at if isinstance(edit, Replace) else edit.first, edit.text) for edit in edits]
    return sha256(repr(said).encode("utf-8", "surrogatepass")).digest()


def _counted(planned: Plan) -> str:
    """How many edits of each policy the request carries, as `clip=3;offload=7`."""
    policies = [edit.by for edit in planned.edits]
    return ";".join(f"{name}={policies.count(name)}" for name in sorted(set(policies)))

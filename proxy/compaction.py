"""prepare(): from the bytes a client sent to the bytes that go upstream, and what to say about it.

Laws
  Fail open: whatever goes wrong here, the client's own bytes are forwarded; a header, a log line and a counter say so.
  Store trouble is not such a failure: the plan is derived from replay alone, and comes out the same.
  The cost follows what is new: messages are read once, histories are continued where their books are at hand.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cachetools import LRUCache

from policies.books import Books, Plan, Setup
from policies.context import Budget, Memory, Prices, StepRecord
from policies.conversation import Conversation
from policies.dialects import DIALECTS, Added, Reply, Request
from policies.prefix import outcome
from policies.presets import PRESETS
from policies.prices import prices_for
from policies.recall import Answer
from policies.restore import Flight
from policies.stubs import MARK
from policies.tokens import Calibration
from policies.tools import writes
from proxy.config import Settings
from proxy.histories import NOTHING, Found, Histories, Inserts
from proxy.intake import Intake, Taken
from proxy.originals import Originals
from proxy.outgoing import PIECES_BYTES, Incoming, Outgoing, Piece, Work, planned, tool_tokens
from proxy.recalls import Recalls, Resumed
from proxy.rolling import Rolling, Waiting
from proxy.store import Key
from proxy.telemetry import Telemetry
from proxy.upstream import ShapedError

_COLD_BYTES = 200_000
_COLD_STEPS, _COLD_BLOCKS, _MANY_BLOCKS = 16, 100, 800
"""A larger message, more steps to replay or more new blocks are worked on in a thread, so that nobody else waits."""


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
    record: StepRecord | None = None
    streams: bool = False
    """Whether the client asked for a stream."""
    setup: str = ""
    """What is remembered of the request, and under which setup."""
    credential: str = ""
    """Whose request it is."""
    exchanged: "Exchanged | None" = None
    """What recalls need; None where the recall tool is not there."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What the client sent, where in it the reply belongs, and the exchanges behind the replies before."""

    incoming: Incoming
    after: str
    before: Inserts
    sure: bool
    """Whether the store could say all of them."""
    answers: tuple[Answer, ...] = ()
    """What this very request answers."""


class Compactor:
    """Prepares requests, and learns from what became of them."""

    def __init__(
        self,
        settings: Settings,
        intake: Intake,
        histories: Histories,
        telemetry: Telemetry,
        rolling: Rolling,
        clock: Callable[[], float] = time.time,
        originals: Originals | None = None,
    ) -> None:
        self._settings = settings
        self._histories = histories
        self._telemetry = telemetry
        self._clock = clock
        self._originals = originals
        self._rolling = rolling
        self._prices: LRUCache[str, Prices] = LRUCache(1024)
        self._intake = intake
        self._recalls = Recalls(intake, histories)
        self._pieces: LRUCache[tuple[object, ...], Piece] = LRUCache(PIECES_BYTES, getsizeof=lambda p: len(p.raw))
        self._calibrations: LRUCache[Key, Calibration] = LRUCache(4096)
        self._ratios: LRUCache[str, float] = LRUCache(1024)

    async def prepare(self, incoming: Incoming, waiting: Waiting | None = None) -> Prepared:
        """What goes upstream instead of the client's body. Raises ShapedError where a stale summary is an error to
        people, and nothing else. `waiting` is entered while a client that streams waits for a summary."""
        began = time.perf_counter()
        if incoming.mode == "off":
            prepared = _unchanged(incoming, "bypassed", "bypassed")
        else:
            try:
                prepared = await self._compacted(incoming, waiting=waiting)
            except ShapedError:
                raise
            except Exception as error:  # law 6: our trouble is never the client's
                self._telemetry.log.error("failed_open", fault=type(error).__name__, exc_info=True)
                prepared = _unchanged(incoming, "failed-open", "checkpoint:failed-open")
        prepared.headers["x-narrows-ms"] = f"{(time.perf_counter() - began) * 1000:.1f}"
        return prepared

    def reply(self, prepared: Prepared) -> Reply:
        """What reads the reply as it passes."""
        rounds = None if prepared.exchanged is None else self._settings.recall_rounds
        return DIALECTS[prepared.dialect].reply(rounds)

    async def again(self, prepared: Prepared, reply: Reply, choice: int) -> Prepared:
        """The request of the next round: what the client sent, what the model asked for, and the answers."""
        assert prepared.exchanged is not None
        incoming, said = prepared.exchanged.incoming, reply.said(choice)
        flight = Flight(said.text, said.rounds)
        try:
            following = await self._compacted(incoming, flight, prepared.exchanged)
        except Exception as error:  # law 6 again: the model gets its answer all the same
            self._telemetry.log.error("failed_open", fault=type(error).__name__, exc_info=True)
            following = await self._unplanned(prepared, prepared.exchanged, flight)
        self._telemetry.metrics.prefixed(following.headers["x-narrows-prefix"])  # no reply can say it any more
        if prepared.key and prepared.record and following.record:
            self._histories.asked_on(prepared.key, prepared.setup, prepared.record, following.record.sent)
        count = await self._intake.counter(following.model)
        spent = max(count(said.text), reply.completion if len(reply.over) + len(reply.pending) == 1 else 0)
        return replace(following, body=DIALECTS[incoming.dialect].next_round(following.body, spent))

    async def keep(self, prepared: Prepared, reply: Reply, choice: int) -> None:
        """Remember the recall exchange of a choice, or that there is none, before the client has all of it."""
        exchanged, said = prepared.exchanged, reply.said(choice)
        if exchanged is not None and prepared.key is not None:
            before = exchanged.before if exchanged.sure else None
            await self._recalls.keep(prepared.key, exchanged.after, before, said)
            self._telemetry.metrics.recalled_beside(sum(len(r.calls) for r in said.rounds if r.places))

    async def record(self, prepared: Prepared, reply: Reply, status: int) -> None:
        """Learn from what the provider billed."""
        if prepared.key is None or not 200 <= status < 300:
            return
        self._rolling.answered(prepared.credential)
        usage = reply.usage
        if usage is not None and self._settings.calibrate:
            learned = self._calibration(prepared.key, prepared.model).learn(prepared.plain, usage.prompt)
            self._calibrations[prepared.key] = learned
            self._ratios[prepared.model] = learned.ratio
        self._telemetry.billed(prepared.model, prepared.prices, usage, prepared.plain, prepared.whole)
        answers = prepared.exchanged.answers if prepared.exchanged else ()
        if answers:
            found = sum(answer.found for answer in answers)
            self._telemetry.recalled(found, len(answers) - found, prepared.prices, usage)

    async def close(self) -> None:
        """Let what is being written be written."""
        await self._histories.close()

    async def _unplanned(self, prepared: Prepared, exchanged: Exchanged, flight: Flight) -> Prepared:
        """What the client sent and the exchange of the reply, with nothing made shorter."""
        incoming = exchanged.incoming
        taken = await self._intake.take(incoming.dialect, incoming.body, incoming.tenant)
        assert taken is not None  # it was a request before
        resumed = await self._recalls.resume(incoming, _key(incoming, taken), taken, exchanged.before, flight)
        body = DIALECTS[incoming.dialect].joined(resumed.taken.request, {}, self._tool(incoming, resumed.taken))
        headers = {**prepared.headers, "x-narrows-prefix": "checkpoint:failed-open"}
        exchanged = replace(exchanged, answers=resumed.answers)
        return replace(prepared, body=body, headers=headers, record=None, exchanged=exchanged)

    async def _compacted(
        self,
        incoming: Incoming,
        flight: Flight | None = None,
        before: Exchanged | None = None,
        waiting: Waiting | None = None,
    ) -> Prepared:
        taken = await self._intake.take(incoming.dialect, incoming.body, incoming.tenant)
        if taken is None:
            return _unchanged(incoming, "untouched", "bypassed")
        key = _key(incoming, taken)
        inserts, found = await self._inserts(incoming, key, taken, before)
        resumed = await self._recalls.resume(incoming, key, taken, inserts, flight)
        work = self._work(incoming, key, resumed)
        books, memory = await self._histories.known(key, work.fingerprint, work.conversation, found)
        memory = self._rolling.known(work, memory)
        work = replace(work, setup=replace(work.setup, cold=self._is_cold(work, memory)))
        outgoing = await self._planned(work, books, memory)
        later = await self._rolling.waited(work, outgoing.plan, memory, waiting)
        if later is not None:
            memory = later
            outgoing = await self._planned(work, books, memory)
        if before is None:
            self._rolling.check(work, outgoing.plan)
        if later is None:  # else what is wanted was just waited for
            self._rolling.want(work, outgoing.plan, memory)
        if _underivable(work, outgoing.plan) and incoming.mode != "observe":
            outgoing = await self._claimed(work, books, memory, outgoing)
        self._rolling.tell(work, outgoing.plan)
        prepared = self._prepared(work, outgoing, memory)
        if not found.whole and prepared.headers["x-narrows-prefix"] == "extended":
            prepared.headers["x-narrows-prefix"] = "checkpoint:replayed"  # there may be an exchange nobody can tell of
        if work.tool is not None and incoming.mode == "on":
            after = taken.conversation.end_anchor(taken.conversation.steps - 1)
            sure = before.sure if before else found.whole
            prepared.exchanged = Exchanged(incoming, after, inserts, sure, resumed.answers)
        return prepared

    async def _claimed(self, work: Work, books: Books | None, memory: Memory, outgoing: Outgoing) -> Outgoing:
        """What is decided where the history alone does not decide: whoever was first."""
        mine = work.record(outgoing, self._clock())
        won = await self._histories.claim(work.key, mine)
        if won is None and outgoing.plan.adopted:  # nobody else could know of it: it stands another time
            memory = replace(memory, summaries=())
        elif won is None or (won.edits, won.dropped) == (mine.edits, mine.dropped):
            return outgoing
        else:
            memory = replace(memory, steps={**memory.steps, won.anchor: won})
        return await self._planned(work, books, memory)

    async def _inserts(
        self, incoming: Incoming, key: Key, taken: Taken, before: Exchanged | None
    ) -> tuple[Inserts, Found]:
        """The exchanges to put back; in a round those that the reply began with, whatever the store says by now."""
        if before is not None:
            return before.before, NOTHING
        if incoming.mode != "on" or self._tool(incoming, taken) is None:
            return {}, NOTHING
        return await self._histories.inserts(key, taken.conversation)

    def _tool(self, incoming: Incoming, taken: Taken) -> Added | None:
        """Where the recall tool goes in this request."""
        if self._settings.recall == "never":
            return None
        return DIALECTS[incoming.dialect].recall_tool(taken.request, self._settings.recall == "always")

    def _work(self, incoming: Incoming, key: Key, resumed: Resumed) -> Work:
        settings, dialect, taken = self._settings, DIALECTS[incoming.dialect], resumed.taken
        request, conversation = taken.request, taken.conversation
        prices, tool = self._prices_of(request.model), self._tool(incoming, taken)
        calibration = self._calibration(key, request.model)
        style = dialect.mark_style(request, conversation.messages) if settings.own_marks and prices.breakpoints else ""
        head = dialect.head_tokens(request, conversation.messages, taken.count)
        setup = Setup(
            PRESETS[settings.preset],
            prices,
            self._budget(prices, request),
            taken.count,
            text_protocol=settings.text_protocol,
            marks=style,
            slots=dialect.free_slots(request, conversation.messages) if style else 0,
            head=head + tool_tokens(tool, taken.count),
            factor=calibration.ratio if settings.calibrate else 1.0,
            recall=tool is not None,
            only_to_fit=tool is None and not request.brings_tools and conversation.has_calls,
            summarizing=self._rolling.summarizing(request.model),
        )
        return Work(incoming, dialect, request, conversation, setup, key, calibration, tool, resumed.lost)

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

    def _is_cold(self, work: Work, memory: Memory) -> bool:
        """Whether the provider has forgotten this prompt: then a rewrite costs nothing."""
        if work.conversation.steps < 2:
            return False
        previous = memory.steps.get(work.conversation.end_anchor(work.conversation.steps - 2))
        return previous is not None and self._clock() - previous.at > self._settings.cold_seconds

    async def _planned(self, work: Work, books: Books | None, memory: Memory) -> Outgoing:
        ends, done = work.conversation.ends, books.step if books else 0
        steps, blocks = len(ends) - done, ends[-1] - (ends[done - 1] if done else 0)
        largest = max(end - start for start, end in work.request.spans)
        adopts = bool(memory.summaries) and ends[-1] > _MANY_BLOCKS  # it may change all of them at once
        if adopts or steps > _COLD_STEPS or blocks > _COLD_BLOCKS or largest > _COLD_BYTES:
            # the cache of pieces is the event loop's alone: a thread fills one of its own
            fresh: dict[tuple[object, ...], Piece] = {}
            outgoing = await asyncio.to_thread(planned, work, books, memory, fresh)
            for name, piece in fresh.items():
                self._pieces[name] = piece
            return outgoing
        return planned(work, books, memory, self._pieces)

    def _prepared(self, work: Work, outgoing: Outgoing, memory: Memory) -> Prepared:
        made, observed = outgoing.plan, work.incoming.mode == "observe"
        record = work.record(outgoing, self._clock())
        assert record.sent is not None
        prefix = "first"
        if work.conversation.steps > 1:
            previous = memory.steps.get(work.conversation.end_anchor(work.conversation.steps - 2))
            newest = self._histories.newest(work.key)
            prefix = outcome(previous, newest, record.sent, outgoing.chains, made.reason)
            if work.lost and prefix in ("extended", "tail-cut", "checkpoint:replayed"):
                prefix = "checkpoint:recall"
        self._histories.keep(work.key, work.fingerprint, made.books, record, behind=not observed)
        if self._originals is not None and not observed:
            self._originals.keep(work.key, work.incoming.credential, work.conversation, made.new)
        head, tool = work.setup.head, tool_tokens(work.tool, work.setup.count)
        mode = "compacted" if made.edits or made.marks else "untouched"
        headers = {
            "x-narrows-mode": "observed" if observed else mode,
            "x-narrows-prefix": prefix,
            "x-narrows-tokens-before": str(work.calibration.estimate(head - tool + made.before)),
            "x-narrows-tokens-after": str(work.calibration.estimate(head + made.after)),
            "x-narrows-edits": _counted(made),
            "x-narrows-conversation": work.key.conversation,
            **({"x-narrows-summary": word} if (word := self._rolling.word(work, made)) else {}),
            **self._warning(work),
        }
        for edit in made.new:
            self._telemetry.metrics.edited(edit.by)
        whole = head - tool + made.before
        return Prepared(
            work.incoming.body if observed else work.body(outgoing),
            headers,
            work.incoming.dialect,
            work.request.model,
            work.setup.prices,
            work.key,
            whole if observed else head + made.after,
            whole,
            work.conversation,
            made,
            record,
            work.request.streams,
            work.fingerprint,
            work.incoming.credential,
        )

    def _warning(self, work: Work) -> dict[str, str]:
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


def _key(incoming: Incoming, taken: Taken) -> Key:
    """Which conversation this is: the client says so, or all that was said before the first answer."""
    return Key(incoming.tenant, incoming.conversation or taken.request.conversation or taken.conversation.key)


def _unchanged(incoming: Incoming, mode: str, prefix: str) -> Prepared:
    return Prepared(incoming.body, {"x-narrows-mode": mode, "x-narrows-prefix": prefix}, incoming.dialect)


def _underivable(work: Work, made: Plan) -> bool:
    """Whether the step was decided by more than the history: a summary, the time, or what the provider reported."""
    if made.wants or made.books.offered or made.books.dropped or made.reason == "checkpoint:cold":
        return True
    return made.reason == "checkpoint:window" and work.setup.factor != 1.0


def _counted(made: Plan) -> str:
    """How many edits of each policy the request carries, as `clip=3;offload=7`."""
    policies = [edit.by for edit in made.edits]
    return ";".join(f"{name}={policies.count(name)}" for name in sorted(set(policies)))

"""prepare(): from the bytes a client sent to the bytes that go upstream, and what to say about it.

Laws
  Fail open: whatever goes wrong here, the client's own bytes are forwarded; a header, a log line and a counter say so.
  Store trouble is not such a failure: the plan is derived from replay alone, and comes out the same.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from policies.books import Plan
from policies.context import Prices, StepRecord
from policies.conversation import Conversation
from policies.dialects import DIALECTS, Consent, Reply
from policies.recall import Answer
from policies.restore import Flight
from policies.stubs import MARK
from policies.tools import writes
from proxy.config import Settings
from proxy.histories import Histories, Inserts
from proxy.intake import Intake
from proxy.kept.archive import Archive
from proxy.outgoing import Incoming, Work
from proxy.planning import Planner, Step, key_of
from proxy.store import Key
from proxy.telemetry import Telemetry
from proxy.upstream import ShapedError
from proxy.writing.digests import Digests
from proxy.writing.rolling import Rolling, Waiting


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
    asks: Mapping[str, str] = field(default_factory=dict)
    """Headers that go upstream beside the client's own."""


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
        digests: Digests,
        clock: Callable[[], float] = time.time,
        archive: Archive | None = None,
    ) -> None:
        self._settings = settings
        self._histories = histories
        self._telemetry = telemetry
        self._clock = clock
        self._archive = archive
        self._rolling = rolling
        self._digests = digests
        self._intake = intake
        self._planner = Planner(settings, intake, histories, rolling, digests, clock)

    async def prepare(self, incoming: Incoming, waiting: Waiting | None = None) -> Prepared:
        """What goes upstream instead of the client's body. Raises ShapedError where a stale summary is an error to
        people, and nothing else. `waiting` is entered while a client that streams waits for a summary."""
        return await self._safe(incoming, partial(self._compacted, incoming, waiting=waiting))

    async def preview(self, incoming: Incoming) -> Prepared:
        """What would go upstream if this were sent now; nothing comes of it."""
        return await self._safe(incoming, partial(self._previewed, incoming))

    async def _safe(self, incoming: Incoming, prepare: Callable[[], Awaitable[Prepared]]) -> Prepared:
        """What was prepared; the client's own bytes where that fails or is not wanted."""
        began = time.perf_counter()
        if incoming.mode == "off":
            prepared = _unchanged(incoming, "bypassed", "bypassed")
        else:
            try:
                prepared = await prepare()
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
            self._histories.asked_on(prepared.key, prepared.setup, prepared.record, following.record)
        count = await self._intake.counter(following.model)
        spent = max(count(said.text), reply.completion if len(reply.over) + len(reply.pending) == 1 else 0)
        return replace(following, body=DIALECTS[incoming.dialect].next_round(following.body, spent))

    async def keep(self, prepared: Prepared, reply: Reply, choice: int) -> None:
        """Remember the recall exchange of a choice, or that there is none, before the client has all of it."""
        exchanged, said = prepared.exchanged, reply.said(choice)
        if exchanged is not None and prepared.key is not None:
            before = exchanged.before if exchanged.sure else None
            await self._planner.recalls.keep(prepared.key, prepared.dialect, exchanged.after, before, said)
            self._telemetry.metrics.recalled_beside(sum(len(r.calls) for r in said.rounds if r.places))

    async def record(self, prepared: Prepared, reply: Reply, status: int) -> None:
        """Learn from what the provider billed."""
        if prepared.key is None or not 200 <= status < 300:
            return
        self._rolling.answered(prepared.credential)
        usage = reply.usage
        if usage is not None and self._settings.calibrate:
            self._planner.learn(prepared.key, prepared.model, prepared.plain, usage.prompt)
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
        key, before = key_of(incoming, taken), exchanged.before
        resumed = await self._planner.recalls.resume(incoming, key, taken, before, flight)
        tool = self._planner.tool(incoming, resumed.taken)
        consent = self._planner.consent(incoming, resumed.taken) or Consent()
        body = DIALECTS[incoming.dialect].joined(resumed.taken.request, {}, tool, consent.change)
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
        step = await self._planner.step(incoming, flight, before.before if before else None)
        if step is None:
            return _unchanged(incoming, "untouched", "bypassed")
        digested = await self._digested(step, waiting)
        step, later = digested or step, None
        if digested is None:  # of two waits one is made: the time is for both
            later = await self._rolling.waited(step.work, step.outgoing.plan, step.memory, waiting)
        if later is not None:
            step = await self._planner.again(step, later)
        if before is None:
            self._rolling.check(step.work, step.outgoing.plan)
        if later is None:  # else what is wanted was just waited for
            self._rolling.want(step.work, step.outgoing.plan, step.memory)
        if _underivable(step.work, step.outgoing.plan) and incoming.mode != "observe":
            step = await self._claimed(step)
        self._rolling.tell(step.work, step.outgoing.plan)
        self._digests.tell(step.work, step.outgoing.plan, step.memory)
        if before is None and self._archive is not None:
            self._archive.passed(step.work.key, incoming, step.taken)
        prepared = self._prepared(step)
        if step.work.tool is not None and incoming.mode == "on":
            sure = before.sure if before else step.sure
            prepared.exchanged = Exchanged(incoming, step.after, step.inserts, sure, step.answers)
        return prepared

    async def _digested(self, step: Step, waiting: Waiting | None) -> Step | None:
        """The step after a wait for digests; None where nobody waits. What it wants is asked for."""
        self._digests.want(step.work, step.outgoing.plan)
        later = await self._digests.waited(step.work, step.books, step.memory, waiting)
        return None if later is None else await self._planner.again(step, later)

    async def _claimed(self, step: Step) -> Step:
        """What is decided where the history alone does not decide: whoever was first."""
        mine = step.work.record(step.outgoing, self._clock())
        won = await self._histories.claim(step.work.key, mine)
        made = step.outgoing.plan
        adopted = made.adopted or bool(self._digests.adopted(step.work, made, step.memory))
        if won is None and adopted:  # nobody else could know of it: it stands another time
            memory = replace(step.memory, summaries=(), digests={})
        elif won is None or (won.edits, won.dropped) == (mine.edits, mine.dropped):
            return step
        else:
            memory = replace(step.memory, steps={**step.memory.steps, won.anchor: won})
        return await self._planner.again(step, memory)

    async def _previewed(self, incoming: Incoming) -> Prepared:
        said = b"{" + incoming.unsaid + b","
        step = await self._as_said(incoming, said) if incoming.unsaid else await self._planner.step(incoming)
        if step is None:
            return _unchanged(incoming, "untouched", "bypassed")
        record = step.work.record(step.outgoing, self._clock())
        prefix = step.prefix(record, self._histories.newest(step.work.key))
        body = step.work.body(step.outgoing)
        if body.startswith(said):
            body = b"{" + body.removeprefix(said)
        headers, asks = step.headers(prefix), step.work.consent.headers
        if incoming.mode == "observe":
            return Prepared(incoming.body, headers, incoming.dialect)
        return Prepared(body, headers, incoming.dialect, asks=asks)

    async def _as_said(self, incoming: Incoming, said: bytes) -> Step | None:
        """The step of a request that begins with what it cannot say here, if the one before it said so."""
        whole = await self._planner.step(replace(incoming, body=said + incoming.body.lstrip().removeprefix(b"{")))
        before = whole and (whole.previous or self._histories.newest(whole.work.key))
        return whole if before and before.recall else await self._planner.step(incoming)

    def _prepared(self, step: Step) -> Prepared:
        work, made, observed = step.work, step.outgoing.plan, step.work.incoming.mode == "observe"
        record = work.record(step.outgoing, self._clock())
        prefix = step.prefix(record, self._histories.newest(work.key))
        self._histories.keep(work.key, work.fingerprint, made.books, record, behind=not observed)
        if self._archive is not None and not observed:
            self._archive.hidden(work.key, work.incoming, work.conversation, made.new)
        for edit in made.new:
            self._telemetry.metrics.edited(edit.by)
        word = self._rolling.word(work, made) or self._digests.word(work, made, step.memory)
        return Prepared(
            work.incoming.body if observed else work.body(step.outgoing),
            {**step.headers(prefix), **({"x-narrows-summary": word} if word else {}), **self._warning(work)},
            work.incoming.dialect,
            work.request.model,
            self._planner.prices_of(work.request.model),
            work.key,
            step.whole if observed else step.plain,
            step.whole,
            work.conversation,
            made,
            record,
            work.request.streams,
            work.fingerprint,
            work.incoming.credential,
            asks={} if observed else work.consent.headers,
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


def _unchanged(incoming: Incoming, mode: str, prefix: str) -> Prepared:
    return Prepared(incoming.body, {"x-narrows-mode": mode, "x-narrows-prefix": prefix}, incoming.dialect)


def _underivable(work: Work, made: Plan) -> bool:
    """Whether the step was decided by more than the history: a summary, the time, or what the provider reported. So is
    a digest by rule where another replica may have one by a model."""
    if made.wants or made.books.offered or made.books.dropped or made.reason == "checkpoint:cold":
        return True
    if work.setup.digesting is not None and any(edit.by == "digest" for edit in made.new):
        return True
    return made.reason == "checkpoint:window" and work.setup.factor != 1.0

"""prepare(): from the bytes a client sent to the bytes that go upstream, and what to say about it.

Laws
  Fail open: whatever goes wrong here, the client's own bytes are forwarded; a header, a log line and a counter say so.
  Store trouble is not such a failure: the plan is derived from replay alone, and comes out the same.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from policies.dialects import DIALECTS, Consent, Reply, TooManyError
from policies.model.conversation import Conversation
from policies.model.memory import StepRecord
from policies.money.prices import Prices
from policies.planning.state import Plan
from policies.recall import RecallAnswer
from policies.restore import ReplyInProgress
from policies.text.stubs import MARK
from policies.tools import writes
from proxy.archive.archive import Archive
from proxy.compaction.planning import PlannedRequest, Planner, key_of
from proxy.compaction.rendering import body_of, step_record
from proxy.compaction.request_parser import RequestParser
from proxy.config import Settings
from proxy.errors import ApiError
from proxy.requests import ClientRequest, RequestContext
from proxy.store import Key
from proxy.store.cached import CachedStore, Inserts
from proxy.summaries.background import BackgroundWriters, Waiting
from proxy.summaries.digests import adopted_digests
from proxy.summaries.rolling import refuse_stale
from proxy.telemetry import Telemetry


@dataclass(slots=True)
class UpstreamRequest:
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
    exchanged: "RecallContext | None" = None
    """What recalls need; None where the recall tool is not there."""
    asks: Mapping[str, str] = field(default_factory=dict)
    """Headers that go upstream beside the client's own."""


@dataclass(frozen=True, slots=True)
class RecallContext:
    """What the client sent, where in it the reply belongs, and the exchanges behind the replies before."""

    client_request: ClientRequest
    after: str
    before: Inserts
    sure: bool
    """Whether the store could say all of them."""
    answers: tuple[RecallAnswer, ...] = ()
    """What this very request answers."""


class Compactor:
    """Prepares requests, and learns from what became of them."""

    def __init__(
        self,
        settings: Settings,
        request_parser: RequestParser,
        cached_store: CachedStore,
        telemetry: Telemetry,
        writers: BackgroundWriters,
        clock: Callable[[], float] = time.time,
        archive: Archive | None = None,
    ) -> None:
        self._settings = settings
        self._cached_store = cached_store
        self._telemetry = telemetry
        self._clock = clock
        self._archive = archive
        self._writers = writers
        self._request_parser = request_parser
        self._planner = Planner(settings, request_parser, cached_store, writers, clock)

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None) -> UpstreamRequest:
        """What goes upstream instead of the client's body. Raises ApiError where a stale summary is an error to
        people, and nothing else. `waiting` is entered while a client that streams waits for a summary."""
        return await self._safe(client_request, partial(self._compacted, client_request, waiting=waiting))

    async def preview(self, client_request: ClientRequest) -> UpstreamRequest:
        """What would go upstream if this were sent now; nothing comes of it."""
        return await self._safe(client_request, partial(self._previewed, client_request))

    async def _safe(
        self, client_request: ClientRequest, prepare: Callable[[], Awaitable[UpstreamRequest]]
    ) -> UpstreamRequest:
        """What was prepared; the client's own bytes where that fails or is not wanted."""
        began = time.perf_counter()
        if client_request.mode == "off":
            upstream_request = _unchanged(client_request, "bypassed", "bypassed")
        else:
            try:
                upstream_request = await prepare()
            except ApiError:
                raise
            except TooManyError as error:
                self._telemetry.log.warning("too_many", what=error.what, limit=error.limit)
                self._telemetry.metrics.too_many(error.what)
                upstream_request = _unchanged(client_request, "untouched", "bypassed")
                upstream_request.headers["x-narrows-warning"] = f"too-many-{error.what}"
            except Exception as error:  # law 6: our trouble is never the client's
                self._telemetry.log.error("failed_open", fault=type(error).__name__, exc_info=True)
                upstream_request = _unchanged(client_request, "failed-open", "checkpoint:failed-open")
        upstream_request.headers["x-narrows-ms"] = f"{(time.perf_counter() - began) * 1000:.1f}"
        return upstream_request

    def reply(self, upstream_request: UpstreamRequest) -> Reply:
        """What reads the reply as it passes."""
        rounds = None if upstream_request.exchanged is None else self._settings.recall_rounds
        return DIALECTS[upstream_request.dialect].reply(rounds)

    async def again(self, upstream_request: UpstreamRequest, reply: Reply, choice: int) -> UpstreamRequest:
        """The request of the next round: what the client sent, what the model asked for, and the answers."""
        assert upstream_request.exchanged is not None
        client_request, said = upstream_request.exchanged.client_request, reply.result(choice)
        flight = ReplyInProgress(said.text, said.rounds)
        try:
            following = await self._compacted(client_request, flight, upstream_request.exchanged)
        except Exception as error:  # law 6 again: the model gets its answer all the same
            self._telemetry.log.error("failed_open", fault=type(error).__name__, exc_info=True)
            following = await self._unplanned(upstream_request, upstream_request.exchanged, flight)
        self._telemetry.metrics.prefixed(following.headers["x-narrows-prefix"])  # no reply can say it any more
        if upstream_request.key and upstream_request.record and following.record:
            self._cached_store.continued(
                upstream_request.key, upstream_request.setup, upstream_request.record, following.record
            )
        count = await self._request_parser.counter(following.model)
        spent = max(count(said.text), reply.completion if len(reply.over) + len(reply.pending) == 1 else 0)
        return replace(following, body=DIALECTS[client_request.dialect].next_round(following.body, spent))

    async def keep(self, upstream_request: UpstreamRequest, reply: Reply, choice: int) -> None:
        """Remember the recall exchange of a choice, or that there is none, before the client has all of it."""
        exchanged, said = upstream_request.exchanged, reply.result(choice)
        if exchanged is not None and upstream_request.key is not None:
            before = exchanged.before if exchanged.sure else None
            await self._planner.recalls.keep(
                upstream_request.key, upstream_request.dialect, exchanged.after, before, said
            )
            self._telemetry.metrics.recalled_beside(sum(len(r.calls) for r in said.rounds if r.places))

    async def record(self, upstream_request: UpstreamRequest, reply: Reply, status: int) -> None:
        """Learn from what the provider billed."""
        if upstream_request.key is None or not 200 <= status < 300:
            return
        self._writers.accepted(upstream_request.credential)
        usage = reply.usage
        if usage is not None and self._settings.calibrate:
            self._planner.learn(upstream_request.key, upstream_request.model, upstream_request.plain, usage.prompt)
        self._telemetry.billed(
            upstream_request.model, upstream_request.prices, usage, upstream_request.plain, upstream_request.whole
        )
        answers = upstream_request.exchanged.answers if upstream_request.exchanged else ()
        if answers:
            found = sum(answer.succeeded for answer in answers)
            self._telemetry.recalled(found, len(answers) - found, upstream_request.prices, usage)

    async def close(self) -> None:
        """Let what is being written be written."""
        await self._cached_store.close()

    async def _unplanned(
        self, upstream_request: UpstreamRequest, exchanged: RecallContext, flight: ReplyInProgress
    ) -> UpstreamRequest:
        """What the client sent and the exchange of the reply, with nothing made shorter."""
        client_request = exchanged.client_request
        taken = await self._request_parser.take(client_request.dialect, client_request.body, client_request.tenant)
        assert taken is not None  # it was a request before
        key, before = key_of(client_request, taken), exchanged.before
        resumed = await self._planner.recalls.resume(client_request, key, taken, before, flight)
        tool = self._planner.tool(client_request, resumed.taken)
        consent = self._planner.consent(client_request, resumed.taken) or Consent()
        body = DIALECTS[client_request.dialect].joined(resumed.taken.request, {}, tool, consent.change)
        headers = {**upstream_request.headers, "x-narrows-prefix": "checkpoint:failed-open"}
        exchanged = replace(exchanged, answers=resumed.answers)
        return replace(upstream_request, body=body, headers=headers, record=None, exchanged=exchanged)

    async def _compacted(
        self,
        client_request: ClientRequest,
        flight: ReplyInProgress | None = None,
        before: RecallContext | None = None,
        waiting: Waiting | None = None,
    ) -> UpstreamRequest:
        step = await self._planner.step(client_request, flight, before.before if before else None)
        if step is None:
            return _unchanged(client_request, "untouched", "bypassed")
        step = await self._writers.after_plan(step, self._planner.again, waiting)
        if before is None:
            refuse_stale(self._settings, step.context, step.plan)
        if _underivable(step.context, step.plan) and client_request.mode != "observe":
            step = await self._claimed(step)
        summary = self._writers.report(step)
        if before is None and self._archive is not None:
            self._archive.passed(step.context.key, client_request, step.taken)
        upstream_request = self._prepared(step, summary)
        if step.context.tool is not None and client_request.mode == "on":
            sure = before.sure if before else step.sure
            upstream_request.exchanged = RecallContext(client_request, step.after, step.inserts, sure, step.answers)
        return upstream_request

    async def _claimed(self, step: PlannedRequest) -> PlannedRequest:
        """What is decided where the history alone does not decide: whoever was first."""
        mine = step_record(step.context, step.outgoing, self._clock())
        won = await self._cached_store.claim(step.context.key, mine)
        made = step.plan
        adopted = made.adopted or bool(adopted_digests(step.context, made, step.memory))
        if won is None and adopted:  # nobody else could know of it: it stands another time
            memory = replace(step.memory, summaries=(), digests={})
        elif won is None or (won.edits, won.dropped) == (mine.edits, mine.dropped):
            return step
        else:
            memory = replace(step.memory, steps={**step.memory.steps, won.anchor: won})
        return await self._planner.again(step, memory)

    async def _previewed(self, client_request: ClientRequest) -> UpstreamRequest:
        said = b"{" + client_request.unsaid + b","
        step = (
            await self._as_said(client_request, said)
            if client_request.unsaid
            else await self._planner.step(client_request)
        )
        if step is None:
            return _unchanged(client_request, "untouched", "bypassed")
        record = step_record(step.context, step.outgoing, self._clock())
        prefix = step.prefix(record, self._cached_store.newest(step.context.key))
        body = body_of(step.context, step.outgoing)
        if body.startswith(said):
            body = b"{" + body.removeprefix(said)
        headers, asks = step.headers(prefix), step.context.consent.headers
        if client_request.mode == "observe":
            return UpstreamRequest(client_request.body, headers, client_request.dialect)
        return UpstreamRequest(body, headers, client_request.dialect, asks=asks)

    async def _as_said(self, client_request: ClientRequest, said: bytes) -> PlannedRequest | None:
        """The step of a request that begins with what it cannot say here, if the one before it said so."""
        whole = await self._planner.step(
            replace(client_request, body=said + client_request.body.lstrip().removeprefix(b"{"))
        )
        before = whole and (whole.previous or self._cached_store.newest(whole.context.key))
        return whole if before and before.recall else await self._planner.step(client_request)

    def _prepared(self, step: PlannedRequest, summary: str) -> UpstreamRequest:
        work, made, observed = step.context, step.plan, step.context.client_request.mode == "observe"
        record = step_record(work, step.outgoing, self._clock())
        prefix = step.prefix(record, self._cached_store.newest(work.key))
        self._cached_store.remember(work.key, work.fingerprint, made.state, record, behind=not observed)
        if self._archive is not None and not observed:
            self._archive.hidden(work.key, work.client_request, work.conversation, made.new)
        for edit in made.new:
            self._telemetry.metrics.edited(edit.by)
        return UpstreamRequest(
            work.client_request.body if observed else body_of(work, step.outgoing),
            {**step.headers(prefix), **({"x-narrows-summary": summary} if summary else {}), **self._warning(work)},
            work.client_request.dialect,
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
            work.client_request.credential,
            asks={} if observed else work.consent.headers,
        )

    def _warning(self, work: RequestContext) -> dict[str, str]:
        """Say so where the model has just written one of our references into a file."""
        newest = (block for block in work.conversation.blocks if block.turn == work.conversation.steps - 2)
        for block in newest:
            if block.kind == "call" and MARK in block.text and writes(block.tool, block.text):
                self._telemetry.metrics.marker_in_argument()
                self._telemetry.log.warning("marker_in_argument", conversation=work.key.conversation)
                return {"x-narrows-warning": "marker-in-argument"}
        return {}


def _unchanged(client_request: ClientRequest, mode: str, prefix: str) -> UpstreamRequest:
    return UpstreamRequest(
        client_request.body, {"x-narrows-mode": mode, "x-narrows-prefix": prefix}, client_request.dialect
    )


def _underivable(work: RequestContext, made: Plan) -> bool:
    """Whether the step was decided by more than the history: a summary, the time, or what the provider reported. So is
    a digest by rule where another replica may have one by a model."""
    if made.wants or made.state.offered or made.state.dropped or made.reason == "checkpoint:cold":
        return True
    if work.setup.digesting is not None and any(edit.by == "digest" for edit in made.new):
        return True
    return made.reason == "checkpoint:window" and work.setup.factor != 1.0

"""The stage `prepare`: from the bytes of a client to the bytes that go upstream, and the headers that tell of it.

    Compactor     plans a request, claims its plan where the history alone does not decide it, and makes it ready
    ReplyWarnings what the reply's header warns of
    by_mode       stands around the compactor: on, observe, off, the holdout, and failing open

Laws
  Store trouble is no failure: the plan is derived from replay alone, and comes out the same.
  Nothing is stored of a request before its upstream has answered 2xx, but for what must be there before its bytes are
  sent: a claimed decision, and one in the place of another. These, and summaries, are for verified credentials only.
  A credential is verified where the upstream last accepted it through this process, or, where this process has not
  heard of it, where the store says that it has sent this conversation: that is noted after a 2xx alone.
  For any other credential a request is planned from its history: nothing is claimed, adopted or begun for it. What was
  decided for the history before stands all the same.
  Fail open: whatever goes wrong inside, the client's own bytes go out; a header, a log line and a counter say so.
  Where a request is only observed, or held out, it goes as the client wrote it, and its plan has no effect on the store
  or on anything upstream.
"""

import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from msgspec import structs

from policies.dialects import TooManyError
from policies.laws import protected_users
from policies.model.memory import FRESH, StepRecord
from policies.model.summary_record import NO_USE
from policies.money.bills import Arm
from policies.money.caches import MarkStyle
from policies.planning.out_of_sight import was_out_of_sight
from policies.planning.prefix import life_of
from policies.render import body_of
from policies.text.stubs import MARK
from policies.tools import writes
from proxy.config import Settings
from proxy.errors import ApiError, not_planned
from proxy.identity.credential import CredentialStates
from proxy.kernel.client_summaries import ASKS, TRIGGER, WITHIN
from proxy.kernel.cold import ColdProcess
from proxy.kernel.defer import CalledTools, ToolDeferral, may_defer
from proxy.kernel.plan import Planner, PlanRuns, prefix_outcome, reply_headers, step_record
from proxy.kernel.understand import Assembler, Learned, RequestParser, Understanding
from proxy.memory import Key
from proxy.memory.cached import CachedStore
from proxy.requests import ClientRequest, Notes, PlannedRequest, RequestContext, UpstreamRequest
from proxy.summaries.background import BackgroundWriters, Waiting, adopted_digests
from proxy.telemetry import Telemetry
from proxy.upstreams.price_book import PriceBook


class Compactor:
    def __init__(
        self,
        settings: Settings,
        parser: RequestParser,
        store: CachedStore,
        telemetry: Telemetry,
        writers: BackgroundWriters,
        *,
        states: CredentialStates,
        cold: ColdProcess,
        price_book: PriceBook,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._parser = parser
        self._store = store
        self._telemetry = telemetry
        self._writers = writers
        self._states = states
        self._cold = cold
        self.clock = clock
        self.learned = learned = Learned(settings, clock)
        assembler = Assembler(settings, price_book, learned)
        prices, refuses, called = price_book.prices, partial(learned.refuses, "tools"), CalledTools(store, clock)
        deferral = ToolDeferral(settings, store, telemetry, called, prices, refuses)
        self.deferral = deferral if may_defer(settings) else None
        self.understanding = Understanding(parser, store, assembler, price_book, learned, self.deferral)
        self.planner = Planner(settings, self.understanding, writers, clock, PlanRuns(cold, settings.planning_timeout))
        self._warnings = ReplyWarnings(telemetry, assembler.context_tokens_of)
        self.plan, self.needs_room = self.planner.plan, assembler.needs_room

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        """The request that goes upstream; of one that only counts, nothing is remembered. Raises ApiError where a stale
        summary is to be an error, and whatever goes wrong."""
        if client_request.counting is not None:
            return await self._counted(client_request)
        planned = await self.plan(client_request)
        return await self.unread(client_request) if planned is None else await self.compacted(planned, waiting)

    async def close(self) -> None:
        await self._cold.close()
        await self._store.close()

    async def compacted(
        self, planned: PlannedRequest, waiting: Waiting | None = None, first: PlannedRequest | None = None
    ) -> UpstreamRequest:
        """Let background writers have their turn, claim what the history alone does not decide, remember."""
        if first is None and asks_for_summary(planned) and not self.needs_room(planned):
            return _passing(self, planned)
        deferral = self.deferral if first is None and planned.context.tools.record is not None else None
        if deferral is not None and not await deferral.settle(planned.context, await self.is_verified(planned)):
            again = await self.plan(planned.context.client_request)
            assert again is not None  # it was one before
            planned = again
        if planned.plan.shed and not self.learned.fits(planned):
            raise not_planned()
        wants = bool(planned.plan.wants or planned.plan.digests)
        left_out = (wants or is_underivable(planned)) and not await self.is_verified(planned)
        if not left_out and (wants or planned.context.preset.digests is not None):
            planned = await self._writers.after_plan(planned, self.planner.replan, waiting)
        if first is None and (reason := planned.plan.state.use.reason):
            self._telemetry.metrics.count("stale_summaries", reason)
            self._writers.meet_stale(planned)
        if is_underivable(planned):
            planned = await self.derived(planned) if left_out else await self._claimed(planned)
        return self.sendable(planned, left_out=left_out)

    async def is_verified(self, planned: PlannedRequest) -> bool:
        client_request = planned.context.client_request
        at = client_request.sender.owner, client_request.upstream
        if self._states.is_accepted(*at) or self._states.is_refused(*at):
            return self._states.is_accepted(*at)
        return await self._store.is_owner(planned.context.key, client_request.sender.owner)

    def sendable(self, planned: PlannedRequest, *, left_out: bool, supersedes: bool = False) -> UpstreamRequest:
        context, client_request = planned.context, planned.context.client_request
        summary = self._writers.report(planned) if _has_texts_of_models(planned) else ""
        record, headers = self.record_and_headers(planned)
        if planned.plan.shed:
            if client_request.may_plan:  # else it is counted already
                self._telemetry.shed("time")
            self._telemetry.metrics.count("shed_tokens", by=planned.tokens_sent)
        elif not planned.is_quiet:
            plan_state = planned.plan.state
            context.live.add_planned(context.fingerprint, context.conversation, plan_state, record)
            self._store.conversations.settle(context.live)
        for edit in planned.plan.new:
            self._telemetry.metrics.count("edits", edit.by)
        if summary:
            headers["x-narrows-summary"] = summary
        return UpstreamRequest(
            client_request=client_request,
            body=rendered_body(planned),
            headers=headers | self._warnings.header(planned),
            upstream_headers=context.consent.headers,
            planned=planned,
            marks=_marks_of(planned),
            notes=Notes(
                record=record,
                is_read=context.tool is not None or context.tools.tools is not None or asks_for_summary(planned),
                left_out=left_out,
                supersedes=supersedes,
                may_overflow=self.learned.may_overflow(context, planned.tokens_sent),
            ),
        )

    def record_and_headers(self, planned: PlannedRequest) -> tuple[StepRecord, dict[str, str]]:
        record = step_record(planned, self.clock())
        return record, reply_headers(planned, prefix_outcome(planned, record))

    async def _claimed(self, planned: PlannedRequest) -> PlannedRequest:
        """A step that the history alone does not decide is decided by whoever claims it first."""
        ours = step_record(planned, self.clock())
        first = await self._store.claim(planned.context.key, ours)
        adopted = planned.plan.adopted or bool(adopted_digests(planned.context, planned.plan, planned.memory))
        if first is None and adopted:  # nobody else could know of it: it is adopted another time
            memory = replace(planned.memory, summaries=(), digests={})
        elif first is None or _decisions(first) == _decisions(ours):
            return planned
        else:
            memory = replace(planned.memory, steps={**planned.memory.steps, first.anchor: first})
        return await self.planner.replan(planned, memory)

    async def derived(self, planned: PlannedRequest) -> PlannedRequest:
        """The plan that the history alone decides, for a credential that nothing may be claimed for."""
        adopted = planned.plan.adopted or bool(adopted_digests(planned.context, planned.plan, planned.memory))
        settings = planned.context.plan_settings
        if not (adopted or settings.life.is_cold or settings.life.would_be_cold or _continues_life(planned)):
            return planned
        life = replace(settings.life, is_cold=False, would_be_cold=False) if planned.previous is not None else FRESH
        plan_settings = replace(settings, life=life)
        context = structs.replace(planned.context, plan_settings=plan_settings)
        planned = structs.replace(planned, context=context)
        memory = replace(planned.memory, summaries=(), digests={}) if adopted else planned.memory
        return await self.planner.replan(planned, memory)

    async def _counted(self, client_request: ClientRequest) -> UpstreamRequest:
        planned = before = None
        implied = client_request.counting or b""
        opening = b"{" + implied + b","
        if implied:  # the member that this body cannot have counts where the request before it had it
            body = opening + client_request.body.lstrip().removeprefix(b"{")
            planned = await self.planner.plan(structs.replace(client_request, body=body))
            before = planned and (planned.previous or planned.context.live.newest)
        if not (before and before.recall):
            planned = await self.planner.plan(client_request)
        if planned is None:
            return unchanged(client_request, "untouched", "bypassed")
        _, headers = self.record_and_headers(planned)
        body = rendered_body(planned, marked=False)  # they are no tokens
        if implied and body.startswith(opening):
            body = b"{" + body.removeprefix(opening)
        return UpstreamRequest(client_request, body, headers, planned.context.consent.headers)

    async def unread(self, client_request: ClientRequest) -> UpstreamRequest:
        """A request that is no chat, or may not be edited: whatever it is, it costs what its model does."""
        parsed = await self._parser.parse_of(client_request)
        upstream_request = unchanged(client_request, "untouched", "bypassed")
        return structs.replace(upstream_request, model=parsed.request.model) if parsed else upstream_request

    def observed(self, planned: PlannedRequest) -> UpstreamRequest:
        context, client_request = planned.context, planned.context.client_request
        record, headers = self.record_and_headers(planned)
        if not planned.plan.shed:
            context.live.add_planned(context.fingerprint, context.conversation, planned.plan.state, record)
            self._store.conversations.settle(context.live)
        for edit in planned.plan.new:
            self._telemetry.metrics.count("edits", edit.by)
        headers |= {"x-narrows-mode": "observed", **self._warnings.header(planned)}
        notes = Notes(record=record, is_read=asks_for_summary(planned))
        return UpstreamRequest(client_request, client_request.body, headers, planned=planned, notes=notes)


def _marks_of(planned: PlannedRequest) -> MarkStyle:
    """The kind of its marks, where Narrows has set or changed any."""
    settings, context = planned.context.plan_settings, planned.context
    if planned.plan.state.life.is_longer:
        return context.dialect.marks.longer
    return settings.marks if planned.plan.marks else ""


def _has_texts_of_models(planned: PlannedRequest) -> bool:
    """True where a model writes, or has written, anything for it."""
    preset, plan = planned.context.preset, planned.plan
    is_written = bool(planned.memory.digests) or plan.adopted or plan.state.use != NO_USE
    return is_written or preset.summarizes or preset.digests is not None


def asks_for_summary(planned: PlannedRequest) -> bool:
    """True where its client asks for a summary of it, to go on with that in its place."""
    conversation = planned.context.received.conversation
    new = [conversation.blocks[at] for at in conversation.arrived(conversation.steps - 1)]
    if any(block.kind == "opaque" and TRIGGER in block.text[:WITHIN] for block in new):
        return True
    texts = [block.text[:WITHIN].lstrip() for block in new if block.kind == "user"]
    return any(text.startswith(begin) and words in text for text in texts for begin, words in ASKS)


def _decisions(record: StepRecord) -> tuple[object, ...]:
    return record.edits, record.dropped, record.shed, life_of(record)


def _continues_life(planned: PlannedRequest) -> bool:
    """True where a first request goes on with the lifetime of marks of the history that a summary stands for."""
    return planned.previous is None and planned.context.plan_settings.life != FRESH


def is_underivable(planned: PlannedRequest) -> bool:
    """True where the step was decided by more than the history: a summary, the time, or what the provider reported. So
    is a digest by rule where another replica may have one by a model."""
    plan, state, plan_settings = planned.plan, planned.plan.state, planned.context.plan_settings
    if plan.shed or plan.wants or state.has_model_text or state.dropped:
        return True
    if state.life.is_cold or state.life.would_be_cold or _continues_life(planned):
        return True
    if plan_settings.digesting is not None and any(edit.by == "digest" for edit in plan.new):
        return True
    if plan_settings.learned is not None and plan.new:  # the floor and every share of the window are smaller, too
        return True
    return plan_settings.factor != 1.0 and plan.reason in ("checkpoint:window", "checkpoint:context")


# --- what the reply to a request warns of: the words of the header x-narrows-warning ---

_FEWEST_HIDDEN = 3
_IN_A_ROW = 3


class ReplyWarnings:
    """`context_tokens_of`: the size below which a request is to be kept, if any."""

    def __init__(self, telemetry: Telemetry, context_tokens_of: Callable[[ClientRequest], int | None]) -> None:
        self._telemetry = telemetry
        self._context_tokens_of = context_tokens_of

    def header(self, planned: PlannedRequest) -> dict[str, str]:
        context = planned.context
        limit = self._context_tokens_of(context.client_request)
        hides = planned.plan.edits and context.tool is None and not context.client_request.is_dry
        is_over = limit is not None and context.calibration.estimate(planned.tokens_sent) > limit
        return warning_header(
            [
                "marker-in-argument" if self._wrote_reference(context) else "",
                "over-context-tokens" if is_over else "",
                "no-recall" if hides else "",
                "planning-shed" if planned.plan.shed else "",
                self._thrash(planned),
                self._sight(planned),
            ]
        )

    def _wrote_reference(self, context: RequestContext) -> bool:
        conversation = context.conversation
        newest = conversation.arrived(conversation.steps - 1) if conversation.steps > 1 else range(0)
        for block in (conversation.blocks[at] for at in newest):
            if block.kind == "call" and MARK in block.text and writes(block.tool, block.text):
                self._telemetry.metrics.count("marker_in_argument")
                self._telemetry.log.warning("marker_in_argument", conversation=context.key.conversation)
                return True
        return False

    def _thrash(self, planned: PlannedRequest) -> str:
        """Words for a conversation in which room must be made again and again, because what is protected leaves too
        little: each time all behind the first change is written to the provider's cache anew."""
        context, settings = planned.context, planned.context.plan_settings
        key, step = context.key, context.conversation.steps - 1
        budget = settings.learned or settings.budget
        if planned.plan.reason != f"checkpoint:{budget.mark}":
            return ""
        before, row = context.live.cramped
        row = row if before == step else row + 1 if before == step - 1 else 1
        context.live.cramped = step, row
        protected = int(protected_tokens(planned) * settings.factor) if row >= _IN_A_ROW else 0
        if protected <= budget.low:  # room could be made for more than one request
            return ""
        share = round(100 * protected / budget.window)
        if row == _IN_A_ROW and before != step:
            self._telemetry.metrics.count("thrashing")
            self._telemetry.log.warning(
                "thrashing", conversation=key.conversation, protected=protected, window=budget.window, percent=share
            )
        return f"protected-{share}-percent"

    def _sight(self, planned: PlannedRequest) -> str:
        """A word for a conversation in which more actions than the preset allows needed what was out of sight."""
        context, most = planned.context, planned.context.plan_settings.sight
        step = context.conversation.steps - 1
        before, hidden = context.live.hidden
        if step < before:  # another history has begun under this name, or the client has gone back
            before, hidden = context.live.hidden = -1, 0
        if not most or not planned.plan.edits or context.client_request.is_dry:
            return ""
        was_beyond = hidden >= _FEWEST_HIDDEN and hidden > most * (step - 1)
        needs_it = was_out_of_sight(context.conversation, planned.plan) if before < step else None
        if needs_it is not None:
            hidden += needs_it
            self._telemetry.metrics.count("actions", "hidden" if needs_it else "shown")
        context.live.hidden = step, hidden
        if hidden < _FEWEST_HIDDEN or hidden <= most * step:
            return ""
        if not was_beyond:
            self._telemetry.log.warning(
                "out_of_sight", conversation=context.key.conversation, actions=step, hidden=hidden
            )
        return "sight"


def protected_tokens(planned: PlannedRequest) -> int:
    """Tokens of a request that are there whatever is done: tools and instructions, system text, the first and newest
    message of the user, and the newest two turns."""
    conversation, sizes = planned.context.conversation, planned.plan.state.ledger.sent
    step = conversation.steps - 1
    protected = {*protected_users(conversation, step), *conversation.kinds.get("system", ())}
    protected.update(range(conversation.start(max(0, step - 1)), conversation.ends[step]))
    tokens: int = planned.context.plan_settings.head + sum(sizes[at] for at in protected)
    return tokens


def warning_header(warnings: Iterable[str]) -> dict[str, str]:
    """All that is to be said, in one header; none where that is nothing."""
    value = ", ".join(filter(None, warnings))
    return {"x-narrows-warning": value} if value else {}


# --- a request as it goes upstream ---


def in_arm(upstream_request: UpstreamRequest, arm: Arm) -> UpstreamRequest:
    headers = {**upstream_request.headers, "x-narrows-arm": arm}
    return structs.replace(upstream_request.noting(arm=arm), headers=headers)


def retried(refused: UpstreamRequest, smaller: UpstreamRequest) -> UpstreamRequest:
    warnings = [smaller.headers.get("x-narrows-warning", ""), "overflow-retried"]
    headers = {**smaller.headers, "x-narrows-ms": refused.headers.get("x-narrows-ms", "")}
    return structs.replace(smaller, headers=headers | warning_header(warnings))


def _passing(compactor: Compactor, planned: PlannedRequest) -> UpstreamRequest:
    """A request for a summary as its client wrote it, read because of the answer. It leaves no step behind, so what
    follows in this history says `checkpoint:replayed`: it is compared with this request, and with no other."""
    client_request = structs.replace(planned.context.client_request, is_dry=True)
    record, headers = compactor.record_and_headers(planned)
    planned.context.live.newest = record
    headers |= {"x-narrows-mode": "observed", "x-narrows-prefix": "bypassed"}
    may_overflow = compactor.learned.may_overflow(planned.context, planned.tokens_received)
    notes = Notes(record=record, may_overflow=may_overflow, is_read=True)
    return UpstreamRequest(client_request, client_request.body, headers, planned=planned, notes=notes)


def unchanged(client_request: ClientRequest, mode: str, prefix: str) -> UpstreamRequest:
    """The client's own bytes; `mode` and `prefix` are the values of the reply's headers."""
    headers = {"x-narrows-mode": mode, "x-narrows-prefix": prefix}
    return UpstreamRequest(client_request, client_request.body, headers)


def rendered_body(planned: PlannedRequest, marked: bool = True) -> bytes:
    context = planned.context
    return body_of(
        context.dialect,
        context.request,
        planned.plan,
        planned.rendering,
        marks=context.plan_settings.marks if marked else "",
        tool=context.tool,
        consent=context.consent,
        bearing=context.conversation.marked if marked else None,
    )


def without_marks(upstream_request: UpstreamRequest) -> UpstreamRequest:
    """The same request without cache marks of ours, for an upstream that answers 400 to them."""
    planned, continues = upstream_request.planned, upstream_request.notes.continues
    assert planned is not None  # else there are none
    body, edits = rendered_body(planned, marked=False), planned.plan.edits
    if continues is not None:
        body = planned.context.dialect.recall.next_round(body, continues[1])
    headers = {**upstream_request.headers, "x-narrows-mode": "compacted" if edits else "untouched"}
    warnings = [headers.get("x-narrows-warning", ""), "marks-refused"]
    return structs.replace(upstream_request, body=body, marks="", headers=headers | warning_header(warnings))


# --- the modes of requests and the holdout, each with the signature of `Compactor.prepare` ---

_OBSERVED = {"x-narrows-mode": "observed"}


class Prepare(Protocol):
    async def __call__(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        """The request that goes upstream. `waiting` is entered while a client that streams waits for a summary. Raises
        ApiError where a policy wants the request to fail, and nothing else."""


@dataclass(frozen=True, slots=True)
class Holdout:
    """A share of all conversations, by a keyed hash of tenant and conversation: each belongs to it for its whole life,
    in every replica, and nobody who chooses a name can tell whether."""

    share: float
    secret: bytes = field(repr=False)

    def arm(self, key: Key) -> Arm:
        return "" if not self.share else "holdout" if self.has(key) else "on"

    def has(self, key: Key) -> bool:
        if not self.share:
            return False
        name = f"holdout\0{key.tenant}\0{key.conversation}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hmac.digest(self.secret, name, "sha256")[:8]) < self.share * 2**64


async def relayed(client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
    """The client's own bytes, where the settings turn all compaction off: nothing else is there."""
    return structs.replace(unchanged(client_request, "bypassed", "bypassed"), model=None)


async def bypassed(client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
    """The client's own bytes, of one request that is to be left alone."""
    upstream_request = await relayed(client_request)
    return structs.replace(upstream_request, headers={**upstream_request.headers, "x-narrows-ms": "0.0"})


def by_mode(compactor: Compactor, holdout: Holdout, telemetry: Telemetry) -> Prepare:
    modes: Mapping[str, Prepare] = {
        "on": FailOpen(holding_out(compactor, holdout) if holdout.share else compactor.prepare, telemetry),
        "observe": FailOpen(observing(compactor), telemetry),
        "off": bypassed,
    }

    async def prepare(client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        return await modes[client_request.options.mode](client_request, waiting)

    return prepare


class FailOpen:
    def __init__(self, prepare: Prepare, telemetry: Telemetry) -> None:
        self._prepare = prepare
        self._telemetry = telemetry

    async def __call__(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        began, warning = time.perf_counter(), dict[str, str]()
        try:
            upstream_request = await self._prepare(client_request, waiting)
        except ApiError:
            raise
        except TooManyError as error:
            self._telemetry.log.warning("too_many", what=error.what, limit=error.limit)
            self._telemetry.metrics.count("too_many", error.what)
            upstream_request = unchanged(client_request, "untouched", "bypassed")
            warning = warning_header([f"too-many-{error.what}"])
        except Exception as error:  # law 6: our trouble is never the client's
            self._telemetry.log.error("failed_open", error=type(error).__name__, exc_info=True)
            upstream_request = unchanged(client_request, "failed-open", "checkpoint:failed-open")
        ms = {"x-narrows-ms": f"{(time.perf_counter() - began) * 1000:.1f}"}
        return structs.replace(upstream_request, headers={**upstream_request.headers, **warning, **ms})


def observing(compactor: Compactor) -> Prepare:
    """Sends the client's own bytes, and reports what would have become of them."""

    async def observe(client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        dry = structs.replace(client_request, is_dry=True)
        if client_request.counting is None:
            planned = await compactor.plan(dry)
            return await compactor.unread(dry) if planned is None else compactor.observed(planned)
        result = await compactor.prepare(dry)
        return result if result.body is dry.body else UpstreamRequest(dry, dry.body, {**result.headers, **_OBSERVED})

    return observe


def holding_out(compactor: Compactor, holdout: Holdout) -> Prepare:
    """Compacts all conversations but those that are held out, until one of these needs room. The arms are compared by
    what was planned: a conversation that needs room has left either of them."""

    async def compact(client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        only_counts = client_request.counting is not None
        planned = await compactor.plan(client_request, is_dry=holdout.has)
        needs_room = planned is not None and compactor.needs_room(planned)
        if planned is not None and planned.context.client_request.is_dry:
            if not needs_room and planned.context.live.sent_before(planned.context.conversation) is None:
                return held_out(planned)
            needs_room = True
            planned = None if only_counts else await compactor.plan(client_request)
        if only_counts:
            return await compactor.prepare(client_request)
        if planned is None:
            return await compactor.unread(client_request)
        return in_arm(await compactor.compacted(planned, waiting), "left" if needs_room else "on")

    def held_out(planned: PlannedRequest) -> UpstreamRequest:
        """As if it were only observed; but where the upstream may find it too long, it is compacted then."""
        client_request = planned.context.client_request
        if client_request.counting is not None:
            headers = compactor.record_and_headers(planned)[1]
            return UpstreamRequest(client_request, client_request.body, {**headers, **_OBSERVED})
        may_overflow = compactor.learned.may_overflow(planned.context, planned.tokens_received)
        is_read = may_overflow or asks_for_summary(planned)
        return in_arm(compactor.observed(planned), "holdout").noting(may_overflow=may_overflow, is_read=is_read)

    return compact

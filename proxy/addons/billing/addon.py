"""The bill of each request: made when its reply is over, counted, and written behind it.

Laws
  A request has one bill, of all rounds that its upstream took; one that was refused has none, and neither has one that
  Narrows was to leave alone (`off`).
  No request waits for it, and none fails by it. What waits to be written is bounded.
  Where a conversation is deleted, what waits of it is added to its day alone; of a deleted tenant, nothing is.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple
from uuid import uuid4

from msgspec import structs

from policies.dialects import Reply
from policies.dialects.tool_lists import tool_sizes
from policies.model.conversation import Conversation, new_calls
from policies.model.memory import FRESH, CacheLife
from policies.model.summary_record import SummaryCost
from policies.model.tokens import tool_label, well_formed
from policies.money.bills import (
    BillSums,
    CacheTerms,
    Evidence,
    Labels,
    Prompt,
    RequestBill,
    ToolUse,
    head_price,
    usage_without,
    with_marks,
)
from policies.money.prices import Prices, Usage
from policies.planning.prefix import last_use, life_of
from policies.recall import RecallAnswer
from proxy.event_loop import in_thread
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.defer import LARGE_LIST
from proxy.kernel.prepare import Holdout
from proxy.kernel.services import Services
from proxy.memory import BillStore, Key
from proxy.memory.cached import PendingWrite, WriteBehindQueue
from proxy.memory.forgetting import ForgetRegistry
from proxy.requests import PlannedRequest, ReplyRound, UpstreamRequest
from proxy.telemetry import Telemetry

_PENDING = 8_192
"""Bills that may wait; beyond it they are dropped, and counted."""
_INTERVAL = 2.0
"""Seconds from one time that all are written to the next."""
_LONGEST = 100
"""Characters of the name of a model, which comes from clients."""
_LARGEST_KEPT = 4 * LARGE_LIST
"""Bytes of a list that is kept as what its sizes are remembered by."""
_CALLS = 1_000
"""Calls of one reply that are counted."""


class Billing(Addon):
    def __init__(
        self,
        store: BillStore,
        telemetry: Telemetry,
        forgets: ForgetRegistry,
        holdout: Holdout,
        preset: str,
        prices: Callable[[str, str], Prices],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`preset`: by which requests are served that choose none. `prices`: of a model at an upstream."""
        self._store = store
        self._telemetry = telemetry
        self._holdout = holdout
        self._preset = preset
        self._clock = clock
        self._prices = prices
        self._writes = WriteBehindQueue(
            telemetry, limit=_PENDING, tries=None, trouble="bills", full="bills_full", interval=_INTERVAL
        )
        forgets.register(self._writes.forget)

    async def finished(self, exchange: Exchange) -> None:
        rounds = [each for each in exchange.rounds if 200 <= each.status < 300]
        if not rounds or rounds[0].request.model is None:
            return
        try:
            bill = self._bill(exchange.id, rounds)
            self._count(bill, rounds)
            exchange.bill, tools = bill, None
            try:
                tools = await self._tool_use(bill, rounds, exchange.reader)
            finally:
                self._write(bill, tools)
        except Exception as error:  # the client has its reply
            self._telemetry.log.error("not_billed", error=type(error).__name__, exc_info=True)

    def summary(self, key: Key, labels: Labels, cost: SummaryCost) -> None:
        sums = BillSums(summaries=cost.dollars, unpriced=int(cost.known_dollars is None))
        self._enter(key, labels, "summary", sums)
        self._telemetry.summary_spent(cost)

    def ping(self, key: Key, labels: Labels, usage: Usage, prices: Prices, is_estimate: bool) -> None:
        dollars = prices.cost(usage).total if prices.listed else 0.0
        sums = BillSums(
            pings=1,
            paid=dollars,
            ping_cost=dollars,
            unpriced=int(not prices.listed),
            estimated=int(is_estimate),
            prompt=usage.prompt,
            cached=usage.cached,
            written=usage.written,
            output=usage.completion,
        )
        self._enter(key, labels, "ping", sums)

    def _enter(self, key: Key, labels: Labels, mode: str, sums: BillSums) -> None:
        """Bill what was sent for a conversation beside its requests."""
        bill = RequestBill(
            id=uuid4().hex,
            at=self._clock(),
            labels=structs.replace(labels, model=well_formed(labels.model[:_LONGEST])),
            conversation=key.conversation,
            prefix="",
            mode=mode,
            arm=self._holdout.arm(key),
            sums=sums,
        )
        self._telemetry.metrics.bill(bill)
        self._write(bill)

    async def close(self) -> None:
        if lost := await self._writes.close():
            self._telemetry.log.warning("bills_lost", count=lost)

    def _bill(self, id: str, rounds: Sequence[ReplyRound]) -> RequestBill:
        first = rounds[0].request
        client_request, planned, headers = first.client_request, first.planned, first.headers
        conversation = planned.context.conversation if planned is not None else None
        model = planned.context.request.model if planned is not None else first.model or ""
        prices = self._prices(model, client_request.upstream) if model else Prices()
        return RequestBill(
            id=id,
            at=self._clock(),
            labels=Labels(
                tenant=client_request.sender.tenant,
                owner=client_request.sender.owner,
                model=well_formed(model[:_LONGEST]),
                preset=client_request.options.preset or self._preset,
                api=client_request.dialect,
                key=client_request.sender.key.name if client_request.sender.key is not None else "",
            ),
            conversation=planned.context.key.conversation if planned is not None else "",
            prefix=headers.get("x-narrows-prefix", ""),
            mode=headers.get("x-narrows-mode", ""),
            arm=first.notes.arm,
            sums=sums_of(rounds, prices),
            edits=headers.get("x-narrows-edits", ""),
            added_ms=float(headers.get("x-narrows-ms") or 0),
            anchor=conversation.end_anchor(conversation.steps - 1) if conversation is not None else "",
        )

    async def _tool_use(self, bill: RequestBill, rounds: Sequence[ReplyRound], reply: Reply | None) -> ToolUse | None:
        """None where it brings no tools, or could not be read. A list that was seen before costs a look-up. The
        definitions of its last round share what those of all rounds cost."""
        planned = rounds[0].request.planned
        if planned is None or not planned.context.received.request.brings_tools:
            return None
        received = planned.context.received
        tools, count = received.request.tool_list, received.count
        sizes_of = tool_sizes if len(tools) <= _LARGEST_KEPT else tool_sizes.__wrapped__
        sizes = await in_thread(sizes_of, tools, count) if len(tools) > LARGE_LIST else sizes_of(tools, count)
        prices, dollars = self._prices(bill.labels.model, rounds[0].request.client_request.upstream), 0.0
        whole = Usage(bill.sums.prompt, bill.sums.cached, bill.sums.written, 0)
        pairs = [(each.request, each.usage) for each in rounds if each.usage] or [(rounds[-1].request, whole)]
        for request, usage in pairs:
            definitions = _in_prompt(sizes, request.planned or planned)
            total = sum(size for _, size in definitions)
            dollars += head_price(round(total * planned.context.calibration.ratio), [usage], prices)
        names: Iterable[str] = new_calls(received.conversation)
        if reply is not None and rounds[0].request.notes.is_read:
            names = (name for choice in reply.over for name in reply.result(choice).tools)
        calls = tuple(name for name in map(tool_label, islice(names, _CALLS)) if name in sizes)
        return ToolUse(definitions=definitions, calls=calls, each=dollars / max(1, total))

    def _count(self, bill: RequestBill, rounds: Sequence[ReplyRound]) -> None:
        self._telemetry.metrics.bill(bill)
        for each in rounds[1:]:
            answers = each.request.planned.context.answers if each.request.planned is not None else ()
            answered = sum(answer.succeeded for answer in answers)
            self._telemetry.recalled(answered, len(answers) - answered, each.usage)

    def _write(self, bill: RequestBill, tools: ToolUse | None = None) -> None:
        key, record = Key(bill.labels.tenant, bill.conversation), (bill, tools)
        pending = PendingWrite(key, self._write_all, record=record, together=True)
        pending.without_conversation = lambda each: (structs.replace(each[0], conversation=""), each[1])
        self._writes.put(pending)

    async def _write_all(self, row: Sequence[PendingWrite]) -> None:
        pairs: list[Any] = [pending.record for pending in row]
        await self._store.add_bills([bill for bill, _ in pairs])
        await self._store.add_tools([pair for pair in pairs if pair[1] is not None])


def _in_prompt(sizes: Mapping[str, int], planned: PlannedRequest) -> tuple[tuple[str, int], ...]:
    """The definitions that a request has in its prompt: of those that are deferred, what its searches have found."""
    context, absent = planned.context, set[str]()
    if (deferred := context.tools.tools) is not None:
        absent = {*map(tool_label, deferred.names - {each.name for each in deferred.found_in(context.conversation)})}
    return tuple((name, size) for name, size in sizes.items() if size and name not in absent)


# --- from a request, its plan and the provider's usage to what it cost, and would have cost with nothing done ---
# Where a provider reports no usage (a client that streams has not asked for it, or left in the middle), the prompt is
# estimated as we count it; the answer counts nothing, on either side.

_UNBROKEN = ("first", "extended")
"""The outcomes of the prefix of a request that begins with the whole of the one before, if there was any."""


class _Measures(NamedTuple):
    """Of the first round of a reply. Usages but the first are without the answer."""

    usage: Usage
    """As reported, or as estimated where it was not."""
    baseline: Usage
    baseline_marked: Usage
    by_rules: Usage
    rewritten: int
    foretold: Usage | None
    """By the rules alone, of what was sent unedited; None where it was edited, or nothing was reported."""
    before: int = 0
    """Tokens that stand where the request before stood, as they are sent now."""


def sums_of(rounds: Sequence[ReplyRound], prices: Prices) -> BillSums:
    """The sums of a reply; `prices` are the model's, whatever a request asks of the cache."""
    first, reported, planned = rounds[0].request, rounds[0].usage, rounds[0].request.planned
    if planned is not None:
        measures = _measured(first, planned, reported, prices)
    else:  # it was left as it came, because it could not be read or may not be edited
        nothing = reported or Usage(0, 0, 0, 0)
        measures = _Measures(nothing, nothing, nothing, nothing, 0, None)
    usages, answers = [measures.usage], list[RecallAnswer]()
    for each in rounds[1:]:
        usage, later, before = each.usage, each.request.planned, usages[-1].prompt
        if usage is None:  # its prompt begins with all of the round before
            size = later.context.calibration.estimate(each.request.tokens_sent) if later else before
            usage = Usage(size, before, 0, 0)
        usages.append(usage)
        answers += later.context.answers if later else ()
    recalled, original = sum(answer.succeeded for answer in answers), measures.baseline.prompt
    sums = BillSums(
        requests=1,
        original=original,
        rounds=len(rounds) - 1,
        recalled=recalled,
        refused=len(answers) - recalled,
        rewritten=measures.rewritten,
        estimated=int(any(each.usage is None for each in rounds)),
        unpriced=int(not prices.listed),
        sent=usages[0].prompt,
        prompt=sum(usage.prompt for usage in usages),
        cached=sum(usage.cached for usage in usages),
        written=sum(usage.written for usage in usages),
        output=sum(usage.completion for usage in usages),
    )
    if planned is not None:
        sums = structs.replace(sums, **_of_pause(first, planned, measures, prices))
    if planned is not None and first.client_request.is_dry and planned.tokens_received:
        # what the plan would have sent: the same share of it as in our count
        would_be = round(original * planned.tokens_sent / planned.tokens_received)
        sums = structs.replace(sums, observed=original, observed_sent=would_be)
    return structs.replace(sums, **_dollars(measures, usages, prices)) if prices.listed else sums


def _of_pause(request: UpstreamRequest, planned: PlannedRequest, measures: _Measures, prices: Prices) -> dict[str, Any]:
    """The cost of a pause before this request, or what it would have been: at most that of what was sent now."""
    life, usage, before = _life(request, planned), measures.usage, measures.before
    is_read = 2 * usage.cached >= before
    tokens = min(before, usage.cached if is_read else usage.written if prices.breakpoints else usage.uncached)
    if not tokens or before < planned.context.plan_settings.cache.least:
        return {}
    if not life.would_be_cold or life.is_cold == is_read:
        return {}
    longer = tokens if life.is_longer and not is_read else 0
    written = Usage(tokens, 0, tokens, 0, longer) if prices.breakpoints else Usage(tokens, 0, 0, 0)
    again = prices.cost(written).input - prices.cost(Usage(tokens, tokens, 0, 0)).input if prices.listed else 0.0
    return {"pause_saving": again, "bridged": 1} if is_read else {"pause_cost": again, "expired": 1}


def _dollars(measures: _Measures, usages: Sequence[Usage], prices: Prices) -> dict[str, float]:
    """The bills. With nothing done, the answer is that of the last round."""
    paid = [prices.cost(usage).total for usage in usages]
    dollars = {"paid": sum(paid), "recalls": sum(paid[1:])}
    for name in ("baseline", "baseline_marked", "by_rules"):
        usage: Usage = replace(getattr(measures, name), completion=usages[-1].completion)
        dollars[name] = prices.cost(usage).total
    if measures.foretold is not None and len(paid) == 1:
        foretold = prices.cost(replace(measures.foretold, completion=usages[0].completion)).total
        dollars |= {"checked": 1, "checked_paid": paid[0], "checked_error": abs(foretold - paid[0])}
    return dollars


class _Scale(NamedTuple):
    """From our count to the provider's: what it counted for what was sent, and the ratio for all that differs."""

    sent: int
    counted: int
    ratio: float

    def __call__(self, counted: int) -> int:
        return max(0, round(self.sent + self.ratio * (counted - self.counted)))


def _measured(
    upstream_request: UpstreamRequest, planned: PlannedRequest, reported: Usage | None, prices: Prices
) -> _Measures:
    context, size, life = planned.context, upstream_request.tokens_sent, _life(upstream_request, planned)
    calibration = context.calibration if reported is None else context.calibration.learn(size, reported.prompt)
    tokens = calibration.estimate(size) if reported is None else reported.prompt
    scale, settings = _Scale(tokens, size, calibration.ratio), context.plan_settings
    has_entries = settings.prices.breakpoints
    terms = CacheTerms(
        settings.cache, prices, not life.would_be_cold, has_entries and settings.prices.write > prices.write
    )
    before, expected = _sent_before(upstream_request, planned, scale)
    likely = Prompt(tokens, expected, tokens if has_entries or not prices.breakpoints else 0)
    is_longer = terms.is_longer or life.is_longer
    usage = reported or usage_without(likely, replace(terms, is_warm=not life.is_cold, is_longer=is_longer))
    prefix = upstream_request.headers["x-narrows-prefix"]
    prompt = _as_written(planned, planned.tokens_received, scale, prices)
    by_rules, foretold = usage_without(prompt, terms), None
    is_unedited = _is_unedited(upstream_request, planned)
    added = max(0, tokens - prompt.tokens) if is_unedited else None
    is_rewritten, is_bridged = expected < before or prefix not in _UNBROKEN, life.would_be_cold and not life.is_cold
    # what a ping or a longer lifetime has kept says nothing of a cache that neither has kept
    evidence = None if is_bridged else Evidence(before, usage.cached, is_rewritten, added)
    if reported is not None and is_unedited and not is_bridged and prefix != "bypassed":
        foretold = usage_without(_as_written(planned, size, scale, prices), terms)
    if is_unedited and not is_bridged and upstream_request.body is upstream_request.client_request.body:
        return _Measures(usage, usage, usage, by_rules, 0, foretold, before=before)
    is_told = prefix in (*_UNBROKEN, "checkpoint:cold")
    rewritten = 0 if is_told else max(0, before - expected or expected - usage.cached)
    baseline = marked = usage_without(prompt, terms, evidence)
    least = max(settings.budget.floor, settings.cache.least)
    step = context.received.conversation.steps - 1
    if settings.marks and step > 0 and prompt.tokens >= least and prefix != "bypassed":
        was_marked = step > 1 and prompt.before >= least
        marked = usage_without(with_marks(prompt, was_marked=was_marked), terms, evidence)
    return _Measures(usage, baseline, marked, by_rules, rewritten, foretold, before=before)


def _is_unedited(upstream_request: UpstreamRequest, planned: PlannedRequest) -> bool:
    """True where it went as the client wrote it but for the recall tool, behind others of its kind."""
    context, plan = planned.context, planned.plan
    if not upstream_request.client_request.is_dry:
        is_behind_others = upstream_request.headers["x-narrows-prefix"] in _UNBROKEN
        return is_behind_others and not (plan.edits or plan.marks or context.exchanges or context.tools.tools)
    sent = planned.previous.sent if planned.previous is not None else None
    if context.client_request.is_dry or sent is None or sent.head != context.head:
        return True
    # a client's request for a summary passes: it stands behind others of its kind where the one before went so, too
    is_whole = (sent.messages, sent.digest) == (sent.received, sent.received_digest)
    return is_whole and not (context.tool or context.exchanges or context.tools.tools)


def _life(upstream_request: UpstreamRequest, planned: PlannedRequest) -> CacheLife:
    """The life of the cache as this request found it, also where nothing was planned. Where nobody knows when the
    request before was sent, it may have been a moment ago."""
    previous, now, lifetime = planned.previous, upstream_request.notes.record, planned.context.lifetime
    if now is None or previous is None or not planned.is_quiet:
        return life_of(now) if now is not None else FRESH
    return CacheLife(now.at - last_use(previous) > lifetime, now.at - previous.at > lifetime)


def _as_written(planned: PlannedRequest, total: int, scale: _Scale, prices: Prices) -> Prompt:
    """The prompt as the client wrote it, with what stands before it: so many tokens in all, in our count."""
    conversation = planned.context.received.conversation
    sums = conversation.client_tokens
    before = scale(total - sums[-1] + sums[conversation.ends[-2]]) if conversation.steps > 1 else 0
    behind = _behind_boundary(planned, conversation) if prices.breakpoints else 0
    return Prompt(scale(total), before, 0 if behind is None else scale(total - behind))


def _behind_boundary(planned: PlannedRequest, conversation: Conversation) -> int | None:
    """Tokens behind the newest place that the client, or the provider, has cached; None where there is none."""
    context, sums = planned.context, conversation.client_tokens
    if context.plan_settings.marks_end:
        return 0 if context.plan_settings.prices.breakpoints else None
    if conversation.marked:
        at = bisect_right(conversation.blocks, conversation.marked[-1], key=lambda block: block.message)
        return sums[-1] - sums[at]
    has_marks = context.dialect.marks.style(context.received.request, ())  # on tools or instructions
    return sums[-1] - sums[conversation.head] if has_marks else None


def _sent_before(upstream_request: UpstreamRequest, planned: PlannedRequest, scale: _Scale) -> tuple[int, int]:
    """Tokens that stand where the request before stood, and how many of them the cache should have."""
    conversation, state = planned.context.conversation, planned.plan.state
    if conversation.steps < 2:
        return 0, 0
    end = conversation.ends[-2]
    if state.step == 0 or planned.plan.shed or upstream_request.client_request.is_dry:  # nothing changed
        sums = conversation.client_tokens
        before = scale(scale.counted - sums[-1] + sums[end])
        return before, before
    ledger_sums, ledger = state.ledger.sums, state.ledger
    head = scale.counted - ledger_sums[-1]
    cached_end = ledger.cached_before(end if state.changed is None else min(end, state.changed))
    is_found = cached_end > 0 or not planned.context.plan_settings.prices.breakpoints
    return scale(head + ledger_sums[end]), scale(head + ledger_sums[cached_end]) if is_found else 0


async def start(services: Services) -> Billing | None:
    if services.compaction is None:
        return None
    access, settings = services.compaction.access, services.settings
    holdout, prices = Holdout(settings.holdout, services.secret), services.price_book.prices
    billing = Billing(access.store, services.telemetry, access.forgets, holdout, settings.preset, prices)
    services.parts.push_async_callback(billing.close)
    services.billed.append(billing.summary)
    services.pinged.append(billing.ping)
    return billing

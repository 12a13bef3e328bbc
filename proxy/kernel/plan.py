"""The stage `Planner.plan`: from a request and what is remembered of its conversation to what is sent in its place.

Laws
  Nothing takes effect here: nothing is claimed, and nothing written to the store.
  The cost follows what is new: messages are read once, and a history served here before is continued where it ended.
  Only what takes a few milliseconds is planned on the event loop. What takes long has an end: after `planning_timeout`
  nothing new is decided (three times that in the spare process), and where the client leaves, planning stops.
  Owners take turns: many large histories of one make another wait for one of them at most, and those of credentials
  that nobody has accepted make no other wait for more than one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import structs

from policies.assemble import tool_tokens
from policies.dialects import Request
from policies.keep import digest_of
from policies.model.conversation import Conversation
from policies.model.memory import Memory, StepRecord
from policies.planning.plan import is_quiet, no_plan, plan
from policies.planning.prefix import Chains, last_use, life_of, outcome, sent_record, untouched_before
from policies.planning.state import Plan, PlanSettings, PlanState
from policies.presets import Preset
from policies.render import Rendering, render
from policies.restore import ReplyInProgress
from policies.rules.base import ConfiguredPolicy
from proxy.config import Settings
from proxy.event_loop import in_thread
from proxy.kernel.client_summaries import BEFORE_SUMMARY
from proxy.kernel.cold import FEWEST_BYTES, ColdProcess, Deadline, Turns
from proxy.kernel.understand import Understanding, taken_over
from proxy.memory import UNTOUCHED, Key
from proxy.memory.cached import NO_LOOKUP
from proxy.requests import ClientRequest, PlannedRequest, RequestContext
from proxy.summaries.background import BackgroundWriters


@dataclass(eq=False)
class Planner:
    settings: Settings
    understanding: Understanding
    writers: BackgroundWriters
    clock: Callable[[], float]
    runs: "PlanRuns"

    async def plan(
        self,
        client_request: ClientRequest,
        in_progress: ReplyInProgress | None = None,
        first: PlannedRequest | None = None,
        is_dry: Callable[[Key], bool] | None = None,
    ) -> PlannedRequest | None:
        """The plan for a request; None where the body is not one of its dialect's, or may not be edited. `is_dry`: of
        which conversations requests are planned without effect. `in_progress` and `first`: for a later round of a
        reply, that reply so far, and the plan of its first round."""
        context = await self.understanding(client_request, in_progress, first, is_dry)
        if context is None:
            return None
        if first is None and (unplanned := await self._without_plan(context)):
            return unplanned
        plan_state, memory = await self.understanding.store.history(
            context.live, context.fingerprint, context.conversation, context.lookup, context.plan_settings.prices
        )
        return await self._with_memory(context, plan_state, memory)

    async def _without_plan(self, context: RequestContext) -> PlannedRequest | None:
        """The request as it came, where nothing is decided for it, so that neither the planner nor the store is asked;
        None where something may be."""
        conversation, live = context.conversation, context.live
        if context.client_request.is_dry or not is_quiet(conversation, context.plan_settings):
            return None
        if context.exchanges or context.lookup is not NO_LOOKUP:
            return None
        is_unknown = conversation.steps > 1 and live.sent_before(conversation) is None
        # another process may have sent it, and shortened
        anchors = [*filter(None, (conversation.beginning, UNTOUCHED, conversation.previous_anchor))]
        memory = (await self.understanding.store.look_up(live.key, anchors)).memory if is_unknown else Memory()
        if conversation.previous_anchor in memory.steps:
            return None
        if _asks_models(context.preset):
            context, memory = await self.writers.before_plan(context, None, memory)
        can_summarize = context.plan_settings.summarizing is not None
        if memory.summaries or (can_summarize and not is_quiet(conversation, context.plan_settings)):
            return None
        result = no_plan(conversation, context.plan_settings)
        rendering = render(context.client_request.dialect, context.request, conversation, result)
        return self._planned_request(context, None, memory, result, rendering)

    async def plan_smaller(self, planned: PlannedRequest) -> PlannedRequest | None:
        """The same request planned anew under what its upstream has said of the window since; None where that does not
        make it smaller, or not small enough."""
        context = self.understanding.anew(planned.context)
        if context is None:
            return None
        client_request = structs.replace(context.client_request, may_plan=True)  # else it cannot be served at all
        context = structs.replace(context, client_request=client_request)
        plan_state, memory = await self.understanding.store.history(
            context.live, context.fingerprint, context.conversation, NO_LOOKUP, context.plan_settings.prices
        )
        refused = context.conversation.end_anchor(context.conversation.steps - 1)
        steps = {anchor: record for anchor, record in memory.steps.items() if anchor != refused}
        smaller = await self._with_memory(context, plan_state, replace(memory, steps=steps))
        learned = self.understanding.learned.window(client_request, context.request.model)
        room = learned.room(context.request.reserve) if learned else None
        fits = room is None or smaller.context.calibration.estimate(smaller.tokens_sent) <= room
        return smaller if fits and smaller.tokens_sent < planned.tokens_sent else None

    async def _with_memory(
        self, context: RequestContext, plan_state: PlanState | None, memory: Memory
    ) -> PlannedRequest:
        if not context.client_request.is_dry and _asks_models(context.preset):
            context, memory = await self.writers.before_plan(context, plan_state, memory)
        previous = memory.steps.get(context.conversation.previous_anchor)
        factor = context.calibration.ratio if self.settings.calibrate else 1.0
        plan_settings = context.plan_settings
        if context.conversation.steps == 1 and plan_settings.lifetimes is not None and taken_over(context.conversation):
            lookup = await self.understanding.store.look_up(context.live.key, [BEFORE_SUMMARY])
            life = life_of(lookup.memory.steps.get(BEFORE_SUMMARY) or StepRecord(BEFORE_SUMMARY))
            plan_settings = replace(plan_settings, life=replace(life, is_cold=False, would_be_cold=False))
            context = structs.replace(context, plan_settings=plan_settings)
        if previous is not None or factor != 1.0:
            plan_settings = replace(plan_settings, factor=factor)
            if previous is not None:
                plan_settings = self._after_pause(plan_settings, previous, context.lifetime)
            context = structs.replace(context, plan_settings=plan_settings)
        return await self._planned(context, plan_state, with_untouched(context, plan_state, memory))

    def _after_pause(self, settings: PlanSettings, previous: StepRecord, lifetime: float) -> PlanSettings:
        """The settings with the cache's life now: `lifetime` is that of an entry with nothing done, in seconds."""
        now, life, lifetimes = self.clock(), life_of(previous), settings.lifetimes
        in_force = max(lifetime, lifetimes.longer) if life.is_longer and lifetimes else lifetime
        is_cold, would_be_cold = now - last_use(previous) > in_force, now - previous.at > lifetime
        is_longer = life.is_longer and lifetimes is not None
        life = replace(life, is_cold=is_cold, would_be_cold=would_be_cold, is_longer=is_longer)
        return replace(settings, idle=max(0.0, now - previous.at), life=life)

    async def replan(self, planned: PlannedRequest, memory: Memory) -> PlannedRequest:
        return await self._planned(planned.context, planned.plan_state, memory)

    async def _planned(self, context: RequestContext, plan_state: PlanState | None, memory: Memory) -> PlannedRequest:
        result, rendering = await self.runs.run(context, plan_state, memory)
        if result.reached is not None:
            context.live.add_reached(context.fingerprint, context.conversation, result.reached)
        return self._planned_request(context, plan_state, memory, result, rendering)

    def _planned_request(
        self, context: RequestContext, plan_state: PlanState | None, memory: Memory, result: Plan, rendering: Rendering
    ) -> PlannedRequest:
        head, conversation, tools = context.plan_settings.head, context.conversation, context.tools.tools
        hits = tools.found_in(conversation) if tools else ()
        before, count = conversation.previous_anchor, context.plan_settings.count
        hidden = tools.hidden(hits, count) if tools else 0
        named = sum(each.tokens for each in hits) if tools and tools.form.counts_found else 0
        return PlannedRequest(
            context=context,
            plan_state=plan_state,
            memory=memory,
            plan=result,
            rendering=rendering,
            tokens_received=head - tool_tokens(context.tool, count) + result.before + hidden,
            tokens_sent=head + result.after + named,
            is_quiet=result.state.step == 0,
            previous=memory.steps.get(before) or context.live.sent_before(conversation),
            sent_last=not context.lookup.complete
            and context.live.sent_last(before, self.understanding.store.announcements.foreign()),
        )


def _asks_models(preset: Preset) -> bool:
    """True where it has a model write summaries or digests."""
    return preset.summarizes or preset.digests is not None


# --- where a plan is made, and what is read ahead once a reply is on its way ---


Work = tuple[str, Request, Conversation, PlanSettings, Memory]


class PlanRuns:
    """Plans, and renders what the plans change."""

    def __init__(self, cold: ColdProcess, seconds: float) -> None:
        self._cold = cold
        self._seconds = seconds
        self._turns = Turns(1)
        """Of large replays in threads: the interpreter works on one at a time anyway."""
        self._ahead: asyncio.Task[None] | None = None

    async def run(
        self, context: RequestContext, plan_state: PlanState | None, memory: Memory
    ) -> tuple[Plan, Rendering]:
        client_request, conversation = context.client_request, context.conversation
        work = client_request.dialect, context.request, conversation, context.plan_settings, memory
        is_unread = is_new(conversation)
        if not is_unread and not is_long(context, plan_state, memory):
            return plan_and_render(*work, plan_state, lambda: not client_request.may_plan)
        is_replay = client_request.may_plan and plan_state is None and conversation.steps > 1
        with conversation.carried.held():
            await in_thread(getattr, conversation, "index")
            owner, is_accepted = client_request.sender.owner, client_request.is_accepted
            planned = await self._cold.plan(*work, owner, is_accepted) if is_replay else None
            if planned is None and is_replay and len(context.request.body) >= FEWEST_BYTES:
                has_turn = await self._turns.take(owner, self._seconds, is_accepted)
                try:
                    planned = await self._in_thread(work, plan_state, has_turn)
                finally:
                    if has_turn:
                        self._turns.give()
            if planned is None:
                planned = await self._in_thread(work, plan_state, client_request.may_plan)
        if is_unread and client_request.is_accepted and (self._ahead is None or self._ahead.done()):
            self._ahead = asyncio.create_task(asyncio.to_thread(read_ahead, conversation, context.plan_settings))
        return planned

    async def _in_thread(self, work: Work, plan_state: PlanState | None, may_plan: bool) -> tuple[Plan, Rendering]:
        deadline = Deadline(self._seconds if may_plan else 0.0)
        return await in_thread(plan_and_render, *work, plan_state, deadline, leave=deadline.leave)


def plan_and_render(
    dialect: str,
    request: Request,
    conversation: Conversation,
    settings: PlanSettings,
    memory: Memory,
    state: PlanState | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Plan, Rendering]:
    result = plan(conversation, settings, memory, state, stop)
    return result, render(dialect, request, conversation, result)


_LARGE_MESSAGE, _MANY_STEPS, _MANY_NEW_BLOCKS = 20_000, 16, 100
"""A larger message (in bytes), more steps to replay or more new blocks are worked on in a thread: nobody waits."""
_MANY_BLOCKS, _HUGE_BLOCKS = 800, 2_000
"""So is a history of more blocks: with summaries, because to adopt one may change all of them at once; without, because
now and then a policy looks at all of them."""
_NEWEST, _NEWEST_BYTES = 24, 60_000
"""Messages that may be cut now: where they are larger together they are worked on in a thread, too."""


_INDEX = vars(Conversation)["index"]


def is_new(conversation: Conversation) -> bool:
    """True where much has to be worked out of a history because none that it continues was planned here lately."""
    return len(conversation.blocks) > _MANY_NEW_BLOCKS and _INDEX not in conversation.carried.values


def read_ahead(conversation: Conversation, settings: PlanSettings) -> None:
    """Have the policies read what later steps ask of a history that is new here."""
    for policy in settings.policies:
        if isinstance(policy, ConfiguredPolicy):
            policy.read_ahead(conversation)


def is_long(context: RequestContext, plan_state: PlanState | None, memory: Memory) -> bool:
    """True where planning may take so long that others would wait."""
    ends, done, spans = context.conversation.ends, plan_state.step if plan_state else 0, context.request.spans
    new_blocks = ends[-1] - (ends[done - 1] if done else 0)
    if len(ends) - done > _MANY_STEPS or new_blocks > _MANY_NEW_BLOCKS:
        return True
    if ends[-1] > (_MANY_BLOCKS if memory.summaries else _HUGE_BLOCKS):
        return True
    newest = spans[-1][1] - spans[-min(len(spans), _NEWEST)][0]
    return newest > _NEWEST_BYTES or max(end - start for start, end in spans) > _LARGE_MESSAGE


# --- what is remembered and said of it ---


def with_untouched(context: RequestContext, plan_state: PlanState | None, memory: Memory) -> Memory:
    """`memory`, with a record of the steps before the first that has one, where those were sent as their client wrote
    them: nothing is decided for them afterwards, whatever another release or other settings would have."""
    conversation, stored = context.conversation, memory.steps.get(UNTOUCHED)
    first = plan_state.step if plan_state else 0
    ends = [conversation.end_anchor(step) for step in range(first, conversation.steps - 1)]
    count = next((at for at, anchor in enumerate(ends) if anchor in memory.steps), len(ends))
    if not count or stored is None or stored.sent is None:
        return memory
    chains = Chains(conversation.messages, {})
    now = sent_record(conversation, chains, context.head, context.fingerprint)
    sent = untouched_before(conversation, chains, now, stored.sent, first + count - 1)
    if sent is None:
        return memory
    keep, recall = digest_of(context.plan_settings.keep), context.plan_settings.recall
    record = StepRecord(ends[count - 1], sent=sent, at=stored.at, recall=recall, shed=count, keep=keep)
    return replace(memory, steps={**memory.steps, record.anchor: record})


def step_record(planned: PlannedRequest, at: float) -> StepRecord:
    context, result = planned.context, planned.plan
    anchor = context.conversation.end_anchor(context.conversation.steps - 1)
    return StepRecord(
        anchor=anchor,
        edits=result.new,
        reason=result.reason,
        sent=sent_record(
            context.conversation,
            planned.rendering.chains,
            context.head,
            context.fingerprint,
            result.state.use,
            result.state.life,
        ),
        at=at,
        recall=context.plan_settings.recall,
        dropped=result.state.dropped,
        keep=digest_of(context.plan_settings.keep),
        shed=result.shed or (before.shed if (before := planned.memory.steps.get(anchor)) else 0),
    )


def prefix_outcome(planned: PlannedRequest, record: StepRecord) -> str:
    """The fate of the prompt's prefix when this is sent: the value of x-narrows-prefix."""
    context, newest = planned.context, planned.context.live.newest
    if context.conversation.steps < 2 or record.sent is None:
        return "first"
    previous, chains, untouched = planned.previous, planned.rendering.chains, planned.memory.steps.get(UNTOUCHED)
    if previous is None and untouched is not None and untouched.sent is not None:
        last = context.conversation.steps - 2
        before = untouched_before(context.conversation, chains, record.sent, untouched.sent, last)
        previous = None if before is None else StepRecord(context.conversation.previous_anchor, sent=before)
    word = outcome(previous, newest, record.sent, chains, planned.plan.reason)
    is_new = untouched is not None and not newest and not any(step.sent for step in planned.memory.steps.values())
    if word == "checkpoint:replayed" and is_new and not planned.plan.edits and not context.tools.is_gone:
        return "first"
    if context.exchange_lost and word in ("extended", "tail-cut", "checkpoint:replayed"):
        return "checkpoint:recall"
    # where neither the store nor this process can say all, there may be an exchange that is missing here
    certain = context.lookup.complete or planned.sent_last
    return "checkpoint:replayed" if word == "extended" and not certain else word


def reply_headers(planned: PlannedRequest, prefix: str) -> dict[str, str]:
    context, result = planned.context, planned.plan
    policies, is_edited = Counter(edit.by for edit in result.edits), bool(result.edits or context.tools.tools)
    preset, prices = context.client_request.options.preset, context.plan_settings.prices
    return {
        "x-narrows-mode": "compacted" if is_edited else "marked" if result.marks else "untouched",
        "x-narrows-prefix": prefix,
        "x-narrows-tokens-before": str(context.calibration.estimate(planned.tokens_received)),
        "x-narrows-tokens-after": str(context.calibration.estimate(planned.tokens_sent)),
        "x-narrows-edits": ";".join(f"{name}={policies[name]}" for name in sorted(policies)),
        "x-narrows-conversation": context.live.key.conversation,
        **({} if prices.listed else {"x-narrows-prices": prices.origin}),
        **({"x-narrows-preset": preset} if preset else {}),
    }

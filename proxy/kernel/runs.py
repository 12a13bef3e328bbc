"""Where a plan is made, and how long that may take: on the event loop, in a thread, or in a process of its own.

Laws
  Only what takes a few milliseconds is planned on the event loop.
  What takes long has an end: after `planning_timeout` nothing new is decided (three times that in the spare process),
  and where the client leaves, planning stops.
  Owners take turns: many large histories of one make another wait for one of them at most, and those of credentials
  that nobody has accepted make no other wait for more than one.
"""

import asyncio
from collections.abc import Callable

from policies.dialects import Request
from policies.model.conversation import Conversation
from policies.model.memory import Memory
from policies.planning.plan import plan
from policies.planning.state import Plan, PlanSettings, PlanState
from policies.render import Rendering, render
from policies.rules.base import ConfiguredPolicy
from proxy.event_loop import in_thread
from proxy.kernel.cold import FEWEST_BYTES, ColdProcess
from proxy.kernel.turns import Deadline, Turns
from proxy.requests import RequestContext

Work = tuple[str, Request, Conversation, PlanSettings, Memory]
"""A request in its API, its conversation, and what it is planned under."""


class PlanRuns:
    """Plans, and renders what the plans change."""

    def __init__(self, cold: ColdProcess, seconds: float) -> None:
        self._cold = cold
        self._seconds = seconds
        self._turns = Turns(1)
        """Of large replays in threads: the interpreter works on one at a time anyway."""
        self._ahead: asyncio.Task[None] | None = None
        """Reads what a later request may ask of a history that is new here."""

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
            owner, is_accepted = client_request.owner, client_request.is_accepted
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


# --- which plans take so long that a thread works on them, and what is read ahead once a reply is on its way ---

_LARGE_MESSAGE, _MANY_STEPS, _MANY_NEW_BLOCKS = 20_000, 16, 100
"""A larger message (in bytes), more steps to replay or more new blocks are worked on in a thread, so that nobody else
waits."""
_MANY_BLOCKS, _HUGE_BLOCKS = 800, 2_000
"""So is a history of more blocks: with summaries, because to adopt one may change all of them at once; without, because
now and then a policy looks at all of them."""
_NEWEST, _NEWEST_BYTES = 24, 60_000
"""Messages that may be cut now: where they are larger together they are worked on in a thread, too."""


_INDEX = vars(Conversation)["index"]


def is_new(conversation: Conversation) -> bool:
    """Whether much has to be worked out of a history because no request that it continues was planned here lately."""
    return len(conversation.blocks) > _MANY_NEW_BLOCKS and _INDEX not in conversation.carried.values


def read_ahead(conversation: Conversation, settings: PlanSettings) -> None:
    """Have the policies read what later steps ask of a history that is new here."""
    for policy in settings.policies:
        if isinstance(policy, ConfiguredPolicy):
            policy.read_ahead(conversation)


def is_long(context: RequestContext, plan_state: PlanState | None, memory: Memory) -> bool:
    """Whether planning may take so long that others would wait."""
    ends, done, spans = context.conversation.ends, plan_state.step if plan_state else 0, context.request.spans
    new_blocks = ends[-1] - (ends[done - 1] if done else 0)
    if len(ends) - done > _MANY_STEPS or new_blocks > _MANY_NEW_BLOCKS:
        return True
    if ends[-1] > (_MANY_BLOCKS if memory.summaries else _HUGE_BLOCKS):
        return True
    newest = spans[-1][1] - spans[-min(len(spans), _NEWEST)][0]
    return newest > _NEWEST_BYTES or max(end - start for start, end in spans) > _LARGE_MESSAGE

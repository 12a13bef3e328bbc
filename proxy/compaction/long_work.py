"""Which plans take so long that a thread works on them, and what is read ahead once a reply is on its way."""

from policies.model.conversation import Conversation
from policies.model.memory import Memory
from policies.planning.state import PlanSettings, PlanState
from policies.rules.base import ConfiguredPolicy
from proxy.requests import RequestContext

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

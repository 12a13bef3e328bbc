"""Steps at which nothing new was decided because there was no time to plan.

Law: at such a step only what its record says is repeated, by every later plan too. So what was sent without planning is
what later requests begin with, and what was given up there is decided at a later step, as any other rewrite.
"""

from collections.abc import Container

from policies.model.conversation import Conversation
from policies.model.memory import Memory


def undecided_steps(conversation: Conversation, memory: Memory, first: int) -> Container[int]:
    """These steps, from `first` on."""
    if not any(record.shed for record in memory.steps.values()):
        return ()
    low, steps = conversation.steps, set[int]()
    for step in reversed(range(first, conversation.steps)):
        record = memory.steps.get(conversation.end_anchor(step))
        low = min(low, step + 1 - record.shed) if record and record.shed else low
        if step >= low:
            steps.add(step)
    return steps

"""What was recalled and has been seen for a while becomes its reference again.

Inside the keep window nothing of it is touched. What was recalled more than once is evidently needed: its newest copy
stays whole, and the older ones go.
"""

from collections.abc import Iterator

from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.recall import call_answered_by, original
from policies.text.stubs import recalled_output
from policies.tools import RECALL


def collapse(conversation: Conversation, context: Context, *, keep: int) -> Iterator[Replace]:
    """Answers of the recall tool that are `keep` turns old."""
    for i in context.aged(conversation, keep) if context.recall else ():
        if conversation.blocks[i].answers is None or conversation.blocks[i].tool != RECALL:
            continue
        copies = _copies(conversation, i, conversation.ends[context.step])
        often = len(copies) > 1 and i == copies[-1]
        for j in copies[:-1] if often else (i,):
            if text := _reference(conversation, j):
                yield Replace(conversation.blocks[j].anchor, text, "collapse")


def _copies(conversation: Conversation, at: int, end: int) -> list[int]:
    """Where the same was asked for, before the block `end`. What it was answered may differ in its last sentence."""
    call = call_answered_by(conversation, at)
    answers = (j for (tool, _), found in conversation.outputs_by_call.items() if tool == RECALL for j in found)
    return sorted(j for j in answers if j < end and call_answered_by(conversation, j) == call)


def _reference(conversation: Conversation, at: int) -> str:
    """What stands for an answer; empty where there was nothing to be found: no stub promises that."""
    call = call_answered_by(conversation, at)
    return recalled_output(call.ref, call.part) if call and original(conversation, call.ref) is not None else ""

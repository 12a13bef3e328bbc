"""What was recalled and has been seen for a while becomes its reference again.

Inside the keep window nothing of it is touched. What was recalled more than once is evidently needed: its newest copy
stays whole, and the older ones go.
"""

from collections.abc import Iterator

from policies.context import Context
from policies.conversation import Conversation
from policies.edits import Replace
from policies.recall import original, read
from policies.stubs import recalled
from policies.tools import RECALL


def collapse(conversation: Conversation, context: Context, *, keep: int) -> Iterator[Replace]:
    """Answers of the recall tool that are `keep` turns old."""
    for i in context.aged(conversation, keep) if context.recall else ():
        if conversation.blocks[i].answers is None or conversation.blocks[i].tool != RECALL:
            continue
        copies = list(_copies(conversation, i, conversation.ends[context.step]))
        often = len(copies) > 1 and i == copies[-1]
        for j in copies[:-1] if often else (i,):
            if text := _reference(conversation, j):
                yield Replace(conversation.blocks[j].anchor, text, "collapse")


def _copies(conversation: Conversation, at: int, end: int) -> Iterator[int]:
    """Where the same was recalled, before the block `end`."""
    said = conversation.outputs[conversation.blocks[at].text]
    return (j for j in said if j < end and conversation.blocks[j].tool == RECALL)


def _reference(conversation: Conversation, at: int) -> str:
    """What stands for an answer; empty where there was nothing to be found: no stub promises that."""
    asked = conversation.blocks[at].answers
    call = read(conversation.blocks[asked].text) if asked is not None else None
    return recalled(call.ref, call.part) if call and original(conversation, call.ref) is not None else ""

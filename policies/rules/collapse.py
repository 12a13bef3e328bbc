"""What was recalled and has been seen for a while becomes its reference again.

Inside the keep window nothing of it is touched. What was recalled more than once is evidently needed: its newest copy
stays whole, and the older ones go.
"""

from collections.abc import Iterator

from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.parameters import parameter
from policies.recall import call_answered_by, original
from policies.rules.base import ConfiguredPolicy, policy
from policies.text.stubs import recalled_output
from policies.tools import RECALL


@policy
class Collapse(ConfiguredPolicy):
    why = "recalled a while ago; it can be recalled again"

    keep: int = parameter("turns", "the newest answers of the recall tool, which stay as they are")

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Replace]:
        """References for the answers that are `keep` turns old with this step."""
        for i in context.aged(conversation, self.keep) if context.recall else ():
            if conversation.blocks[i].answers is None or conversation.blocks[i].tool != RECALL:
                continue
            call, end = call_answered_by(conversation, i), conversation.ends[context.step]
            outputs = (
                j for (tool, _), blocks in conversation.outputs_by_call.items() if tool == RECALL for j in blocks
            )
            # the texts of copies may differ in the last sentence
            copies = sorted(j for j in outputs if j < end and call_answered_by(conversation, j) == call)
            is_newest_of_several = len(copies) > 1 and i == copies[-1]
            # no stub promises what was not found
            if call and original(conversation, call.ref) is not None:
                for j in copies[:-1] if is_newest_of_several else (i,):
                    yield Replace(conversation.blocks[j].anchor, recalled_output(call.ref, call.part), "collapse")

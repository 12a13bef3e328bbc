"""Text that was recalled becomes its reference again after some turns.

Inside the keep window nothing of it is touched. What was recalled more than once is evidently needed: its newest copy
stays whole, and the older ones go.
"""

from bisect import bisect_left
from collections.abc import Iterator

from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.parameters import parameter
from policies.recall import answers_to, call_answered_by, stands_for_text
from policies.rules.base import ConfiguredPolicy, policy
from policies.text.stubs import recalled_output
from policies.tools import RECALL


@policy
class Collapse(ConfiguredPolicy):
    why = "recalled some turns ago; it can be recalled again"

    keep: int = parameter("turns", "newest answers of the recall tool that stay as they are")

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Replace]:
        for i in context.aged(conversation, self.keep) if context.recall else ():
            if conversation.blocks[i].answers is None or conversation.blocks[i].tool != RECALL:
                continue
            call = call_answered_by(conversation, i)
            # no stub promises what was not found
            if call is None or not stands_for_text(conversation, call.ref):
                continue
            # the texts of copies may differ in the last sentence
            answers = answers_to(conversation, call)
            older = answers[: bisect_left(answers, conversation.ends[context.step]) - 1]
            is_newest_of_several = older and i > older[-1]
            text = recalled_output(call.ref, call.part)
            for j in older if is_newest_of_several else (i,):
                edit = context.edits.get(j)
                if edit is None or edit.text != text:
                    yield Replace(conversation.blocks[j].anchor, text, "collapse")

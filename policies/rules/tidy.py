"""Terminal codes, overwritten progress lines and needless white space are removed from outputs when they arrive.

Files are never touched: their white space may be quoted by the next edit. The recall tool has the output byte for byte.
"""

from collections.abc import Iterator

from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.parameters import parameter
from policies.rules.base import OutputPolicy, large_outputs, policy
from policies.text.stubs import tidied_output
from policies.text.tidy import is_tidy, tidied


@policy
class Tidy(OutputPolicy):
    why = "terminal codes, overwritten progress lines and white space, which have no meaning"

    saves: int = parameter("tokens", "what must be saved, at least")

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Replace]:
        """The outputs that arrive with this step, tidied."""
        for i in large_outputs(conversation, context, context.aged(conversation, 0), self.saves):
            block = conversation.blocks[i]
            if is_tidy(block.text):  # nearly always
                continue
            kind = context.kind(conversation, i)
            tidy = tidied(block.text, kind)
            if tidy != block.text:
                text = f"{tidy.rstrip()}\n{tidied_output(kind, context.ref(conversation, i))}"
                if block.tokens - context.count(text) >= self.saves:
                    yield Replace(block.anchor, text, "tidy", lossless=True)

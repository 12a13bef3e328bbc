"""What stands twice in a request: outputs repeated word for word, and outputs that the same call gave again.

A repeated output becomes a pointer to the copy that is still in this request; when that copy goes, the pointer is
rewritten in the same checkpoint. An output superseded by the same call with all its arguments needs no keep window.
"""

from collections.abc import Iterator

from policies.context import Context
from policies.conversation import Block, Conversation
from policies.edits import Replace
from policies.stubs import repeated, superseded, way_back
from policies.tools import kind_of, same_call, shell_command


def dedupe(conversation: Conversation, context: Context, *, over: int) -> Iterator[Replace]:
    """Results over `over` tokens that the model has answered once and that stand elsewhere too."""
    for i in context.aged(conversation, 1):
        block = conversation.blocks[i]
        if block.answers is None or block.tokens <= over:
            continue
        call = conversation.blocks[block.answers]
        for j in range(i - 1, -1, -1):
            older = conversation.blocks[j]
            if older.answers is None:
                continue
            older_call = conversation.blocks[older.answers]
            if older.text == block.text:
                yield _pointer(block, call, older, older_call)
                break
            if older.tokens > over and same_call(older.tool, older_call.text) == same_call(block.tool, call.text):
                yield Replace(older.anchor, superseded(block.tool), "dedupe")
                break


def _pointer(block: Block, call: Block, older: Block, older_call: Block) -> Replace:
    words = (shell_command(older_call.text) or older_call.text)[:60] if older.kind == "result" else ""
    gone = way_back(kind_of(block.tool, call.text, block.text))
    return Replace(block.anchor, repeated(older.tool, words), "dedupe", needs=older.anchor, otherwise=gone)

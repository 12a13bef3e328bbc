"""What stands twice in a request: outputs repeated word for word, and outputs that the same call gave again.

A repeated output becomes a pointer to the copy that is still in this request; when that copy goes, the pointer is
rewritten in the same checkpoint. An output superseded by the same call with all its arguments needs no keep window.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from policies.context import Context
from policies.conversation import Block, Conversation
from policies.edits import Replace
from policies.stubs import gone, repeated, superseded
from policies.tools import RECALL, kind_of, shell_command


def dedupe(conversation: Conversation, context: Context, *, over: int) -> Iterator[Replace]:
    """Results over `over` tokens that the model has answered once and that stand elsewhere too."""
    for i in context.aged(conversation, 1):
        block = conversation.blocks[i]
        if block.answers is None or block.tokens <= over or block.tool == RECALL:
            continue
        copy = next(_before(i, conversation.outputs[block.text]), -1)
        asked = conversation.asked[block.tool, conversation.blocks[block.answers].text.strip()]
        old = next((j for j in _before(i, asked) if _may_go(conversation.blocks[j], context, over)), -1)
        if copy >= 0 and copy >= old:
            yield _pointer(conversation, context, i, conversation.blocks[copy])
        elif old >= 0:
            text = superseded(block.tool, context.ref(conversation, old))
            yield Replace(conversation.blocks[old].anchor, text, "dedupe")


def _before(at: int, places: Sequence[int]) -> Iterator[int]:
    """The places before `at`, nearest first."""
    return (places[n] for n in range(bisect_left(places, at) - 1, -1, -1))


def _may_go(older: Block, context: Context, over: int) -> bool:
    """Whether an output that its call gave again may go: not in a text protocol, where only exact duplicates do."""
    return older.tokens > over and context.is_output(older)


def _pointer(conversation: Conversation, context: Context, at: int, older: Block) -> Replace:
    block = conversation.blocks[at]
    call, older_call = (conversation.blocks[b.answers].text if b.answers is not None else "" for b in (block, older))
    words = (shell_command(older_call) or older_call)[:60] if older.kind == "result" else ""
    left_out = gone(kind_of(block.tool, call, block.text), context.ref(conversation, at))
    return Replace(block.anchor, repeated(older.tool, words), "dedupe", needs=older.anchor, otherwise=left_out)

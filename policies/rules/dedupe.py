"""What stands twice in a request: outputs repeated word for word, and outputs that something newer made old.

A repeated output becomes a pointer to the copy that is still in this request; when that copy goes, the pointer is
rewritten in the same checkpoint. An output that the same call with all its arguments gave again needs no keep window,
and no more does a file that a later call wrote anew as a whole.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from policies.context import Context
from policies.model.conversation import Block, Conversation
from policies.model.edits import Replace
from policies.model.windows import Large, is_large
from policies.text.excerpt import ERROR
from policies.text.stubs import hidden_output, outdated_file, repeated_output, superseded_output
from policies.tools import RECALL, path_of, rewrites, shell_command

_REFUSED = re.compile(
    r"reject|denied|refus|cancel|abort|interrupt|declin|cannot|can't|unable|not been|not found|not allowed"
    r"|does not|doesn't|did not|didn't|must|first",
    re.I,
)
"""How an answer sounds that says that nothing was written. Better to take one too many for it: the reading stays."""
_SAID = 2_000
"""Characters of an answer in which it says so."""
_FAR = 400
"""Blocks that are looked back: what was read earlier has left every window long ago."""


def dedupe(conversation: Conversation, context: Context, *, over: Large) -> Iterator[Replace]:
    """Results larger than `over` that the model has answered once and that stand elsewhere, too."""
    for i in context.aged(conversation, 1):
        yield from _outdated(conversation, context, i, over)
        block = conversation.blocks[i]
        if block.answers is None or not is_large(block.text, block.tokens, over) or block.tool == RECALL:
            continue
        copy = next(_before(i, conversation.outputs_by_text[block.text]), -1)
        asked = conversation.outputs_by_call[block.tool, conversation.blocks[block.answers].text.strip()]
        old = next((j for j in _before(i, asked) if _may_go(conversation.blocks[j], context, over)), -1)
        if copy >= 0 and copy >= old:
            yield _pointer(conversation, context, i, conversation.blocks[copy])
        elif old >= 0:
            text = superseded_output(block.tool, context.ref(conversation, old))
            yield Replace(conversation.blocks[old].anchor, text, "dedupe")


def _outdated(conversation: Conversation, context: Context, at: int, over: Large) -> Iterator[Replace]:
    """The results that show a file as it was before this call wrote it anew."""
    call = conversation.blocks[at]
    if call.kind != "call" or not rewrites(call.tool, call.text) or not (path := path_of(call.tool, call.text)):
        return
    answers = [conversation.blocks[i].text[:_SAID] for i in conversation.results.get(at, ())]
    if not answers or any(ERROR.search(text) or _REFUSED.search(text) for text in answers):
        return
    for i in range(max(0, at - _FAR), at):
        older = conversation.blocks[i]
        asked = conversation.blocks[older.answers] if older.answers is not None else None
        if asked is None or not _may_go(older, context, over) or path_of(asked.tool, asked.text) != path:
            continue
        if context.kind(conversation, i) == "file":
            yield Replace(older.anchor, outdated_file(context.ref(conversation, i)), "dedupe")


def _before(at: int, places: Sequence[int]) -> Iterator[int]:
    """The places before `at`, nearest first."""
    return (places[n] for n in range(bisect_left(places, at) - 1, -1, -1))


def _may_go(older: Block, context: Context, over: Large) -> bool:
    """Whether an output that its call gave again may go: not in a text protocol, where only exact duplicates do."""
    return is_large(older.text, older.tokens, over) and context.is_output(older)


def _pointer(conversation: Conversation, context: Context, at: int, older: Block) -> Replace:
    older_call = conversation.blocks[older.answers].text if older.answers is not None else ""
    words = (shell_command(older_call) or older_call)[:60] if older.kind == "result" else ""
    left_out = hidden_output(context.kind(conversation, at), context.ref(conversation, at))
    return Replace(
        conversation.blocks[at].anchor,
        repeated_output(older.tool, words),
        "dedupe",
        needs=older.anchor,
        otherwise=left_out,
    )

"""Large tool results: a share of the result one step after birth, a pointer with what matters once it is old.

Whole at first sight. Outputs of commands, listings and searches are cut as soon as the model has answered them, down to
the share that costs nothing at the provider's cache prices (read/write, see economics); what may be edited next (file
reads, the output of edits) waits for a checkpoint. A result that the model still works with is asked about again when
it is twice as old.
"""

from collections.abc import Iterator

from policies.context import Context
from policies.conversation import Conversation
from policies.edits import Replace
from policies.excerpt import excerpt, named
from policies.stubs import way_back
from policies.terms import in_use, mentioned
from policies.tools import HEAD, RECALL, ToolKind, kind_of, writes

_POINTER = 27
"""Tokens of a pointer that says nothing but the way back and how much is hidden."""
_MOST = 0.5
"""The share of a fresh result that is left at most: without a cache none of it costs nothing."""
_MATTERS = {"file": 0.12}
_MATTERS_ELSE = 0.07
"""The share of an old result that is spent on what matters in it."""
_RECENT, _NAMED = 4, 2
"""A result is in use when the last 4 turns named 2 things that only it shows."""
_DOUBLINGS = 4


def offload(
    conversation: Conversation, context: Context, *, over: int, keep: int, keep_files: int, matters: int
) -> Iterator[Replace]:
    """Results over `over` tokens: a tail cut at once, and a pointer with `matters` tokens of what counts once old."""
    for i, kind in _results(conversation, context, 1, over, files=False):
        share = min(_MOST, context.prices.read / context.prices.write)
        budget = max(_POINTER, int(conversation.blocks[i].tokens * share))
        yield _shortened(conversation, context, i, kind, budget, names=0)
    for window, files in ((keep, False), (keep_files, True)):
        for doubling in range(_DOUBLINGS + 1):
            for i, kind in _results(conversation, context, window << doubling, over, files):
                if _is_due(conversation, i, context.step, window, doubling):
                    share = _MATTERS.get(kind, _MATTERS_ELSE)
                    budget = _POINTER + max(matters, int(share * conversation.blocks[i].tokens))
                    yield _shortened(conversation, context, i, kind, budget, names=budget // 2)


def _is_due(conversation: Conversation, at: int, step: int, window: int, doubling: int) -> bool:
    """Whether a result of age `window << doubling` was in use when it was half as old, and no longer is."""
    if doubling and not in_use(conversation, at, step - (window << doubling - 1), _RECENT, _NAMED):
        return False  # it was offered then
    return doubling == _DOUBLINGS or not in_use(conversation, at, step, _RECENT, _NAMED)


def _results(
    conversation: Conversation, context: Context, age: int, over: int, files: bool
) -> Iterator[tuple[int, ToolKind]]:
    """The large results that have just come of `age`: those that may be edited next, or the others."""
    for i in context.aged(conversation, age):
        block = conversation.blocks[i]
        if context.is_output(block) and block.answers is not None and block.tokens > over and block.tool != RECALL:
            call = conversation.blocks[block.answers]
            kind = kind_of(block.tool, call.text, block.text)
            if (kind == "file" or writes(block.tool, call.text)) == files:
                yield i, kind


def _shortened(
    conversation: Conversation, context: Context, at: int, kind: ToolKind, budget: int, names: int
) -> Replace:
    """About `budget` tokens of the block, of which `names` list what stands in it without the lines around."""
    block = conversation.blocks[at]
    said = mentioned(conversation, at, context.step)
    shown = excerpt(block.text, budget - 10 - names, HEAD[kind], said, context.count)
    listed = named(block.text, shown, said, names, context.count)
    back = way_back(kind, context.ref(conversation, at))
    return Replace(block.anchor, "\n".join(filter(None, (shown.rstrip(), listed, back))), "offload")

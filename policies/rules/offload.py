"""Large tool results: a share of the result one step after birth, a pointer with what matters once it is old.

Whole at first sight. Outputs of commands, listings and searches are cut as soon as the model has answered them, down to
the share that costs nothing at the provider's cache prices (read/write, see economics); what may be edited next (file
reads, the output of edits) waits for a checkpoint. A result that the model still works with is asked about again when
it is twice as old.
"""

from collections.abc import Iterator, Sequence

from policies.context import Context
from policies.digests import digested
from policies.finished import settled
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.identifiers import in_use, mentioned
from policies.model.windows import Keep, Large, Trigger, is_large
from policies.text.excerpt import hidden_identifiers
from policies.text.stubs import way_back
from policies.tools import RECALL, ToolKind, writes

_POINTER = 27
"""Tokens of a pointer that says nothing but the way back and how much is hidden."""
_MATTERS = {"file": 0.12}
_MATTERS_ELSE = 0.07
"""The share of an old result that is spent on what matters in it."""
_RECENT, _NAMED = 4, 2
"""A result is in use when the last 4 turns named 2 things that only it shows."""
_DOUBLINGS = 4


def offload(
    conversation: Conversation,
    context: Context,
    *,
    over: Large,
    keep: Keep,
    keep_files: Keep,
    matters: int,
    fresh: float = 0.5,
    fresh_files: bool = False,
    done: Keep | None = None,
    when: Sequence[Trigger] = (),
) -> Iterator[Replace]:
    """Results larger than `over`: a tail cut at once, down to the share `fresh` at most (`fresh_files`: also of what
    may be edited next), and a pointer with `matters` tokens of what counts once old, or outside the window `done` once
    settled. 0 makes it a bare pointer. With triggers, all of that from one on."""
    for i, kind in _results(conversation, context, context.aged(conversation, context.first_cut_age, when), over):
        if fresh_files or not _is_edited(conversation, i, kind):
            share = min(fresh, context.prices.read / context.prices.write)
            budget = max(_POINTER, int(conversation.blocks[i].tokens * share))
            yield _shortened(conversation, context, i, kind, budget, names=0)
    for window, files in ((keep, False), (keep_files, True)):
        for i, kind in _old(conversation, context, window, files, over, when):
            share = _MATTERS.get(kind, _MATTERS_ELSE) if matters else 0.0
            budget = _POINTER + max(matters, int(share * conversation.blocks[i].tokens))
            yield _shortened(conversation, context, i, kind, budget, names=budget // 2 if matters else 0)
    for i, kind in _results(conversation, context, settled(conversation, context, done), over):
        budget = _POINTER + matters
        yield _shortened(conversation, context, i, kind, budget, names=budget // 2)


def _old(
    conversation: Conversation, context: Context, window: Keep, files: bool, over: Large, when: Sequence[Trigger]
) -> Iterator[tuple[int, ToolKind]]:
    """The results that leave the window now: those that may be edited next, or the others. Of a window in turns only
    those that are not in use; these are asked about again whenever they are twice as old."""
    if not isinstance(window, int) or when:
        for i, kind in _results(conversation, context, context.aged(conversation, window, when), over):
            if _is_edited(conversation, i, kind) == files:
                yield i, kind
        return
    for doubling in range(_DOUBLINGS + 1):
        for i, kind in _results(conversation, context, context.aged(conversation, window << doubling), over):
            due = _is_due(conversation, i, context.step, window, doubling)
            if due and _is_edited(conversation, i, kind) == files:
                yield i, kind


def _is_due(conversation: Conversation, at: int, step: int, window: int, doubling: int) -> bool:
    """Whether a result of age `window << doubling` was in use when it was half as old, and no longer is."""
    if doubling and not in_use(conversation, at, step - (window << doubling - 1), _RECENT, _NAMED):
        return False  # it was offered then
    return doubling == _DOUBLINGS or not in_use(conversation, at, step, _RECENT, _NAMED)


def _results(
    conversation: Conversation, context: Context, blocks: range, over: Large
) -> Iterator[tuple[int, ToolKind]]:
    """The large results among these blocks."""
    for i in blocks:
        block = conversation.blocks[i]
        if context.is_output(block) and block.tool != RECALL and is_large(block.text, block.tokens, over):
            yield i, context.kind(conversation, i)


def _is_edited(conversation: Conversation, at: int, kind: ToolKind) -> bool:
    """Whether a result shows what may be edited next: a file, or what an edit made of it."""
    block = conversation.blocks[at]
    call = conversation.blocks[block.answers].text if block.answers is not None else ""
    return kind == "file" or writes(block.tool, call)


def _shortened(
    conversation: Conversation, context: Context, at: int, kind: ToolKind, budget: int, names: int
) -> Replace:
    """About `budget` tokens of the block, of which `names` list what stands in it without the lines around."""
    block = conversation.blocks[at]
    said = mentioned(conversation, at, context.step)
    shown = digested(block.text, kind, budget - 10 - names, said, context.count)
    listed = hidden_identifiers(block.text, shown, said, names, context.count)
    back = way_back(kind, context.ref(conversation, at))
    return Replace(block.anchor, "\n".join(filter(None, (shown.rstrip(), listed, back))), "offload")

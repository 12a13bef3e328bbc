"""The limits of every policy, whatever it offers: laws 4 (what was valid stays valid) and 5 (protected texts)."""

from bisect import bisect_left, bisect_right
from collections.abc import Container
from dataclasses import replace

from policies.context import Context
from policies.keep import NOTHING
from policies.model.conversation import Block, Conversation
from policies.model.edits import Fold, Replace
from policies.tools import OURS, arguments_of

_EDITABLE = frozenset({"assistant", "call", "result", "user"})


def may_edit(conversation: Conversation, at: int, by: str, context: Context, lossless: bool = False) -> bool:
    """True where another text may replace a block at this step. System text, opaque items, what a person wrote and what
    people want left as it is are never edited. The newest turn is not edited before the model has answered it, except
    outputs where the edit is `lossless` (everything stays in sight: it stands above in the request, or had no meaning)
    or the preset says so; recalled text only by `collapse`. Neither holds where the request does not fit otherwise.
    Prose and arguments are edited where the recall tool can bring them back, or a text protocol is to be shortened."""
    block = conversation.blocks[at]
    if block.kind not in _EDITABLE or context.protection.keeps(conversation, at):
        return False
    newest = conversation.start(context.step)
    at_once = block.answers is not None and (lossless or context.exceptions.first_sight)
    if at >= newest and not context.excess and not at_once:
        return False
    if block.tool in OURS and not context.excess:
        return block.kind == "result" and by == "collapse"
    if block.kind in ("assistant", "call"):
        return context.text_protocol or context.recall
    if block.kind != "user" or (lossless and block.answers is not None):
        return True
    return block.answers is not None and at not in protected_users(conversation, context.step)


def may_fold(conversation: Conversation, fold: Fold, context: Context, protected: Container[int] | None = None) -> bool:
    """True where one message may replace a run of blocks. The newest turn is never folded, and a call is never
    separated from a result. What a person wrote is only folded into a text that repeats it word for word, and never
    where it is `protected` (by default everywhere). System text is only folded into a summary, where the preset says
    so. A turn of which people want anything left as it is stays as a whole."""
    run = range(conversation.index[fold.first], conversation.index[fold.last] + 1)
    if run.start in conversation.no_cut_before or run.stop in conversation.no_cut_before:
        return False
    protected = run if protected is None else protected
    if context.excess and fold.by == "trim":  # the last resort, where nothing else fits
        context = replace(context, protection=replace(context.protection, in_force=NOTHING))
    for i in run:
        block = conversation.blocks[i]
        if block.turn >= context.step - 1 or context.protection.keeps_turn_of(conversation, i):
            return False
        if block.kind == "system" and (fold.origin is None or not context.exceptions.may_fold_system(block)):
            return False
        if block.kind == "user" and (i in protected or not (context.is_output(block) or block.text in fold.text)):
            return False
        partners = conversation.results.get(i, (block.answers,) if block.kind == "result" else ())
        if any(partner not in run for partner in partners):
            return False
    return True


def keeps_shape(block: Block, edit: Replace) -> bool:
    """True where the arguments of a call have the same keys and types after an edit."""
    try:
        return block.kind != "call" or _shape(arguments_of(block.text)) == _shape(arguments_of(edit.text))
    except RecursionError:  # nested too deep to be compared
        return False


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shape(inner) for inner in value]
    return type(value)


def protected_users(conversation: Conversation, step: int) -> frozenset[int]:
    users = conversation.kinds.get("user", [])
    count = bisect_left(users, conversation.ends[step])
    if not count:
        return frozenset()

    def message(at: int) -> int:
        return conversation.blocks[at].message

    first = users[: bisect_right(users, message(users[0]), 0, count, key=message)]
    return frozenset(first + users[bisect_left(users, message(users[count - 1]), 0, count, key=message) : count])

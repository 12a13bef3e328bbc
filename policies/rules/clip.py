"""Bulky arguments of old tool calls become whole-value references.

The arguments stay valid JSON with the same keys and types, and the call keeps its id. A value is left out whole, never
cut, so that no model can copy a cut text into a file. Arguments that write (edits, scripts, heredocs) stay far longer:
later edits quote them.
"""

from collections.abc import Iterator, Sequence

import msgspec

from policies.context import Context
from policies.finished import settled
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.rawjson import Path, UnreadableError, replaced
from policies.model.windows import Keep, Large, Trigger, is_large
from policies.text.stubs import clipped_argument
from policies.tools import arguments_of, writes


def clip(
    conversation: Conversation,
    context: Context,
    *,
    over: Large,
    keep: Keep,
    keep_writes: Keep,
    done: Keep | None = None,
    when: Sequence[Trigger] = (),
) -> Iterator[Replace]:
    """String arguments larger than `over` outside the window `keep`; where the call writes `keep_writes`, but `done`
    once the work is settled."""
    for i in _due(conversation, context, keep, keep_writes, done, when):
        block = conversation.blocks[i]
        if i not in conversation.results or not is_large(block.text, block.tokens, over):
            continue
        if text := _clipped(block.text, over, context, context.ref(conversation, i)):
            yield Replace(block.anchor, text, "clip")


def _due(
    conversation: Conversation,
    context: Context,
    keep: Keep,
    keep_writes: Keep,
    done: Keep | None,
    when: Sequence[Trigger],
) -> Iterator[int]:
    """The calls that leave their windows with this step."""
    for window, writing in ((keep, False), (keep_writes, True)):
        for i in context.aged(conversation, window, when):
            block = conversation.blocks[i]
            if block.kind == "call" and writes(block.tool, block.text) == writing:
                yield i
    yield from (i for i in settled(conversation, context, done) if conversation.blocks[i].kind == "call")


def _clipped(arguments: str, over: Large, context: Context, ref: str) -> str:
    """The arguments with each long string left out; empty where there is none."""
    changes = {
        path: msgspec.json.encode(clipped_argument(len(value), ref))
        for path, value in _strings(arguments_of(arguments))
        if is_large(value, context.count(value), over)
    }
    if not changes:
        return ""
    try:
        return replaced(arguments.encode(), changes).decode()
    except (UnreadableError, UnicodeEncodeError):
        return ""


def _strings(value: object) -> Iterator[tuple[Path, str]]:
    """Every string in it, however deep, with where it stands."""
    pending: list[tuple[Path, object]] = [((), value)]
    while pending:
        path, inner = pending.pop()
        if isinstance(inner, str):
            yield path, inner
        elif isinstance(inner, dict):
            pending += [((*path, str(key)), held) for key, held in inner.items()]
        elif isinstance(inner, list):
            pending += [((*path, position), held) for position, held in enumerate(inner)]

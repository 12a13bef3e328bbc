"""Long arguments of old tool calls become references.

The arguments stay valid JSON with the same keys and types, and the call keeps its id. A value is left out whole, never
cut, so that no model can copy a cut text into a file. Arguments that write (edits, scripts, heredocs) stay far longer,
and for good where sight counts: a model edits what it wrote without reading it again, a hundred turns later too.
"""

from collections.abc import Iterator, Sequence

import msgspec

from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.parameters import Keep, Large, Trigger, is_large, parameter
from policies.model.rawjson import Path, UnreadableError, replaced
from policies.rules.base import ConfiguredPolicy, policy, unreferenced
from policies.text.stubs import clipped_argument
from policies.tools import arguments_of, known_by, writes

_KNOWN_BY_CHARACTERS = 60


@policy
class Clip(ConfiguredPolicy):
    why = "long argument of an old call that was carried out; it can be recalled"

    over: Large = parameter("tokens", "longer arguments are left out")
    keep: Keep = parameter("turns", "newest calls that stay as they are")
    keep_writes: Keep = parameter("turns", "newest calls that write files and stay as they are")
    when: Sequence[Trigger] = parameter("triggers", "when arguments begin to be left out", default=())

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Replace]:
        for blocks, writing in (
            (context.aged(conversation, self.keep, self.when), False),
            (range(0) if context.sight else context.aged(conversation, self.keep_writes, self.when), True),
        ):
            for i in unreferenced(context, blocks):
                block = conversation.blocks[i]
                if block.kind != "call" or i not in conversation.results or not context.may_save(i):
                    continue
                if not is_large(block.text, block.tokens, self.over) or writes(block.tool, block.text) != writing:
                    continue
                if text := _clipped(conversation, i, self.over, context):
                    yield Replace(block.anchor, text, "clip")


def _clipped(conversation: Conversation, at: int, over: Large, context: Context) -> str:
    """The arguments of a call without long strings; "" where none is. The longest says what the call is known by."""
    block, ref = conversation.blocks[at], context.ref(conversation, at)
    strings = [*_strings(arguments_of(block.text))]
    large = {path: value for path, value in strings if is_large(value, context.count(value), over)}
    if not large:
        return ""
    words = known_by(block.tool, block.text, _KNOWN_BY_CHARACTERS)
    stays = any(words in value for path, value in strings if path not in large)
    longest = "" if stays else max(large.values(), key=len)
    changes = {
        path: msgspec.json.encode(clipped_argument(len(value), ref, words if value is longest else ""))
        for path, value in large.items()
    }
    try:
        return replaced(block.text.encode(), changes).decode()
    except (UnreadableError, UnicodeEncodeError):
        return ""


def _strings(value: object) -> Iterator[tuple[Path, str]]:
    pending: list[tuple[Path, object]] = [((), value)]
    while pending:
        path, inner = pending.pop()
        if isinstance(inner, str):
            yield path, inner
        elif isinstance(inner, dict):
            pending += [((*path, str(key)), each) for key, each in inner.items()]
        elif isinstance(inner, list):
            pending += [((*path, position), each) for position, each in enumerate(inner)]

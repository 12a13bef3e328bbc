"""The sizes of one request, as the client wrote it and as it is sent, message by message.

Law: the messages, with the tool schemas, add up to the whole request, the recall tool included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.context import TokenCounter
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Fold
from policies.text.layout import edited_tokens, fold_tokens
from policies.tools import RECALL

TOOLS = "tools"
"""The kind of what stands before all messages: tool schemas."""


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """A size as the client wrote it, and as it is sent."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class MessageSize:
    """The size of a message, which is of the kind of its largest block; or of the tool schemas."""

    message: int | None
    """None for the tool schemas, which are no message."""
    kind: str
    tool: str
    tokens: BeforeAfter


@dataclass(frozen=True, slots=True)
class Breakdown:
    messages: tuple[MessageSize, ...]
    kinds: Mapping[str, BeforeAfter]
    edits: tuple[BeforeAfter, ...]
    """Tokens that each edit stands for, and of its text."""

    @property
    def tokens(self) -> BeforeAfter:
        sizes = [size.tokens for size in self.messages]
        return BeforeAfter(sum(size.before for size in sizes), sum(size.after for size in sizes))


def span(conversation: Conversation, edit: Edit) -> range:
    """The blocks that an edit stands for."""
    first, last = (edit.first, edit.last) if isinstance(edit, Fold) else (edit.at, edit.at)
    return range(conversation.index[first], conversation.index[last] + 1)


def break_down(
    conversation: Conversation, edits: Sequence[Edit], count: TokenCounter, tokens: int, tool: int = 0
) -> Breakdown:
    """The sizes of a request of so many `tokens` as the client wrote it, tool schemas included; `tool` is what the
    recall tool adds to that. Exchanges of recalls weigh nothing in what the client wrote."""
    blocks = conversation.blocks
    after = [block.tokens + block.frame for block in blocks]
    before = [0 if block.tool == RECALL else size for block, size in zip(blocks, after, strict=True)]
    spans = [span(conversation, edit) for edit in edits]
    for edit, covered in zip(edits, spans, strict=True):
        after[covered.start : covered.stop] = [0] * len(covered)
        if isinstance(edit, Fold):
            after[covered.start] = fold_tokens(conversation, edit, count)
        else:
            after[covered.start] = edited_tokens(blocks[covered.start], edit.text, count)

    def size_of(places: Sequence[int]) -> BeforeAfter:
        return BeforeAfter(sum(before[i] for i in places), sum(after[i] for i in places))

    schemas = BeforeAfter(tokens - sum(before), tokens - sum(before) + tool)
    messages = [MessageSize(None, TOOLS, "", schemas)] if schemas.after else []
    kinds = {TOOLS: schemas} if schemas.after else {}
    by_message: dict[int, list[int]] = {}
    by_kind: dict[str, list[int]] = {}
    for i, block in enumerate(blocks):
        by_message.setdefault(block.message, []).append(i)
        by_kind.setdefault(block.kind, []).append(i)
    for message, places in by_message.items():
        largest = blocks[max(places, key=before.__getitem__)]
        messages.append(MessageSize(message, largest.kind, largest.tool, size_of(places)))
    kinds |= {kind: size_of(places) for kind, places in by_kind.items()}
    return Breakdown(tuple(messages), kinds, tuple(map(size_of, spans)))

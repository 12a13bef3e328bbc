"""The sizes of one request, as the client wrote it and as it is sent: message by message, and policy by policy.

Law: the messages, with the tool schemas, add up to the whole request, the recall tool included.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from policies.context import Policy, TokenCounter
from policies.model.conversation import Block, Conversation
from policies.model.edits import Edit, Fold
from policies.text.layout import edited_tokens, fold_tokens
from policies.tools import OURS

TOOLS = "tools"
"""The kind of what stands before all messages: tool schemas."""
WRITTEN = "as written"
"""The layer before all others: the request of the client."""
RECALL_TOOL, DEFERRED = "recall tool", "deferred tools"
"""The layer of what makes a request longer, or, where definitions are deferred, shorter before any policy does."""


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """A size as the client wrote it, and as it is sent."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class MessageSize:
    """The size of a message, which is of the kind of its largest block; or of the tool schemas."""

    JSON: ClassVar = ("message", "kind", "tool", "tokens")

    message: int | None
    """None for the tool schemas, which are no message and have no characters."""
    kind: str
    tool: str
    tokens: BeforeAfter
    characters: BeforeAfter = BeforeAfter(0, 0)


@dataclass(frozen=True, slots=True)
class PolicyEffect:
    """The size of the request after one policy and all before it."""

    after: str
    """The policy, or `WRITTEN`, or `RECALL_TOOL`."""
    edits: int
    tokens: int
    characters: int
    kinds: Mapping[str, int]
    """Tokens of each kind of block."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    messages: tuple[MessageSize, ...]
    layers: tuple[PolicyEffect, ...]
    """Policies that change nothing have none."""
    edits: tuple[BeforeAfter, ...]
    """Tokens that each edit stands for, and of its text."""
    blocks: tuple[BeforeAfter, ...]

    @property
    def tokens(self) -> BeforeAfter:
        return BeforeAfter(self.layers[0].tokens, self.layers[-1].tokens)

    @property
    def kinds(self) -> Mapping[str, BeforeAfter]:
        before, after = self.layers[0].kinds, self.layers[-1].kinds
        return {kind: BeforeAfter(before.get(kind, 0), tokens) for kind, tokens in after.items()}


def order_of(policies: Iterable[Policy]) -> Sequence[str]:
    """The names of policies, each once, in their order."""
    names = (getattr(policy, "name", "") or getattr(policy, "__name__", "") for policy in policies)
    return tuple(dict.fromkeys(names))


def span(conversation: Conversation, edit: Edit) -> range:
    """The blocks that an edit stands for."""
    first, last = (edit.first, edit.last) if isinstance(edit, Fold) else (edit.at, edit.at)
    return range(conversation.index[first], conversation.index[last] + 1)


def break_down(
    conversation: Conversation,
    edits: Sequence[Edit],
    count: TokenCounter,
    tokens: int,
    tool: int = 0,
    order: Sequence[str] = (),
) -> Breakdown:
    """The sizes of a request of so many `tokens` as the client wrote it, tool schemas included; `tool` is what the
    recall tool adds to that, and `order` names policies in the order of the layers. Exchanges of recalls weigh nothing
    in what the client wrote."""
    blocks = conversation.blocks
    after = [(block.tokens + block.frame, len(block.text)) for block in blocks]
    before = [(0, 0) if block.tool in OURS else size for block, size in zip(blocks, after, strict=True)]
    schemas = BeforeAfter(written := tokens - sum(size for size, _ in before), written + tool)
    layers = [_layer(WRITTEN, 0, schemas.before, blocks, before)]
    if tool or after != before:
        layers.append(_layer(RECALL_TOOL if tool > 0 else DEFERRED, 0, schemas.after, blocks, after))
    spans = [span(conversation, edit) for edit in edits]
    for policy in dict.fromkeys([*order, *(edit.by for edit in edits)]):
        own = [(edit, covered) for edit, covered in zip(edits, spans, strict=True) if edit.by == policy]
        for edit, covered in own:
            after[covered.start : covered.stop] = [(0, 0)] * len(covered)
            if isinstance(edit, Fold):
                size = fold_tokens(conversation, edit, count)
            else:
                size = edited_tokens(blocks[covered.start], edit.text, count)
            after[covered.start] = (size, len(edit.text))
        if own:
            layers.append(_layer(policy, len(own), schemas.after, blocks, after))

    def sizes_of(places: Sequence[int]) -> list[BeforeAfter]:
        """Tokens and characters."""
        return [BeforeAfter(*(sum(side[i][unit] for i in places) for side in (before, after))) for unit in (0, 1)]

    messages = [MessageSize(None, TOOLS, "", schemas)] if schemas.after else []
    by_message: dict[int, list[int]] = {}
    for i, block in enumerate(blocks):
        by_message.setdefault(block.message, []).append(i)
    for message, places in by_message.items():
        largest = blocks[max(places, key=lambda i: before[i][0])]
        messages.append(MessageSize(message, largest.kind, largest.tool, *sizes_of(places)))
    by_edit = tuple(sizes_of(covered)[0] for covered in spans)
    return Breakdown(tuple(messages), tuple(layers), by_edit, tuple(sizes_of([i])[0] for i in range(len(blocks))))


def _layer(
    after: str, edits: int, schemas: int, blocks: Iterable[Block], sizes: Sequence[tuple[int, int]]
) -> PolicyEffect:
    """A layer of so many tokens of tool schemas, and of the tokens and characters of each block."""
    kinds: dict[str, int] = {TOOLS: schemas} if schemas else {}
    for block, (tokens, _) in zip(blocks, sizes, strict=True):
        kinds[block.kind] = kinds.get(block.kind, 0) + tokens
    return PolicyEffect(after, edits, sum(kinds.values()), sum(characters for _, characters in sizes), kinds)

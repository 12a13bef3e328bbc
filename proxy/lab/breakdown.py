"""What one request weighs, as the client wrote it and as it is sent: message by message, and policy by policy.

Laws
  The messages, with the tool schemas, add up to the whole request, the recall tool included.
  The first layer is what the client wrote; each of the others has what the one before has, less what its policy leaves
  out; the last is what is sent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from policies.context import Policy, TokenCounter
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Fold
from policies.rules.base import ConfiguredPolicy
from policies.text.layout import edited_tokens, fold_tokens
from policies.tools import RECALL

TOOLS = "tools"
"""The kind of what stands before all messages: tool schemas."""
WRITTEN = "as written"
"""The layer before all others: what the client sent."""
RECALL_TOOL = "recall tool"
"""The layer of what makes a request longer."""


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """A size as the client wrote it, and as it is sent."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class MessageSize:
    """The size of a message, which is of the kind of its largest block; or of the tool schemas, which are no message
    and have no characters."""

    message: int | None
    kind: str
    tool: str
    tokens: BeforeAfter
    characters: BeforeAfter = BeforeAfter(0, 0)


@dataclass(frozen=True, slots=True)
class PolicyEffect:
    """What is left of the request after one policy and all before it; `kinds` has the tokens of each kind of block."""

    after: str
    """The policy, or `WRITTEN`, or `RECALL_TOOL`."""
    edits: int
    tokens: int
    characters: int
    kinds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """All sizes of one request. Policies that change nothing in it have no layer."""

    messages: tuple[MessageSize, ...]
    layers: tuple[PolicyEffect, ...]
    edits: tuple[BeforeAfter, ...]
    """Tokens that each edit stands for, and of its text."""

    @property
    def tokens(self) -> BeforeAfter:
        """The whole request."""
        return BeforeAfter(self.layers[0].tokens, self.layers[-1].tokens)

    @property
    def kinds(self) -> Mapping[str, BeforeAfter]:
        """Its tokens by kind of block."""
        before, after = self.layers[0].kinds, self.layers[-1].kinds
        return {kind: BeforeAfter(before.get(kind, 0), tokens) for kind, tokens in after.items()}


def order_of(policies: Iterable[Policy]) -> tuple[str, ...]:
    """The names of policies, in their order."""
    return tuple(
        dict.fromkeys(
            policy.name if isinstance(policy, ConfiguredPolicy) else getattr(policy, "__name__", "")
            for policy in policies
        )
    )


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
    recall tool adds to that, and `order` names the policies that have a layer, in the order of the layers."""
    before, after = (_BlockSizes(conversation, count) for _ in range(2))
    schemas = BeforeAfter(tokens - sum(before.tokens), tokens - sum(before.tokens) + tool)
    layers = [before.layer(WRITTEN, 0, schemas.before)]
    if after.add_recalls() or tool:
        layers.append(after.layer(RECALL_TOOL, 0, schemas.after))
    for policy in dict.fromkeys([*order, *(edit.by for edit in edits)]):
        own = [edit for edit in edits if edit.by == policy]
        for edit in own:
            after.apply(edit)
        if own:
            layers.append(after.layer(policy, len(own), schemas.after))

    def of(blocks: Sequence[int]) -> tuple[BeforeAfter, BeforeAfter]:
        tokens = BeforeAfter(*(sum(side.tokens[i] for i in blocks) for side in (before, after)))
        return tokens, BeforeAfter(*(sum(side.characters[i] for i in blocks) for side in (before, after)))

    messages = [MessageSize(None, TOOLS, "", schemas)] if schemas.after else []
    blocks_of: dict[int, list[int]] = {}
    for i, block in enumerate(conversation.blocks):
        blocks_of.setdefault(block.message, []).append(i)
    for message, blocks in blocks_of.items():
        largest = conversation.blocks[max(blocks, key=before.tokens.__getitem__)]
        messages.append(MessageSize(message, largest.kind, largest.tool, *of(blocks)))
    return Breakdown(tuple(messages), tuple(layers), tuple(of(span(conversation, edit))[0] for edit in edits))


class _BlockSizes:
    """Tokens and characters of each block, first as the client wrote it: recall exchanges have none then."""

    def __init__(self, conversation: Conversation, count: TokenCounter) -> None:
        self._conversation = conversation
        self._count = count
        blocks = conversation.blocks
        self.tokens = [0 if block.tool == RECALL else block.tokens + block.frame for block in blocks]
        self.characters = [0 if block.tool == RECALL else len(block.text) for block in blocks]

    def add_recalls(self) -> bool:
        """Add recall exchanges in their places; whether there are any."""
        blocks = self._conversation.blocks
        recalls = [i for i, block in enumerate(blocks) if block.tool == RECALL]
        for i in recalls:
            self.tokens[i] = blocks[i].tokens + blocks[i].frame
            self.characters[i] = len(blocks[i].text)
        return bool(recalls)

    def apply(self, edit: Edit) -> None:
        """Have the edit's text stand for its blocks."""
        blocks = span(self._conversation, edit)
        for sizes in (self.tokens, self.characters):
            sizes[blocks.start : blocks.stop] = [0] * len(blocks)
        if isinstance(edit, Fold):
            tokens = fold_tokens(self._conversation, edit, self._count)
        else:
            tokens = edited_tokens(self._conversation.blocks[blocks.start], edit.text, self._count)
        self.tokens[blocks.start] = tokens
        self.characters[blocks.start] = len(edit.text)

    def layer(self, after: str, edits: int, schemas: int) -> PolicyEffect:
        """These sizes as a layer, with so many tokens of tool schemas."""
        kinds: dict[str, int] = {TOOLS: schemas} if schemas else {}
        for block, tokens in zip(self._conversation.blocks, self.tokens, strict=True):
            kinds[block.kind] = kinds.get(block.kind, 0) + tokens
        return PolicyEffect(after, edits, sum(kinds.values()), sum(self.characters), kinds)

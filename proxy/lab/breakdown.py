"""What one request weighs, as the client wrote it and as it is sent: message by message, and policy by policy.

Laws
  The shares add up to the whole request, the tool schemas and the recall tool included.
  The first layer is what the client wrote; each of the others has what the one before has, less what its policy leaves
  out; the last is what is sent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from policies.context import Policy, TokenCounter
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Fold
from policies.rules.base import ConfiguredPolicy
from policies.tools import RECALL

TOOLS = "tools"
"""The kind of what stands before all messages: tool schemas."""
WRITTEN = "as written"
"""The layer before all others: what the client sent."""
RECALL_TOOL = "recall tool"
"""The layer of what makes a request longer."""


@dataclass(frozen=True, slots=True)
class Share:
    """Tokens of a run of messages (mostly of one), as the client wrote it and as it would be sent. The tool schemas
    are the run before message 0."""

    first: int
    last: int
    kind: str
    tool: str
    before: int
    after: int
    characters: int = 0
    """Of the texts, as the client wrote them; tool schemas are told in tokens alone."""
    left: int = 0
    """Characters that are sent."""

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "message": None if self.kind == TOOLS else self.first,
            "kind": self.kind,
            "tool": self.tool,
            "tokens": {"before": self.before, "after": self.after},
            "characters": {"before": self.characters, "after": self.left},
        }


@dataclass(frozen=True, slots=True)
class Layer:
    """What is left of the request after one policy, and after all before it. `kinds` has the tokens of each kind."""

    after: str
    """The policy, or `WRITTEN`, or `RECALL_TOOL`."""
    edits: int
    tokens: int
    characters: int
    kinds: Mapping[str, int]

    def as_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "after": self.after,
            "edits": self.edits,
            "tokens": self.tokens,
            "characters": self.characters,
            "kinds": dict(self.kinds),
        }


@dataclass(frozen=True, slots=True)
class Weights:
    """All that is known of the size of one request."""

    shares: tuple[Share, ...]
    layers: tuple[Layer, ...]


def order_of(policies: Iterable[Policy]) -> tuple[str, ...]:
    """The names of policies, in their order."""
    return tuple(
        dict.fromkeys(
            policy.name if isinstance(policy, ConfiguredPolicy) else getattr(policy, "__name__", "")
            for policy in policies
        )
    )


class _Sizes:
    """Tokens and characters of each block, first as the client wrote it. `whole` is what all of that has in tokens:
    more than the blocks have, because tool schemas are none."""

    def __init__(self, conversation: Conversation, count: TokenCounter, whole: int) -> None:
        self._conversation = conversation
        self._count = count
        blocks = conversation.blocks
        self.tokens = [0 if block.tool == RECALL else block.tokens + block.frame for block in blocks]
        self.characters = [0 if block.tool == RECALL else len(block.text) for block in blocks]
        self.tools = whole - sum(self.tokens)

    def recall(self) -> bool:
        """Put recall exchanges back in their places; whether there are any."""
        blocks = self._conversation.blocks
        ours = [i for i, block in enumerate(blocks) if block.tool == RECALL]
        for i in ours:
            self.tokens[i] = blocks[i].tokens + blocks[i].frame
            self.characters[i] = len(blocks[i].text)
        return bool(ours)

    def shrink(self, edit: Edit) -> None:
        """Have the edit's text stand for its blocks."""
        first, last = span(self._conversation, edit)
        for sizes in (self.tokens, self.characters):
            sizes[first : last + 1] = [0] * (last + 1 - first)
        self.tokens[first] = self._count(edit.text) + self._conversation.blocks[first].frame
        self.characters[first] = len(edit.text)

    def kinds(self) -> dict[str, int]:
        """Tokens of the blocks of each kind."""
        found: dict[str, int] = {}
        for block, tokens in zip(self._conversation.blocks, self.tokens, strict=True):
            found[block.kind] = found.get(block.kind, 0) + tokens
        return found


def span(conversation: Conversation, edit: Edit) -> tuple[int, int]:
    """The first and the last block that an edit stands for."""
    first, last = (edit.first, edit.last) if isinstance(edit, Fold) else (edit.at, edit.at)
    return conversation.index[first], conversation.index[last]


def by_block(
    conversation: Conversation, edits: Sequence[Edit], count: TokenCounter
) -> tuple[Sequence[int], Sequence[int]]:
    """Tokens of each block before and after."""
    before, after = _both(conversation, edits, count)
    return before.tokens, after.tokens


def _both(
    conversation: Conversation, edits: Sequence[Edit], count: TokenCounter, whole: int = 0
) -> tuple[_Sizes, _Sizes]:
    before, after = (_Sizes(conversation, count, whole) for _ in range(2))
    after.recall()
    for edit in edits:
        after.shrink(edit)
    return before, after


def by_message(
    conversation: Conversation, edits: Sequence[Edit], count: TokenCounter, whole: int, tool: int = 0
) -> Iterator[Share]:
    """The tool schemas, where there are any, and each message; a message is of the kind of its largest block. `whole`
    are the tokens of what the client wrote, `tool` is what the recall tool adds."""
    before, after = _both(conversation, edits, count, whole)
    if before.tools + tool:
        yield Share(-1, -1, TOOLS, "", before.tools, before.tools + tool)
    held: dict[int, list[int]] = {}
    for i, block in enumerate(conversation.blocks):
        held.setdefault(block.message, []).append(i)
    columns = (before.tokens, after.tokens, before.characters, after.characters)
    for message, blocks in held.items():
        largest = conversation.blocks[max(blocks, key=before.tokens.__getitem__)]
        sums = (sum(column[i] for i in blocks) for column in columns)
        yield Share(message, message, largest.kind, largest.tool, *sums)


def by_kind(
    conversation: Conversation, edits: Sequence[Edit], count: TokenCounter, whole: int, tool: int = 0
) -> Iterator[Share]:
    """All blocks of one kind together."""
    before, after = _both(conversation, edits, count, whole)
    last = len(conversation.blocks) and conversation.blocks[-1].message
    if before.tools + tool:
        yield Share(0, last, TOOLS, "", before.tools, before.tools + tool)
    left = after.kinds()
    for kind, tokens in before.kinds().items():
        yield Share(0, last, kind, "", tokens, left[kind])


def by_layer(
    conversation: Conversation,
    edits: Sequence[Edit],
    count: TokenCounter,
    whole: int,
    tool: int = 0,
    order: Sequence[str] = (),
) -> Iterator[Layer]:
    """What the client wrote, what the recall tool and its exchanges make of it, and what each policy of `order` leaves
    of that; those that change nothing have no layer."""
    sizes = _Sizes(conversation, count, whole)
    yield _layer(WRITTEN, 0, sizes, 0)
    if sizes.recall() or tool:
        yield _layer(RECALL_TOOL, 0, sizes, tool)
    for policy in dict.fromkeys([*order, *(edit.by for edit in edits)]):
        made = [edit for edit in edits if edit.by == policy]
        for edit in made:
            sizes.shrink(edit)
        if made:
            yield _layer(policy, len(made), sizes, tool)


def _layer(after: str, edits: int, sizes: _Sizes, tool: int) -> Layer:
    tools = sizes.tools + tool
    kinds = ({TOOLS: tools} if tools else {}) | sizes.kinds()
    return Layer(after, edits, sum(kinds.values()), sum(sizes.characters), kinds)


def weighed(
    conversation: Conversation,
    edits: Sequence[Edit],
    count: TokenCounter,
    whole: int,
    tool: int = 0,
    order: Sequence[str] = (),
) -> Weights:
    """All of it."""
    shares = tuple(by_message(conversation, edits, count, whole, tool))
    return Weights(shares, tuple(by_layer(conversation, edits, count, whole, tool, order)))

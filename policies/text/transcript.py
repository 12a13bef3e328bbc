"""A run of messages as text, for a model that summarizes it.

Laws
  No text can pass for the frame: every line of a message is indented, and the lines of the frame are not.
  Every text is cut to the cap of its kind, so the transcript is bounded by the number of blocks; linear in the text.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping

from policies.context import NO_EXCEPTIONS, Exceptions, TokenCounter
from policies.model.conversation import Block, Conversation, Sums
from policies.model.identifiers import identifiers_in
from policies.text.excerpt import excerpt
from policies.tools import HEAD, OURS, kind_of

_MOST_TOKENS: Mapping[str, int] = {
    "result": 300,
    "call": 150,
    "assistant": 600,
    "user": 1_000,
    "system": 1_000,
    "opaque": 4,
}
_FRAME_TOKENS = 8
_HALF = 0.5
"""The share of an excerpt that is from the beginning, for texts that are no output of a tool."""
_INDENT = "    "
_SAFE = re.compile(r"[^\w.:/-]")


def transcript(
    conversation: Conversation,
    span: Iterable[int],
    count: TokenCounter,
    previous: str = "",
    exceptions: Exceptions = NO_EXCEPTIONS,
) -> str:
    """The blocks of `span`, after the text of the summary before them where there is one.

    Left out are system messages (but for those that a preset lets go) and recalled texts, which stand elsewhere in the
    prompt, and thoughts, because in some APIs every step has one.
    """
    blocks = (conversation.blocks[i] for i in span)
    included = [block for block in blocks if _is_included(conversation, block) or exceptions.may_fold_system(block)]
    texts = (block.text for block in included if block.kind in ("assistant", "call"))
    names = frozenset[str]().union(*map(identifiers_in, texts))
    lines = ["Summary so far", indented(previous), ""] if previous else []
    lines.append("Transcript")
    for block in included:
        role, tool = _role(block), _SAFE.sub("_", block.tool)[:64]
        title = "item that cannot be shown" if block.kind == "opaque" else role
        lines.append(f"[{block.message}] {title}{f' {tool}' if tool else ''}")
        if block.kind == "opaque":
            continue
        text = block.text
        if block.tokens > _MOST_TOKENS[role]:
            arguments = conversation.blocks[block.answers].text if block.answers is not None else ""
            head = HEAD[kind_of(block.tool, arguments, text)] if role == "result" else _HALF
            text = excerpt(text, _MOST_TOKENS[role], head, names, count)
        lines.append(indented(text))
    return "\n".join(lines)


def size(conversation: Conversation, span: range) -> int:
    """Tokens of the transcript of `span`, roughly."""
    if not span:
        return 0
    sums, opaque = _SIZES.of(conversation), conversation.kinds.get("opaque", [])
    items = (conversation.blocks[i] for i in opaque[bisect_left(opaque, span.start) : bisect_left(opaque, span.stop)])
    return sums[span.stop] - sums[span.start] + sum(_size(item) for item in items if _is_included(conversation, item))


def _size(block: Block) -> int:
    return _FRAME_TOKENS + min(block.tokens, _MOST_TOKENS[_role(block)])


def _is_included(conversation: Conversation, block: Block) -> bool:
    if block.kind == "opaque":
        return conversation.messages[block.message].role != "assistant" or bool(block.opens or block.call_id)
    return _is_text(block)


def _is_text(block: Block) -> bool:
    return block.kind not in ("system", "opaque") and block.tool not in OURS and bool(block.text.strip())


_SIZES = Sums[Block](lambda block: _size(block) if _is_text(block) else 0)
"""Without opaque items: their messages say which of them are shown."""


def _role(block: Block) -> str:
    """The kind, where output of a tool in a user message (text protocol) is output."""
    return "result" if block.kind == "user" and block.answers is not None else block.kind


def indented(text: str) -> str:
    """A text inside the frame. Every line break of Unicode counts, also a form feed, as some readers break there."""
    return "\n".join(_INDENT + line.rstrip() for line in text.strip("\n").splitlines())

"""A run of messages as text, for somebody who summarises it.

Laws
  No text can pass for the frame: what was said is indented, line by line, and the lines of the frame are not.
  Every text is cut to what its kind may take, so the whole is bounded by the number of blocks; linear in the text.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from policies.context import NO_EXCEPTIONS, Exceptions, TokenCounter
from policies.model.conversation import Block, Conversation
from policies.model.identifiers import identifiers_in
from policies.text.excerpt import excerpt
from policies.tools import HEAD, RECALL, kind_of

_CAPS: Mapping[str, int] = {"result": 300, "call": 150, "assistant": 600, "user": 1_000}
"""Tokens of one text, by the kind of its block. Kinds that are not here are not shown."""
_SYSTEM, _OPAQUE = 1_000, 4
_FRAME = 8
"""Tokens of a line of the frame, about."""
_HALF = 0.5
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

    System messages (but for those that go by exception) and what was recalled are left out: both stand elsewhere in the
    prompt. So are thoughts: in some APIs every step has one.
    """
    blocks = (conversation.blocks[i] for i in span)
    shown = [block for block in blocks if _is_shown(conversation, block) or exceptions.may_fold_system(block)]
    names = frozenset[str]().union(
        *(identifiers_in(block.text) for block in shown if block.kind in ("assistant", "call"))
    )
    lines = ["Summary so far", indented(previous), ""] if previous else []
    lines.append("Transcript")
    for block in shown:
        lines.append(_headline(block))
        if block.kind != "opaque":
            lines.append(indented(_cut(conversation, block, names, count)))
    return "\n".join(lines)


def size(conversation: Conversation, span: range) -> int:
    """About how many tokens the transcript of `span` has."""
    blocks = (conversation.blocks[i] for i in span)
    return sum(_FRAME + min(block.tokens, _cap(block)) for block in blocks if _is_shown(conversation, block))


def _is_shown(conversation: Conversation, block: Block) -> bool:
    if block.kind == "opaque":
        return conversation.messages[block.message].role != "assistant" or bool(block.opens or block.call_id)
    return block.kind in _CAPS and block.tool != RECALL and bool(block.text.strip())


def _role(block: Block) -> str:
    """Output is output, whoever carries it."""
    return "result" if block.kind == "user" and block.answers is not None else block.kind


def _cap(block: Block) -> int:
    return _SYSTEM if block.kind == "system" else _CAPS.get(_role(block), _OPAQUE)


def _headline(block: Block) -> str:
    said = {"opaque": "item that cannot be shown"}.get(block.kind, _role(block))
    tool = _SAFE.sub("_", block.tool)[:64]
    return f"[{block.message}] {said}{f' {tool}' if tool else ''}"


def _cut(conversation: Conversation, block: Block, names: frozenset[str], count: TokenCounter) -> str:
    cap = _cap(block)
    if block.tokens <= cap:
        return block.text
    return excerpt(block.text, cap, _head(conversation, block), names, count)


def _head(conversation: Conversation, block: Block) -> float:
    """The share of what is shown that comes from the beginning."""
    if _role(block) != "result":
        return _HALF
    arguments = conversation.blocks[block.answers].text if block.answers is not None else ""
    return HEAD[kind_of(block.tool, arguments, block.text)]


def indented(text: str) -> str:
    """A text inside the frame."""
    return "\n".join(_lines(text))


def _lines(text: str) -> Iterator[str]:
    """Whatever starts a line for anybody (a form feed, a line separator of Unicode) starts one here."""
    for line in text.strip("\n").splitlines():
        yield _INDENT + line.rstrip()

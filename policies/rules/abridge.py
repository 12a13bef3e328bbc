"""Long assistant prose of old turns is shortened to its share.

What stays: the first and the last sentence, then the sentences that name most of what is used later, and the names of
the others. Fenced code stays word for word far longer. What a person wrote and opaque reasoning are never touched.
"""

import re
from collections.abc import Iterator

from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.identifiers import identifiers_in, mentioned
from policies.model.windows import Keep, Large, is_large
from policies.text.excerpt import hidden_identifiers
from policies.text.stubs import omitted, shortened_prose

_NAMES = 0.35
"""The part of the share that lists names whose sentences go."""
_SENTENCES = 500
"""At most so many sentences of either end are weighed."""
_SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n+")


def abridge(
    conversation: Conversation,
    context: Context,
    *,
    over: Large,
    keep: Keep,
    keep_code: Keep,
    share: float,
) -> Iterator[Replace]:
    """Assistant text larger than `over`, down to `share` of it: prose outside the window `keep`, code outside
    `keep_code`."""
    for window, code in ((keep, True), (keep_code, False)):
        for i in context.aged(conversation, window):
            block = conversation.blocks[i]
            if block.kind == "assistant" and is_large(block.text, block.tokens, over):
                names = mentioned(conversation, i, context.step)
                text = _shortened(block.text, share, code, names, context)
                stub = shortened_prose(context.ref(conversation, i))
                yield Replace(block.anchor, f"{text}\n{stub}" if text else stub, "abridge")


def _shortened(text: str, share: float, keep_code: bool, names: frozenset[str], context: Context) -> str:
    pieces = []
    for piece, code in _pieces(text):
        if code and keep_code:
            pieces.append(piece)
        elif code:
            pieces.append(omitted(len(piece)))
        elif piece.strip():
            pieces.append(_prose(piece, int(context.count(piece) * share * (1 - _NAMES)), names, context))
    shown = "\n".join(filter(None, pieces))
    listed = hidden_identifiers(text, shown, names, int(context.count(text) * share * _NAMES), context.count)
    return "\n".join(filter(None, (shown, listed)))


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Prose and fenced code in turn, with whether it is code; a fence that is never closed is code to the end."""
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        if fence and not inside:
            yield "\n".join(lines), False
            lines = []
        lines.append(line)
        if fence and inside:
            yield "\n".join(lines), True
            lines = []
        inside ^= fence
    yield "\n".join(lines), inside


def _prose(text: str, budget: int, names: frozenset[str], context: Context) -> str:
    sentences = [s for s in _SENTENCE.split(text.strip()) if s]
    if len(sentences) > 2 * _SENTENCES:
        sentences = sentences[:_SENTENCES] + sentences[-_SENTENCES:]
    costs = [context.count(s) + 1 for s in sentences]
    kept: set[int] = set()
    for i in _order(sentences, costs, names):
        if costs[i] <= budget:
            kept.add(i)
            budget -= costs[i]
    return " ".join(sentences[i] for i in sorted(kept))


def _order(sentences: list[str], costs: list[int], names: frozenset[str]) -> list[int]:
    """First and last sentence, then by what is mentioned later and by names per token."""
    last = len(sentences) - 1

    def worth(i: int) -> tuple[bool, float]:
        found = identifiers_in(sentences[i])
        return (i not in (0, last), -(3 * len(found & names) + len(found)) / costs[i])

    return sorted(range(len(sentences)), key=worth)

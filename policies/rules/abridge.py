"""Long prose of the assistant in old turns is shortened to a share of its length.

What stays: the first and the last sentence, then the sentences that name most of what is used later, and the names of
the others. Fenced code stays word for word far longer. What a person wrote and opaque reasoning are never touched.
"""

import re
from collections.abc import Iterator

from policies.context import Context
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.identifiers import identifiers_of_lines, mentioned
from policies.model.parameters import Keep, Large, is_large, parameter
from policies.rules.base import ConfiguredPolicy, policy
from policies.text.excerpt import hidden_identifiers
from policies.text.stubs import omitted, shortened_prose

_NAMES = 0.35
"""The part of the share that lists names whose sentences go."""
_SENTENCES_AT_EITHER_END = 500
_SENTENCE = re.compile(r"\s(?:(?<=[.!?:]\s)\s*|(?<=\n)\n*)")
"""The white space after a sentence, or the ends of lines; it begins with a class of letters, which is found quickly."""


@policy
class Abridge(ConfiguredPolicy):
    why = "old prose: its beginning, end, names and decisions stay; the rest can be recalled"

    over: Large = parameter("tokens", "longer texts of the assistant are shortened")
    keep: Keep = parameter("turns", "newest prose that stays as it is")
    keep_code: Keep = parameter("turns", "newest fenced code that stays as it is")
    keep_share: float = parameter("share of the text", "how much of a shortened text stays", below=1)

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Replace]:
        if not (context.recall or context.text_protocol):  # it may not be edited else: policies.laws
            return
        for window, code_stays in ((self.keep, True), (self.keep_code, False)):
            for i in context.aged(conversation, window):
                block = conversation.blocks[i]
                if block.kind == "assistant" and is_large(block.text, block.tokens, self.over) and context.may_save(i):
                    names = mentioned(conversation, i, context.step)
                    text = _shortened(block.text, self.keep_share, code_stays, names, context)
                    stub = shortened_prose(context.ref(conversation, i))
                    yield Replace(block.anchor, f"{text}\n{stub}" if text else stub, "abridge")


def _shortened(text: str, share: float, code_stays: bool, names: frozenset[str], context: Context) -> str:
    pieces = []
    for piece, is_code in _pieces(text):
        if is_code:
            pieces.append(piece if code_stays else omitted(len(piece)))
        elif piece.strip():
            pieces.append(_prose(piece, int(context.count(piece) * share * (1 - _NAMES)), names, context))
    visible = "\n".join(filter(None, pieces))
    listed = hidden_identifiers(text, visible, names, int(context.count(text) * share * _NAMES), context.count)
    return "\n".join(filter(None, (visible, listed)))


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
    """The sentences that fit into `budget` tokens, in their order: the first and the last one before all others, then
    those that name most per token, where what is mentioned later counts four times."""
    sentences = [s for s in _SENTENCE.split(text.strip()) if s]
    if len(sentences) > 2 * _SENTENCES_AT_EITHER_END:
        sentences = sentences[:_SENTENCES_AT_EITHER_END] + sentences[-_SENTENCES_AT_EITHER_END:]
    costs = [context.count(s) + 1 for s in sentences]
    ends = (0, len(sentences) - 1)

    names_of = identifiers_of_lines(sentences)

    def rank(i: int) -> tuple[bool, float]:
        in_sentence = names_of[i]
        return (i not in ends, -(3 * len(in_sentence & names) + len(in_sentence)) / costs[i])

    chosen: set[int] = set()
    for i in sorted(range(len(sentences)), key=rank):
        if costs[i] <= budget:
            chosen.add(i)
            budget -= costs[i]
    return " ".join(sentences[i] for i in sorted(chosen))

"""Summaries and digests of the built-in provider's model, where it is asked for one: lines of the text, by rule.

It is no model: it understands nothing and writes nothing of its own but numbers of messages. It copies the lines that
name most (paths, identifiers, numbers, errors), about as much as a model writes with the same instructions. So what a
summary costs, when it stands and what is in sight then can be measured; how good a summary is, cannot.

Laws: the same transcript gives the same summary; every line stands in the message that it names.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import log2
from typing import NamedTuple

from policies.model.identifiers import identifiers_in
from proxy.lab.provider.prompt import Count

_TOKENS_PER_WORD = 1 / 0.7
_FILL = 0.75
"""The share of the length allowed that is written for a long text."""
_SHORT, _SHORT_SHARE = 150, 0.1
"""Tokens of the summary of a short transcript: so many, and this share of the transcript's."""
_LONGEST = 300
"""Characters of a line worth copying."""
_CHARACTERS_PER_TOKEN = 4
_LINE = 10
"""Tokens that a line is taken to be longer than it is: so that sentences are copied, not names alone."""
_OMISSION = "chars omitted"

_MESSAGE = re.compile(r"(\[\d+\]) (\w+)")
_BEFORE = re.compile(r"(\[\d+\]) (.+)")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
_LIST = re.compile(r"^(?:[-*+]|\d+[.)]|#+)\s+")
_ERROR = re.compile(r"\b(?:\w*Error|\w*Exception|FAILED|failed|fatal)\b")
_STRANGE = re.compile(r"chars omitted|```|^\d+[:\s]|[<\[](?:/|narrows|tool|function|antml|think)", re.I)
"""Lines that are neither prose nor an error, or were cut."""
_FILE = re.compile(r".*\.(?:[ch]|py|[jt]sx?|go|rs|java|rb|md|rst|txt|toml|cfg|ini|json|ya?ml|sh|html|css|sql)\Z", re.S)


class _Line(NamedTuple):
    number: str
    text: str
    is_open: bool = False
    """True where it says what comes next."""


def extract_summary(transcript: str, words: int, count: Count) -> str:
    """A summary of at most so many words, made of lines of the transcript."""
    lines = list(dict.fromkeys(_candidates(transcript)))
    room = min(_FILL * _TOKENS_PER_WORD * words, _SHORT + _SHORT_SHARE * count(transcript))
    return "\n".join(f"{line.number} {line.text}" for line in _choose(lines, int(room), count))


def extract_digest(material: str, characters: int, count: Count) -> str:
    """A digest of at most so many characters, made of lines of an output."""
    sections = _sections(material)
    texts = (line.strip() for heading, text in sections if heading != "Call" for line in text.splitlines())
    usable = [text for text in dict.fromkeys(texts) if text and len(text) <= _LONGEST and _OMISSION not in text]
    room = int(_FILL * characters / _CHARACTERS_PER_TOKEN)
    chosen = _choose([_Line("", text) for text in usable], room, count)
    return "\n".join(line.text for line in chosen)[:characters]


def _sections(material: str) -> Iterator[tuple[str, str]]:
    """The sections of an output or a conversation: each heading, and the indented text under it."""
    heading, lines = "", list[str]()
    for line in material.splitlines():
        if line.startswith("    ") or not line:
            lines.append(line[4:])
            continue
        yield heading, "\n".join(lines)
        heading, lines = line, []
    yield heading, "\n".join(lines)


def _candidates(transcript: str) -> Iterator[_Line]:
    """The lines of a transcript that may be copied, in order. The model's last sentence is what is open."""
    last = None
    for heading, text in _sections(transcript):
        message = _MESSAGE.match(heading)
        number, role = message.groups() if message else ("", "")
        if heading == "Summary so far":
            yield from (_Line(match[1], match[2]) for line in text.splitlines() if (match := _BEFORE.fullmatch(line)))
        elif role == "assistant":
            prose = (line for part in text.split("```")[::2] for line in _plain_lines(part))  # code is in fences
            sentences = [sentence for line in prose for sentence in _SENTENCE.split(line) if len(sentence) > 1]
            yield from (_Line(number, sentence) for sentence in sentences if identifiers_in(sentence))
            last = _Line(number, sentences[-1], is_open=True) if sentences else last
        elif role == "call":
            yield from (_Line(number, name) for name in sorted(identifiers_in(text)) if _FILE.match(name))
        elif role == "result":
            yield from (_Line(number, line) for line in _plain_lines(text) if _ERROR.search(line))
    if last:
        yield last


def _plain_lines(text: str) -> Iterator[str]:
    lines = (_LIST.sub("", line.strip().removeprefix("THOUGHT: ")) for line in text.splitlines())
    return (line for line in lines if line and len(line) <= _LONGEST and not _STRANGE.search(line))


def _choose(lines: Sequence[_Line], room: int, count: Count) -> list[_Line]:
    """The lines that name most for their length, until the room (in tokens) is used up. A name weighs by how often it
    comes up, and counts once; what is open is chosen first."""
    names = {line: identifiers_in(line.text) for line in lines}
    weights = {name: log2(1 + times) for name, times in Counter(n for each in names.values() for n in each).items()}
    costs = {line: count(line.text) + 2 for line in lines}
    rest, chosen, covered = list(lines), set[_Line](), set[str]()
    for line in lines:
        if line.is_open:
            room, covered = room - costs[line], covered | names[line]
            chosen.add(line)
    while rest := [line for line in rest if costs[line] <= room and line not in chosen and names[line] - covered]:
        worths = {line: sum(weights[name] for name in sorted(names[line] - covered)) for line in rest}
        best = max(rest, key=lambda line: worths[line] / (costs[line] + _LINE))
        room, covered = room - costs[best], covered | names[best]
        chosen.add(best)
    return [line for line in lines if line in chosen]

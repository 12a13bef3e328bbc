"""What the built-in provider's model answers where it is asked for a summary of a transcript.

It is no model: it understands nothing and writes nothing of its own but headings. It copies out the lines that name
most (paths, identifiers, numbers, errors), about as much as a model writes that was told the same. So what a summary
costs, when it stands and what is in sight then can be measured; how good a summary is, cannot.

Laws: the same transcript gives the same summary; every line but the headings stands in the transcript.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2

from policies.model.identifiers import identifiers_in
from proxy.lab.provider.prompt import Count

_TOKENS = 1 / 0.7
"""Per word that it may write."""
_USUAL = 0.75
"""The share of what it may write that it writes of a long transcript."""
_AT_LEAST, _SHARE = 150, 0.1
"""Tokens of the summary of a short one: so many, and this share of what is told."""
_LONGEST = 300
"""Characters of a line worth copying."""
_LETTERS = 4
"""Characters per token."""
_GAP = "chars omitted"
_LINE = 10
"""Tokens that a line seems longer than it is: so that sentences are told, not names alone."""

HEADINGS = ("Facts", "Files", "Failed", "Open")

_BEGINS = re.compile(r"\[\d+\] (\w+)")
_HEADING = re.compile(rf"({'|'.join(HEADINGS)}):\s*")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
_LIST = re.compile(r"^(?:[-*+]|\d+[.)]|#+)\s+")
_ERROR = re.compile(r"\b(?:\w*Error|\w*Exception|FAILED|failed|fatal)\b")
_STRANGE = re.compile(r"chars omitted|```|^\d+[:\s]|[<\[](?:/|narrows|tool|function|antml|think)", re.I)
"""What is neither prose nor an error, or was cut."""
_FILE = re.compile(r".*\.(?:[ch]|py|[jt]sx?|go|rs|java|rb|md|rst|txt|toml|cfg|ini|json|ya?ml|sh|html|css|sql)\Z", re.S)


@dataclass(frozen=True, slots=True)
class _Note:
    """A line that may be copied."""

    heading: str
    text: str


def extract(transcript: str, words: int, count: Count) -> str:
    """A summary of at most so many words, made of lines of the transcript."""
    notes = list(dict.fromkeys(_notes(transcript)))
    room = min(_USUAL * _TOKENS * words, _AT_LEAST + _SHARE * count(transcript))
    return _written(_chosen(notes, int(room), count))


def copied(material: str, characters: int, count: Count) -> str:
    """A digest of at most so many characters, made of lines of an output."""
    said = (line.strip() for heading, text in _parts(material) if heading != "Call" for line in text.splitlines())
    lines = [_Note("", line) for line in dict.fromkeys(said) if line and len(line) <= _LONGEST and _GAP not in line]
    chosen = _chosen(lines, int(_USUAL * characters / _LETTERS), count)
    return "\n".join(note.text for note in chosen)[:characters]


def _parts(material: str) -> Iterator[tuple[str, str]]:
    """The sections of what is told of an output, each with its heading."""
    heading, lines = "", list[str]()
    for line in material.splitlines():
        if line.startswith("    ") or not line:
            lines.append(line[4:])
            continue
        yield heading, "\n".join(lines)
        heading, lines = line, []
    yield heading, "\n".join(lines)


def _notes(transcript: str) -> Iterator[_Note]:
    """What may be copied, in order. The last thing that was said is what comes next."""
    last = ""
    for kind, text in _told(transcript):
        if kind == "before":
            yield from _summarised(text)
        elif kind == "assistant":
            said = list(_sentences(text))
            yield from (_Note("Facts", sentence) for sentence in said if identifiers_in(sentence))
            last = said[-1] if said else last
        elif kind == "call":
            yield from (_Note("Files", name) for name in sorted(identifiers_in(text)) if _FILE.match(name))
        elif kind == "result":
            yield from (_Note("Failed", line) for line in _lines(text) if _ERROR.search(line))
    if last:
        yield _Note("Open", last)


def _told(transcript: str) -> Iterator[tuple[str, str]]:
    """The messages, or parts of them, each with its kind; `before` is the summary so far."""
    for heading, text in _parts(transcript):
        begins = _BEGINS.match(heading)
        yield begins[1] if begins else "before" if heading == "Summary so far" else "", text


def _summarised(text: str) -> Iterator[_Note]:
    """What a summary of ours says; what was open then is done, or is said again."""
    heading = HEADINGS[0]
    for line in text.splitlines():
        if found := _HEADING.fullmatch(line):
            heading = found[1]
        elif heading != "Open" and line.startswith("- "):
            yield _Note(heading, line[2:])


def _sentences(text: str) -> Iterator[str]:
    """The prose in it: what stands in fences is code."""
    for part in text.split("```")[::2]:
        for line in _lines(part):
            yield from (sentence for sentence in _SENTENCE.split(line) if len(sentence) > 1)


def _lines(text: str) -> Iterator[str]:
    lines = (_LIST.sub("", line.strip().removeprefix("THOUGHT: ")) for line in text.splitlines())
    return (line for line in lines if line and len(line) <= _LONGEST and not _STRANGE.search(line))


def _chosen(notes: Sequence[_Note], room: int, count: Count) -> list[_Note]:
    """The notes that name most for their length, each name for as much as it comes up, until the room is used up."""
    named = {note: identifiers_in(note.text) for note in notes}
    weights = {name: log2(1 + times) for name, times in Counter(n for names in named.values() for n in names).items()}
    prices = {note: count(note.text) + 2 for note in notes}
    left, chosen, said = list(notes), set[_Note](), set[str]()
    for note in [note for note in notes if note.heading == "Open"]:
        room, said = room - prices[note], said | named[note]
        chosen.add(note)
    while left := [note for note in left if prices[note] <= room and note not in chosen and named[note] - said]:
        best = max(left, key=lambda note: _worth(named[note] - said, weights) / (prices[note] + _LINE))
        room, said = room - prices[best], said | named[best]
        chosen.add(best)
    return [note for note in notes if note in chosen]


def _worth(names: frozenset[str] | set[str], weights: Mapping[str, float]) -> float:
    return sum(weights[name] for name in sorted(names))


def _written(notes: Sequence[_Note]) -> str:
    lines = []
    for heading in HEADINGS:
        texts = [note.text for note in notes if note.heading == heading]
        if texts:
            lines += [f"{heading}:", *(f"- {text}" for text in texts)]
    return "\n".join(lines)

"""A file in three parts: one that is shown line by line, and the text before and after it.

Laws
  The shown part is in one piece: at most a third of the lines, around those with mentioned identifiers, else the middle
  third. Each of its lines is whole, after its number and a hash of it: `12:a3f|text`.
  The same numbers always name the same lines of a text, so its parts can be read again by them.
  Linear in the text; of a very long one only the lines near both ends are searched.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate

from policies.text.excerpt import DEFINES, identifiers_present, lines_of, places_of, readable


@dataclass(frozen=True, slots=True)
class Sections:
    """The parts of a text; `first` and `last` are the numbers of the lines shown, `lines` is how many there are."""

    before: str
    relevant: tuple[str, ...]
    after: str
    first: int
    last: int
    lines: int

    @property
    def numbered(self) -> str:
        return "".join(_numbered(line, number) for number, line in enumerate(self.relevant, self.first))


def hash_of(line: str) -> str:
    """A short hash by which a line is recognized wherever it moves."""
    return sha256(line.rstrip("\r\n").encode("utf-8", "surrogatepass")).hexdigest()[:3]


def sectioned(text: str, mentioned: frozenset[str], most: int) -> Sections | None:
    """The parts of a text, of which at most `most` characters are shown; None where it has too few lines, or where
    those are too long."""
    lines = lines_of(text)
    length = len(lines) // 3
    start = (len(lines) - length) // 2
    if length and (scores := _scores(readable(lines), mentioned)):
        sums = [0, *accumulate(scores[i] for i in range(len(lines)))]
        best = max(range(len(lines) - length + 1), key=lambda at: (sums[at + length] - sums[at], -at))
        scored = [i for i in range(best, best + length) if scores[i]]
        start = min(max(0, (scored[0] + scored[-1] + 1 - length) // 2), len(lines) - length)
    span = range(start, start + length)
    sizes = list(accumulate(len(lines[i]) for i in span))
    span = span[: sum(size <= most for size in sizes)]
    if not span:
        return None
    numbers = _numbers(lines)
    return Sections(
        before="".join(lines[: span.start]),
        relevant=tuple(lines[span.start : span.stop]),
        after="".join(lines[span.stop :]),
        first=numbers[span.start] + 1,
        last=numbers[span.stop],
        lines=numbers[-1],
    )


def numbered(text: str, shown_lines: tuple[int, int], mentioned: frozenset[str], most: int) -> str:
    """The lines of a text from the first to the last of `shown_lines`, in their order with others that hold mentioned
    identifiers, of which there are at most `most` characters; each after its number and its hash."""
    lines = lines_of(text)
    numbers = _numbers(lines)
    span = range(bisect_left(numbers, shown_lines[0] - 1), bisect_right(numbers, shown_lines[1]) - 1)
    # those that mention most, definitions before others, while there is room
    scores = _scores(readable(lines), mentioned)
    worth = {i: score + bool(DEFINES.match(lines[i])) for i, score in scores.items() if i not in span}
    chosen = {*span}
    for i in sorted(worth, key=lambda i: (-worth[i], i)):
        if len(lines[i]) <= most:
            most -= len(lines[i])
            chosen.add(i)
    return "".join(_numbered(lines[i], numbers[i] + 1) for i in sorted(chosen))


def _numbered(line: str, number: int) -> str:
    return f"{number}:{hash_of(line)}|{line}"


def _numbers(lines: Sequence[str]) -> list[int]:
    """How many lines stand before each, and before the end; the middle of a very long text is handled as one."""
    return [0, *accumulate(max(1, line.count("\n")) for line in lines)]


def _scores(lines: Sequence[str], mentioned: frozenset[str]) -> Counter[int]:
    """How often each line holds mentioned identifiers, as words of their own."""
    text, starts = "".join(lines), [0, *accumulate(map(len, lines))]
    scores: Counter[int] = Counter()
    for name in identifiers_present(lines, mentioned):
        for at in places_of(name, text):
            end = at + len(name)
            if not (_in_word(text[max(0, at - 1) : at]) or _in_word(text[end : end + 1])):
                scores[bisect_right(starts, at) - 1] += 1
    return scores


def _in_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def parts(sections: Sections) -> Iterator[tuple[str, str]]:
    """The parts that are not empty, each under a heading."""
    if sections.before:
        yield f"Before the relevant section, lines 1 to {sections.first - 1}", sections.before
    yield f"Relevant section, lines {sections.first} to {sections.last}", sections.numbered
    if sections.after:
        yield f"After the relevant section, lines {sections.last + 1} to {sections.lines}", sections.after

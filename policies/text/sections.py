"""A file in three parts: one that stays as it is, line by line, and what stands before and after it.

Laws
  The part that stays is in one piece: a third of the lines at most, around those that are mentioned, else the middle
  third. Each of its lines stands whole, behind its number and a hash of it: `12:a3f|text`.
  The same numbers name the same lines of a text for good: its parts can be had again by them.
  Linear in the text; of a very long one only the lines near both ends are looked at.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate

from policies.text.excerpt import DEFINES, identifiers_present, lines_of, readable

_SHARE = 3
"""One part in so many stays."""
_DIGITS = 3
"""Hexadecimal digits of a line's hash."""


@dataclass(frozen=True, slots=True)
class Sections:
    """The parts of a text; `first` and `last` are the numbers of the lines that stay, `lines` is how many there are."""

    before: str
    relevant: tuple[str, ...]
    after: str
    first: int
    last: int
    lines: int

    @property
    def numbered(self) -> str:
        """The lines that stay, each behind its number and its hash."""
        return "".join(_numbered(line, number) for number, line in enumerate(self.relevant, self.first))


def hash_of(line: str) -> str:
    """What a line is known again by, wherever it moves."""
    return sha256(line.rstrip("\r\n").encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def sectioned(text: str, mentioned: frozenset[str], most: int) -> Sections | None:
    """The parts of a text, of which the one that stays has at most `most` characters; None where it has too few lines,
    or where those are too long."""
    lines = lines_of(text)
    span = _relevant(lines, mentioned)
    sizes = list(accumulate(len(lines[i]) for i in span))
    span = span[: sum(size <= most for size in sizes)]
    if not span:
        return None
    numbers = _numbers(lines)
    return Sections(
        "".join(lines[: span.start]),
        tuple(lines[span.start : span.stop]),
        "".join(lines[span.stop :]),
        numbers[span.start] + 1,
        numbers[span.stop],
        numbers[-1],
    )


def numbered(text: str, kept: tuple[int, int], mentioned: frozenset[str], most: int) -> str:
    """The lines of a text from the first to the last of `kept`, in their order with others that are mentioned, of which
    there are at most `most` characters, each behind its number and its hash."""
    lines = lines_of(text)
    numbers = _numbers(lines)
    stay = range(bisect_left(numbers, kept[0] - 1), bisect_right(numbers, kept[1]) - 1)
    beside = _mentioning(lines, mentioned, stay, most)
    return "".join(_numbered(lines[i], numbers[i] + 1) for i in sorted({*stay, *beside}))


def _mentioning(lines: Sequence[str], mentioned: frozenset[str], stay: range, most: int) -> Iterator[int]:
    """The lines outside of `stay` that name most of what is mentioned, definitions before others, while there is room
    for them."""
    scores = _scores(readable(lines), mentioned)
    worth = {i: score + bool(DEFINES.match(lines[i])) for i, score in scores.items() if i not in stay}
    for i in sorted(worth, key=lambda i: (-worth[i], i)):
        if len(lines[i]) <= most:
            most -= len(lines[i])
            yield i


def _numbered(line: str, number: int) -> str:
    return f"{number}:{hash_of(line)}|{line}"


def _numbers(lines: Sequence[str]) -> list[int]:
    """How many lines stand before each, and before the end."""
    return [0, *accumulate(map(_height, lines))]


def _height(line: str) -> int:
    """How many lines it is: the middle of a very long text is handled as one."""
    return max(1, line.count("\n"))


def _relevant(lines: Sequence[str], mentioned: frozenset[str]) -> range:
    """The lines that stay."""
    length = len(lines) // _SHARE
    if not length:
        return range(0)
    scores = _scores(readable(lines), mentioned)
    if not scores:
        start = (len(lines) - length) // 2
        return range(start, start + length)
    sums = [0, *accumulate(scores[i] for i in range(len(lines)))]
    best = max(range(len(lines) - length + 1), key=lambda start: (sums[start + length] - sums[start], -start))
    named = [i for i in range(best, best + length) if scores[i]]
    start = min(max(0, (named[0] + named[-1] + 1 - length) // 2), len(lines) - length)
    return range(start, start + length)


def _scores(lines: Sequence[str], mentioned: frozenset[str]) -> Counter[int]:
    """How often each line names what is mentioned, as words of their own."""
    text, starts = "".join(lines), [0, *accumulate(map(len, lines))]
    scores: Counter[int] = Counter()
    for name in identifiers_present(lines, mentioned):
        at = text.find(name)
        while at >= 0:
            end = at + len(name)
            if not (_in_word(text[max(0, at - 1) : at]) or _in_word(text[end : end + 1])):
                scores[bisect_right(starts, at) - 1] += 1
            at = text.find(name, end)
    return scores


def _in_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def parts(sections: Sections) -> Iterator[tuple[str, str]]:
    """The parts that are not empty, each under a heading."""
    kept = range(sections.first, sections.last + 1)
    if sections.before:
        yield f"Before the relevant section, lines 1 to {kept.start - 1}", sections.before
    yield f"Relevant section, lines {kept.start} to {kept[-1]}", sections.numbered
    if sections.after:
        yield f"After the relevant section, lines {kept.stop} to {sections.lines}", sections.after

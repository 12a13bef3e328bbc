"""Rows: what a digest may show of a text, in the order of the text, and the choice among them.

Laws: a row is a line of the text, or says which lines it stands for; what is not chosen is counted in characters of the
text; errors come first, however many other rows are worth more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from policies.text.excerpt import (
    DEFINES,
    ERROR,
    STATUS,
    Cost,
    choose_lines,
    ends,
    identifiers_present,
    join_lines,
    matching,
    mention_counts,
    readable,
)
from policies.tools import HEAD, ToolKind

_END = 32_000
"""Of a longer text than two of them, these at both ends are looked at, and lines with errors within as many beyond."""
_MOST = 2_000
"""So many lines are looked at at either end: a text of more has next to nothing in each."""
_BETWEEN = 100
"""So many lines with errors are looked for beyond either end."""
_SAID = 4
"""What a row is worth for each mentioned term that it holds."""
T = TypeVar("T")


@dataclass(frozen=True)  # without slots: it remembers its lines
class Source:
    """A text, and what its digest is to be like."""

    text: str
    kind: ToolKind
    budget: int
    mentioned: frozenset[str]
    cost: Cost

    @cached_property
    def lines(self) -> list[str]:
        """Its lines with their ends; the middle of a long text is one of them, but for lines in it that tell of errors
        or of the exit status."""
        return _lines_of(self.text)

    @cached_property
    def seen(self) -> list[str]:
        """Its lines as they are searched."""
        return [line if "\n" not in line[:-1] else "\n" for line in readable(self.lines)]

    @cached_property
    def wrong(self) -> frozenset[int]:
        """Which of its lines tell of an error or of the exit status."""
        return error_lines(self.seen)

    @cached_property
    def mention_counts(self) -> Mapping[int, int]:
        """How many of the mentioned terms each of its lines holds, of those that hold any."""
        return mention_counts(self.seen, identifiers_present(self.seen, self.mentioned))


class Row(NamedTuple):
    """A row, with its line end. What is worth more is chosen first, what is worth nothing from both ends inwards, and
    what is worth less than that last."""

    text: str
    size: int
    """How many characters of the text it stands for."""
    worth: int = 0
    wrong: bool = False
    """Whether it tells of an error, or of the exit status."""


def render(rows: Sequence[Row], source: Source) -> str:
    """The rows that fit the budget, each gap marked; "" where none does."""
    lines = [row.text for row in rows]
    kept = sorted(choose_lines(lines, _orders(rows, source), source.budget))
    return join_lines(lines, kept, [row.size for row in rows]) if kept else ""


def few_lost(entries: Iterable[T], most: float) -> list[T]:
    """What was found of each line, as long as it is None for no more than so many of them; else nothing."""
    kept = list[T]()
    for one in entries:
        kept.append(one)
        most -= one is None
        if most < 0:
            return []
    return kept


def error_lines(lines: Sequence[str]) -> frozenset[int]:
    """The lines that tell of an error or of the exit status."""
    return frozenset(at for pattern in (STATUS, ERROR) for at in matching(lines, pattern))


def as_rows(source: Source, worths: Iterable[int], wrong: Set[int]) -> Iterator[Row]:
    """The lines of the text as they are; what repeats a line above it, be it an error, comes last."""
    above = set[str]()
    for i, (line, worth) in enumerate(zip(source.lines, worths, strict=True)):
        again = line in above and len(line) > 20
        yield Row(line, len(line), -2 if again else worth, i in wrong and not again)
        above.add(line)


def _orders(rows: Sequence[Row], source: Source) -> Iterator[Sequence[int]]:
    """Errors; what is mentioned or worth something; what is neither, from both ends; the rest."""
    seen = readable([row.text for row in rows])
    score = [row.worth for row in rows]
    for i, times in mention_counts(seen, identifiers_present(seen, source.mentioned)).items():
        score[i] += _SAID * times + bool(DEFINES.match(rows[i].text))
    first = sorted(range(len(rows)), key=score.__getitem__, reverse=True)
    wrong = [i for i in first if rows[i].wrong]
    best = [*wrong, *(i for i in first if not rows[i].wrong)]
    yield wrong
    yield [i for i in best if score[i] > 0]
    yield [i for i in ends(len(rows), HEAD[source.kind]) if score[i] == 0]
    yield [i for i in best if score[i] < 0]


def _lines_of(text: str) -> list[str]:
    if len(text) <= 2 * _END:
        lines = text.splitlines(keepends=True)
        if len(lines) <= 2 * _MOST:
            return lines
        first, last = lines[:_MOST], lines[-_MOST:]
    else:
        first = text[: text.rfind("\n", 0, _END) + 1 or _END].splitlines(keepends=True)[:_MOST]
        last = text[text.find("\n", len(text) - _END) + 1 or len(text) - _END :].splitlines(keepends=True)[-_MOST:]
    between = _between(text, sum(map(len, first)), len(text) - sum(map(len, last)))
    return [*first, *filter(None, between), *last]


def _between(text: str, start: int, end: int) -> Iterator[str]:
    """The middle of a text: what tells of an error, and what stands between."""
    front = text.rfind("\n", start, start + _END) + 1 or start
    back = max(front, text.find("\n", max(start, end - _END), end) + 1 or end)
    near, far = (text[part].splitlines(keepends=True) for part in (slice(start, front), slice(back, end)))
    lines = [*near, text[front:back], *far]
    done = 0
    wrong = sorted(error_lines(readable(lines)))
    for i in [*wrong[:_BETWEEN], *wrong[_BETWEEN:][-_BETWEEN:]]:
        yield "".join(lines[done:i])
        yield lines[i]
        done = i + 1
    yield "".join(lines[done:])

"""Rows: what a digest may show of a text, in the order of the text, and the choice among them.

Laws: a row is a line of the text, or says which lines it stands for; what is not chosen is counted in characters of the
text; errors come first, however many other rows are worth more.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from policies.excerpt import (
    DEFINES,
    ERROR,
    STATUS,
    Cost,
    ends,
    found,
    joined,
    lines_of,
    matching,
    mentions,
    picked,
    readable,
)
from policies.tools import HEAD, ToolKind

_SAID = 4
"""What a row is worth for each mentioned term that it holds."""


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
        """Its lines with their ends; the middle of a very long text is one of them."""
        return lines_of(self.text)

    @cached_property
    def seen(self) -> list[str]:
        """Its lines as they are searched."""
        return readable(self.lines)


@dataclass(frozen=True, slots=True)
class Row:
    """A row, with its line end. What is worth more is chosen first, what is worth nothing from both ends inwards, and
    what is worth less than that last."""

    text: str
    size: int
    """How many characters of the text it stands for."""
    worth: int = 0
    wrong: bool = False
    """Whether it tells of an error, or of the exit status."""


def shown(rows: Sequence[Row], source: Source) -> str:
    """The rows that fit the budget, each gap marked; "" where none does."""
    lines = [row.text for row in rows]
    kept = sorted(picked(lines, _orders(rows, source), source.budget))
    return joined(lines, kept, [row.size for row in rows]) if kept else ""


def alarms(lines: Sequence[str]) -> frozenset[int]:
    """The lines that tell of an error or of the exit status."""
    return frozenset(at for pattern in (STATUS, ERROR) for at in matching(lines, pattern))


def as_rows(source: Source, worths: Iterable[int], wrong: Set[int]) -> Iterator[Row]:
    """The lines of the text as they are; what repeats a line above it, be it an error, comes last."""
    above = set[str]()
    for i, (line, worth) in enumerate(zip(source.lines, worths, strict=True)):
        row = Row(line, len(line), worth, i in wrong)
        yield replace(row, worth=-2, wrong=False) if line in above and len(line) > 20 else row
        above.add(line)


def _orders(rows: Sequence[Row], source: Source) -> Iterator[Sequence[int]]:
    """Errors; what is mentioned or worth something; what is neither, from both ends; the rest."""
    seen = readable([row.text for row in rows])
    said = mentions(seen, found(seen, source.mentioned))
    score = [row.worth + _SAID * said[i] + bool(said[i] and DEFINES.match(row.text)) for i, row in enumerate(rows)]
    best = sorted(range(len(rows)), key=lambda i: (not rows[i].wrong, -score[i], i))
    yield [i for i in best if rows[i].wrong]
    yield [i for i in best if score[i] > 0]
    yield [i for i in ends(len(rows), HEAD[source.kind]) if score[i] == 0]
    yield [i for i in best if score[i] < 0]

"""Rows: what a digest may show of a text, in the order of the text, and the choice among them.

Laws: a row is a line of the text, or a text in the place of lines; what is not chosen is counted in characters of the
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
"""Of a text of more than twice as many characters, so many at either end are searched, and as many beyond."""
_MOST = 2_000
"""Lines searched at either end: a text of more has next to nothing in each."""
_BETWEEN = 100
"""Lines with errors that are taken from beyond either end."""
T = TypeVar("T")


@dataclass(frozen=True)  # without slots: it caches its lines
class Source:
    text: str
    kind: ToolKind
    budget: int
    mentioned: frozenset[str]
    cost: Cost

    @cached_property
    def lines(self) -> list[str]:
        """Its lines with their ends; the middle of a long text is one of them, except for lines in it that tell of
        errors or of the exit status."""
        text = self.text
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

    @cached_property
    def searchable(self) -> list[str]:
        """Its lines with empty ones in the place of those too long to be searched."""
        return [line if "\n" not in line[:-1] else "\n" for line in readable(self.lines)]

    @cached_property
    def errors(self) -> frozenset[int]:
        """Which of its lines tell of an error or of the exit status."""
        return error_lines(self.searchable)

    @cached_property
    def mention_counts(self) -> Mapping[int, int]:
        """How many of the mentioned identifiers its lines hold, for lines that hold any."""
        return mention_counts(self.searchable, identifiers_present(self.searchable, self.mentioned))


class Row(NamedTuple):
    """A row, with its line end. Rows worth more are chosen first, those worth 0 from both ends inwards, and those worth
    less last."""

    text: str
    size: int
    """How many characters of the text it replaces."""
    worth: int = 0
    wrong: bool = False
    """Whether it tells of an error, or of the exit status."""


def render(rows: Sequence[Row], source: Source) -> str:
    """The rows that fit the budget, each gap marked; "" where none does."""
    lines = [row.text for row in rows]
    searchable = readable(lines)
    score = [row.worth for row in rows]
    for i, times in mention_counts(searchable, identifiers_present(searchable, source.mentioned)).items():
        score[i] += 4 * times + bool(DEFINES.match(lines[i]))
    order = sorted(range(len(rows)), key=score.__getitem__, reverse=True)
    errors = [i for i in order if rows[i].wrong]
    errors_first = [*errors, *(i for i in order if not rows[i].wrong)]
    orders = (
        errors,
        [i for i in errors_first if score[i] > 0],
        [i for i in ends(len(rows), HEAD[source.kind]) if score[i] == 0],
        [i for i in errors_first if score[i] < 0],
    )
    chosen = choose_lines(lines, orders, source.budget, source.cost)
    return join_lines(lines, chosen, [row.size for row in rows]) if chosen else ""


def render_lines(source: Source, worths: Iterable[int], errors: Set[int]) -> str:
    """As `render`, of the unchanged lines of the text; a line that repeats one above, even an error, comes last."""
    rows, above = list[Row](), set[str]()
    for i, (line, worth) in enumerate(zip(source.lines, worths, strict=True)):
        again = line in above and len(line) > 20
        rows.append(Row(line, len(line), -2 if again else worth, i in errors and not again))
        above.add(line)
    return render(rows, source)


def few_others(entries: Iterable[T], most: float) -> list[T]:
    """The entries of all lines; none where more than `most` are None, the rest then unread."""
    read = list[T]()
    for entry in entries:
        read.append(entry)
        most -= entry is None
        if most < 0:
            return []
    return read


def error_lines(lines: Sequence[str]) -> frozenset[int]:
    """The lines that tell of an error or of the exit status."""
    return frozenset(at for pattern in (STATUS, ERROR) for at in matching(lines, pattern))


def _between(text: str, start: int, end: int) -> Iterator[str]:
    """The middle of a text: lines that tell of an error, and the text between them in one piece."""
    front = text.rfind("\n", start, start + _END) + 1 or start
    back = max(front, text.find("\n", max(start, end - _END), end) + 1 or end)
    near, far = (text[part].splitlines(keepends=True) for part in (slice(start, front), slice(back, end)))
    lines = [*near, text[front:back], *far]
    at = 0
    errors = sorted(error_lines(readable(lines)))
    for i in [*errors[:_BETWEEN], *errors[_BETWEEN:][-_BETWEEN:]]:
        yield "".join(lines[at:i])
        yield lines[i]
        at = i + 1
    yield "".join(lines[at:])

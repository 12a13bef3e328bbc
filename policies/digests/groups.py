"""Names under the headings that they share: a heading is said once, and how much of it is left out is said with it.

Law: what is shown stands in the order of the text, under its own heading.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

from policies.digests.rows import Source, error_lines
from policies.text.excerpt import line_cost, of_lines, readable
from policies.text.stubs import omitted

_NOTES = 6
"""What stands before the entries may take a sixth of the budget, and so may what stands elsewhere."""
_FREE = 80
"""Characters that stand as they are."""
_MARK = 8
"""Tokens of the mark of a gap."""
_REST = 8
"""Tokens of the line that counts the groups left out."""


@dataclass(frozen=True, slots=True)
class Group:
    """What stands under one heading."""

    heading: str
    entries: tuple[str, ...]
    ranks: tuple[int, ...]
    """For each entry: the smaller, the earlier it is chosen; entries of one rank take turns across the groups."""
    rank: int
    """That of the heading alone."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """A text as groups, with the lines before the first entry and the others that are no entries."""

    before: tuple[str, ...]
    groups: tuple[Group, ...]
    after: tuple[str, ...]
    words: tuple[str, str]
    """What groups are called, and their entries."""


Written = Callable[[Group, Set[int]], str]
"""Writes a group with the entries chosen, the heading with it, and what is left out."""


def arranged(found: Grouped, source: Source, written: Written, room: int) -> str:
    """As many groups and entries as fit the budget; `room` is about what a heading takes beside its own words."""
    notes = [_note(lines, source) for lines in (found.before, found.after)]
    left = source.budget - sum(line_cost(note) for note in notes) - _REST
    chosen = _chosen(found.groups, left, room)
    lines = [written(group, chosen[i]) for i, group in enumerate(found.groups) if i in chosen]
    gone = [len(group.entries) for i, group in enumerate(found.groups) if i not in chosen]
    rest = f"({len(gone)} more {found.words[0]}, {sum(gone)} {found.words[1]})\n" if gone else ""
    return "".join([notes[0], *lines, rest, notes[1]])


def split_at(lines: Sequence[tuple[int, str]], at: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Numbered lines: those before the line `at`, and those after it."""
    return tuple(line for i, line in lines if i < at), tuple(line for i, line in lines if i > at)


def _note(lines: Sequence[str], source: Source) -> str:
    """Lines that are no entries: in a share of the budget, or in as much of it as the errors among them need."""
    if sum(map(len, lines)) < _FREE:
        return "".join(lines)
    if len(lines) == 1 and "\n" in lines[0][:-1]:  # the middle of a long text
        return f"{omitted(len(lines[0]))}\n"
    wrong = sum(line_cost(lines[i]) + _MARK for i in error_lines(readable(lines)))
    most = min(source.budget, max(source.budget // _NOTES, wrong + _MARK))
    short = of_lines(lines, most, 0.5, frozenset(), source.cost)
    return short if short.endswith("\n") else f"{short}\n"


def _chosen(groups: Sequence[Group], left: int, room: int) -> dict[int, set[int]]:
    """The entries chosen, by group. A group is worth its heading even without any of them."""
    chosen: dict[int, set[int]] = {}
    for _, i, entry in _turns(groups):
        paid = 0 if i in chosen else line_cost(groups[i].heading) + room
        paid += line_cost(groups[i].entries[entry]) if entry >= 0 else 0
        if paid <= left:
            left -= paid
            chosen.setdefault(i, set()).update([entry] if entry >= 0 else [])
    return chosen


def _turns(groups: Sequence[Group]) -> Iterable[tuple[int, int, int]]:
    """(rank, group, entry) in the order of choice; entry -1 is the heading alone."""
    turns = []
    for i, group in enumerate(groups):
        turns.append((group.rank, 0, i, -1))
        taken: dict[int, int] = {}
        for entry, rank in enumerate(group.ranks):
            taken[rank] = taken.get(rank, 0) + 1
            turns.append((rank, taken[rank], i, entry))
    return [(rank, i, entry) for rank, _, i, entry in sorted(turns)]

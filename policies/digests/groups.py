"""Entries under the headings that they share: each heading once, with a count of what is left out under it.

Law: entries are shown in the order of the text, under their own heading.
"""

from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from policies.digests.rows import Source, error_lines
from policies.text.excerpt import line_cost, of_lines, readable
from policies.text.stubs import omitted

_NOTES = 6
"""Lines before the entries may take a sixth of the budget, and so may other lines that are no entries."""
_FREE = 80
"""Fewer characters are not shortened."""
_MARK = 8
"""Tokens of the mark of a gap, and of the line that counts the groups left out."""


@dataclass(frozen=True, slots=True)
class Group:
    heading: str
    entries: tuple[str, ...]
    ranks: tuple[int, ...]
    """For each entry: a lower rank is chosen earlier; entries of one rank take turns across the groups."""
    rank: int


Writer = Callable[[Group, Set[int]], str]
"""Writes a group: its heading, the chosen entries, and a count of the others."""


def render_groups(
    groups: Sequence[Group],
    entries: Sequence[Sequence[str] | None],
    names: tuple[str, str],
    source: Source,
    write: Writer,
    room: int,
) -> str:
    """As many groups and entries as fit the budget. `entries` are those of all lines: lines with None are shown before
    and after the groups; `names` are the plurals of group and entry; `room` is what a heading takes beside its text."""
    first = next(i for i, entry in enumerate(entries) if entry)
    others = [i for i, entry in enumerate(entries) if entry is None]
    notes = [
        _note([source.lines[i] for i in others if i < first], source),
        _note([source.lines[i] for i in others if i > first], source),
    ]
    left = source.budget - sum(line_cost(note) for note in notes) - _MARK
    turns = []  # (rank, turn, group, entry); entry -1 is the heading alone
    for i, group in enumerate(groups):
        turns.append((group.rank, 0, i, -1))
        used = Counter[int]()
        for entry, rank in enumerate(group.ranks):
            used[rank] += 1
            turns.append((rank, used[rank], i, entry))
    chosen: dict[int, set[int]] = {}
    for _, _, i, entry in sorted(turns):
        paid = 0 if i in chosen else line_cost(groups[i].heading) + room
        paid += line_cost(groups[i].entries[entry]) if entry >= 0 else 0
        if paid <= left:
            left -= paid
            chosen.setdefault(i, set()).update([entry] if entry >= 0 else [])
    lines = [write(group, chosen[i]) for i, group in enumerate(groups) if i in chosen]
    missing = [len(group.entries) for i, group in enumerate(groups) if i not in chosen]
    rest = f"({len(missing)} more {names[0]}, {sum(missing)} {names[1]})\n" if missing else ""
    return "".join([notes[0], *lines, rest, notes[1]])


def _note(lines: Sequence[str], source: Source) -> str:
    """Lines that are no entries: in a share of the budget, or in as much of it as the errors among them need."""
    if sum(map(len, lines)) < _FREE:
        return "".join(lines)
    if len(lines) == 1 and "\n" in lines[0][:-1]:  # the middle of a long text
        return f"{omitted(len(lines[0]))}\n"
    errors = sum(line_cost(lines[i]) + _MARK for i in error_lines(readable(lines)))
    most = min(source.budget, max(source.budget // _NOTES, errors + _MARK))
    short = of_lines(lines, most, 0.5, frozenset(), source.cost)
    return short if short.endswith("\n") else f"{short}\n"

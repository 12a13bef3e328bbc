"""Entries under the headings that they share: hits in files, and names in directories. Each heading stands once, with a
count of what is left out under it.

Law: entries are shown unchanged, in the order of the text, under their own heading.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from policies.digests.rows import Source, few_others
from policies.text.excerpt import DEFINES, error_lines, line_cost, of_lines, readable
from policies.text.stubs import omitted

_NOTES = 6
"""Lines before the entries may take a sixth of the budget, and so may other lines that are no entries."""
_SHORT_CHARACTERS = 80
_MARK_TOKENS = 8


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
    room_left = source.budget - sum(line_cost(note, source.cost) for note in notes) - _MARK_TOKENS
    turns = []  # (rank, turn, group, entry); entry -1 is the heading alone
    for i, group in enumerate(groups):
        turns.append((group.rank, 0, i, -1))
        used = Counter[int]()
        for entry, rank in enumerate(group.ranks):
            used[rank] += 1
            turns.append((rank, used[rank], i, entry))
    chosen: dict[int, set[int]] = {}
    for _, _, i, entry in sorted(turns):
        paid = 0 if i in chosen else line_cost(groups[i].heading, source.cost) + room
        paid += line_cost(groups[i].entries[entry], source.cost) if entry >= 0 else 0
        if paid <= room_left:
            room_left -= paid
            chosen.setdefault(i, set()).update([entry] if entry >= 0 else [])
    lines = [write(group, chosen[i]) for i, group in enumerate(groups) if i in chosen]
    missing = [len(group.entries) for i, group in enumerate(groups) if i not in chosen]
    rest = f"({len(missing)} more {names[0]}, {sum(missing)} {names[1]})\n" if missing else ""
    return "".join([notes[0], *lines, rest, notes[1]])


def _note(lines: Sequence[str], source: Source) -> str:
    """Lines that are no entries: in a share of the budget, or in as much of it as the errors among them need."""
    if sum(map(len, lines)) < _SHORT_CHARACTERS:
        return "".join(lines)
    if len(lines) == 1 and "\n" in lines[0][:-1]:  # the middle of a long text
        return f"{omitted(len(lines[0]))}\n"
    errors = sum(line_cost(lines[i], source.cost) + _MARK_TOKENS for i in error_lines(readable(lines)))
    most = min(source.budget, max(source.budget // _NOTES, errors + _MARK_TOKENS))
    short = of_lines(lines, most, 0.5, frozenset(), source.cost)
    return short if short.endswith("\n") else f"{short}\n"


# --- search hits: each file once, with its hits under it; hits with mentioned identifiers first ---

_PATH = r"(?:[A-Za-z]:)?[\w./\\~@+-]{0,250}(?:/[\w.~@+-]{1,120}|\.[A-Za-z]{1,5})"
_HIT = re.compile(rf"({_PATH})(?::(?=\S|\s*\S)(?!//)|-(?=\d{{1,7}}-))")
_ALONE = re.compile(rf"({_PATH})\n")
_NUMBERED = re.compile(r"\d{1,7}[:-]")
_FEWEST_HITS, _SHARE_OF_HITS = 4, 0.6
_Hit = tuple[str, str]


def hits_digest(source: Source) -> str:
    """The hits by file; "" where the lines are no hits in files."""
    full = sum(1 for line in source.searchable if line.strip(" \t\r\n-"))
    places = few_others(_hits(source.lines, source.searchable), len(source.searchable) - _SHARE_OF_HITS * full)
    hits = [(i, place) for i, place in enumerate(places) if place]
    if len(hits) < _FEWEST_HITS or len(hits) < _SHARE_OF_HITS * full:
        return ""
    return render_groups(list(_files(hits, source)), places, ("files", "hits"), source, _file_hits, 4)


def _hits(lines: Sequence[str], searchable: Sequence[str]) -> Iterator[_Hit | tuple[()] | None]:
    """For each line its hit, () where it only serves others, None where it is neither."""
    heading = ""
    for i, line in enumerate(searchable):
        below = searchable[i + 1] if i + 1 < len(searchable) else ""
        numbered = below[:1].isdecimal() and _NUMBERED.match(below)
        first = line.partition(" ")[0]
        if numbered and (alone := _ALONE.fullmatch(line)):
            heading = alone[1]
            yield ()
        elif heading and _NUMBERED.match(line):
            yield heading, line
        elif (":" in first or "-" in first) and ("." in first or "/" in first) and (hit := _HIT.match(line)):
            yield hit[1], line[hit.end() :]
        else:
            heading = heading if line.strip() == "--" else ""
            yield () if lines[i].strip() in ("", "--") else None


def _files(hits: Sequence[tuple[int, _Hit]], source: Source) -> Iterator[Group]:
    files: dict[str, list[tuple[int, str]]] = {}
    for i, (path, text) in hits:
        # errors first, then mentioned identifiers, then definitions
        rank = 3 - bool(DEFINES.match(text)) - 3 * source.mention_counts.get(i, 0)
        files.setdefault(path, []).append((-100 if i in source.errors else rank, text))
    for path, ranked in files.items():
        yield Group(path, tuple(text for _, text in ranked), tuple(rank for rank, _ in ranked), 2)


def _file_hits(group: Group, chosen: Set[int]) -> str:
    hits = [text.rstrip("\r\n") for i, text in enumerate(group.entries) if i in chosen]
    count = f" ({len(group.entries)} hits)" if len(hits) < len(group.entries) else ""
    return "\n".join([f"{group.heading}{count}", *hits, ""])


# --- listings: the names in each directory; key files and mentioned names first, the others counted ---

_LONG = re.compile(
    r"[-dlbcps][-rwxsStT]{9}[.+@]? +\d{1,9} +\S{1,80} +\S{1,80} +[\d.,]{1,20}[KMGTP]? +"
    r"\S{1,20} +\S{1,20} +\S{1,20} +(?P<name>[^\n]{1,400})"
)
_TREE = re.compile(r"(?P<deep>(?>(?:[│|]?[ \u00a0]{2,4}){0,40}))[├└|`+][─-]{1,3} (?P<name>[^\n]{1,300})")
_DIRECTORY = re.compile(r"(?P<name>[^\s:][^\n:]{0,400}):\n?")
_NAME = re.compile(r"(?P<name>[\w.~@+/\\-][\w.~@+/\\=,-]{0,400})\n?")
_TOTAL = re.compile(r"total [\d.,]{1,20}[KMGT]?\n?")
_KEY = re.compile(
    r"(?:readme|makefile|dockerfile|license|changelog|cmakelists|pyproject|setup\.|package\.json|tsconfig|cargo|go\.mod|"
    r"pom\.xml|build\.gradle|gemfile|requirements|tox\.ini|conftest|main\.|index\.|__main__|__init__|app\.)",
    re.I,
)
_MODES, _BRANCHES = "-dlbcps", "│| \u00a0├└`+"
_FEWEST_NAMES, _SHARE_OF_NAMES = 8, 0.8
_Entry = tuple[str, str]


def listing_digest(source: Source) -> str:
    """The names by directory; "" where the lines are no listing."""
    lines = source.searchable
    full = sum(1 for line in lines if line.strip())
    parsed = zip(source.lines, lines, _entries(lines, source.kind == "listing"), strict=True)
    # a line too long to be searched is no entry, nor is one that tells what went wrong, though it ends like a heading
    rows = (each if line == short and i not in source.errors else None for i, (line, short, each) in enumerate(parsed))
    entries = few_others(rows, len(lines) - _SHARE_OF_NAMES * full)
    names = [entry for entry in entries if entry]
    if len(names) < _FEWEST_NAMES or sum(entry is not None for entry in entries) < _SHARE_OF_NAMES * full:
        return ""
    groups = list(_directories(names, source.mentioned))
    return render_groups(groups, entries, ("directories", "names"), source, _directory_names, 6)


def _entries(lines: Sequence[str], plain: bool) -> Iterator[_Entry | tuple[()] | None]:
    """For each line its entry, () where it only serves others, None for others. `plain`: a name alone is one."""
    directory, path = "", list[str]()
    for i, line in enumerate(lines):
        if line[0] in _MODES and (match := _LONG.match(line)):
            name = match["name"].split(" -> ")[0]
            yield (directory, name + "/" * line.startswith("d")) if name not in (".", "..") else ()
        elif (line[0] in _BRANCHES) and (match := _TREE.match(line)):
            path = [*path[: len(match["deep"]) // 4], match["name"].rstrip()]
            yield "/".join(path[:-1]), path[-1]
        elif (
            line.endswith((":", ":\n"))
            # above all others, or below an empty line
            and not (i and lines[i - 1].strip() and directory)
            and (match := _DIRECTORY.fullmatch(line))
        ):
            directory = match["name"]
            yield ()
        elif (plain or "/" in line) and " " not in line and (match := _NAME.fullmatch(line)):
            above, _, name = match["name"].rstrip("/").rpartition("/")
            yield (above or directory, name + "/" * match["name"].endswith("/")) if name.strip(".") else ()
        else:
            yield () if not line.strip() or _TOTAL.fullmatch(line) else None


def _directories(entries: Sequence[_Entry], mentioned: frozenset[str]) -> Iterator[Group]:
    names_mentioned = frozenset(name for path in mentioned for name in (path, path.rpartition("/")[2]))
    directories: dict[str, list[str]] = {}
    for directory, name in entries:
        directories.setdefault(directory, []).append(name)
    for directory, names in directories.items():
        below = [f"{name}/" if f"{directory}/{name}".lstrip("/") in directories else name for name in names]
        deep = len([part for part in directory.split("/") if part not in ("", ".", "..")])
        # mentioned names first, then key files near the top, then directories and files, the deep ones last
        ranks = tuple(
            0 if name.rstrip("/") in names_mentioned else deep + (1 if _KEY.match(name) else 3) for name in below
        )
        yield Group(directory, tuple(below), ranks, 0 if directory in names_mentioned else 2 + deep)


def _directory_names(group: Group, chosen: Set[int]) -> str:
    """The chosen names, and how many others there are of the most frequent endings."""
    names = [name for i, name in enumerate(group.entries) if i in chosen]
    others = [name for i, name in enumerate(group.entries) if i not in chosen]
    often = Counter[str]()
    for name in others:
        stem, dot, ending = name.rpartition(".")
        if name.endswith("/"):
            often["directories"] += 1
        elif dot and stem and len(ending) <= 8:
            often[f".{ending}"] += 1
    endings = sorted(often, key=lambda ending: (-often[ending], ending))[:3]
    unnamed = len(others) - sum(often[ending] for ending in endings)
    counts = [*(f"{often[ending]} {ending}" for ending in endings), *([f"{unnamed} others"] if unnamed else [])]
    heading = f"{group.heading}: " if group.heading else ""
    rest = [f"({'+ ' if names else ''}{', '.join(counts)})"] if counts else []
    return heading + "  ".join([*names, *rest]) + "\n"

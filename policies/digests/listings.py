"""Listings: the names in each directory, side by side; key files and what was mentioned first, the others counted.

Names are shown as they stand; modes, owners, sizes and dates go.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set

from policies.digests.groups import Group, Grouped, arranged, split_at
from policies.digests.rows import Source, few_lost

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
"""How such lines begin."""
_LEAST, _SHARE = 8, 0.8
_ENDINGS = 3
_Entry = tuple[str, str]
"""A directory and a name in it."""


def by_directory(source: Source) -> str:
    """The names by directory; "" where the lines are no listing."""
    full = sum(1 for line in source.seen if line.strip())
    entries = few_lost(_entries(source), len(source.seen) - _SHARE * full)
    named = [i for i, entry in enumerate(entries) if entry]
    if len(named) < _LEAST or sum(entry is not None for entry in entries) < _SHARE * full:
        return ""
    strange = [(i, line) for i, (line, entry) in enumerate(zip(source.lines, entries, strict=True)) if entry is None]
    before, after = split_at(strange, named[0])
    groups = tuple(_groups([entry for entry in entries if entry], source.mentioned))
    return arranged(Grouped(before, groups, after, ("directories", "names")), source, _written, 6)


def _entries(source: Source) -> Iterator[_Entry | tuple[()] | None]:
    """For each line the entry that it is, () where it only serves others, None where it is neither."""
    for line, seen, entry in zip(source.lines, source.seen, _read(source.seen, source.kind == "listing"), strict=True):
        yield entry if line == seen else None  # a line too long to be read is no entry


def _read(lines: Sequence[str], plain: bool) -> Iterator[_Entry | tuple[()] | None]:
    """As `_entries`, of the lines as they are searched; `plain` where a name may stand alone."""
    directory, path = "", list[str]()
    for i, line in enumerate(lines):
        if line[0] in _MODES and (found := _LONG.match(line)):
            name = found["name"].split(" -> ")[0]
            yield (directory, name + "/" * line.startswith("d")) if name not in (".", "..") else ()
        elif (line[0] in _BRANCHES) and (found := _TREE.match(line)):
            path = [*path[: len(found["deep"]) // 4], found["name"].rstrip()]
            yield "/".join(path[:-1]), path[-1]
        elif line.endswith((":", ":\n")) and _heads(lines, i, directory) and (found := _DIRECTORY.fullmatch(line)):
            directory = found["name"]
            yield ()
        elif (plain or "/" in line) and " " not in line and (found := _NAME.fullmatch(line)):
            above, _, name = found["name"].rstrip("/").rpartition("/")
            yield (above or directory, name + "/" * found["name"].endswith("/")) if name.strip(".") else ()
        else:
            yield () if not line.strip() or _TOTAL.fullmatch(line) else None


def _heads(lines: Sequence[str], at: int, directory: str) -> bool:
    """Whether a directory may be named here: above all others, or below an empty line."""
    return not (at and lines[at - 1].strip() and directory)


def _groups(entries: Sequence[_Entry], mentioned: frozenset[str]) -> Iterator[Group]:
    """A group for each directory, in the order of their first names."""
    said = frozenset(name for term in mentioned for name in (term, term.rpartition("/")[2]))
    directories: dict[str, list[str]] = {}
    for directory, name in entries:
        directories.setdefault(directory, []).append(name)
    for directory, names in directories.items():
        below = [f"{name}/" if f"{directory}/{name}".lstrip("/") in directories else name for name in names]
        deep = len([part for part in directory.split("/") if part not in ("", ".", "..")])
        ranks = tuple(_rank(name, deep, name.rstrip("/") in said) for name in below)
        yield Group(directory, tuple(below), ranks, 0 if directory in said else 2 + deep)


def _rank(name: str, deep: int, said: bool) -> int:
    """What is mentioned, then key files near the top, then directories and files, the deep ones last."""
    if said:
        return 0
    return 1 + deep if _KEY.match(name) else 3 + deep


def _written(group: Group, chosen: Set[int]) -> str:
    names = [name for i, name in enumerate(group.entries) if i in chosen]
    rest = _counted([name for i, name in enumerate(group.entries) if i not in chosen])
    heading = f"{group.heading}: " if group.heading else ""
    return heading + "  ".join([*names, *([f"({'+ ' if names else ''}{rest})"] if rest else [])]) + "\n"


def _counted(names: Sequence[str]) -> str:
    """How many names there are of the most frequent endings, and how many others."""
    often = Counter(filter(None, map(_ending, names)))
    first = sorted(often, key=lambda ending: (-often[ending], ending))[:_ENDINGS]
    others = len(names) - sum(often[ending] for ending in first)
    return ", ".join([*(f"{often[ending]} {ending}" for ending in first), *([f"{others} others"] if others else [])])


def _ending(name: str) -> str:
    """What kind of file a name is of; "" where it does not say."""
    if name.endswith("/"):
        return "directories"
    stem, dot, ending = name.rpartition(".")
    return f".{ending}" if dot and stem and len(ending) <= 8 else ""

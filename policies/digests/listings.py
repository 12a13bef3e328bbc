"""Listings: the names in each directory, side by side; key files and mentioned names first, the others counted.

Names are shown unchanged; modes, owners, sizes and dates are left out.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set

from policies.digests.groups import Group, render_groups
from policies.digests.rows import Source, few_others

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
_LEAST, _SHARE = 8, 0.8
_Entry = tuple[str, str]


def listing_digest(source: Source) -> str:
    """The names by directory; "" where the lines are no listing."""
    lines = source.searchable
    full = sum(1 for line in lines if line.strip())
    parsed = zip(source.lines, lines, _entries(lines, source.kind == "listing"), strict=True)
    # a line too long to be searched is no entry
    entries = few_others(
        (entry if line == short else None for line, short, entry in parsed), len(lines) - _SHARE * full
    )
    named = [entry for entry in entries if entry]
    if len(named) < _LEAST or sum(entry is not None for entry in entries) < _SHARE * full:
        return ""
    groups = list(_groups(named, source.mentioned))
    return render_groups(groups, entries, ("directories", "names"), source, _written, 6)


def _entries(lines: Sequence[str], plain: bool) -> Iterator[_Entry | tuple[()] | None]:
    """For each line its entry, () where it only serves others, None where it is neither; `plain` where a name alone is
    an entry."""
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


def _groups(entries: Sequence[_Entry], mentioned: frozenset[str]) -> Iterator[Group]:
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


def _written(group: Group, chosen: Set[int]) -> str:
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

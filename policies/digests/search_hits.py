"""Search hits: each file once, with its hits under it; hits with mentioned identifiers first.

A file has a count of its hits where not all of them are shown.
"""

import re
from collections.abc import Iterator, Sequence, Set

from policies.digests.groups import Group, render_groups
from policies.digests.rows import Source, few_others
from policies.text.excerpt import DEFINES, ERROR

_PATH = r"(?:[A-Za-z]:)?[\w./\\~@+-]{0,250}(?:/[\w.~@+-]{1,120}|\.[A-Za-z]{1,5})"
_HIT = re.compile(rf"({_PATH})(?::(?=\S|\s*\S)(?!//)|-(?=\d{{1,7}}-))")
_ALONE = re.compile(rf"({_PATH})\n")
_NUMBERED = re.compile(r"\d{1,7}[:-]")
_LEAST, _SHARE = 4, 0.6
_Place = tuple[str, str]
"""A file, and a hit in it with its line end."""


def hits_digest(source: Source) -> str:
    """The hits by file; "" where the lines are no hits in files."""
    full = sum(1 for line in source.searchable if line.strip(" \t\r\n-"))
    places = few_others(_places(source.lines, source.searchable), len(source.searchable) - _SHARE * full)
    hits = [(i, place) for i, place in enumerate(places) if place]
    if len(hits) < _LEAST or len(hits) < _SHARE * full:
        return ""
    return render_groups(list(_groups(hits, source)), places, ("files", "hits"), source, _written, 4)


def _places(lines: Sequence[str], searchable: Sequence[str]) -> Iterator[_Place | tuple[()] | None]:
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


def _groups(hits: Sequence[tuple[int, _Place]], source: Source) -> Iterator[Group]:
    files: dict[str, list[tuple[int, str]]] = {}
    for i, (path, text) in hits:
        # errors first, then mentioned identifiers, then definitions
        rank = 3 - bool(DEFINES.match(text)) - 3 * source.mention_counts.get(i, 0)
        files.setdefault(path, []).append((-100 if i in source.errors and ERROR.search(text) else rank, text))
    for path, ranked in files.items():
        yield Group(path, tuple(text for _, text in ranked), tuple(rank for rank, _ in ranked), 2)


def _written(group: Group, chosen: Set[int]) -> str:
    hits = [text.rstrip("\r\n") for i, text in enumerate(group.entries) if i in chosen]
    count = f" ({len(group.entries)} hits)" if len(hits) < len(group.entries) else ""
    return "\n".join([f"{group.heading}{count}", *hits, ""])

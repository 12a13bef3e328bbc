"""Search hits: each file once, with its hits under it; those that name what was mentioned first.

A file is shown with how many hits it has where not all of them are shown.
"""

import re
from collections.abc import Iterator, Sequence, Set

from policies.digests.groups import Group, Grouped, arranged, split_at
from policies.digests.rows import Source, few_lost
from policies.text.excerpt import DEFINES, ERROR

_PATH = r"(?:[A-Za-z]:)?[\w./\\~@+-]{0,250}(?:/[\w.~@+-]{1,120}|\.[A-Za-z]{1,5})"
_HIT = re.compile(rf"({_PATH})(?::(?=\S|\s*\S)(?!//)|-(?=\d{{1,7}}-))")
_ALONE = re.compile(rf"({_PATH})\n")
_NUMBERED = re.compile(r"\d{1,7}[:-]")
_LEAST, _SHARE = 4, 0.6
_Place = tuple[str, str]
"""A file, and a hit in it with its line end."""


def by_file(source: Source) -> str:
    """The hits by file; "" where the lines are no hits in files."""
    full = sum(1 for line in source.seen if line.strip(" \t\r\n-"))
    places = few_lost(_places(source.lines, source.seen), len(source.seen) - _SHARE * full)
    hits = [(i, place) for i, place in enumerate(places) if place]
    if len(hits) < _LEAST or len(hits) < _SHARE * full:
        return ""
    strange = [(i, line) for i, (line, place) in enumerate(zip(source.lines, places, strict=True)) if place is None]
    before, after = split_at(strange, hits[0][0])
    grouped = Grouped(before, tuple(_groups(hits, source)), after, ("files", "hits"))
    return arranged(grouped, source, _written, 4)


def _places(lines: Sequence[str], seen: Sequence[str]) -> Iterator[_Place | tuple[()] | None]:
    """For each line the hit that it is, () where it only serves others, None where it is neither."""
    heading = ""
    for i, line in enumerate(seen):
        numbered = i + 1 < len(seen) and seen[i + 1][:1].isdecimal() and _NUMBERED.match(seen[i + 1])
        if numbered and (alone := _ALONE.fullmatch(line)):
            heading = alone[1]
            yield ()
        elif heading and _NUMBERED.match(line):
            yield heading, line
        elif _may_hit(line) and (hit := _HIT.match(line)):
            yield hit[1], line[hit.end() :]
        else:
            heading = heading if line.strip() == "--" else ""
            yield () if lines[i].strip() in ("", "--") else None


def _may_hit(line: str) -> bool:
    first, *_ = line.split(" ", 1)
    return (":" in first or "-" in first) and ("." in first or "/" in first)


def _groups(hits: Sequence[tuple[int, _Place]], source: Source) -> Iterator[Group]:
    """A group for each file, in the order of their first hits."""
    files: dict[str, list[tuple[int, str]]] = {}
    for i, (path, text) in hits:
        files.setdefault(path, []).append((_rank(text, source.mention_counts.get(i, 0), i in source.wrong), text))
    for path, ranked in files.items():
        yield Group(path, tuple(text for _, text in ranked), tuple(rank for rank, _ in ranked), 2)


def _rank(text: str, said: int, wrong: bool) -> int:
    """Errors, then what is mentioned, then definitions, then the others."""
    if wrong and ERROR.search(text):
        return -100
    return 3 - bool(DEFINES.match(text)) - 3 * said


def _written(group: Group, chosen: Set[int]) -> str:
    hits = [text.rstrip("\r\n") for i, text in enumerate(group.entries) if i in chosen]
    count = f" ({len(group.entries)} hits)" if len(hits) < len(group.entries) else ""
    return "\n".join([f"{group.heading}{count}", *hits, ""])

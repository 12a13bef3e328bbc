"""The kinds of output that tools have, which decide how an output is shortened and how soon, and the look of each.

Of an output only the beginning is searched; where its look is no guide, the kind is None.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

ToolKind = Literal["file", "search", "listing", "command", "data", "web", "report", "instructions"]

WayBack = ToolKind | Literal["unchanged"]
"""How an output can be seen again: by a call of its kind, or otherwise where that answers that nothing has changed."""

Kinds = Mapping[str, ToolKind]

FILES = frozenset({"file", "instructions"})
"""The kinds of what was read from a file."""
RECALL = "narrows_recall"
"""The name of the tool that brings back what was left out."""
SEARCH = "narrows_find_tools"
"""The name of the tool that finds tools whose definitions are deferred."""
OURS = frozenset({RECALL, SEARCH})

HEAD: Mapping[ToolKind, float] = {
    "file": 0.7,
    "search": 0.5,
    "listing": 0.3,
    "command": 0.6,
    "data": 0.5,
    "web": 0.5,
    "report": 0.6,
    "instructions": 0.7,
}
"""The share of a shortened output that comes from its beginning."""

_LOOKED_AT = 4_000
_SOME = 3
"""So many lines of a kind are no accident."""

_JSON = re.compile(
    r"\s{0,64}(?:\{\s{0,64}[\"}]|\[\s{0,64}(?:[{\[\"\]]|-?\d[\d.eE+-]{0,30}\s{0,64},|true\b|false\b|null\b))"
)
_PAGE = re.compile(r"\s{0,64}(?:<!doctype html|<html)|^(?:URL|Link|Source): https?://", re.I | re.M)
_ELEMENT = re.compile(r"^[ \t-]{0,40}\[\d+\] [a-z]+ [\"']|\[ref=\w{1,16}\]", re.I | re.M)
_NUMBERED = re.compile(r"^[ \t]{0,16}L?(\d{1,9})[\t:|→ ]", re.M)
_CODE = re.compile(r"^(?:def|class|import|from|func|fn|pub|package|#include)\b", re.M)
_HIT = re.compile(r"^[\w./\\@-]{1,300}:\d{1,9}[:-]", re.M)
_ENTRY = re.compile(
    r"[-dlbcps][rwxsStT-]{9}[.+@]? |total \d|\[(?:DIR|FILE)\] |[ │|]{0,200}[├└+`]|"
    r"(?:[-*] )?[\w.@~+-]{0,200}[/\\.][\w./\\@~+-]{0,600}[/*@]?$"
)


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def kind_by_look(output: str) -> ToolKind | None:
    start = output[:_LOOKED_AT]
    if _JSON.match(start):
        return "data"
    if _PAGE.match(start) or any(len(look.findall(start)) > _SOME for look in (_ELEMENT, _PAGE)):
        return "web"
    if len(_HIT.findall(start)) > _SOME:  # before files: a hit has a number, too
        return "search"
    numbers = (int(number) for number in _NUMBERED.findall(start))
    numbered = sum(later == earlier + 1 for earlier, later in pairwise(numbers))
    if numbered >= _SOME or len(_CODE.findall(start)) > _SOME:  # before listings: code may hold paths
        return "file"
    lines = [line.strip() for line in start.splitlines() if line.strip()]
    entries = sum(bool(_ENTRY.match(line)) for line in lines)
    return "listing" if entries >= _SOME and entries >= 0.8 * len(lines) else None

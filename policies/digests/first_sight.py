"""Excerpts of outputs that the model has not seen yet: what the kind of output says matters stays.

An excerpt in the place of the first sight has no second chance, so first of all goes what tells nothing: passed tests,
progress, frames of libraries, columns of listings. A failure that is recognized never counts as progress.
Where much of a text matters, much of it stays; where an excerpt would hide too little to be worth it, or the output is
read as a whole, the text stays.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from policies.digests import FORMS, Form, digested
from policies.digests.rows import (
    NEVER,
    NO_COUNTS,
    PASSED,
    WARNS,
    Source,
    failure_digest,
    failure_worths,
    first_failure,
    render_lines,
)
from policies.text.excerpt import ERROR, Cost, matching, readable
from policies.tools import ToolKind

NEVER_SHORT = frozenset[ToolKind]({"web", "report", "instructions"})
"""Outputs of these kinds are read as a whole."""
_WIDER = 2.0
"""What matters may take so many times the budget."""
_ROOM: Mapping[ToolKind, float] = {"listing": 2.0, "search": 3.0}
"""How many times the budget outputs have of which each line was asked for: hardly more goes than names that repeat."""
_WORTH_IT = 0.8
"""A longer share of the text, as an excerpt, is not worth what it hides."""


def seen_first(text: str, kind: ToolKind, budget: int, mentioned: frozenset[str], cost: Cost) -> str:
    """An excerpt of about `budget` tokens, more where more matters; the text itself where it should stay whole."""
    short = digested(text, kind, int(_ROOM.get(kind, 1.0) * budget), mentioned, cost, _AT_FIRST_SIGHT)
    left = 0 if short == text or kind in _OTHERS else _failing(short)  # the last failure always stays
    if left and (count := _failing(text)) > left:
        short = f"{short.rstrip()}\n({count} lines tell of failures)"
    return short if len(short) <= _WORTH_IT * len(text) else text


def _failing(text: str) -> int:
    lines = readable(text.splitlines(keepends=True))
    return sum(not PASSED.match(lines[i]) for i in matching(lines, ERROR))


# --- what a line of a command's output tells: a passed test, a step of progress, or more than that ---

_PROGRESS = re.compile(
    r"(?=[ \t]{0,20}(?:Compil(?:ing|ed)|Checking|Download(?:ing|ed)|Fetch(?:ing|ed)|Collecting|Using cached|"
    r"Unpacking|Setting up|Preparing to unpack|Selecting previously|Get:\d|Hit:\d|Reading package|Installing|"
    r"Creat(?:ing|ed)|Cloning|Copying|Listing|Extracting|Pulling|Adding|Requirement already|create mode |"
    r"(?:remote: )?(?:Receiving|Counting|Compressing|Enumerating) objects|Resolving deltas|"
    rf"npm (?:http|notice|timing)|\[ *\d{{1,3}}%\]|\[\d{{1,6}}/\d{{1,6}}\])){NO_COUNTS}",
    re.I,
)
_VERB = re.compile(r"[^A-Za-z]{0,40}([A-Za-z]{0,40})")
_ODD = 20
"""A step of progress that is one of so few differs from the others: one of twenty."""
_SHARE_OF_NOISE = 0.3
"""So many of the lines that say something tell nothing, at least."""


def _worths(source: Source, worths: Sequence[int]) -> list[int]:
    """The worths of lines, but of passed tests and steps of progress; a step whose verb few others have, or the tail
    that it has behind a colon, stays where there is room."""
    lines, passed = source.searchable, [bool(PASSED.match(line)) for line in source.searchable]
    steps = {
        i: ((_VERB.match(line) or "  ")[1], line.count(": "))
        for i, line in enumerate(lines)
        if not passed[i] and i not in source.errors and _PROGRESS.match(line) and not WARNS.search(line)
    }
    often = Counter(steps.values())
    odd = {i for i, form in steps.items() if often[form] * _ODD <= len(steps)}
    return [0 if i in odd else NEVER if passed[i] or i in steps else worth for i, worth in enumerate(worths)]


def _noisy(source: Source) -> str:
    """Outputs of builds, package managers and tests that pass: all but progress and passed tests."""
    worths, full = _worths(source, [1] * len(source.lines)), sum(not line.isspace() for line in source.searchable)
    return render_lines(source, worths, source.errors, _WIDER) if worths.count(NEVER) >= _SHARE_OF_NOISE * full else ""


def _failures(source: Source) -> str:
    """Failures with all that stands behind the first sign of one, but frames of libraries and passed tests."""
    first = first_failure(source.searchable)
    if first is None:
        return ""
    worths = [worth + (worth >= 0 and i >= first) for i, worth in enumerate(failure_worths(source.searchable))]
    return render_lines(source, _worths(source, worths), source.errors, _WIDER)


_OTHERS = frozenset[ToolKind]({"file", "search", "listing", "web", "data"})
_OF_COMMANDS: Sequence[Form] = ((_failures, frozenset({"file"})), (_noisy, _OTHERS))
_AT_FIRST_SIGHT = [form for each in FORMS for form in (_OF_COMMANDS if each[0] is failure_digest else (each,))]
"""The forms of outputs, in the order in which they are looked for."""

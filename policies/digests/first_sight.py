"""Excerpts of outputs that the model has not seen yet: what the kind of output says matters stays.

An excerpt in the place of the first sight has no second chance, so first of all goes what tells nothing: passed tests,
progress, frames of libraries, columns of listings. Where much of a text matters, much of it stays; where an excerpt
would hide too little to be worth it, or the output is read as a whole, the text stays.
"""

import re
from collections.abc import Mapping, Sequence

from policies.digests import FORMS, Form, digested
from policies.digests.rows import NEVER, Source, failure_digest, failure_worths, first_failure, render_lines
from policies.text.excerpt import Cost
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
    return short if len(short) <= _WORTH_IT * len(text) else text


# --- what a line of a command's output tells: a passed test, a step of progress, or more than that ---

_PASSED = (
    r"[✓✔√] |(?-i:PASS(?:ED)?:?|ok)[ \t]+\S|--- PASS|=== (?:RUN|PAUSE|CONT)|[^\n]{1,200} (?:(?-i:PASSED)|\.\.\. ok)\b|"
    r"[\w./-]{1,200} [.sx]{2,200}(?: +\[ *\d{1,3}%\])?$"
)
_PROGRESS = (
    r"Compil(?:ing|ed)|Checking|Download(?:ing|ed)|Fetch(?:ing|ed)|Collecting|Using cached|Unpacking|Setting up|"
    r"Preparing to unpack|Selecting previously|Get:\d|Hit:\d|Reading package|Installing|Creat(?:ing|ed)|Cloning|"
    r"Copying|Listing|Extracting|Pulling|(?:remote: )?(?:Receiving|Counting|Compressing|Enumerating) objects|"
    r"Resolving deltas|Adding|Requirement already|create mode |npm (?:http|notice|timing)|\[ *\d{1,3}%\]|"
    r"\[\d{1,6}/\d{1,6}\]"
)
_WRONG = r"(?!.{0,200}(?:error|fail|warn))"
_COUNTS = r"(?!.{0,300}\b\d{1,9} (?:passed|failed))"
_NOISE = re.compile(rf"{_COUNTS}[ \t]{{0,20}}(?:{_PASSED}|(?:{_PROGRESS}){_WRONG})", re.I)
"""A passed test, or a step of progress; no counts of tests, and no verdict."""
_SHARE_OF_NOISE = 0.3
"""So many of the lines that say something tell nothing, at least."""


def _noise(source: Source) -> list[bool]:
    return [bool(_NOISE.match(line)) for line in source.searchable]


def _without(noise: Sequence[bool], source: Source, worths: Sequence[int]) -> str:
    worths = [NEVER if goes else worth for goes, worth in zip(noise, worths, strict=True)]
    return render_lines(source, worths, {i for i in source.errors if not noise[i]}, _WIDER)


def _noisy(source: Source) -> str:
    """Outputs of builds, package managers and tests that pass: all but progress and passed tests."""
    noise, full = _noise(source), sum(not line.isspace() for line in source.searchable)
    return _without(noise, source, [1] * len(noise)) if sum(noise) >= _SHARE_OF_NOISE * full else ""


def _failures(source: Source) -> str:
    """Failures with all that stands behind the first sign of one, but frames of libraries and passed tests."""
    first = first_failure(source.searchable)
    if first is None:
        return ""
    worths = [worth + (worth >= 0 and i >= first) for i, worth in enumerate(failure_worths(source.searchable))]
    return _without(_noise(source), source, worths)


_OTHERS = frozenset[ToolKind]({"file", "search", "listing", "web", "data"})
_OF_COMMANDS: Sequence[Form] = ((_failures, frozenset({"file"})), (_noisy, _OTHERS))
_AT_FIRST_SIGHT = [form for each in FORMS for form in (_OF_COMMANDS if each[0] is failure_digest else (each,))]
"""The forms of outputs, in the order in which they are looked for."""

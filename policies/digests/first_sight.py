"""Excerpts of outputs that the model has not seen yet: what the kind of output says matters stays.

An excerpt in the place of the first sight has no second chance, so first of all goes what tells nothing: passed tests,
progress, frames of libraries, findings of one rule, columns of listings. Where much of a text matters, much of it
stays; where an excerpt would hide too little to be worth it, or the output is read as a whole, the text stays.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from policies.digests import FORMS, Form, digested
from policies.digests.rows import NEVER, Source, failure_digest, failure_worths, first_failure, log_digest, render_lines
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


# --- what a line of a command's output tells: a passed test, a step of progress, the end of it ---

_NOISE = re.compile(
    r"[ \t]{0,20}(?:[✓✔√] |PASS(?:ED)?\b|ok\b|--- PASS|=== (?:RUN|PAUSE|CONT)|(?:test )?[^\n]{1,200} "
    r"(?:PASSED|\.\.\. ok)\b"
    r"|[\w./-]{1,200} [.sx]{2,200}(?: +\[ *\d{1,3}%\])?$"
    r"|(?:Compiling|Compiled|Checking|Download(?:ing|ed)|Fetching|Fetched|Collecting|Using cached|Unpacking|Setting up"
    r"|Preparing to unpack|Selecting previously|Get:\d|Hit:\d|Reading package|Installing|Creating|Created|Cloning"
    r"|Copying|Listing|Extracting|Pulling|Receiving objects|Resolving deltas|Counting objects|Compressing objects"
    r"|Adding|added|Requirement already|remote: |hint: |create mode |npm (?:http|notice|timing)"
    r"|\[ *\d{1,3}%\]|\[\d{1,6}/\d{1,6}\])"
    r"(?!.{0,200}(?:error|fail|warn)))",
    re.I,
)
_SHARE_OF_NOISE = 0.3


def _noise(lines: Sequence[str]) -> list[bool]:
    return [bool(_NOISE.match(line)) for line in lines]


def _noisy(source: Source) -> str:
    """Outputs of builds, package managers and tests that pass: all but progress and passed tests."""
    noise = _noise(source.searchable)
    if sum(noise) < _SHARE_OF_NOISE * len(noise):
        return ""
    errors = {i for i in source.errors if not noise[i]}
    return render_lines(source, [NEVER if each else 1 for each in noise], errors, _WIDER)


_HEADING = re.compile(r"[-=_]{3,80} [^\n]{1,300} [-=_]{3,80}$")
_CAPTURED = re.compile(r"-{3,80} Captured ")


def _failures(source: Source) -> str:
    """Failures with all that stands behind the first sign of one, but frames of libraries and passed tests."""
    lines = source.searchable
    first = first_failure(lines)
    if first is None:
        return ""
    noise, worths, around = _noise(lines), failure_worths(lines), 0
    for i, line in enumerate(lines):
        if noise[i]:
            worths[i] = NEVER
        elif i == first or _HEADING.match(line):
            around = 0 if _CAPTURED.match(line) else 1
        if worths[i] >= 0 and i >= first:
            worths[i] += around
    return render_lines(source, worths, {i for i in source.errors if not noise[i]}, _WIDER)


# --- commits, and findings of compilers and linters ---

_COMMIT = re.compile(r"commit [0-9a-f]{7,40}\b")
_FEWEST = 3


def _commits(source: Source) -> str:
    """Of each commit its name and its subject."""
    lines = source.searchable
    if sum(bool(_COMMIT.match(line)) for line in lines) < _FEWEST:
        return ""
    worths, subject = list[int](), False
    for line in lines:
        if _COMMIT.match(line):
            subject = True
            worths.append(2)
        elif subject and line.startswith("    ") and line.strip():
            subject = False
            worths.append(2)
        else:
            worths.append(-1)
    return render_lines(source, worths, set(), _WIDER)


_FINDING = re.compile(r"(?:[A-Za-z]:)?[\w./\\@\[\]+-]{1,250}[:(]\d{1,7}[:,]\d{1,5}\)?")
_RULE = re.compile(r"\d+|'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|`[^`\n]{0,200}`")
_OF_ONE_RULE = 3
"""So many findings of a rule are shown with the lines around them."""


def _findings(source: Source) -> str:
    """Findings with what stands around them; of those that say the same, all but the first with their line alone."""
    lines = source.searchable
    starts = [i for i, line in enumerate(lines) if _FINDING.match(line)]
    if len(starts) < _FEWEST or len(starts) > len(lines) // 2:  # one line each: they are grouped by file
        return ""
    worths, often = [0] * len(lines), Counter[str]()
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        message = next((line for line in lines[start + 1 : end] if line.strip()), "")
        rule = _RULE.sub("#", _FINDING.sub("", lines[start]) + message)
        often[rule] += 1
        worth = 2 if often[rule] <= _OF_ONE_RULE else -1
        worths[start:end] = [3, *[worth] * (end - start - 1)]
    return render_lines(source, worths, set(source.errors), _WIDER)


_OTHERS = frozenset[ToolKind]({"file", "search", "listing", "web", "data"})
_INSTEAD: Mapping[object, Sequence[Form]] = {
    failure_digest: ((_failures, frozenset({"file"})), (_commits, _OTHERS), (_findings, _OTHERS)),
    log_digest: ((_noisy, _OTHERS), (log_digest, frozenset())),
}
_AT_FIRST_SIGHT = tuple(form for each in FORMS for form in _INSTEAD.get(each[0], (each,)))
"""The forms of outputs, in the order in which they are looked for."""

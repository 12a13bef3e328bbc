"""Rows: what a digest may show of a text, in the order of the text, and the choice among them; and the forms whose rows
are lines: diffs, failures and logs.

Laws: a row is a line of the text, or a text in the place of lines; what is not chosen is counted in characters of the
text; errors come first, however many other rows are worth more.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from policies.text.excerpt import (
    DEFINES,
    Cost,
    choose_lines,
    ends,
    error_lines,
    identifiers_present,
    join_lines,
    line_cost,
    mention_counts,
    readable,
)
from policies.tools import HEAD, ToolKind

_END = 32_000
"""Of a text of more than twice as many characters, so many at either end are searched, and as many beyond."""
_MOST_LINES = 2_000
_MOST_ERRORS_BETWEEN = 100
NEVER = -3
"""The worth of a row that tells nothing: it goes, unless it holds a mentioned identifier."""
_MARKS = 40
"""Tokens for the marks of some gaps."""
NO_COUNTS = r"(?!.{0,300}\b\d{1,9} (?:passed|failed))"
PASSED = re.compile(
    r"(?=[ \t]{0,20}(?:[✓✔√] |(?-i:PASS(?:ED)?:?|ok)[ \t]+\S|--- PASS|=== (?:RUN|PAUSE|CONT)|"
    r"[^\n]{1,200} (?:(?-i:PASSED)|\.\.\. ok)(?=[ \t]*(?:$|[\[(]|\S+$))|"
    rf"[\w./-]{{1,200}} [.sx]{{2,200}}(?: +\[ *\d{{1,3}}%\])?$)){NO_COUNTS}",
    re.I | re.M,
)
"""A passed test, whatever its name says; no counts of tests."""
T = TypeVar("T")


@dataclass(frozen=True)  # without slots: it caches its lines
class Source:
    text: str
    kind: ToolKind
    budget: int
    mentioned: frozenset[str]
    cost: Cost

    @cached_property
    def lines(self) -> list[str]:
        """Its lines with their ends; of a long text's middle, only those with errors or the exit status."""
        text = self.text
        if len(text) <= 2 * _END:
            lines = text.splitlines(keepends=True)
            if len(lines) <= 2 * _MOST_LINES:
                return lines
            first, last = lines[:_MOST_LINES], lines[-_MOST_LINES:]
        else:
            first = text[: text.rfind("\n", 0, _END) + 1 or _END].splitlines(keepends=True)[:_MOST_LINES]
            last = text[text.find("\n", len(text) - _END) + 1 or len(text) - _END :].splitlines(keepends=True)[
                -_MOST_LINES:
            ]
        between = _between(text, sum(map(len, first)), len(text) - sum(map(len, last)))
        return [*first, *filter(None, between), *last]

    @cached_property
    def searchable(self) -> list[str]:
        """Its lines with empty ones in the place of those too long to be searched."""
        return [line if "\n" not in line[:-1] else "\n" for line in readable(self.lines)]

    @cached_property
    def errors(self) -> frozenset[int]:
        """The lines that tell what went wrong, or of the exit status."""
        lines = self.searchable
        return frozenset(i for i in error_lines(lines) if not PASSED.match(lines[i]))

    @cached_property
    def mention_counts(self) -> Mapping[int, int]:
        """How many of the mentioned identifiers its lines hold, for lines that hold any."""
        return mention_counts(self.searchable, identifiers_present(self.searchable, self.mentioned))


class Row(NamedTuple):
    """A row, with its line end. Those worth more are chosen first; worth 0, from both ends inwards; less, last."""

    text: str
    size: int
    """How many characters of the text it replaces."""
    worth: int = 0
    wrong: bool = False
    """True where it tells of an error, or of the exit status."""


def render(rows: Sequence[Row], source: Source, budget: int | None = None) -> str:
    lines = [row.text for row in rows]
    searchable = readable(lines)
    score = [row.worth for row in rows]
    for i, times in mention_counts(searchable, identifiers_present(searchable, source.mentioned)).items():
        score[i] += 4 * times + bool(DEFINES.match(lines[i]))
    order = sorted(range(len(rows)), key=score.__getitem__, reverse=True)
    orders = (
        [i for i in order if rows[i].wrong],
        [i for i in order if score[i] > 0],
        [i for i in ends(len(rows), HEAD[source.kind]) if score[i] == 0],
        [i for i in order if NEVER < score[i] < 0],
    )
    wrong = [i for i, row in enumerate(rows) if row.wrong]
    chosen = choose_lines(lines, wrong, orders, source.budget if budget is None else budget, source.cost)
    return join_lines(lines, chosen, [row.size for row in rows]) if chosen else ""


def render_lines(source: Source, worths: Iterable[int], errors: Set[int], wider: float = 1.0) -> str:
    """As `render`, of the unchanged lines of the text; a line that repeats one above, even an error, comes last. Lines
    with errors, and those worth more than 0, may take up to `wider` times the budget."""
    rows, above = list[Row](), set[str]()
    for i, (line, worth) in enumerate(zip(source.lines, worths, strict=True)):
        again = line in above and len(line) > 20
        rows.append(Row(line, len(line), -2 if again else worth, i in errors and not again))
        above.add(line)
    needed = sum(line_cost(row.text, source.cost) for row in rows if row.wrong or row.worth > 0) if wider > 1.0 else 0
    return render(rows, source, max(source.budget, min(needed + _MARKS, int(wider * source.budget))))


def few_others(entries: Iterable[T], most: float) -> list[T]:
    """The entries of all lines; none where more than `most` are None, the rest then unread."""
    read = list[T]()
    for entry in entries:
        read.append(entry)
        most -= entry is None
        if most < 0:
            return []
    return read


def _between(text: str, start: int, end: int) -> Iterator[str]:
    """The middle of a text: lines that tell of an error, and the text between them in one piece."""
    front = text.rfind("\n", start, start + _END) + 1 or start
    back = max(front, text.find("\n", max(start, end - _END), end) + 1 or end)
    near, far = (text[part].splitlines(keepends=True) for part in (slice(start, front), slice(back, end)))
    lines = [*near, text[front:back], *far]
    at = 0
    errors = error_lines(readable(lines))
    for i in [*errors[:_MOST_ERRORS_BETWEEN], *errors[_MOST_ERRORS_BETWEEN:][-_MOST_ERRORS_BETWEEN:]]:
        yield "".join(lines[at:i])
        yield lines[i]
        at = i + 1
    yield "".join(lines[at:])


# --- unified diffs: which files, which hunks, what changed; then the unchanged lines around ---

_HUNK = re.compile(r"@@ -\d{1,9}(?:,\d{1,9})? \+\d{1,9}(?:,\d{1,9})? @@")
_FILE_HEADS = ("+++ ", "rename ", "new file", "deleted file", "Binary files")


def diff_digest(source: Source) -> str:
    """The headers and changed lines first; "" where the text holds no hunk. Words in a hunk are code, not errors of
    this run. Unchanged lines around the changes come last."""
    lines = source.searchable if "@@ -" in source.text else ()
    if not any(map(_HUNK.match, lines)):
        return ""
    worths, errors = list[int](), set(source.errors)
    in_hunk = False
    for i, line in enumerate(lines):
        in_hunk = in_hunk and line[:1] in (" ", "+", "-", "\\", "\n")
        head = bool(_HUNK.match(line))
        if in_hunk and not head and not line.startswith(_FILE_HEADS):
            errors.discard(i)
            worths.append(1 if line[0] in "+-" and line[1:200].strip() else -1)
        else:
            deleted = line.startswith("--- ") and i + 1 < len(lines) and lines[i + 1].startswith("+++ /dev/null")
            worths.append(4 if deleted or head or line.startswith(_FILE_HEADS) else 0)
        in_hunk = in_hunk or head
    return render_lines(source, worths, errors)


# --- tracebacks and failed tests: the errors, their places in the user's own files, the summary of the run ---

_LOOK = re.compile(
    r"^[ \t]{0,40}(?:Traceback \(most recent call last\)|--- FAIL: |goroutine \d{1,9} \[|"
    r"at [\w$.<>/ ]{1,200}\([^()\n]{1,300}:\d{1,9}(?::\d{1,9})?\)$|at (?:file:|/|node:)[^\n]{1,300}:\d{1,9}:\d{1,9}$)|"
    r"^={3,80} (?:FAILURES|ERRORS) ={3,80}$|^thread '[^'\n]{0,200}' (?:\(\d{1,20}\) )?panicked at |"
    r"^E {3}[ \t]{0,20}\S|^={20,80}\n(?:FAIL|ERROR): ",
    re.M,
)
_TELLING = ("Traceback", "--- FAIL", "goroutine", "at ", "===", "thread '", "E   ")
_STACK_FRAME = re.compile(
    r"^[ \t]{0,40}(?:File \"[^\"\n]{1,400}\", line \d|at [^\n]{1,400}:\d{1,9}(?::\d{1,9})?\)?$|"
    r"[\w./~@+-]{1,300}:\d{1,9}(?::\d{1,9})?(?:$|: ?\S| \+0x)|\d{1,4}: +(?:0x[0-9a-f]{1,16} - )?[\w<])"
)
_FOREIGN = re.compile(
    r"site-packages|dist-packages|/lib/python\d|<frozen |node_modules|\(?node:|/rustc/|/\.cargo/|/go/pkg/mod/|"
    r"/usr/(?:local/)?(?:go|lib)/|\bat (?:java|javax|jdk|sun|org\.junit|org\.gradle|org\.apache)\.|"
    r"\b(?:std|core)::|unittest/|/_pytest/"
)
_WORTHS: Sequence[tuple[int, re.Pattern[str]]] = (
    (6, re.compile(r"={3,80} [^\n]{0,200}(?:passed|failed|error)|FAILED \(|Ran \d|Tests?:? +\d|test result:|FAIL\t")),
    (4, re.compile(r"(?:E {3}[ \t]{0,8})?(?:[\w.]{0,80}(?:Error|Exception)\b|assert )|Caused by: |>  ")),
    (3, re.compile(r"(?:FAIL|ERROR|FAILED|PASSED|XPASS)\b|_{3,80} |--- FAIL|\w{1,80}Warning\b")),
    (1, re.compile(r"E {3}")),
)
"""The worth of lines: the summary of the run, errors, names of tests, other lines of a failure."""


def first_failure(lines: Sequence[str]) -> int | None:
    """The line at which the first failure begins."""
    pairs = enumerate(zip(lines, [*lines[1:], ""], strict=True))
    looks = (i for i, (line, below) in pairs if line.lstrip(" \t").startswith(_TELLING) and _LOOK.match(line + below))
    return next(looks, None)


def failure_digest(source: Source) -> str:
    lines = source.searchable
    return "" if first_failure(lines) is None else render_lines(source, failure_worths(lines), source.errors)


def failure_worths(lines: Sequence[str]) -> list[int]:
    worths: list[int] = []
    below = 0  # the line of code below a frame belongs to it
    for line in lines:
        if (":" in line or 'File "' in line) and _STACK_FRAME.match(line):
            foreign = bool(_FOREIGN.search(line))
            worths.append(-1 if foreign else 2)
            below = -1 if foreign else 1
        elif below and line.startswith((" ", "\t")):
            worths.append(below)
            below = 0
        else:
            worths.append(0 if line[0].isspace() else next((worth for worth, words in _WORTHS if words.match(line)), 0))
            below = 0
    return worths


# --- logs and progress: each form of line once, with a count; errors and warnings unchanged ---

_VARIES = re.compile(
    r"(?<![\w.~-])[\w.~-]{0,80}(?:/[\w.~@+-]{0,80}){1,30}|\b0x[0-9a-f]{1,40}|\b(?=[a-f]{0,64}\d)[0-9a-f]{7,64}\b|\d+|"
    r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"",
    re.I,
)
_VARIES_WITHOUT_PATHS = re.compile(_VARIES.pattern.partition("|")[2], re.I)
_DATED = re.compile(
    r"^\W{0,3}(?:\d{4}-\d\d-\d\d|\d\d/\d\d/\d{2,4}|\d\d:\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:|"
    r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\b|\[\d{1,6}/\d{1,6}\]|\[ *\d{1,3}%\])"
)
WARNS = re.compile(r"\b(?:warn(?:ing)?s?|critical|deprecated)\b", re.I)
_LEAST = 8


def log_digest(source: Source) -> str:
    """Each form of line once; "" where the lines have many forms."""
    full = sum(1 for line in source.searchable if line.strip())
    dated = sum(1 for line in source.searchable if _DATED.match(line))
    if full < _LEAST or (source.kind == "file" and 2 * dated < full):
        return ""
    forms, different, most = list[str](), {""}, 1 + (0.8 if 2 * dated > full else 0.6) * full
    for line in source.searchable:
        forms.append((_VARIES if "/" in line else _VARIES_WITHOUT_PATHS).sub("#", line.strip()))
        different.add(forms[-1])
        if len(different) > most:
            return ""
    # Errors and warnings are only merged with the very same line. The last line is its own row, and so is a line that
    # mentions more than the first of its form.
    mentions = source.mention_counts
    first: dict[str, int] = {}
    groups: dict[int, list[int]] = {}
    for i, (line, short, form) in enumerate(zip(source.lines, source.searchable, forms, strict=True)):
        words = f"\n{line}" if i in source.errors or WARNS.search(short) else form
        at = first.setdefault(words, i)
        alone = not form or line != short or i == len(forms) - 1 or mentions.get(i, 0) > mentions.get(at, 0)
        groups.setdefault(i if alone else at, []).append(i)
    rows, seen = list[Row](), {""}
    for i, same in groups.items():
        line, fresh = source.lines[i], forms[i] not in seen
        seen.add(forms[i])
        text = f"{line.rstrip()} [x {len(same)}]\n" if len(same) > 1 else line
        worth = 2 * bool(WARNS.search(source.searchable[i])) + fresh
        rows.append(Row(text, sum(len(source.lines[j]) for j in same), worth or -1, i in source.errors))
    return render(rows, source)

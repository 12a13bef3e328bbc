"""Logs and progress: each form of line once, with how many there were; errors and warnings as they stand.

Two lines are alike where they differ in numbers, ids, times, paths and quoted words only.
"""

import re
from collections.abc import Iterator, Sequence

from policies.digests.rows import Row, Source, render

_VARIES = re.compile(
    r"(?<![\w.~-])[\w.~-]{0,80}(?:/[\w.~@+-]{0,80}){1,30}|\b0x[0-9a-f]{1,40}|\b(?=[a-f]{0,64}\d)[0-9a-f]{7,64}\b|\d+|"
    r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"",
    re.I,
)
_PLAIN = re.compile(_VARIES.pattern.partition("|")[2], re.I)
"""As that, for lines without a path."""
_DATED = re.compile(
    r"^\W{0,3}(?:\d{4}-\d\d-\d\d|\d\d/\d\d/\d{2,4}|\d\d:\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:|"
    r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\b|\[\d{1,6}/\d{1,6}\]|\[ *\d{1,3}%\])"
)
_WARNS = re.compile(r"\b(?:warn(?:ing)?|critical|deprecated|denied|refused|timed? ?out|not found)\b", re.I)
_LEAST = 8


def merged(source: Source) -> str:
    """Each form of line once; "" where the lines are not of few forms."""
    forms = list(map(_form, source.seen))
    full = [form for form in forms if form]
    dated = sum(1 for line in source.seen if _DATED.match(line))
    if len(full) < _LEAST or len(set(full)) > (0.8 if 2 * dated > len(full) else 0.6) * len(full):
        return ""
    if source.kind == "file" and 2 * dated < len(full):
        return ""
    return render(list(_rows(source, forms)), source)


def _form(line: str) -> str:
    """What a line has in common with those like it."""
    return (_VARIES if "/" in line else _PLAIN).sub("#", line.strip())


def _rows(source: Source, forms: Sequence[str]) -> Iterator[Row]:
    """A row for each form of line, and one for each line that is to stand for itself."""
    alike, wrong = _alike(source, forms), source.wrong
    first = {form: i for i, form in reversed(list(enumerate(forms)))}
    for i, line in enumerate(source.lines):
        same = alike.get(i)
        if same is None:
            continue
        size = sum(len(source.lines[j]) for j in same)
        text = f"{line.rstrip()} [x {len(same)}]\n" if len(same) > 1 else line
        fresh = bool(forms[i]) and first[forms[i]] == i
        worth = 2 * bool(_WARNS.search(source.seen[i])) + fresh
        yield Row(text, size, worth if fresh or worth else -1, i in wrong)


def _alike(source: Source, forms: Sequence[str]) -> dict[int, list[int]]:
    """The lines that each row stands for, by the first of them. Errors and warnings stand for their very words only;
    the last line stands alone, and what is mentioned where the first of its form does not mention it."""
    said = source.mention_counts
    first: dict[str, int] = {}
    groups: dict[int, list[int]] = {}
    for i, (line, seen, form) in enumerate(zip(source.lines, source.seen, forms, strict=True)):
        words = f"\n{line}" if i in source.wrong or _WARNS.search(seen) else form
        at = first.setdefault(words, i)
        alone = not form or line != seen or i == len(forms) - 1 or said.get(i, 0) > said.get(at, 0)
        groups.setdefault(i if alone else at, []).append(i)
    return groups

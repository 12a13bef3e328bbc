"""Logs and progress: each form of line once, with a count; errors and warnings unchanged.

Two lines have the same form where they differ in numbers, ids, times, paths and quoted words only.
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
"""The same for lines without a path."""
_DATED = re.compile(
    r"^\W{0,3}(?:\d{4}-\d\d-\d\d|\d\d/\d\d/\d{2,4}|\d\d:\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:|"
    r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\b|\[\d{1,6}/\d{1,6}\]|\[ *\d{1,3}%\])"
)
_WARNS = re.compile(r"\b(?:warn(?:ing)?|critical|deprecated|denied|refused|timed? ?out|not found)\b", re.I)
_LEAST = 8


def log_digest(source: Source) -> str:
    """Each form of line once; "" where the lines have many forms."""
    forms = [(_VARIES if "/" in line else _PLAIN).sub("#", line.strip()) for line in source.searchable]
    full = [form for form in forms if form]
    dated = sum(1 for line in source.searchable if _DATED.match(line))
    if len(full) < _LEAST or len(set(full)) > (0.8 if 2 * dated > len(full) else 0.6) * len(full):
        return ""
    if source.kind == "file" and 2 * dated < len(full):
        return ""
    return render(list(_rows(source, forms)), source)


def _rows(source: Source, forms: Sequence[str]) -> Iterator[Row]:
    """A row for each form of line, and one for each line that is to stand for itself."""
    alike, errors = _alike(source, forms), source.errors
    first = {form: i for i, form in reversed(list(enumerate(forms)))}
    for i, line in enumerate(source.lines):
        same = alike.get(i)
        if same is None:
            continue
        size = sum(len(source.lines[j]) for j in same)
        text = f"{line.rstrip()} [x {len(same)}]\n" if len(same) > 1 else line
        fresh = bool(forms[i]) and first[forms[i]] == i
        worth = 2 * bool(_WARNS.search(source.searchable[i])) + fresh
        yield Row(text, size, worth if fresh or worth else -1, i in errors)


def _alike(source: Source, forms: Sequence[str]) -> dict[int, list[int]]:
    """The lines that each row replaces, by the first of them. Errors and warnings are only merged with the very same
    line. The last line is its own row, and so is a line that mentions more than the first of its form."""
    mentions = source.mention_counts
    first: dict[str, int] = {}
    groups: dict[int, list[int]] = {}
    for i, (line, short, form) in enumerate(zip(source.lines, source.searchable, forms, strict=True)):
        words = f"\n{line}" if i in source.errors or _WARNS.search(short) else form
        at = first.setdefault(words, i)
        alone = not form or line != short or i == len(forms) - 1 or mentions.get(i, 0) > mentions.get(at, 0)
        groups.setdefault(i if alone else at, []).append(i)
    return groups

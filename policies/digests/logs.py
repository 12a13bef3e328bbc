"""Logs and progress: each form of line once, with a count; errors and warnings unchanged.

Two lines have the same form where they differ in numbers, ids, times, paths and quoted words only.
"""

import re

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
    full = sum(1 for line in source.searchable if line.strip())
    dated = sum(1 for line in source.searchable if _DATED.match(line))
    if full < _LEAST or (source.kind == "file" and 2 * dated < full):
        return ""
    forms, different, most = list[str](), {""}, 1 + (0.8 if 2 * dated > full else 0.6) * full
    for line in source.searchable:
        forms.append((_VARIES if "/" in line else _PLAIN).sub("#", line.strip()))
        different.add(forms[-1])
        if len(different) > most:
            return ""
    # Errors and warnings are only merged with the very same line. The last line is its own row, and so is a line that
    # mentions more than the first of its form.
    mentions = source.mention_counts
    first: dict[str, int] = {}
    groups: dict[int, list[int]] = {}
    for i, (line, short, form) in enumerate(zip(source.lines, source.searchable, forms, strict=True)):
        words = f"\n{line}" if i in source.errors or _WARNS.search(short) else form
        at = first.setdefault(words, i)
        alone = not form or line != short or i == len(forms) - 1 or mentions.get(i, 0) > mentions.get(at, 0)
        groups.setdefault(i if alone else at, []).append(i)
    rows, seen = list[Row](), {""}
    for i, same in groups.items():
        line, fresh = source.lines[i], forms[i] not in seen
        seen.add(forms[i])
        text = f"{line.rstrip()} [x {len(same)}]\n" if len(same) > 1 else line
        worth = 2 * bool(_WARNS.search(source.searchable[i])) + fresh
        rows.append(Row(text, sum(len(source.lines[j]) for j in same), worth or -1, i in source.errors))
    return render(rows, source)

"""Unified diffs: which files, which hunks, what changed; then the unchanged lines around."""

import re
from collections.abc import Iterator, Sequence

from policies.digests.rows import Source, render_lines

_HUNK = re.compile(r"@@ -\d{1,9}(?:,\d{1,9})? \+\d{1,9}(?:,\d{1,9})? @@")
_FILE = ("+++ ", "rename ", "new file", "deleted file", "Binary files")
_WIDE = 200
_NAMED = ("diff ", "--- ", "index ")


def diff_digest(source: Source) -> str:
    """The headers and changed lines first; "" where the text holds no hunk. Words in a hunk are code, not errors of
    this run."""
    lines = source.searchable
    if not any(map(_is_hunk_head, lines)):
        return ""
    inside = list(_inside(lines))
    worths = [_worth(*each) for each in zip(lines, inside, [*lines[1:], ""], strict=True)]
    return render_lines(source, worths, {i for i in source.errors if not inside[i]})


def _inside(lines: Sequence[str]) -> Iterator[bool]:
    """Whether each line stands in a hunk."""
    inside = False
    for line in lines:
        inside = not line.startswith(_NAMED[0]) and inside
        begins = _is_hunk_head(line)
        yield inside and not begins and not line.startswith(_FILE)
        inside = begins or (inside and line[:1] in (" ", "+", "-", "\\", "\n"))


def _is_hunk_head(line: str) -> bool:
    return line.startswith("@@ -") and bool(_HUNK.match(line))


def _worth(line: str, inside: bool, below: str) -> int:
    """Paths of files and heads of hunks come first, then changed lines; unchanged lines around them come last."""
    if not inside:
        deleted = line.startswith("--- ") and below.startswith("+++ /dev/null")
        return 4 if deleted or line.startswith(_FILE) or _is_hunk_head(line) else 0
    return 1 if line[0] in "+-" and line[1:_WIDE].strip() else -1

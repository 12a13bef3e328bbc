"""Unified diffs: which files, which hunks, what changed; then what stands around it."""

import re
from collections.abc import Iterator, Sequence

from policies.digests.rows import Source, as_rows, render

_HUNK = re.compile(r"@@ -\d{1,9}(?:,\d{1,9})? \+\d{1,9}(?:,\d{1,9})? @@")
_FILE = ("+++ ", "rename ", "new file", "deleted file", "Binary files")
_WIDE = 200
_NAMED = ("diff ", "--- ", "index ")


def changed(source: Source) -> str:
    """The headers and changed lines first; "" where the text holds no hunk. What stands in a hunk is code, and no error
    of this run."""
    if not any(map(_heads, source.seen)):
        return ""
    inside = list(_inside(source.seen))
    nexts = [*source.seen[1:], ""]
    worths = [_worth(*of) for of in zip(source.seen, inside, nexts, strict=True)]
    wrong = {i for i in source.wrong if not inside[i]}
    return render(list(as_rows(source, worths, wrong)), source)


def _inside(lines: Sequence[str]) -> Iterator[bool]:
    """Whether each line stands in a hunk."""
    inside = False
    for line in lines:
        inside = not line.startswith(_NAMED[0]) and inside
        heads = _heads(line)
        yield inside and not heads and not line.startswith(_FILE)
        inside = heads or (inside and line[:1] in (" ", "+", "-", "\\", "\n"))


def _heads(line: str) -> bool:
    """Whether a hunk begins."""
    return line.startswith("@@ -") and bool(_HUNK.match(line))


def _worth(line: str, inside: bool, below: str) -> int:
    """The path of a file and the head of a hunk, then what changed; what stands around it comes last."""
    if not inside:
        deleted = line.startswith("--- ") and below.startswith("+++ /dev/null")
        return 4 if deleted or line.startswith(_FILE) or _heads(line) else 0
    return 1 if line[0] in "+-" and line[1:_WIDE].strip() else -1

"""Unified diffs: which files, which hunks, what changed; then the unchanged lines around."""

import re

from policies.digests.rows import Source, render_lines

_HUNK = re.compile(r"@@ -\d{1,9}(?:,\d{1,9})? \+\d{1,9}(?:,\d{1,9})? @@")
_FILE = ("+++ ", "rename ", "new file", "deleted file", "Binary files")


def diff_digest(source: Source) -> str:
    """The headers and changed lines first; "" where the text holds no hunk. Words in a hunk are code, not errors of
    this run. Unchanged lines around the changes come last."""
    lines = source.searchable if "@@ -" in source.text else ()
    if not any(map(_is_hunk_head, lines)):
        return ""
    worths, errors = list[int](), set(source.errors)
    in_hunk = False
    for i, line in enumerate(lines):
        in_hunk = in_hunk and not line.startswith("diff ")
        head = _is_hunk_head(line)
        if in_hunk and not head and not line.startswith(_FILE):
            errors.discard(i)
            worths.append(1 if line[0] in "+-" and line[1:200].strip() else -1)
        else:
            deleted = line.startswith("--- ") and i + 1 < len(lines) and lines[i + 1].startswith("+++ /dev/null")
            worths.append(4 if deleted or head or line.startswith(_FILE) else 0)
        in_hunk = head or (in_hunk and line[:1] in (" ", "+", "-", "\\", "\n"))
    return render_lines(source, worths, errors)


def _is_hunk_head(line: str) -> bool:
    return line.startswith("@@ -") and bool(_HUNK.match(line))

"""The effects of calls on files, from their arguments and from what was read of these files before: for people.

Laws
  Only what arguments and outputs say is here. What a shell or a program changed cannot be seen; such calls are counted.
  The text of a file counts only as far as a call wrote all of it, or an edit of it fits.
  Linear in what is looked at. Texts of files are followed up to a bound; beyond it a change is shown by itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from functools import partial
from typing import Literal

from policies.tools import shell
from policies.tools.arguments import CHANGES, CONTENT, OLD, RANGES, CallArguments, call_of, spelled
from policies.tools.calls import rewrites, writes
from policies.tools.kinds import word_set

_NEW = word_set("inserttext newstring newstr newtext newcontent newsource replace replacement replacementtext")
_SEARCHED = OLD | word_set("search find target targetcontent")
_DIFFS = word_set("diff patch patchtext")
_SECTION = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.{1,1000})$", re.M)
_LINE_NUMBER = re.compile(r"[ ]{0,9}(\d{1,7})(?:\t|\u2192|[|:] ?)")
_Known = Literal["all", "read", "part", "nothing"]
_MOST_LINES = 400
"""Lines that are compared one by one: the time for that grows with their square."""
_MOST_FOLLOWED = 50_000_000
"""Characters of files that are looked at to say what edits make of them, all calls together."""
_CONTEXT_LINES = 3
_HUNK = re.compile(r"\A@@ -(\d+)((?:,\d+)?) \+(\d+)((?:,\d+)?) @@")


@dataclass(frozen=True, slots=True)
class ToolCall:
    message: int
    tool: str
    arguments: str
    output: str = ""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change of one call to a file. `knows` of the file before: all, what a call had read, the part, or nothing."""

    path: str
    message: int
    tool: str
    kind: Literal["write", "edit", "patch"]
    knows: _Known
    diff: str
    answer: str
    """The first line that the tool returned: it may say that nothing was changed."""


@dataclass(slots=True)
class _Files:
    texts: dict[str, tuple[str, _Known]] = field(default_factory=dict)
    followed: int = 0

    def text(self, path: str, edits: int) -> tuple[str | None, _Known]:
        """The text of a file before so many edits of one call; none where that would be too much."""
        text, knows = self.texts.get(path, ("", "nothing"))
        self.followed += len(text) * (1 + edits)
        return (text, knows) if knows != "nothing" and self.followed <= _MOST_FOLLOWED else (None, "nothing")


def changes_of(calls: Iterable[ToolCall]) -> tuple[list[FileChange], list[ToolCall]]:
    files = _Files()
    changes: list[FileChange] = []
    unseen: list[ToolCall] = []
    for each in calls:
        call = call_of(each.arguments)
        rows = [] if call.command or call.shows else [*_changes(each, call, files)]
        changes += rows
        if not rows and call.reads_file and not call.changes and not call.has(RANGES):
            files.texts[call.path] = _unnumbered(each.output), "read"
        elif not rows and (call.command or writes(each.tool, each.arguments)):
            unseen.append(each)
            files.texts.clear()  # whatever it was, it may have changed any file
    return changes, unseen


def _changes(each: ToolCall, call: CallArguments, files: _Files) -> Iterator[FileChange]:
    """The changes of one call, after which `files` hold what is in them, as far as that is known."""
    answer, path = each.output.lstrip()[:200].partition("\n")[0], call.path
    change = partial(FileChange, message=each.message, tool=each.tool, answer=answer)
    patch = _patch(call)
    for name, text in _hunks_by_file(patch, path) if patch else ():
        files.texts.pop(name, None)
        yield change(name, kind="patch", knows="part", diff=text if text.endswith("\n") else f"{text}\n")
    if patch or not path:
        return
    edits = [*_edits(call)]
    before, knows = files.text(path, len(edits))
    after = before if edits else None
    for old, new in edits:
        after = after.replace(old, new, 1) if after is not None and old and old in after else None
    if after is not None and before is not None:
        files.texts[path] = after, knows
        yield change(path, kind="edit", knows=knows, diff=_diff(path, before, after))
    elif edits:
        files.texts.pop(path, None)
        yield change(path, kind="edit", knows="part", diff="".join(_diff(path, old, new) for old, new in edits))
    elif rewrites(each.tool, each.arguments) and (content := _string(call.values, CONTENT | {"text"})) is not None:
        files.texts[path] = content, "all"
        yield change(path, kind="write", knows=knows, diff=_diff(path, before, content))


def _hunks_by_file(patch: str, path: str) -> Iterator[tuple[str, str]]:
    heads = [*_SECTION.finditer(patch)]
    ends = [*(head.start() for head in heads[1:]), len(patch)]
    for head, end in zip(heads, ends, strict=False):
        yield head[1].strip(), patch[head.start() : end]
    if not heads:
        yield path or shell.patched_in(patch) or "several files", patch


def _unnumbered(text: str) -> str:
    """The text that was read, without the numbers of its lines, where all of them have one."""
    lines = text.splitlines(keepends=True)
    heads = [_LINE_NUMBER.match(line) for line in lines]
    if not lines or any(head is None or int(head[1]) != at for at, head in enumerate(heads, 1)):
        return text
    return "".join(line[head.end() :] for line, head in zip(lines, heads, strict=True) if head)


def _edits(call: CallArguments) -> Iterator[tuple[str, str]]:
    lists = (value for name, value in call.values.items() if name in CHANGES and isinstance(value, list))
    rows: list[Mapping[str, object]] = [call.values]
    rows += [
        {spelled(str(name)): value for name, value in row.items()}
        for values in lists
        for row in values
        if isinstance(row, dict)
    ]
    for row in rows:
        old, new = _string(row, _SEARCHED), _string(row, _NEW)
        if new is not None and (old is not None or "insertline" in row):
            yield old or "", new


def _patch(call: CallArguments) -> str:
    if (diff := _string(call.values, _DIFFS)) is not None:
        return diff
    strings = [value for value in call.values.values() if isinstance(value, str)] if call.values else [call.text]
    return next((text for text in strings if "*** Begin Patch" in text or "\n+++ " in f"\n{text}"), "")


def _string(values: Mapping[str, object], names: frozenset[str]) -> str | None:
    return next((value for name, value in values.items() if name in names and isinstance(value, str)), None)


def _diff(path: str, old: str | None, new: str) -> str:
    """A unified diff; of a file of which nothing is known before all of the new text. What differs is compared line by
    line where it is short, and stands as a whole where it is long."""
    before, after = (old or "").splitlines(keepends=True), new.splitlines(keepends=True)
    names = "/dev/null" if old is None else f"a/{path}", f"b/{path}"
    first = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), None)
    first = min(len(before), len(after)) if first is None else first
    last = 0
    while last < min(len(before), len(after)) - first and before[-1 - last] == after[-1 - last]:
        last += 1
    start, after_it = max(0, first - _CONTEXT_LINES), max(0, last - _CONTEXT_LINES)
    before, after = before[start : len(before) - after_it], after[start : len(after) - after_it]
    if before == after:
        return ""
    if len(before) + len(after) <= _MOST_LINES:
        lines = [*unified_diff(before, after, *names, n=_CONTEXT_LINES)]
        # the heads of hunks, whose lines were counted from `start` on
        moved = (
            _HUNK.sub(lambda m: f"@@ -{int(m[1]) + start}{m[2]} +{int(m[3]) + start}{m[4]} @@", line) for line in lines
        )
        return _ended_lines([*moved])
    here = f"@@ -{start + bool(before)},{len(before)} +{start + bool(after)},{len(after)} @@\n"
    head = [f"--- {names[0]}\n", f"+++ {names[1]}\n", here]
    return _ended_lines([*head, *(f"-{line}" for line in before), *(f"+{line}" for line in after)])


def _ended_lines(lines: Sequence[str]) -> str:
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

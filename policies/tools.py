"""What kind of tool a call went to: by what the call says and how its output looks, with names as a hint.

The kind decides how an output is shortened (the share of its head) and how soon.
"""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

RECALL = "narrows_recall"
"""The name of the one tool that is ours."""

ToolKind = Literal["file", "search", "listing", "command", "data", "web"]

HEAD: Mapping[ToolKind, float] = {
    "file": 0.7,
    "search": 0.5,
    "listing": 0.3,
    "command": 0.6,
    "data": 0.5,
    "web": 0.5,
}
"""The share of a shortened output that comes from its beginning."""

_PROGRAMS: Mapping[ToolKind, frozenset[str]] = {
    "file": frozenset({"cat", "head", "tail", "nl", "sed", "less", "more", "bat", "awk", "view", "type", "gc"}),
    "search": frozenset({"grep", "rg", "ag", "ack", "egrep", "fgrep", "zgrep"}),
    "listing": frozenset({"ls", "find", "fd", "tree", "dir", "du"}),
    "web": frozenset({"curl", "wget", "lynx"}),
    "data": frozenset({"jq", "yq", "gh", "sqlite3", "psql", "nix-search"}),
}
_NAMES: tuple[tuple[ToolKind, re.Pattern[str]], ...] = (
    ("web", re.compile(r"web|browse|fetch|url|http", re.I)),
    ("search", re.compile(r"grep|search|find_text|ripgrep|glob_content", re.I)),
    ("listing", re.compile(r"(^|_)(ls|list|glob|tree|find)(_|$)|list_?dir|directory", re.I)),
    ("file", re.compile(r"read|view|cat|open_?file|notebook", re.I)),
    ("data", re.compile(r"query|sql|json|get_|lookup|details", re.I)),
)
_EDITS = re.compile(r"edit|write|replace|patch|insert|create|append", re.I)
_WRITES = re.compile(
    r"<<-?\s*['\"\\]?\w+|\bsed\s+(-\w+\s+){0,8}-i|\btee\b|\bpatch\b|git apply|apply_patch|"
    r"(?<![0-9&])>{1,2}\s*[\w./~-]+\.\w|"
    r"open\([^)]{0,300}['\"][wa]\+?['\"]|write_text|"
    r"\*\*\* Begin Patch"
)
_SHELL_KEYS = ("command", "cmd", "script", "bash")
_LEAD = re.compile(
    r"^\s*(?:(?:ba|z|da)?sh\s+-l?c\s+|cd\s+\S+\s*(?:&&|;)\s*|[A-Z_]+=\S+\s+|"
    r"(?:sudo|time|command|stdbuf\s+\S+)\s+|set -\w+\s*(?:&&|;|\n)\s*)+"
)
_CODE_LINE = re.compile(r"^[ \t]*\d+[\t:| ]|^(def|class|import|from|func|fn|pub|package|#include)\b", re.M)
_HIT_LINE = re.compile(r"^[\w./-]+:\d+[:-]", re.M)


def arguments_of(text: str) -> Mapping[str, object]:
    """The arguments of a call as a mapping; empty where they are not a JSON object."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def shell_command(arguments: str) -> str:
    """The command line a call runs, or nothing."""
    found = arguments_of(arguments)
    for key in _SHELL_KEYS:
        value = found.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return " ".join(value)
    return ""


def kind_of(tool: str, arguments: str, output: str) -> ToolKind:
    """What kind of output this is."""
    command = shell_command(arguments)
    if command:
        return _kind_of_command(command)
    for kind, names in _NAMES:
        if names.search(tool):
            return kind
    return _kind_by_look(output)


def _kind_of_command(command: str) -> ToolKind:
    bare = _LEAD.sub("", command).replace("git grep", "grep")
    program = re.split(r"[\s|;&]", bare.strip(), maxsplit=1)[0].rsplit("/", 1)[-1]
    for kind, programs in _PROGRAMS.items():
        if program in programs and not _WRITES.search(command):
            return kind
    return "command"


def _kind_by_look(output: str) -> ToolKind:
    start = output[:4000]
    if start.lstrip()[:1] in ("{", "["):
        return "data"
    if len(_HIT_LINE.findall(start)) > 3:
        return "search"
    if len(_CODE_LINE.findall(start)) > 3:
        return "file"
    return "command"


def writes(tool: str, arguments: str) -> bool:
    """Whether a call changes files: an edit, a script that writes, a heredoc."""
    command = shell_command(arguments)
    if command:
        return bool(_WRITES.search(command))
    return bool(_EDITS.search(tool)) or "old_str" in arguments or "*** Begin Patch" in arguments

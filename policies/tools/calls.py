"""What kind of tool a call went to, and what it does to files.

The kind decides how an output is shortened (the share of its head) and how soon.

Laws
  What a person configured counts first, then what the call says (a command line, a path, a pattern, an address), then
  the look of the output, then the schema of the tool. Names are a hint, used where nothing else tells.
  Linear in the arguments and the output, whatever they hold.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType

from policies.tools import shell
from policies.tools.arguments import call_of
from policies.tools.kinds import Kinds, ToolKind, word_set
from policies.tools.look import kind_by_look

_NONE: Kinds = MappingProxyType({})
_REMEMBERED = 16_000
"""Characters of arguments that are read once for all."""
_LONGEST_NAME = 256
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAMES: Mapping[ToolKind, frozenset[str]] = {
    "web": word_set("web webfetch websearch browse browser fetch url http crawl scrape navigate"),
    "search": word_set("grep search ripgrep codesearch"),
    "listing": word_set("ls list glob tree find listdir dir directory"),
    "file": word_set("read readfile view cat open notebook"),
    "data": word_set("query sql json get lookup details"),
    "command": word_set("run exec execute bash shell terminal test lint build"),
}
_CHANGES = word_set("edit write patch multiedit writefile editfile todowrite")
_CHANGES_WHAT_IT_NAMES = word_set("create insert append replace update save delete remove move")
_CHANGES_NO_FILE = word_set("todo todowrite stdin")
_REWRITES = word_set("create write writefile overwrite")


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What is known of the tools of a conversation before they are called."""

    configured: Kinds = field(default_factory=dict)
    """What a person configured, by name or by pattern (`mcp__*`)."""
    schemas: Kinds = field(default_factory=dict)
    """What their definitions say (`kinds_by_schema`)."""

    def kind(self, tool: str, arguments: str, output: str) -> ToolKind:
        """What kind of output this is."""
        return kind_of(tool, arguments, output, self.configured, self.schemas)


def kind_of(tool: str, arguments: str, output: str, said: Kinds = _NONE, schemas: Kinds = _NONE) -> ToolKind:
    """What kind of output this is."""
    if configured := _configured(tool, said):
        return configured
    call = call_of(arguments)
    if call.command:
        return shell.kind_of_command(call.command)
    if call.changes:
        return "file" if kind_by_look(output) == "file" else "command"
    # a file may look like anything: it is what it is read as
    look = None if call.reads_file else kind_by_look(output)
    return call.kind or look or schemas.get(tool) or _kind_by_name(tool) or call.likely or "command"


def _configured(tool: str, said: Kinds) -> ToolKind | None:
    """The kind that a person gave the tool: by its name, else by the longest pattern that fits."""
    if tool in said:
        return said[tool]
    fitting = (pattern for pattern in said if fnmatchcase(tool[:_LONGEST_NAME], pattern))
    longest = max(fitting, key=lambda pattern: (len(pattern), pattern), default=None)
    return None if longest is None else said[longest]


def _words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(name[:_LONGEST_NAME]))


def _kind_by_name(tool: str) -> ToolKind | None:
    words = _words(tool)
    return next((kind for kind, names in _NAMES.items() if not names.isdisjoint(words)), None)


def shell_command(arguments: str) -> str:
    """The command line that a call runs, or nothing."""
    return call_of(arguments).command


def writes(tool: str, arguments: str) -> bool:
    """Whether a call changes files: an edit, a script that writes, a heredoc."""
    call = call_of(arguments)
    if call.command:
        return shell.changes_files(call.command)
    if call.changes or shell.writes_by_code(call.code):
        return True
    words = _words(tool)
    if call.shows or not words.isdisjoint(_CHANGES_NO_FILE):
        return False
    names_it = call.names_file or call.has({"text"})
    return not words.isdisjoint(_CHANGES | _CHANGES_WHAT_IT_NAMES if names_it else _CHANGES)


def rewrites(tool: str, arguments: str) -> bool:
    """Whether a call says the whole of a file."""
    call = call_of(arguments)
    if call.command:
        return shell.replaces_file(call.command)
    told = call.changes or call.shows or not call.names_file
    return call.whole or (not told and not _words(tool).isdisjoint(_REWRITES))


def path_of(tool: str, arguments: str) -> str:
    """The one file that a call reads or writes, wholly or in part, in one spelling; empty where that cannot be told.

    What is shown of a directory goes by the name of the directory.
    """
    return (_remembered if len(arguments) <= _REMEMBERED else _path_in)(arguments)


def _path_in(arguments: str) -> str:
    call = call_of(arguments)
    return shell.path_in(call.command) if call.command else call.path


# a pure function of its argument, so remembering changes nothing but the time it takes
_remembered = lru_cache(maxsize=2048)(_path_in)

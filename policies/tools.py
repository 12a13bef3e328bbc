"""What kind of tool a call went to, and what it does to files.

The kind decides how an output is shortened (the share of its head) and how soon.

Laws
  What a person configured counts first, then what the call says (a command line, a path, a pattern, an address), then
  the look of the output, then the schema of the tool. Names are a hint, used where nothing else tells.
  Linear in the arguments and the output, whatever they hold.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from types import MappingProxyType

from policies import arguments as keys
from policies import shell
from policies.arguments import arguments_of as arguments_of
from policies.arguments import call_of
from policies.kinds import Kinds as Kinds
from policies.kinds import ToolKind as ToolKind
from policies.kinds import word_set
from policies.look import kind_by_look

RECALL = "narrows_recall"
"""The name of the one tool that is ours."""

HEAD: Mapping[ToolKind, float] = {
    "file": 0.7,
    "search": 0.5,
    "listing": 0.3,
    "command": 0.6,
    "data": 0.5,
    "web": 0.5,
}
"""The share of a shortened output that comes from its beginning."""

_NONE: Kinds = MappingProxyType({})
_LONGEST_NAME = 256
_PARAMETERS = 200
"""Parameters of a tool that are looked at."""
_SENTENCE = 400
"""Characters of a description that are looked at: what comes later tells when not to use the tool."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAMES: Mapping[ToolKind, frozenset[str]] = {
    "web": word_set("web webfetch websearch browse browser fetch url http crawl scrape navigate"),
    "search": word_set("grep search ripgrep codesearch"),
    "listing": word_set("ls list glob tree find listdir dir directory"),
    "command": word_set("run exec execute bash shell terminal test lint build"),
    "file": word_set("read readfile view cat open notebook"),
    "data": word_set("query sql json get lookup details"),
}
_CHANGES = word_set("edit write patch multiedit writefile editfile todowrite")
_CHANGES_WHAT_IT_NAMES = word_set("create insert append replace update save delete remove move")
_CHANGES_NO_FILE = word_set("todo todowrite stdin")
_REWRITES = word_set("create write writefile overwrite")

_BUILT_IN: tuple[tuple[str, ToolKind], ...] = (
    ("web_search", "web"),
    ("web_fetch", "web"),
    ("browser", "web"),
    ("file_search", "search"),
    ("tool_search", "search"),
    ("text_editor", "file"),
    ("str_replace", "file"),
    ("memory", "file"),
    ("bash", "command"),
    ("local_shell", "command"),
    ("shell", "command"),
    ("code_", "command"),
    ("computer", "command"),
    ("apply_patch", "command"),
)
"""Tools that a provider brings, by how their names, or their types, begin: they have no parameters of their own."""
_BY_PARAMETERS: tuple[tuple[ToolKind, frozenset[str], frozenset[str]], ...] = (
    ("command", frozenset(keys.SHELL), keys.PATHS),
    ("file", keys.LINES, keys.PATTERNS | keys.SQL),
    ("command", keys.CHANGES | keys.CHANGES_OF_A_FILE | keys.CONTENT, frozenset()),
    ("web", keys.URLS, frozenset()),
    ("data", keys.SQL, frozenset()),
    ("listing", keys.GLOBS, keys.PATTERNS | keys.QUERIES),
    ("listing", keys.DEPTHS, keys.PATTERNS | keys.QUERIES),
    ("command", keys.CODE, frozenset()),
)
"""A kind, the parameters that tell it, and those beside which they do not."""
_BY_DESCRIPTION: Mapping[ToolKind, re.Pattern[str]] = {
    "command": re.compile(
        r"\b(?:runs?|executes?)\b[^.]{0,60}\b(?:command|shell|bash|code|script|program|tests?|lint)", re.I
    ),
    "web": re.compile(r"\b(?:web|internet|urls?|browser|online)\b", re.I),
    "data": re.compile(r"\b(?:databases?|sql|tables?|records?)\b", re.I),
    "listing": re.compile(r"\blists?\b[^.]{0,40}\b(?:files|director|folder)|\bglob\b|\bfinds? files\b", re.I),
    "search": re.compile(r"\b(?:search(?:es)?|grep|ripgrep)\b", re.I),
    "file": re.compile(r"\b(?:reads?|opens?|views?|contents?)\b[^.]{0,40}\bfiles?\b", re.I),
}
_ELSE: tuple[tuple[ToolKind, frozenset[str]], ...] = (
    ("search", keys.PATTERNS | keys.QUERIES),
    ("listing", keys.DIRECTORIES),
    ("file", keys.PATHS | keys.SEVERAL),
)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a request defines it."""

    name: str
    """Its type, where the provider brings it and it has no name."""
    description: str
    parameters: Mapping[str, object]
    """A JSON schema of its arguments; empty where they are free text, or the provider's own."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What is known of the tools of a conversation before they are called."""

    said: Kinds = field(default_factory=dict)
    """What a person configured, by name or by pattern (`mcp__*`)."""
    schemas: Kinds = field(default_factory=dict)
    """What their definitions say (`kinds_by_schema`)."""

    def kind(self, tool: str, arguments: str, output: str) -> ToolKind:
        """What kind of output this is."""
        return kind_of(tool, arguments, output, self.said, self.schemas)


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


def kind_by_schema(name: str, description: str, parameters: Mapping[str, object]) -> ToolKind | None:
    """What kind of output a tool has by its definition; None where that may be any."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        if built_in := next((kind for start, kind in _BUILT_IN if name.startswith(start)), None):
            return built_in
        properties = {}
    known = {keys.spelled(key) for key in islice(properties, _PARAMETERS) if isinstance(key, str)}
    rows = ((kind, telling, apart) for kind, telling, apart in _BY_PARAMETERS if not known.isdisjoint(telling))
    if by_parameters := next((kind for kind, _, apart in rows if known.isdisjoint(apart)), None):
        return by_parameters
    start = description[:_SENTENCE]
    if by_words := next((kind for kind, words in _BY_DESCRIPTION.items() if words.search(start)), None):
        return by_words
    return next((kind for kind, telling in _ELSE if not known.isdisjoint(telling)), None)


def kinds_by_schema(specs: Iterable[ToolSpec]) -> Kinds:
    """The kinds of the tools whose definitions tell them."""
    found = ((spec.name, kind_by_schema(spec.name, spec.description, spec.parameters)) for spec in specs)
    return {name: kind for name, kind in found if kind}


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
    call = call_of(arguments)
    if call.command:
        return shell.path_in(call.command)
    return call.path

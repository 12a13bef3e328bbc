"""The kind of output that a tool has, by a call and by its definition, and what a call does to files.

The kind decides how an output is shortened (the share of its head) and how soon.

Laws
  The configuration counts first, then the arguments of the call (a command line, a path, a pattern, an address), then
  the look of the output, then the schema of the tool. Names are a hint, used where nothing else determines the kind.
  Linear in the arguments and the output, whatever they hold; of a definition only a bounded part is searched.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice

from policies.tools import arguments as keys
from policies.tools import shell
from policies.tools.arguments import CallArguments, call_of, spelled
from policies.tools.kinds import Kinds, ToolKind, kind_by_look, word_set

_CACHED_CHARACTERS = 16_000
_LONGEST_NAME = 256
_LONGEST_PATH, _MOST_PATHS = 512, 100
_MOST_NAMED = 20
"""Files by which a call is known, where it changes several: most patches that were recorded have fewer."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAMED_AS_PROGRAMS: Kinds = {"fd": "listing", "nix-search": "data", "nix_search": "data", "gh": "data"}
_NAMES: Mapping[ToolKind, frozenset[str]] = {
    "web": word_set("web webfetch websearch browse browser fetch url http crawl scrape navigate"),
    "search": word_set("grep rg search ripgrep codesearch"),
    "listing": word_set("ls fd list glob tree find listdir dir directory"),
    "file": word_set("read readfile view cat open notebook"),
    "data": word_set("query sql json get lookup details"),
    "command": word_set("run exec execute bash shell terminal test lint build"),
}
_CHANGES = word_set("edit write patch multiedit writefile editfile todowrite")
_CHANGES_WHAT_IT_NAMES = word_set("create insert append replace update save delete remove move")
_CHANGES_NO_FILE = word_set("todo todowrite stdin")
_REWRITES = word_set("create write writefile overwrite")
_AGENTS = word_set(
    "agent subagent runsubagent spawnagent waitagent invokeagent delegatetoagent codebaseinvestigator generalist "
    "taskoutput agentoutput agentoutputtool newtask usesubagents callagent"
)
"""Tools that return what a subagent reports, by their names in one spelling."""
_OF_AGENTS = tuple(map(word_set, ("subagenttype", "agenttype prompt")))
"""Arguments that, together, no other tool has."""
_AGENTS_IF = {
    name: tuple(map(word_set, arguments))
    for name, arguments in {
        "task": ("prompt", "agent", "tasks"),
        "delegate": ("prompt", "task", "tasks", "agent"),
        "wait": ("ids timeoutms", "targets", "agentid", "agentids"),
    }.items()
}
"""Such tools whose names others have as well, with arguments that tell."""
_NO_AGENT, _FRONT = "<task_type>local_bash</task_type>", 400
"""The words of one of them for a command that ran in the background."""
_SKILLS = word_set("skill activateskill loadskill useskill getskill readskill")
_MAY_INSTRUCT = re.compile(r"\.md|rules|\.instructions", re.I)
_INSTRUCTION_FILES = re.compile(
    r"(?:^|[/\\])(?:(?:SKILL|AGENTS?|CLAUDE|GEMINI|QWEN|WARP|CRUSH)(?:\.(?:local|override))?\.md"
    r"|\.(?:cursor|cline|clinerules|windsurf|roo|goose)rules|\.goosehints|copilot-instructions\.md"
    r"|[^/\\]{1,100}\.instructions\.md"
    r"|\.\w{1,40}[/\\](?:[^/\\]{1,100}[/\\]){0,10}(?:skills|rules)[/\\](?:[^/\\]{1,100}[/\\]){0,10}[^/\\]{1,100}\.mdc?)$",
    re.I,
)
_HOLDS_TEXT = re.compile(r"<<-?\s{0,4}[\"']?\w|\A@[\"']\n")
"""A heredoc or a here-string: behind its line stands what goes into a file."""
_CHANGES_FOLDER = re.compile(r"\A\s{0,16}cd [^\s;&|]{1,400}[^\S\n]{0,16}(?:&&|;|\n)\s{0,16}")
"""Most commands of an agent begin with it, so that it tells none from another."""
_FIRST_LINE = re.compile(
    r"\bsed\s[^|;]{0,40}?(\d{1,9}),|(?:offset|start_?line|view_?range|-Skip)\W{1,5}(\d{1,9})", re.I
)
"""From which line on a file is read, where that is not the first."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The kinds of the tools of a conversation, as far as they are determined before a call."""

    configured: Kinds = field(default_factory=dict)
    """By name or by pattern (`mcp__*`), from the configuration."""
    schemas: Kinds = field(default_factory=dict)
    """By their definitions in the request (`kinds_by_schema`)."""

    def kind(self, tool: str, arguments: str, output: str) -> ToolKind:
        if configured := self._configured_kind(tool):
            return configured
        if tool in _NAMED_AS_PROGRAMS:
            return _NAMED_AS_PROGRAMS[tool]
        call = call_of(arguments)
        if lasting := _lasting_kind(tool, call, output):
            return lasting
        if call.command:
            return shell.kind_of_command(call.command)
        if call.changes:
            return "file" if kind_by_look(output) == "file" else "command"
        # a file may look like anything
        look = None if call.reads_file else kind_by_look(output)
        words = _words(tool)
        by_name = (kind for kind, names in _NAMES.items() if not names.isdisjoint(words))
        return call.kind or look or self.schemas.get(tool) or next(by_name, None) or call.likely or "command"

    def lasting_kind(self, tool: str, arguments: str, output: str) -> ToolKind | None:
        """The kind of an output where it is one that stays in force: "report" or "instructions"."""
        kind = self._configured_kind(tool) or _lasting_kind(tool, call_of(arguments), output)
        return kind if kind in ("report", "instructions") else None

    def _configured_kind(self, tool: str) -> ToolKind | None:
        if tool in self.configured:
            return self.configured[tool]
        fitting = (pattern for pattern in self.configured if fnmatchcase(tool[:_LONGEST_NAME], pattern))
        longest = max(fitting, key=lambda pattern: (len(pattern), pattern), default=None)
        return None if longest is None else self.configured[longest]


kind_of = Toolbox().kind


def _lasting_kind(tool: str, call: CallArguments, output: str) -> ToolKind | None:
    """The kind of what stays in force for long: what a subagent reported, or instructions from a file or a skill."""
    name = spelled(tool)
    if name in _SKILLS:
        return "instructions"
    telling = (*_OF_AGENTS, *_AGENTS_IF.get(name, ()))
    if name in _AGENTS or any(arguments <= call.values.keys() for arguments in telling):
        return None if _NO_AGENT in output[:_FRONT] else "report"
    if call.changes or not _MAY_INSTRUCT.search(call.text[:_CACHED_CHARACTERS]):
        return None
    files = [*islice(shell.files_read(call.command), _MOST_PATHS)] if call.command else [call.path]
    return "instructions" if files and all(map(_INSTRUCTION_FILES.search, files)) else None


def subject_of(tool: str, arguments: str) -> str:
    """The subject of an output, which a later one replaces: a file from one line on, else the whole of the call."""
    path, first = path_of(tool, arguments), _FIRST_LINE.search(arguments[:_CACHED_CHARACTERS])
    return (
        f"{path}:{first[first.lastindex or 0].lstrip('0')}" if path and first else path or f"{tool} {arguments.strip()}"
    )


def known_by(tool: str, arguments: str, most: int = _LONGEST_NAME) -> str:
    """The words by which a model knows a call, on one line of about `most` characters: its command line, of a text that
    it writes only the first line, without the change of folder before a long one, and the file where that comes late;
    else the file that it reads, from which line on, or the files that it changes; else its arguments."""
    call, path = call_of(arguments), path_of(tool, arguments)
    if call.command:
        command = call.command.lstrip()
        command = command.partition("\n")[0] if _HOLDS_TEXT.search(command) else command
        words = " ".join(command.split())
        words = words if len(words) <= most else " ".join(_CHANGES_FOLDER.sub("", command).split())[:most]
        words = f"{words} ... {path}" if path and path.rpartition("/")[2] not in words else words
    elif call.changes:
        files = paths_of(arguments)
        more = f" (+{len(files) - _MOST_NAMED} more)" if len(files) > _MOST_NAMED else ""
        words = path or (f"patch of {', '.join(files[:_MOST_NAMED])}{more}" if files else arguments[:most])
    elif path:
        words = subject_of(tool, arguments)
    else:
        alone = next(iter(call.values.values())) if len(call.values) == 1 else ""
        words = (alone if isinstance(alone, str) and alone else arguments)[:most]
    return " ".join(words[: _LONGEST_NAME + most].split())


def _words(name: str) -> frozenset[str]:
    return _words_in(name[:_LONGEST_NAME])


@lru_cache(maxsize=1024)  # a pure function, so the cache changes nothing but the time it takes
def _words_in(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(name))


def shell_command(arguments: str) -> str:
    return call_of(arguments).command


def writes(tool: str, arguments: str) -> bool:
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
    call = call_of(arguments)
    if call.command:
        return shell.replaces_file(call.command)
    if call.has_whole_file:
        return True
    by_name = call.names_file and not call.changes and not call.shows
    return by_name and not _words(tool).isdisjoint(_REWRITES)


def path_of(tool: str, arguments: str) -> str:
    """The path that a call reads, writes or lists, wholly or in part, in one spelling; empty where there is none."""
    return (_path_in if len(arguments) <= _CACHED_CHARACTERS else _path_in.__wrapped__)(arguments)


def paths_of(arguments: str) -> Sequence[str]:
    """All that may be a path among what a call names, each once, as the model wrote it."""
    return (_paths_in if len(arguments) <= _CACHED_CHARACTERS else _paths_in.__wrapped__)(arguments)


@lru_cache(maxsize=2048)  # a pure function, so the cache changes nothing but the time it takes
def _paths_in(arguments: str) -> Sequence[str]:
    short = (path for path in call_of(arguments).paths if 0 < len(path) <= _LONGEST_PATH)
    return tuple(dict.fromkeys(islice(short, _MOST_PATHS)))


@lru_cache(maxsize=2048)  # a pure function, so the cache changes nothing but the time it takes
def _path_in(arguments: str) -> str:
    call = call_of(arguments)
    return shell.path_in(call.command) if call.command else call.path


# --- the tools that a request defines, and the kinds of output that follow from their definitions ---

_MOST_PARAMETERS = 200
_DESCRIPTION_CHARACTERS = 400
_SENTENCE_END = re.compile(r"[.!?]\s|\n")

_BUILT_IN: Mapping[ToolKind, tuple[str, ...]] = {
    "web": ("web_search", "web_fetch", "browser"),
    "search": ("file_search", "tool_search"),
    "file": ("text_editor", "str_replace", "memory"),
    "command": ("bash", "local_shell", "shell", "code_", "computer", "apply_patch"),
}
"""Tools of a provider, by the beginning of their names or types: they have no parameters of their own."""
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
"""A kind, the parameters that determine it, and those beside which they do not."""
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


@dataclass(frozen=True, slots=True)
class ToolSpec:
    name: str
    """Its type, for a tool of the provider that has no name."""
    description: str
    parameters: Mapping[str, object]
    """A JSON schema of its arguments; empty where they are free text, or the provider's own."""


def kind_by_schema(name: str, description: str, parameters: Mapping[str, object]) -> ToolKind | None:
    """The kind of output of a tool by its definition; None where that may be any."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        if built_in := next((kind for kind, starts in _BUILT_IN.items() if name.startswith(starts)), None):
            return built_in
        properties = {}
    names = {keys.spelled(key) for key in islice(properties, _MOST_PARAMETERS) if isinstance(key, str)}
    for kind, telling, apart in _BY_PARAMETERS:
        if not names.isdisjoint(telling) and names.isdisjoint(apart):
            return kind
    description = description[:_DESCRIPTION_CHARACTERS]
    # the first sentence counts first: others also say when not to use the tool
    for text in (_SENTENCE_END.split(description, 1)[0], description):
        if by_words := next((kind for kind, words in _BY_DESCRIPTION.items() if words.search(text)), None):
            return by_words
    if names & (keys.PATTERNS | keys.QUERIES):
        return "search"
    return "listing" if names & keys.DIRECTORIES else "file" if names & (keys.PATHS | keys.SEVERAL) else None


def kinds_by_schema(specs: Iterable[ToolSpec]) -> Kinds:
    kinds = ((spec.name, kind_by_schema(spec.name, spec.description, spec.parameters)) for spec in specs)
    return {name: kind for name, kind in kinds if kind}

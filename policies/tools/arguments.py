"""Facts that the arguments of a call tell about it, whatever its tool is called.

Laws: the names of arguments count in one spelling (`filePath`, `file_path`); what is not a JSON object says nothing,
except a patch; linear in the arguments.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from posixpath import basename

import msgspec

from policies.tools import shell
from policies.tools.kinds import ToolKind, word_set

_MOST_ARGUMENTS = 200
_CACHED_CHARACTERS = 2_000

SHELL = ("command", "cmd", "script", "bash", "commandline", "shellcommand", "commands")
PATHS = word_set(
    "path filepath filename file targetfile absolutepath fullpath notebookpath relativepath relativeworkspacepath"
)
SEVERAL = word_set("paths files filepaths filenames")
MOVED = word_set("oldpath newpath source destination")
DIRECTORIES = word_set("dir directory dirpath directorypath targetdirectory folder folderpath dirname")
LINES = word_set(
    "viewrange startline endline linestart lineend linenumber lineoffset "
    "startlineoneindexed endlineoneindexedinclusive shouldreadentirefile"
)
RANGES = LINES | word_set("offset limit head tail range")
PATTERNS = word_set("pattern regex regexp searchterm searchpattern searchstring substringpattern")
AROUND = word_set("a b c context contextlines")
"""Options of a search for lines around its hits."""
GLOBS = word_set("glob globpattern filepattern includepattern")
DEPTHS = word_set("depth maxdepth recursive ignore")
QUERIES = word_set("query queries q search searchquery keywords")
URLS = word_set("url urls link href uri")
SQL = word_set("sql sqlquery sqlstatement cypher")
CODE = word_set("code python cell")
OLD = word_set("oldstring oldstr oldtext oldcontent oldsource")
CHANGES = OLD | word_set("edits replacements replacementchunks replacementtext codeedit patch patchtext")
CHANGES_OF_A_FILE = word_set("newstring newstr newtext newcontent newsource insertline diff replacement")
CONTENT = word_set("content contents filetext filecontent filecontents codecontent")
BESIDE = word_set(
    "encoding description explanation instructions reason summary title overwrite force createdirs makedirs "
    "createdirectories createparents newline language mimetype mode command type action operation"
)
"""Arguments beside which a content is the whole of a file; those in `_AS_WHOLE` only with the values there."""
_AS_WHOLE: Mapping[str, Sequence[object]] = {
    "mode": ("w", "write", "overwrite", "create", "w+", "wt", "rewrite"),
    "overwrite": (True,),
    "append": (False,),
}
"""With other values than these a file may keep what was in it."""

_RUNS = re.compile(r"\btools\.(?:exec_command|shell_command|shell|local_shell)\(")
"""A program that the model writes in place of a call (Codex's code mode) runs a command line."""
_RUN = re.compile(
    r"[{,]\s{0,16}\"?(?:cmd|command)\"?\s{0,16}:\s{0,16}"
    r"(?:(\"(?:[^\"\\\n]|\\.)*+\")|'((?:[^'\\\n]|\\.)*+)'|`((?:[^`\\]|\\.)*+)`)",
    re.S,
)

_REF = re.compile(r"\d{6,24}(\+\d{1,9})?")
_PLACES = PATTERNS | GLOBS | QUERIES | DIRECTORIES | DEPTHS
"""Arguments beside which a path may be a place to search."""
_CREATES = frozenset({"create", "create_file", "write", "overwrite"})
_CHANGING = _CREATES | {"str_replace", "insert", "undo_edit", "update_file", "delete_file", "delete", "rename", "edit"}
VERBS = ("command", "type", "action", "operation")
"""Arguments in which an editor with one tool says what is to be done."""
_NAMING_PATHS = PATHS | SEVERAL | DIRECTORIES | MOVED
_EDITED = PATHS | {"oldpath"}
"""Arguments of which an editor has one."""
_SELECT = re.compile(r"\s{0,64}(?:select\b.{1,2000}?\bfrom\b|(?:(?:query|mutation)\b[^{]{0,200})?\{)", re.I | re.S)
_GLOB = re.compile(r"[\w./*?{},!@~\[\]-]{1,1024}$")
_NO_GLOB = re.compile(r"\.\*|[*?]\?|\[\^|\{\d")


def arguments_of(text: str) -> Mapping[str, object]:
    try:
        arguments = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


def recalled_ref(arguments: str) -> str:
    """The reference that a call of the recall tool asks for; empty where it names none."""
    value = arguments_of(arguments).get("ref", "")
    ref = _REF.search(f"{value:06}" if type(value) is int else str(value))  # a JSON number has no leading zeros
    return ref[0] if ref else ""


def spelled(name: str) -> str:
    return name[:64].replace("_", "").replace("-", "").lower()


def old_texts(text: str) -> Sequence[str]:
    values = {spelled(name): value for name, value in arguments_of(text).items()}
    edits = values.get("edits")
    every = (
        [values, *({spelled(k): v for k, v in each.items()} for each in edits if isinstance(each, dict))]
        if isinstance(edits, list)
        else [values]
    )
    return [value for each in every for name in OLD if isinstance(value := each.get(name), str) and value.strip()]


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of a call, and what they say about it."""

    text: str
    values: Mapping[str, object]
    """By their names in one spelling."""
    verb: str
    """The task of an editor with a path; empty where this is not the call of an editor."""
    command: str
    """The command line that the call runs; empty where it runs none."""

    @property
    def code(self) -> str:
        return _string(self.values, CODE)

    @property
    def changes(self) -> bool:
        if self.has(CHANGES) or self.verb in _CHANGING or "*** Begin Patch" in self.text:
            return True
        if self.has({"search", "find"}) and self.has({"replace", "replacement"}):
            return True
        return self.names_file and self.has(CHANGES_OF_A_FILE | CONTENT)

    @property
    def shows(self) -> bool:
        return self.verb == "view" or self.kind not in (None, "file")

    @property
    def has_whole_file(self) -> bool:
        if self.names_file and self.has(CONTENT):
            names = CONTENT | PATHS | BESIDE
            return all(
                value in _AS_WHOLE[name] if name in _AS_WHOLE else name in names for name, value in self.values.items()
            )
        return (self.names_file and self.verb in _CREATES) or shell.text_adds_file(self.text)

    @property
    def names_file(self) -> bool:
        return self.has(PATHS)

    @property
    def path(self) -> str:
        """The one path that is read or changed; empty where there is none, or where it may be a place to search."""
        if not self.changes and not self._reads_around and self.has(_PLACES):
            return ""
        paths = map(shell.normal_path, _paths_in_lists(self.values))
        if path := shell.normal_path(_string(self.values, PATHS)) or shell.only(paths):
            return path
        return shell.only(map(shell.patched_in, _patches(self.values, self.text)))

    @property
    def paths(self) -> Iterator[str]:
        """All that may be a path, as the model wrote it: arguments, patches, and words of the command line."""
        for key, value in self.values.items():
            if key in _NAMING_PATHS:
                several = islice(value, _MOST_ARGUMENTS) if isinstance(value, list) else (value,)
                yield from (each for each in several if isinstance(each, str))
        yield from _paths_in_lists(self.values)
        for text in _patches(self.values, self.text):
            yield from shell.all_patched_in(text)
        yield from shell.operands_in(self.command)

    @property
    def kind(self) -> ToolKind | None:
        """The kind where the arguments determine it."""
        urls = (value for key, value in self.values.items() if key in URLS)
        firsts = (value[0] if isinstance(value, list) and value else value for value in urls)
        if any(isinstance(first, str) and first[:8].lower().startswith(("http://", "https://")) for first in firsts):
            return "web"
        if self.has(SQL) or _SELECT.match(_string(self.values, QUERIES)):
            return "data"
        if pattern := _string(self.values, PATTERNS):
            asks_for_names = "*" in pattern and _GLOB.match(pattern) and not _NO_GLOB.search(pattern)
        else:
            asks_for_names = self.has(GLOBS) and not self.has(QUERIES)
        if asks_for_names:
            return "listing"
        if self.has(PATTERNS):
            return "file" if self._reads_around else "search"
        if self.has(DEPTHS) and self.has(PATHS | DIRECTORIES):
            return "listing"
        return "file" if self.names_file and self.has(RANGES if self.reads_file else LINES) else None

    @property
    def likely(self) -> ToolKind | None:
        """The kind that the arguments suggest, where nothing else determines it."""
        if self.has(CODE):
            return "command"
        if self.has(DIRECTORIES):
            return "listing"
        return "search" if self.has(QUERIES) else "file" if self.has(PATHS | SEVERAL) else None

    @property
    def reads_file(self) -> bool:
        return bool(shell.SUFFIX.search(basename(_string(self.values, PATHS)[-256:]))) and not self.has(DIRECTORIES)

    def has(self, keys: AbstractSet[str]) -> bool:
        return not keys.isdisjoint(self.values)

    @property
    def _reads_around(self) -> bool:
        """True where a search shows a part of one file, which may be edited next."""
        return self.has(PATTERNS) and self.has(AROUND) and self.reads_file


def _string(values: Mapping[str, object], keys: frozenset[str]) -> str:
    """The first of these arguments that is a string, in the order of the call."""
    return next((value for key, value in values.items() if key in keys and isinstance(value, str)), "")


def _paths_in_lists(values: Mapping[str, object]) -> Iterator[str]:
    """A list of edits may name the path in each."""
    lists = (value for value in values.values() if isinstance(value, list))
    entries = (entry for entry in islice(chain.from_iterable(lists), _MOST_ARGUMENTS) if isinstance(entry, dict))
    pairs = chain.from_iterable(islice(entry.items(), _MOST_ARGUMENTS) for entry in entries)
    return (value for key, value in pairs if spelled(key) in PATHS and isinstance(value, str))


def _patches(values: Mapping[str, object], text: str) -> Iterator[str]:
    """The strings that may be patches; a program holds one with the ends of its lines escaped."""
    strings = (value for value in values.values() if isinstance(value, str)) if values else (text,)
    patches = (each for each in strings if "*** " in each or "+++ " in each)
    return (each.replace("\\n", "\n") if "\\n*** " in each else each for each in patches)


def call_of(arguments: str) -> CallArguments:
    return (_call_of if len(arguments) <= _CACHED_CHARACTERS else _call_of.__wrapped__)(arguments)


@lru_cache(maxsize=4096)  # a pure function, so the cache changes nothing but the time it takes
def _call_of(arguments: str) -> CallArguments:
    pairs = islice(arguments_of(arguments).items(), _MOST_ARGUMENTS)
    values = {spelled(key): value for key, value in pairs}
    verb = _verb_in(values)
    return CallArguments(
        arguments, values, verb, "" if verb else _command_in(values) or _commands_of_code(arguments, values)
    )


def _verb_in(values: Mapping[str, object]) -> str:
    if _EDITED.isdisjoint(values):
        return ""
    verbs = (verb for key in VERBS if isinstance(verb := values.get(key), str))
    return next((verb for verb in verbs if verb in _CHANGING or verb == "view"), "")


def _command_in(values: Mapping[str, object]) -> str:
    for key in SHELL:
        value = values.get(key)
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            value = "\n".join(value) if key == "commands" else shell.script_of(value)
        if isinstance(value, str) and value:
            return value
    return ""


def _commands_of_code(text: str, values: Mapping[str, object]) -> str:
    """The command lines that a program written in place of a call runs; empty where it runs none, or patches files."""
    strings = values.values() if values else (text,)
    code = next((each for each in strings if isinstance(each, str) and _RUNS.search(each)), "")
    if not code or "*** Begin Patch" in code:
        return ""
    commands = list[str]()
    for match in _RUN.finditer(code):
        try:
            commands.append(msgspec.json.decode(match[1], type=str) if match[1] else match[2] or match[3] or "")
        except (msgspec.DecodeError, UnicodeError):
            continue
    return "\n".join(commands)

"""The effects of a command line: which programs it runs, which one file it reads or writes.

Laws
  Linear in the command: a quote, a comment or a heredoc is read once, whether it ends or not.
  Text in quotes or in a heredoc is never taken for a command.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, dropwhile, islice, pairwise
from posixpath import join, normpath

from policies.tools.kinds import ToolKind, word_set

_MOST_CHARACTERS = 16_000
_MOST_LINES = 2_000
_OF_CODE = 64_000
"""Characters of a program, from either end, in which a file may be opened."""
_CACHED_CHARACTERS = 2_000
_MOST_STAGES = 200
_LONGEST_PATH = 1_024
_MOST_SPELLINGS = 8
_NESTED_SHELLS = 3

_PROGRAMS: Mapping[ToolKind, frozenset[str]] = {
    "file": word_set("cat head tail nl sed less more bat awk view type gc get-content gawk batcat tac"),
    "search": frozenset({"grep", "rg", "ag", "ack", "egrep", "fgrep", "zgrep", "select-string"}),
    "listing": frozenset({"ls", "find", "fd", "tree", "dir", "du", "fdfind", "eza", "exa", "get-childitem", "gci"}),
    "web": frozenset({"curl", "wget", "lynx", "w3m", "invoke-webrequest", "iwr"}),
    "data": frozenset({"jq", "yq", "gh", "sqlite3", "psql", "mysql", "duckdb", "nix-search"}),
}
_KIND_OF: Mapping[str, ToolKind] = {name: kind for kind, names in _PROGRAMS.items() for name in names}
_OF_GIT: Mapping[str, ToolKind] = {"grep": "search", "ls-files": "listing", "ls-tree": "listing", "blame": "file"}
_NARROWED: Mapping[tuple[ToolKind, ToolKind], ToolKind] = {
    ("file", "search"): "search",
    ("file", "data"): "data",
    ("web", "data"): "data",
}
"""The kind of an output of the one kind that is piped into a program of the other."""
_QUIET = word_set(
    "cd set-location sl chdir pushd popd export unset set source . mkdir touch chmod rm cp mv echo printf true : pwd "
    "sleep for done fi esac } [ [[ test"
)
"""Programs whose output does not decide: the other programs of the command line do."""
_BEFORE_PROGRAM = word_set("sudo time timeout env command stdbuf nohup nice exec builtin do then else if while ! {")
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "powershell", "pwsh", "cmd"})
_SCRIPT_FIRST = frozenset({"sed", "awk", "gawk", "jq", "yq"})
_IN_PLACE = re.compile(r"-[nErszpel0]{0,8}i|--in-place")
_NO_OPERAND = re.compile(r"-|\w{1,64}=|\+?\d+[smh]?$")
_WITH_WORD = frozenset({"-encoding", "-erroraction", "-delimiter", "-value"})
"""Options of PowerShell whose value is a word that is no path."""
_CHANGES_DIRECTORY = frozenset({"cd", "set-location", "sl", "chdir"})

_SHOWS_LINES_AROUND = re.compile(r"-[a-zA-Z]{0,8}[ABC]\d{0,4}$|-\d{1,4}$|--(?:after-|before-)?context")
_EVERYWHERE = re.compile(r"-[a-zA-Z]{0,8}[rR]|--recursive|--(?:files|count)")
SUFFIX = re.compile(r"\.\w{1,10}$")

_HERE_STRINGS = {quote: re.compile(rf"@{quote}[ \t]{{0,8}}\r?\n(?:(?!{quote}@).*\n)*+{quote}@") for quote in ("'", '"')}
"""A text of several lines in PowerShell, by its quote: its end stands at the beginning of a line."""
_SETS_CONTENT = frozenset({"set-content", "out-file"})
"""Programs of PowerShell that write the text which they are given or read."""
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]{0,8}['\"\\]?([A-Za-z_]\w{0,63})")
_TOKEN = re.compile(
    r"(?P<space>[ \t\r]++|#[^\n]*+)"
    r"|(?P<out>[0-9&]?>{1,2}[|&]?)"
    r"|(?P<into><{1,3}-?)"
    r"|(?P<pipe>\|&?(?!\|))"
    r"|(?P<end>&&|\|\||[;\n&()])"
    r"|(?P<word>(?:[^\s'\"\\;|&<>()]|'[^']*+'|\"(?:[^\"\\]|\\.)*+\"|\\.)++|.)",
    re.S,
)
_QUOTED = re.compile(r"'([^']*+)'|\"((?:[^\"\\]|\\.)*+)\"|\\(.)", re.S)
_SEPARATES = re.compile(r"\\[\w.]")
"""A backslash that separates the names of a path: Windows has such, and no shell needs one there."""
_READ_BY_NET = re.compile(
    r"\[(?:System\.)?IO\.File\]::Read\w{1,16}\(\s{0,16}(['\"][^'\"\n]{1,1024}['\"])[^)\n]{0,64}\)", re.I
)
_NOT_ONE_PATH = re.compile(r"[*?$`{}\n]")
_WRITTEN_BY_CODE = re.compile(r"open\([^)]{0,300}['\"][wa]\+?['\"]|write_text|\*\*\* Begin Patch")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: ([^\n]{1,1024})|^\+\+\+ (?:b/)?([^\t\n]{1,1024})", re.M)


@dataclass(frozen=True, slots=True)
class ShellStage:
    words: tuple[str, ...]
    """The program and its arguments, without quotes."""
    piped: bool
    """True where it reads the output of the stage before it."""
    overwrites: tuple[str, ...]
    """The files that its output replaces."""
    appends: tuple[str, ...]
    """The files that its output is added to."""
    heredoc: bool
    """True where a heredoc is its input."""

    @property
    def program(self) -> str:
        if not self.words:
            return ""
        return self.words[0].replace("\\", "/").rsplit("/", 1)[-1].lower().removesuffix(".exe")

    @property
    def operands(self) -> tuple[str, ...]:
        pairs = pairwise(self.words)
        return tuple(word for before, word in pairs if not (_NO_OPERAND.match(word) or before.lower() in _WITH_WORD))

    @property
    def runs(self) -> str:
        """The program that it runs for what it finds or reads (`find -exec`, `xargs`); empty where it runs none."""
        if self.program == "find":
            return next(islice(dropwhile(lambda word: word not in ("-exec", "-execdir"), self.words), 1, None), "")
        return next(iter(self.operands), "") if self.program == "xargs" else ""


def stages(command: str) -> Sequence[ShellStage]:
    return (_all_stages if len(command) <= _CACHED_CHARACTERS else _all_stages.__wrapped__)(command)


@lru_cache(maxsize=4096)  # a pure function, so the cache changes nothing but the time it takes
def _all_stages(command: str) -> Sequence[ShellStage]:
    return tuple(islice(_stages(command, _NESTED_SHELLS), _MOST_STAGES))


def _stages(command: str, depth: int) -> Iterator[ShellStage]:
    for stage in _split(_without_heredocs(command)[:_MOST_CHARACTERS]):
        script = ""
        if depth and stage.program in _SHELLS:
            pairs = zip(stage.words[1:], stage.words[2:], strict=False)
            script = next((words for flag, words in pairs if _takes_script(flag)), "")
        if script:
            yield from _stages(script, depth - 1)
        elif stage.words or stage.overwrites:
            yield stage


def _without_heredocs(command: str) -> str:
    """The command without the text of its heredocs; a heredoc that does not end is left in."""
    joined = _READ_BY_NET.sub(r"; get-content \1 ;", command.replace("\\\n", " "))
    for quote, here_string in _HERE_STRINGS.items():
        end = joined.rfind(f"\n{quote}@") + 3  # behind it none ends, and each that begins would be read to the end
        joined = here_string.sub("echo ", joined[:end]) + joined[end:]
    ends: dict[str, list[int]] = {word: [] for word in _HEREDOC.findall(joined)}
    if not ends:
        return joined
    lines = joined.split("\n")
    for at, line in enumerate(lines):
        if (word := line.strip()) in ends:
            ends[word].append(at)
    rest, at = list[str](), 0
    while at < len(lines) and len(rest) < _MOST_LINES:
        rest.append(lines[at])
        for word in _HEREDOC.findall(lines[at][:_MOST_CHARACTERS]):
            after = bisect_right(ends[word], at)
            at = ends[word][after] if after < len(ends[word]) else at
        at += 1
    return "\n".join(rest)


def _split(command: str) -> Iterator[ShellStage]:
    """The stages of a command line without heredocs; some may be empty."""
    words, overwrites, appends, heredoc, piped, before = list[str](), list[str](), list[str](), False, False, ""
    for match in chain(_TOKEN.finditer(command), _TOKEN.finditer("\n")):
        kind, text = match.lastgroup, match[0]
        if kind in ("end", "pipe"):
            yield ShellStage(tuple(words), piped, tuple(overwrites), tuple(appends), heredoc)
            words, overwrites, appends, heredoc, piped, before = [], [], [], False, kind == "pipe", ""
        elif kind in ("out", "into"):
            before = text
            heredoc = heredoc or text in ("<<", "<<-")
        elif kind == "word":
            word = _QUOTED.sub(lambda match: match[0 if _SEPARATES.match(match[0]) else match.lastindex or 0], text)
            if ">" in before:
                if not before.endswith("&") and not text.startswith("/dev/"):
                    (appends if ">>" in before else overwrites).append(word)
            elif not before.startswith("<<") and (words or not (word in _BEFORE_PROGRAM or _NO_OPERAND.match(word))):
                words.append(word)
            before = ""


def _takes_script(flag: str) -> bool:
    """True where what follows this option of a shell is a script: `-c`, `-lc`, `-Command`, `/c`."""
    return flag.lower() in ("-c", "-lc", "-ic", "-lic", "-command", "/c")


def script_of(words: Sequence[str]) -> str:
    """The command line of a list of words: the script itself where they call a shell."""
    return words[-1] if len(words) > 2 and _takes_script(words[-2]) else " ".join(words)


def kind_of_command(command: str) -> ToolKind:
    programs = stages(command)
    if _changes(programs) or writes_by_code(command):
        return "command"
    kinds: list[ToolKind] = []
    for stage in programs:
        if stage.piped and kinds and stage.program == "xargs":
            kinds[-1] = _KIND_OF.get(stage.runs, kinds[-1])
        elif stage.piped and kinds:
            kinds[-1] = _NARROWED.get((kinds[-1], _kind_of_stage(stage)), kinds[-1])
        elif stage.program not in _QUIET:
            kinds.append(_kind_of_stage(stage))
    # who lists first and then reads wants to read
    return next((kind for kind in kinds if kind != "listing"), "listing" if kinds else "command")


def _kind_of_stage(stage: ShellStage) -> ToolKind:
    operands, options = stage.operands, stage.words[1:]
    if stage.program == "git":
        verb = operands[0] if operands else ""
        shows_file = verb == "show" and any(":" in word for word in operands[1:])
        return "file" if shows_file else _OF_GIT.get(verb, "command")
    kind = _KIND_OF.get(stage.runs) or _KIND_OF.get(stage.program, "command")
    if kind != "search" or not any(map(_SHOWS_LINES_AROUND.match, options)) or any(map(_EVERYWHERE.match, options)):
        return kind
    # a search that shows lines around its hits in one file reads a part of it, which may be edited next
    one_file = len(operands) == 1 if stage.piped else len(operands) == 2 and SUFFIX.search(operands[1])
    return "file" if one_file else kind


def changes_files(command: str) -> bool:
    return _changes(stages(command)) or writes_by_code(command)


def writes_by_code(text: str) -> bool:
    return any(_WRITTEN_BY_CODE.search(part) for part in (text[:_OF_CODE], text[_OF_CODE:][-_OF_CODE:]))


def _changes(programs: Iterable[ShellStage]) -> bool:
    return any(stage.heredoc or stage.appends or next(_written(stage), "") for stage in programs)


def _written(stage: ShellStage) -> Iterator[str]:
    """The files that a stage writes, wholly or in part; "-" for one that it does not name."""
    yield from (*stage.overwrites, *stage.appends)
    if stage.program in ("tee", "ed"):
        yield from stage.operands
    elif stage.program in _SETS_CONTENT or stage.program == "add-content":
        yield from stage.operands[:1] or ("-",)
    elif stage.program in ("patch", "apply_patch") or (stage.program == "git" and stage.operands[:1] == ("apply",)):
        yield "-"
    elif stage.program in ("sed", "perl") and any(_IN_PLACE.match(word) for word in stage.words[1:]):
        yield from stage.operands[1:] or ("-",)


def _read(stage: ShellStage) -> Iterator[str]:
    kind = _kind_of_stage(stage)
    if stage.program == "git" and kind == "file":
        yield from (word.rsplit(":", 1)[-1] for word in stage.operands[1:])
    elif kind == "file" or stage.program in _SCRIPT_FIRST:
        yield from stage.operands[stage.program in _SCRIPT_FIRST or _KIND_OF.get(stage.program) == "search" :]


def files_read(command: str) -> Iterator[str]:
    if kind_of_command(command) == "file":
        yield from chain.from_iterable(map(_read, stages(command)))


def path_in(command: str) -> str:
    """The one file that a command line writes, else the one that it shows; empty where there is none, or several."""
    written, read = list[str](), list[str]()
    directory = ""
    for stage in stages(command):
        if stage.program in _CHANGES_DIRECTORY:
            directory = join(directory, *stage.operands[:1])
        for paths, files in ((written, _written(stage)), (read, _read(stage))):
            paths += (normal_path(join(directory, path)) if normal_path(path) else "" for path in files)
    patched = patched_in(command) if not written or "" in written else ""
    return patched or only(written or read)


def operands_in(command: str) -> Iterator[str]:
    """The operands of programs of a command line, and the files they write to, from where `cd` leads."""
    directory = ""
    for stage in stages(command):
        if stage.program in _CHANGES_DIRECTORY:
            directory = join(directory, *stage.operands[:1])
        else:
            yield from (join(directory, word) for word in (*stage.operands, *stage.overwrites, *stage.appends))


def normal_path(path: str) -> str:
    """A path in one spelling; empty where it is none, or more than one."""
    is_one = 0 < len(path) <= _LONGEST_PATH and path != "-" and not _NOT_ONE_PATH.search(path)
    return normpath(path.replace("\\", "/")) if is_one else ""


def only(paths: Iterable[str]) -> str:
    """The path, where all are the same; else empty."""
    distinct = set(paths)
    return distinct.pop() if len(distinct) == 1 else ""


def patched_in(text: str) -> str:
    """The one file that a patch in this text is for."""
    paths = set(all_patched_in(text))
    return only(map(normal_path, paths)) if len(paths) <= _MOST_SPELLINGS else ""


def all_patched_in(text: str) -> Iterator[str]:
    """The files that a patch in this text is for, as it writes them."""
    return (match[1] or match[2] for match in _PATCHED.finditer(text))


def replaces_file(command: str) -> bool:
    """True where a command line holds the whole text of a file: a heredoc, a here-string or redirected words."""
    may_write = ">" in command or "<<" in command or "@'" in command or '@"' in command
    before = ""
    for stage in stages(command) if may_write else ():  # nearly never
        if stage.piped and stage.program in _SETS_CONTENT and before == "echo":
            return "-append" not in map(str.lower, stage.words)
        before = stage.program
        writes_words = stage.program in ("echo", "printf") or (stage.program == "cat" and stage.heredoc)
        overwrites = stage.program == "tee" and stage.operands and not {"-a", "--append"} & {*stage.words}
        if (stage.overwrites and writes_words) or (overwrites and stage.heredoc):
            return True
    return text_adds_file(command)


def text_adds_file(text: str) -> bool:
    return "*** Add File: " in text and "*** Update File: " not in text and "*** Delete File: " not in text

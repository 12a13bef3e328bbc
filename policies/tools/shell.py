"""What a command line does: which programs it runs, which one file it reads or writes.

Laws
  Linear in the command: a quote, a comment or a heredoc is read once, whether it ends or not.
  What stands in quotes or in a heredoc is never taken for a command.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, islice, takewhile
from posixpath import join, normpath

from policies.tools.kinds import ToolKind, word_set

_LOOKED_AT = 16_000
"""Characters of a command that are read, heredocs apart."""
_LINES = 2_000
"""Lines of a command that are read, heredocs apart."""
_OF_CODE = 64_000
"""Characters of a program, from either end, in which a file may be opened."""
_MOST = 200
"""Stages of a command that are looked at."""
_LONGEST = 1_024
"""Characters of a path."""
_SPELLINGS = 8
"""How many ways a patch may write one path."""
_NESTED = 3
"""How many shells may stand one in another."""

_PROGRAMS: Mapping[ToolKind, frozenset[str]] = {
    "file": frozenset({"cat", "head", "tail", "nl", "sed", "less", "more", "bat", "awk", "view", "type", "gc"})
    | {"get-content", "gawk", "batcat", "tac"},
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
"""What comes of an output of the one kind that is piped into a program of the other."""
_QUIET = word_set(
    "cd pushd popd export unset set source . mkdir touch chmod rm cp mv echo printf true : pwd sleep "
    "for done fi esac } [ [[ test"
)
"""Programs that put out nothing worth a kind: what stands beside them says more."""
_AHEAD = word_set("sudo time timeout env command stdbuf nohup nice exec builtin do then else if while ! {")
"""What stands before the program that counts."""
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "powershell", "pwsh", "cmd"})
_SCRIPT_FIRST = frozenset({"sed", "awk", "gawk", "jq", "yq"})
"""Programs whose first argument says what to do with the others."""
_IN_PLACE = re.compile(r"-[nErszpel0]{0,8}i|--in-place")
_SKIPPED = re.compile(r"-|\w{1,64}=|\+?\d+[smh]?$")
"""Options, settings of variables and numbers."""

_AROUND = re.compile(r"-[a-zA-Z]{0,8}[ABC]\d{0,4}$|-\d{1,4}$|--(?:after-|before-)?context")
"""Options of a search that shows the lines around what it finds."""
_EVERYWHERE = re.compile(r"-[a-zA-Z]{0,8}[rR]|--recursive|--(?:files|count)")
_SUFFIX = re.compile(r"\.\w{1,10}$")

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
_UNSURE = re.compile(r"[*?$`{}\n]")
"""What makes a word more, or something else, than one path."""
_WRITTEN_BY_CODE = re.compile(r"open\([^)]{0,300}['\"][wa]\+?['\"]|write_text|\*\*\* Begin Patch")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: ([^\n]{1,1024})|^\+\+\+ (?:b/)?([^\t\n]{1,1024})", re.M)


@dataclass(frozen=True, slots=True)
class ShellStage:
    """One program of a command line."""

    words: tuple[str, ...]
    """The program and its arguments, without quotes."""
    piped: bool
    """Whether it reads what the stage before it puts out."""
    fresh: tuple[str, ...]
    """The files that its output replaces."""
    more: tuple[str, ...]
    """The files that its output is added to."""
    fed: bool
    """Whether a heredoc is its input."""

    @property
    def program(self) -> str:
        """The name of the program, in lower case; empty where there is none."""
        return self.words[0].rsplit("/", 1)[-1].lower().removesuffix(".exe") if self.words else ""

    @property
    def named(self) -> tuple[str, ...]:
        """The arguments that are no options."""
        return tuple(word for word in self.words[1:] if not _SKIPPED.match(word))


def stages(command: str) -> list[ShellStage]:
    """The programs that a command line runs, those of a shell within it in its place."""
    return list(islice(_stages(command, _NESTED), _MOST))


def _stages(command: str, depth: int) -> Iterator[ShellStage]:
    for piped, tokens in _groups(_bare(command)[:_LOOKED_AT]):
        stage = _stage(tokens, piped)
        inner = _script(stage) if depth else ""
        if inner:
            yield from _stages(inner, depth - 1)
        elif stage.words or stage.fresh:
            yield stage


def _bare(command: str) -> str:
    """The command without the text of its heredocs; one that does not end is none."""
    joined = command.replace("\\\n", " ")
    ends: dict[str, list[int]] = {word: [] for word in _HEREDOC.findall(joined)}
    if not ends:
        return joined
    lines = joined.split("\n")
    for at, line in enumerate(lines):
        if (word := line.strip()) in ends:
            ends[word].append(at)
    kept, at = list[str](), 0
    while at < len(lines) and len(kept) < _LINES:
        kept.append(lines[at])
        for word in _HEREDOC.findall(lines[at][:_LOOKED_AT]):
            after = bisect_right(ends[word], at)
            at = ends[word][after] if after < len(ends[word]) else at
        at += 1
    return "\n".join(kept)


def _groups(command: str) -> Iterator[tuple[bool, list[tuple[str, str]]]]:
    """The tokens of each stage, and whether it reads from the one before."""
    tokens: list[tuple[str, str]] = []
    piped = False
    for match in _TOKEN.finditer(command):
        kind = match.lastgroup or ""
        if kind in ("end", "pipe"):
            if tokens:
                yield piped, tokens
            tokens, piped = [], kind == "pipe"
        elif kind != "space":
            tokens.append((kind, match[0]))
    yield piped, tokens


def _stage(tokens: Iterable[tuple[str, str]], piped: bool) -> ShellStage:
    words, fresh, more, fed, before = list[str](), list[str](), list[str](), False, ""
    for kind, text in tokens:
        if kind != "word":
            before = text
            fed = fed or text in ("<<", "<<-")
            continue
        if ">" in before:
            if not before.endswith("&") and not text.startswith("/dev/"):
                (more if ">>" in before else fresh).append(_plain(text))
        elif not before.startswith("<<"):
            words.append(_plain(text))
        before = ""
    return ShellStage(_led(words), piped, tuple(fresh), tuple(more), fed)


def _plain(word: str) -> str:
    """A word without its quotes."""
    return _QUOTED.sub(lambda match: match[match.lastindex or 0], word)


def _led(words: Sequence[str]) -> tuple[str, ...]:
    """The words from the program on that counts."""
    ahead = takewhile(lambda word: word in _AHEAD or _SKIPPED.match(word), words)
    return tuple(words[sum(1 for _ in ahead) :])


def _script(stage: ShellStage) -> str:
    """What a shell is told to run; empty where the stage is something else."""
    if stage.program not in _SHELLS:
        return ""
    return next((words for flag, words in zip(stage.words[1:], stage.words[2:], strict=False) if _runs(flag)), "")


def _runs(flag: str) -> bool:
    """Whether what follows this option is a script: `-c`, `-lc`, `-Command`, `/c`."""
    return flag.lower() in ("-c", "-lc", "-ic", "-lic", "-command", "/c")


def script_of(words: Sequence[str]) -> str:
    """The command line of a list of words: the script itself where they call a shell."""
    return words[-1] if len(words) > 2 and _runs(words[-2]) else " ".join(words)


def kind_of_command(command: str) -> ToolKind:
    """What kind of output a command line puts out."""
    found = stages(command)
    if _changes(found) or writes_by_code(command):
        return "command"
    kinds: list[ToolKind] = []
    for stage in found:
        if stage.piped and kinds:
            kinds[-1] = _narrowed(kinds[-1], stage)
        elif stage.program not in _QUIET:
            kinds.append(_kind_of_stage(stage))
    # whoever lists first and reads then wants to read
    return next((kind for kind in kinds if kind != "listing"), "listing" if kinds else "command")


def _narrowed(kind: ToolKind, stage: ShellStage) -> ToolKind:
    if stage.program == "xargs":
        return _KIND_OF.get(_within(stage), kind)
    return _NARROWED.get((kind, _kind_of_stage(stage)), kind)


def _kind_of_stage(stage: ShellStage) -> ToolKind:
    if stage.program == "git":
        return _kind_of_git(stage.named)
    kind = _KIND_OF.get(_within(stage)) or _KIND_OF.get(stage.program, "command")
    return "file" if kind == "search" and _reads_around(stage) else kind


def _reads_around(stage: ShellStage) -> bool:
    """Whether a search shows a part of one file: the lines around what it finds, which may be edited next."""
    if not any(_AROUND.match(word) for word in stage.words[1:]) or any(map(_EVERYWHERE.match, stage.words[1:])):
        return False
    return len(stage.named) == 1 if stage.piped else len(stage.named) == 2 and bool(_SUFFIX.search(stage.named[1]))


def _within(stage: ShellStage) -> str:
    """The program that a stage runs for what it finds or is given; empty where it runs none."""
    if stage.program == "xargs":
        return next(iter(stage.named), "")
    after = (
        dropwhile(lambda word: word not in ("-exec", "-execdir"), stage.words) if stage.program == "find" else iter(())
    )
    return next(islice(after, 1, None), "")


def _kind_of_git(named: Sequence[str]) -> ToolKind:
    verb = named[0] if named else ""
    if verb == "show" and any(":" in word for word in named[1:]):
        return "file"
    return _OF_GIT.get(verb, "command")


def changes_files(command: str) -> bool:
    """Whether a command line writes: a redirection, an edit in place, a heredoc, a script that writes."""
    return _changes(stages(command)) or writes_by_code(command)


def writes_by_code(text: str) -> bool:
    """Whether a program in this text opens a file to write it."""
    return any(_WRITTEN_BY_CODE.search(part) for part in (text[:_OF_CODE], text[_OF_CODE:][-_OF_CODE:]))


def _changes(found: Iterable[ShellStage]) -> bool:
    return any(stage.fed or stage.more or next(_written(stage), "") for stage in found)


def _written(stage: ShellStage) -> Iterator[str]:
    """The files that a stage writes, wholly or in part; "-" for what it does not name."""
    yield from (*stage.fresh, *stage.more)
    if stage.program in ("tee", "ed"):
        yield from stage.named
    elif stage.program in ("patch", "apply_patch") or (stage.program == "git" and stage.named[:1] == ("apply",)):
        yield "-"
    elif stage.program in ("sed", "perl") and any(_IN_PLACE.match(word) for word in stage.words[1:]):
        yield from stage.named[1:] or ("-",)


def _read(stage: ShellStage) -> Iterator[str]:
    """The files that a stage shows."""
    kind = _kind_of_stage(stage)
    if stage.program == "git" and kind == "file":
        yield from (word.rsplit(":", 1)[-1] for word in stage.named[1:])
    elif kind == "file" or stage.program in _SCRIPT_FIRST:
        yield from stage.named[stage.program in _SCRIPT_FIRST or _KIND_OF.get(stage.program) == "search" :]


def path_in(command: str) -> str:
    """The one file that a command line writes, else the one that it shows; empty where there is none, or several."""
    written, read = list[str](), list[str]()
    place = ""
    for stage in stages(command):
        if stage.program == "cd":
            place = join(place, *stage.named[:1])
        written += (_placed(place, path) for path in _written(stage))
        read += (_placed(place, path) for path in _read(stage))
    patched = patched_in(command) if not written or "" in written else ""
    return patched or only(written or read)


def _placed(place: str, path: str) -> str:
    return path_named(join(place, path)) if path_named(path) else ""


def path_named(path: str) -> str:
    """A path in one spelling; empty where it is none, or more than one."""
    known = 0 < len(path) <= _LONGEST and path != "-" and not _UNSURE.search(path)
    return normpath(path) if known else ""


def only(paths: Iterable[str]) -> str:
    """The path, where all are the same."""
    found = set(paths)
    return found.pop() if len(found) == 1 else ""


def patched_in(text: str) -> str:
    """The one file that a patch in this text is for."""
    named = {first or second for first, second in _PATCHED.findall(text)}
    return only(map(path_named, named)) if len(named) <= _SPELLINGS else ""


def replaces_file(command: str) -> bool:
    """Whether a command line says the whole of a file: a heredoc or words redirected into it."""
    return any(_says_all(stage) for stage in stages(command)) or text_adds_file(command)


def _says_all(stage: ShellStage) -> bool:
    if stage.program == "tee":
        return stage.fed and bool(stage.named) and not {"-a", "--append"} & {*stage.words}
    return bool(stage.fresh) and (stage.program in ("echo", "printf") or (stage.program == "cat" and stage.fed))


def text_adds_file(text: str) -> bool:
    """Whether a patch in this text makes a new file, and does nothing else."""
    return "*** Add File: " in text and "*** Update File: " not in text and "*** Delete File: " not in text

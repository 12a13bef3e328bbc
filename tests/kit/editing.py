"""Sessions that read a few files in one turn and edit them for many, as people's coding agents do: Anthropic's Messages
with the tools of Claude Code.

Laws
  The same seed, number of turns and of files give the same session, byte for byte.
  What an edit quotes stands in the file as it was read, once, and no earlier edit quoted a line of it.
  Files are edited one after the other, so the last one long after it was read; some never are.
"""

import re
from collections.abc import Iterator
from random import Random

from policies.model.tokens import Counter, encoding_for
from proxy.lab.generators.code import Project, SourceFile
from proxy.lab.generators.loops import AgentTurn, Json

KIND, MODEL, TURNS, FILES = "edits", "claude-opus-5-5", 30, 8
"""Its name, whose prices count, and what is usual: turns of edits, and files."""
_ROOT = "/home/dev/workspace"
_FILE_TOKENS = (2_000, 6_000)
"""Of the smallest and the largest file: 100 to 400 lines."""
_SYSTEM = "Read a file before you edit it, quote what you replace exactly, and run the tests after what may break them."
_DONE = "The file {path} has been updated successfully."
_TOOLS = {
    "Read": ("Reads a file. Lines come with their numbers.", "file_path"),
    "Edit": ("Replaces a string that stands once in a file.", "file_path", "old_string", "new_string"),
    "Bash": ("Runs a shell command.", "command", "description"),
    "Grep": ("Searches files by a regular expression.", "pattern", "path"),
}
_OPENINGS = ("Now {name}.", "Next: {name} in {path}.", "{path} still needs a change in {name}.", "", "")


def editing(seed: int, turns: int = TURNS, files: int = FILES) -> Json:
    """A session that reads so many files in its first turn, works on them for so many turns, and reports. Raises
    ValueError where there are too few of either."""
    if turns < 2 or files < 2:
        raise ValueError("such a session has 2 turns of edits and 2 files at least")
    random = Random(f"{KIND} {seed}")
    work = _Work(random, files)
    task = f"Review {files} modules, and change one passage at a time. {work.project.sentence()}"
    messages = [{"role": "user", "content": task}]
    for turn in (work.reads(), *work.turns(turns), AgentTurn("All changes are made, and the tests pass.")):
        messages += turn.as_messages()
    return {"model": MODEL, "system": _SYSTEM, "messages": messages, "tools": [_tool(name) for name in _TOOLS]}


class _File:
    """A file of the workspace: its lines as they were read, and which of them may still be quoted."""

    def __init__(self, source: SourceFile) -> None:
        self.source, self.path, self.lines = source, f"{_ROOT}/{source.path}", source.text.split("\n")
        self.left = {at for at, line in enumerate(self.lines) if line.strip()}

    def numbered(self) -> str:
        """As Claude Code's tool shows it."""
        return "\n".join(f"{number}\t{line}" for number, line in enumerate(self.lines[:-1], 1))

    def passage(self, random: Random) -> str | None:
        """Two to five lines that stand there once; from now on they are not quoted again. None where few are left."""
        for _ in range(40):
            start = random.randrange(len(self.lines))
            places = range(start, start + random.randint(2, 5))
            text = "\n".join(self.lines[start : places.stop])
            if self.left.issuperset(places) and self.source.text.count(text) == 1:
                self.left.difference_update(places)
                return text
        return None


class _Work:
    """What one session is about: a project, its files, and those that are edited, in that order."""

    def __init__(self, random: Random, files: int) -> None:
        self.random, self.project, count = random, Project(random, repetition=0.0), Counter(encoding_for(MODEL))
        self.files = [_File(self.project.file(random.randint(*_FILE_TOKENS), count)) for _ in range(files)]
        self.edited = random.sample(self.files, files - max(1, round(files * random.uniform(0.1, 0.3))))

    def reads(self) -> AgentTurn:
        calls = [self._call("Read", {"file_path": file.path}, file.numbered()) for file in self.files]
        return AgentTurn("I read the modules first.", calls)

    def turns(self, number: int) -> Iterator[AgentTurn]:
        """Mostly edits; the rest are test runs and searches."""
        for turn in range(number):
            now = int(turn / number * len(self.edited))
            astray = self.random.random() < 0.2
            file = self.random.choice(self.edited) if astray else self.edited[now]
            name, kind = self.random.choice(file.source.names), self.random.random()
            call = self._edit(file) if kind < 0.7 else None
            call = call or (self._test() if kind < 0.85 else self._search(name.partition("_")[2] or name))
            yield AgentTurn(self.random.choice(_OPENINGS).format(name=name, path=file.source.path), [call])

    def _edit(self, file: _File) -> tuple[str, str, Json, str] | None:
        if (old := file.passage(self.random)) is None:
            return None
        indent = re.findall(r"^ *", old, re.MULTILINE)[-1]
        new = re.sub(r"\d+", str(self.random.randint(2, 99_999)), old, count=1)
        new += f"\n{indent}# {self.project.sentence()}"
        arguments = {"file_path": file.path, "old_string": old, "new_string": new}
        return self._call("Edit", arguments, _DONE.format(path=file.path))

    def _test(self) -> tuple[str, str, Json, str]:
        """A run of all tests."""
        names = [(file.source.path, name) for file in self.files for name in file.source.names]
        tests = [
            f"tests/{path}::test_{name} PASSED [{100 * at // len(names)}%]" for at, (path, name) in enumerate(names)
        ]
        last = f"{'=' * 20} {len(tests)} passed in {self.random.uniform(0.2, 90):.2f}s {'=' * 20}"
        arguments = {"command": "pytest -v", "description": "Run the tests"}
        return self._call("Bash", arguments, "\n".join([*tests, last]))

    def _search(self, name: str) -> tuple[str, str, Json, str]:
        numbered = ((file, *each) for file in self.files for each in enumerate(file.lines, 1))
        hits = [f"{file.path}:{number}:{line}" for file, number, line in numbered if name in line]
        return self._call("Grep", {"pattern": name, "path": _ROOT}, "\n".join(hits[:12]) or "No matches found")

    def _call(self, tool: str, arguments: Json, result: str) -> tuple[str, str, Json, str]:
        return f"toolu_{self.random.getrandbits(64):016x}", tool, arguments, result


def _tool(name: str) -> Json:
    does, *keys = _TOOLS[name]
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in keys}, "required": keys}
    return {"name": name, "description": does, "input_schema": schema}

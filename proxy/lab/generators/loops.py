"""Loops of an agent that reads one new file with each request, as sessions for `narrows replay`.

Laws
  The same kind, seed and number of requests give the same session, byte for byte.
  Sizes, repetition between files and wording vary by the seed, so that nothing can be fitted to them.
  Now and then a turn names what was read long ago, and edits it by quoting its lines: so it shows what stays in sight.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from policies.model.tokens import Counter, encoding_for
from proxy.lab.generators.code import Project, SourceFile

Json = dict[str, Any]
_FILE_TOKENS = 2_100
"""The mean size of files: each seed has its own, within a tenth of this, and each file its own size around that."""
_TOOL_BYTES = 8_000


@dataclass(frozen=True, slots=True)
class Loop:
    is_chat: bool
    model: str
    requests: int
    cache_marks: bool


LOOPS: Mapping[str, Loop] = {
    "read-loop": Loop(True, "gpt-5.4", 80, True),
    "claude-loop": Loop(False, "claude-opus-5-5", 40, False),
}
_TOOLS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "read_file": ("Read a text file of the workspace and return its content.", {"path": "string"}),
    "edit_file": ("Replace one passage of a file.", {"path": "string", "old_string": "string", "new_string": "string"}),
    "write_file": ("Create a file or replace all of its content.", {"path": "string", "content": "string"}),
    "list_files": ("List the files of a folder.", {"folder": "string", "depth": "integer"}),
    "search": ("Search the files of the workspace for a pattern.", {"pattern": "string", "folder": "string"}),
    "run": ("Run a shell command in the workspace.", {"command": "string", "timeout": "integer"}),
    "ask_person": ("Ask the person one question and wait for the answer.", {"question": "string"}),
}
_ADVICE = (
    "Paths are relative to the root of the workspace.",
    "The call fails where the file does not exist.",
    "At most {number} lines are returned; the last line then says how many more there are.",
    "A timeout of {number} seconds applies unless another is given.",
    "Use it before you change anything that you have not seen.",
    "Prefer it to a command that does the same.",
    "Output over {number} bytes is cut in the middle.",
    "Several calls in one turn run one after the other.",
    "Do not call it twice with the same arguments.",
    "Text is UTF-8; other encodings are refused.",
    "Links that lead out of the workspace are not followed.",
    "Whatever it returns is as of the time of the call.",
)
_OPENINGS = (
    "Next is {path}.",
    "{name} is not the cause. Reading {path}.",
    "{name} in {other} takes {number}; whether {path} agrees is the question.",
    "Nothing to change in {other}. On to {path}.",
    "I need {path} to see who calls {name}.",
    "",
)


def generated(kind: str, seed: int, requests: int | None = None) -> Json:
    """A session in the form of its API. Raises ValueError where there is no such kind, or too few requests."""
    if kind not in LOOPS:
        raise ValueError(f"there is no generator {kind!r}; name one of {', '.join(sorted(LOOPS))}")
    if requests is not None and requests < 2:
        raise ValueError("a loop has 2 requests at least")
    loop = LOOPS[kind]
    random = Random(f"{kind} {seed}")  # noqa: S311 - the same session for the same seed, and no secret
    turns = list(_turns(random, loop.requests if requests is None else requests, Counter(encoding_for(loop.model))))
    system, tools = f"You are a careful engineer. {_advice(random, 1_500)}", _tools(random)
    task = "Review every file of the workspace, one at a time. Mend what is wrong where you see it, then report."
    session = {"model": loop.model}
    if loop.is_chat:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": task}]
        functions = [{"type": "function", "function": tool} for tool in tools]
        return {**session, "messages": messages + [m for turn in turns for m in turn.as_chat()], "tools": functions}
    schemas = [{("input_schema" if key == "parameters" else key): tool[key] for key in tool} for tool in tools]
    messages = [{"role": "user", "content": task}, *(m for turn in turns for m in turn.as_messages())]
    return {**session, "cache_marks": loop.cache_marks, "system": system, "messages": messages, "tools": schemas}


@dataclass(frozen=True, slots=True)
class AgentTurn:
    text: str
    calls: Sequence[tuple[str, str, Json, str]] = ()
    """Of each its id, the tool, the arguments and the result."""

    def as_chat(self) -> Iterator[Json]:
        calls = [
            {"id": id_, "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
            for id_, tool, arguments, _ in self.calls
        ]
        yield {"role": "assistant", "content": self.text or None, **({"tool_calls": calls} if calls else {})}
        for id_, _, _, result in self.calls:
            yield {"role": "tool", "tool_call_id": id_, "content": result}

    def as_messages(self) -> Iterator[Json]:
        calls = [{"type": "tool_use", "id": id_, "name": tool, "input": value} for id_, tool, value, _ in self.calls]
        yield {"role": "assistant", "content": [*([{"type": "text", "text": self.text}] if self.text else ()), *calls]}
        if self.calls:
            results = [{"type": "tool_result", "tool_use_id": id_, "content": text} for id_, _, _, text in self.calls]
            yield {"role": "user", "content": results}


def _turns(random: Random, requests: int, count: Counter) -> Iterator[AgentTurn]:
    """All turns but the last read a new file; some edit an older one beside that."""
    project = Project(random, repetition=random.uniform(0.02, 0.35))
    mean, chatty, edits = _FILE_TOKENS * random.uniform(0.9, 1.1), random.uniform(0.3, 0.9), random.uniform(0.06, 0.16)
    read: list[SourceFile] = []
    for _ in range(requests - 1):
        file = project.file(int(mean * min(max(random.gauss(1, 0.25), 0.4), 1.8)), count)
        calls = [(_id(random), "read_file", {"path": file.path}, file.text)]
        text = _opening(random, file.path, read) if random.random() < chatty else ""
        if read and random.random() < edits:
            text = f"{text} {project.sentence()}".strip()
            calls.insert(0, _edit(random, read))
        read.append(file)
        yield AgentTurn(text, calls)
    names = ", ".join(random.choice(file.names) for file in random.sample(read, min(5, len(read))) if file.names)
    yield AgentTurn(f"All {len(read)} files are reviewed. Worth another look: {names}.")


def _opening(random: Random, path: str, read: Sequence[SourceFile]) -> str:
    """The words before a file is read: they may name another that was read, mostly of the newest."""
    before = read[-min(len(read), 1 + int(random.expovariate(1 / 6)))] if read else None
    if before is None or not before.names:
        return f"I begin with {path}."
    name, number = random.choice(before.names), random.randint(2, 900)
    return random.choice(_OPENINGS).format(path=path, name=name, other=before.path, number=number)


def _edit(random: Random, read: list[SourceFile]) -> tuple[str, str, Json, str]:
    """An edit of a file that was read, by lines of it: the file is another one from then on."""
    at = random.randrange(len(read))
    lines = read[at].text.split("\n")
    start = random.randrange(len(lines) - 4)
    old = "\n".join(lines[start : start + random.randint(2, 4)])
    while not old.strip() or read[at].text.count(old) > 1:  # it has to name one passage
        start = max(start - 1, 0)
        old = "\n".join(lines[start : start + old.count("\n") + 2])
    new = f"{old}  # checked {random.randint(1, 99)}"
    read[at] = SourceFile(read[at].path, read[at].text.replace(old, new), read[at].names)
    arguments = {"path": read[at].path, "old_string": old, "new_string": new}
    return _id(random), "edit_file", arguments, f"replaced 1 passage of {read[at].path}"


def _tools(random: Random) -> list[Json]:
    """Definitions of about `_TOOL_BYTES`, in other words for each seed."""
    tools = [
        {
            "name": name,
            "description": f"{does} {_advice(random, _TOOL_BYTES // len(_TOOLS) - 420)}",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind, "description": _advice(random, 40)} for key, kind in keys.items()},
                "required": [next(iter(keys))],
            },
        }
        for name, (does, keys) in _TOOLS.items()
    ]
    random.shuffle(tools)
    return tools


def _advice(random: Random, characters: int) -> str:
    sentences = list[str]()
    while sum(map(len, sentences)) < characters:
        sentences.append(random.choice(_ADVICE).format(number=random.randint(10, 9_000)))
    return " ".join(sentences)


def _id(random: Random) -> str:
    return f"call_{random.getrandbits(64):016x}"

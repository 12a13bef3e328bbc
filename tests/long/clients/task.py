"""What a client does: the provider's script plays its model.

It has the client look at long files with the client's own tool, until Narrows hides one of them; asks Narrows for what
it needs of that one, alone and beside a call of the client's; has the client write it to a file; and says a last
sentence. Then the client is asked for more, and goes on.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from policies.tools import RECALL, SEARCH
from proxy.lab.provider import Received, Say
from tests.long.clients.client import Client, Json

PARTS = 24
LINES = 150
FEWEST = 8
"""How many parts are looked at where nothing is hidden."""
AFTER = 4
"""How many more parts are looked at when all is done."""
TASK = "Count what the parts hold, and note the code word of one of them in result.txt."
MORE = "Please count one more part."
DONE = "All parts are counted, and a code word is noted."
RESULT = "result.txt"
_FINDS = "tool_search_output"
_REFERENCE = re.compile(rb'"tool_name":\s*"([^"]+)"')
_HIDDEN = re.compile(rb"entry 0 of part (\d+):(?:(?!entry 0 of part).)*?\[narrows:[^\]]*?\bref (\d{6,24})", re.DOTALL)
"""A part that is not shown whole, and what Narrows calls it."""


def part(number: int) -> str:
    """A file to look at: a code word in the middle of numbers."""
    lines = [f"entry {n} of part {number}: {(n * 7919 + number * 31) % 1000} units were counted" for n in range(LINES)]
    lines[LINES // 2] = f"the code word of part {number} is {word(number)}"
    return "\n".join(lines) + "\n"


def word(number: int) -> str:
    """A word that no other text holds."""
    return f"kestrel{number * 7919 + 13}"


def brings_tools(received: Received) -> bool:
    """Whether this is a request of the task."""
    return bool(isinstance(received.json, dict) and received.json.get("tools"))


def tools_of(received: Received) -> set[str]:
    """The tools whose definitions a request shows to its model."""
    listed = [each for each in received.json["tools"] if not each.get("defer_loading")]
    found = [each for item in received.json.get("input", ()) if item.get("type") == _FINDS for each in item["tools"]]
    names = {str(each.get("function", each).get("name") or each["type"]) for each in [*listed, *found]}
    return names | {name.decode() for name in _REFERENCE.findall(received.body)}


class Model:
    """What the model does, one turn after the other; it looks for a tool that it has no definition of. A request
    without tools asks for a title."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.faults: list[str] = []
        self.thoughts: list[str] = []
        self.wanted = -1
        """The part whose code word is asked for; -1 as long as none is hidden."""
        self._ref = ""
        self._next: Callable[[Received], Say] = self._start
        self._parts = 0
        self._calls = 0
        self._ended = False
        self._waits: Say | None = None
        self.looked = 0

    def __call__(self, received: Received) -> Say | None:
        if not brings_tools(received):
            return Say("A title")
        said = self._waits or self._next(received)
        names = {name for each in said.calls if (name := str(each[str(each["type"])]["name"]))}
        lacks = names - tools_of(received) if self.client.defers else set[str]()
        if lacks and self._waits:
            self.faults.append(f"a search did not find {lacks}")
        self._waits = None if self._waits or not lacks else said
        return said if self._waits is None else self._looks(lacks)

    def _looks(self, names: set[str]) -> Say:
        """Before what it was about to say."""
        self.looked += 1
        thought = f"Thought of search {self.looked}."
        self.thoughts.insert(-1, thought)
        arguments = json.dumps({"query": " ".join(sorted(names))})
        call = {"id": f"look_{self.looked}", "type": "function", "function": {"name": SEARCH, "arguments": arguments}}
        return Say("Let me look. ", [call], thinking=[thought])

    @property
    def over(self) -> bool:
        """Whether it has said its last sentence twice."""
        return self._next == self._no_more

    def _start(self, _: Received) -> Say:
        self._next = self._look
        return self._says("Two at once. ", self._cat(), self._cat(), *self.client.later)

    def _look(self, received: Received) -> Say:
        """Look at one part after the other, until one of them is hidden."""
        hidden = _HIDDEN.search(received.body)
        if hidden is not None:
            return self._recall(received, int(hidden[1]), hidden[2].decode())
        if self._parts == FEWEST and not self.client.hides:
            self.wanted = 0
            return self._write(received)
        if self._parts == PARTS:
            self.faults.append("nothing was hidden")
            return self._end(received)
        return self._says("And the next. ", self._cat())

    def _recall(self, received: Received, number: int, ref: str) -> Say:
        self.wanted, self._ref = number, ref
        if self._found(received):
            self.faults.append(f"the code word of part {number} was not hidden")
        self._next = self._recall_and_call
        return self._says("I look that up. ", self._asks())

    def _recall_and_call(self, received: Received) -> Say:
        if not self._found(received):
            self.faults.append("the recall was not answered with what was asked for")
        self._next = self._write
        return self._says("Once more, and the date. ", self._asks(), self.client.command("date"))

    def _write(self, received: Received) -> Say:
        self._next = partial(self._look_on, AFTER)
        path = str(self.folder / RESULT)
        return self._says("", self.client.write(path, self._found(received) or "not there"))

    def _look_on(self, left: int, received: Received) -> Say:
        self._next = partial(self._look_on, left - 1)
        return self._says("And the next. ", self._cat()) if left and self._parts < PARTS else self._end(received)

    def _end(self, _: Received) -> Say:
        """The last sentence, and once more when it is asked to go on."""
        self._next = self._no_more if self._ended else partial(self._look_on, 1)
        self._ended = True
        return self._says(DONE) if self.client.end is None else self._says("", self.client.end(DONE))

    def _no_more(self, _: Received) -> Say:
        self.faults.append("it went on after the last sentence")
        return Say("There is nothing more to do.")

    def _found(self, received: Received) -> str:
        """The code word, where the request holds it."""
        word = re.search(rb"the code word of part %d is (\w+)" % self.wanted, received.body)
        return word[1].decode() if word else ""

    def _cat(self) -> Json:
        self._parts += 1
        return self.client.command(f"cat part_{self._parts - 1}.txt")

    def _asks(self) -> Json:
        arguments = json.dumps({"ref": self._ref, "part": "find code word"})
        return {"type": "function", "function": {"name": RECALL, "arguments": arguments}}

    def _says(self, text: str, *calls: Json) -> Say:
        numbered: Sequence[Json] = [{"id": f"call_{self._calls + i}", **call} for i, call in enumerate(calls)]
        self._calls += len(calls)
        self.thoughts.append(f"Thought {len(self.thoughts)}.")
        return Say(text or None, numbered, thinking=self.thoughts[-1:])

"""`make clients-test`: real coding agents, each at work through a real Narrows before the strict built-in provider.

The provider's script plays the model: it has the agent look at long files with the agent's own tools, until Narrows
hides one of them; asks Narrows for what it needs of that one, alone and beside a call of the agent's; has the agent
write it to a file; and says a last sentence. Then the agent is started anew, and goes on. Between agent and Narrows
every byte of every reply is looked at.

What is shown of each agent: it did its task with what had been hidden, and heard nothing of the recalls; no request was
refused, and no thought lost; and the provider's cache had at least what Narrows declared:

  extended   the whole prompt of the request before
  tail-cut   what that one had found there: only what was new in it was shortened
  else       the prefix was moved, and said so
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from policies.context import Policy
from policies.model.tokens import Counter
from policies.money.catalog import prices_for
from policies.money.prices import Usage
from policies.presets import Preset
from policies.rules.clip import Clip
from policies.rules.collapse import Collapse
from policies.rules.offload import Offload
from policies.tools import RECALL
from proxy.app import App
from proxy.config import Settings
from proxy.lab.provider import Provider, Received, Say, start
from proxy.lab.provider.signatures import REASONING, THINKING, seal
from tests.kit.agents import AGENTS, PROGRAMS, Agent, Json

PRESET = "eager"
EAGER: tuple[Policy, ...] = (
    Collapse(keep=3),
    Clip(over=150, keep=1, keep_writes=1),
    Offload(over=250, keep=1, keep_files=1, relevant_tokens=1),
)
"""A long output is cut as soon as the model has seen it, where that pays; what was recalled stays for three turns."""
PARTS = 24
LINES = 150
AFTER = 4
"""How many more parts are looked at when all is done."""
STEP = 128
"""Tokens by which a cache may be behind: OpenAI's grows in such steps."""
TASK = "Count what the parts hold, and note the code word of one of them in result.txt."
MORE = "Please count one more part."
DONE = "All parts are counted, and a code word is noted."
MISSING = "clients-test: skipped, {} not installed; `make clients-test` installs them with npm, which it did not find"
HOP_BY_HOP = ("Host", "Connection", "Transfer-Encoding", "Content-Length")
SEALED = {"anthropic_messages": THINKING, "openai_responses": REASONING}
"""In which APIs what a model thought travels, and as what it is sealed."""
_SEAL = re.compile(rb'"(?:signature|encrypted_content)":\s*"([^"]+)"')
_HIDDEN = re.compile(rb"entry 0 of part (\d+):(?:(?!entry 0 of part).)*?\[narrows:[^\]]*?\bref (\d{6,24})")
"""A part that is not shown whole, and what Narrows calls it."""


def part(number: int) -> str:
    """A file to look at: a code word in the middle of numbers."""
    lines = [f"entry {n} of part {number}: {(n * 7919 + number * 31) % 1000} units were counted" for n in range(LINES)]
    lines[LINES // 2] = f"the code word of part {number} is {word(number)}"
    return "\n".join(lines) + "\n"


def word(number: int) -> str:
    """A word that no other text holds."""
    return f"kestrel{number * 7919 + 13}"


# --- the model ---


class Model:
    """What the model does, one turn after the other; a request without tools asks for a title."""

    def __init__(self, agent: Agent, folder: Path) -> None:
        self.agent = agent
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

    def __call__(self, received: Received) -> Say | None:
        return self._next(received) if brings_tools(received) else Say("A title")

    @property
    def over(self) -> bool:
        """Whether it has said its last sentence twice."""
        return self._next == self._no_more

    def _start(self, _: Received) -> Say:
        self._next = self._look
        return self._says("Two at once. ", self._cat(), self._cat())

    def _look(self, received: Received) -> Say:
        """Look at one part after the other, until one of them is hidden."""
        hidden = _HIDDEN.search(received.body)
        if hidden is not None:
            return self._recall(received, int(hidden[1]), hidden[2].decode())
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
        return self._says("Once more, and the date. ", self._asks(), self.agent.shell("date"))

    def _write(self, received: Received) -> Say:
        self._next = partial(self._look_on, AFTER)
        path = str(self.folder / "result.txt")
        return self._says("", self.agent.write(path, self._found(received) or "not there"))

    def _look_on(self, left: int, received: Received) -> Say:
        self._next = partial(self._look_on, left - 1)
        return self._says("And the next. ", self._cat()) if left and self._parts < PARTS else self._end(received)

    def _end(self, _: Received) -> Say:
        """The last sentence, and once more when it is asked to go on."""
        self._next = self._no_more if self._ended else partial(self._look_on, 1)
        self._ended = True
        return self._says(DONE)

    def _no_more(self, _: Received) -> Say:
        self.faults.append("it went on after the last sentence")
        return Say("There is nothing more to do.")

    def _found(self, received: Received) -> str:
        """The code word, where the request holds it."""
        word = re.search(rb"the code word of part %d is (\w+)" % self.wanted, received.body)
        return word[1].decode() if word else ""

    def _cat(self) -> Json:
        self._parts += 1
        return self.agent.shell(f"cat part_{self._parts - 1}.txt")

    def _asks(self) -> Json:
        arguments = json.dumps({"ref": self._ref, "part": "find code word"})
        return {"type": "function", "function": {"name": RECALL, "arguments": arguments}}

    def _says(self, text: str, *calls: Json) -> Say:
        numbered = [{"id": f"call_{self._calls + i}", **call} for i, call in enumerate(calls)]
        self._calls += len(calls)
        self.thoughts.append(f"Thought {len(self.thoughts)}.")
        return Say(text or None, numbered, thinking=self.thoughts[-1:])


def brings_tools(received: Received) -> bool:
    """Whether this is a request of the task."""
    return bool(isinstance(received.json, dict) and received.json.get("tools"))


# --- what passes ---


@dataclass(frozen=True, slots=True)
class Heard:
    """A reply as the agent got it, and how many requests of the task the provider had had before."""

    prefix: str
    edits: str
    raw: bytes
    before: int


@dataclass(slots=True)
class Ear:
    """Stands between agent and Narrows, and keeps what passes."""

    provider: Provider
    target: str
    """Where Narrows listens."""
    heard: list[Heard] = field(default_factory=list)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """The base_url for the agent."""
        async with aiohttp.ClientSession(auto_decompress=False) as http:
            runner = web.ServerRunner(web.Server(partial(self._pass, http)))
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{site.port}/v1"
            await runner.cleanup()

    async def _pass(self, http: aiohttp.ClientSession, request: web.BaseRequest) -> web.StreamResponse:
        body, before = await request.read(), len(task(self.provider))
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP]
        url = self.target.removesuffix("/v1") + request.raw_path
        async with http.request(request.method, url, data=body, headers=headers) as reply:
            headers = [(name, value) for name, value in reply.headers.items() if name not in HOP_BY_HOP]
            response = web.StreamResponse(status=reply.status, headers=CIMultiDict(headers))
            await response.prepare(request)
            raw = bytearray()
            async for piece in reply.content.iter_any():
                raw += piece
                await response.write(piece)
        if body and json.loads(body).get("tools"):
            declared = reply.headers
            heard = Heard(declared.get("x-narrows-prefix", ""), declared.get("x-narrows-edits", ""), bytes(raw), before)
            self.heard.append(heard)
        return response


def task(provider: Provider) -> list[Received]:
    """The requests of the task that the provider had."""
    return [received for received in provider.requests if brings_tools(received)]


# --- what is asked of it ---


def owed(prefix: str, before: Usage | None) -> int:
    """Tokens that must have been in the cache, by what Narrows declared and what the provider billed just before."""
    if before is None:
        return 0
    return {"extended": before.prompt, "tail-cut": before.cached}.get(prefix, 0)


def promises(heard: Iterable[Heard], requests: Sequence[Received]) -> Iterable[str]:
    """What was declared and not held; each request printed."""
    declared = {each.before: each for each in heard}
    print(f"{'request':>7} {'prompt':>7} {'cached':>7} {'owed':>7}  prefix", flush=True)
    before: Usage | None = None
    for number, received in enumerate(requests):
        usage = received.usage or Usage(0, 0, 0, 0)
        reply = declared.get(number)
        prefix = reply.prefix if reply else "extended"  # a further round of the same reply
        due = owed(prefix, before)
        line = f"{prefix:18} {reply.edits}" if reply else "recall"
        print(f"{number + 1:7} {usage.prompt:7} {usage.cached:7} {due:7}  {line}", flush=True)
        if usage.cached <= due - STEP:
            yield f"request {number + 1}: {prefix} was declared, {usage.cached} were cached, {due} owed"
        before = usage


def refused(requests: Iterable[Received]) -> Iterable[str]:
    """What the provider found wrong."""
    return (f"{r.method} {r.path} was refused: {r.violation}" for r in requests if r.violation)


def unseen(heard: Sequence[Heard], requests: Sequence[Received]) -> Iterable[str]:
    """What did not happen, or was heard though it should not be."""
    seen = {"extended": any(each.prefix == "extended" for each in heard), "edit": any(each.edits for each in heard)}
    seen["recall"] = len(requests) > len(heard)
    yield from (f"there was no {what}" for what, happened in seen.items() if not happened)
    yield from ("the agent heard of a recall" for each in heard if RECALL.encode() in each.raw)
    yield from ("a reply declared no prefix" for each in heard if not each.prefix)


def lost(agent: Agent, thoughts: Sequence[str], requests: Sequence[Received]) -> Iterable[str]:
    """Whether what the model thought, in hidden rounds too, is not in the last request, each in its place."""
    kinds = {kind for dialect, kind in SEALED.items() if dialect == agent.dialect}
    sealed = [seal(kind, thought) for thought in thoughts for kind in kinds]
    last = requests[-1].body if requests else b""
    if [seal_.decode() for seal_ in _SEAL.findall(last)] != sealed[:-1]:
        yield "thoughts were lost, or stand elsewhere"


def unfinished(ends: Iterable[tuple[int | None, str, str]], result: Path, wanted: str) -> Iterable[str]:
    """What of the task was not done."""
    for code, stdout, stderr in ends:
        if code != 0 or DONE not in stdout:
            yield f"it ended with {code} and printed {stdout[-500:]!r} {stderr[-2000:]!r}"
    if not result.is_file() or result.read_text().strip() != wanted:
        yield f"result.txt: {result.read_text() if result.is_file() else 'was not written'}"


async def tried(agent: Agent, home: Path, work: Path) -> list[str]:
    """What went wrong as this agent did its task."""
    print(f"\n{agent.name}", flush=True)
    for number in range(PARTS):
        (work / f"part_{number}.txt").write_text(part(number))
    model = Model(agent, work)
    provider = Provider(prices_for, Counter(), answer=model)
    settings: Json = {"port": 0, "store": f"sqlite:///{home}/narrows.db", "preset": PRESET, "log_level": "error"}
    async with await start(provider) as upstream, await App.start(Settings(upstream=upstream.url, **settings)) as app:
        ear = Ear(provider, app.base_url)
        async with ear.listening() as base_url:
            tasks = ((*agent.words, TASK), (*agent.again, MORE))
            ends = [await agent.run(words, home, work, base_url) for words in tasks]
    requests = task(provider)
    return [
        *unfinished(ends, work / "result.txt", word(model.wanted)),
        *([] if model.over else ["it stopped before the model did"]),
        *model.faults,
        *refused(provider.requests),
        *promises(ear.heard, requests),
        *unseen(ear.heard, requests),
        *lost(agent, model.thoughts, requests),
    ]


def main(names: Sequence[str]) -> int:
    """0 where every agent did its task, or none could be tried. Names choose some of them."""
    absent = sorted({agent.program for agent in AGENTS if not (PROGRAMS / agent.program).exists()})
    if absent:
        print(MISSING.format(" and ".join(absent)))
        return 0
    faults: list[str] = []
    for agent in AGENTS:
        if names and not any(name in agent.name for name in names):
            continue
        with patch.dict("policies.presets.PRESETS", {PRESET: Preset(EAGER)}), TemporaryDirectory() as folder:
            home, work = Path(folder, "home"), Path(folder, "work")
            home.mkdir()
            work.mkdir()
            faults += [f"{agent.name}: {fault}" for fault in asyncio.run(tried(agent, home, work))]
    print("\n".join(["", *faults]) if faults else "\nevery agent did its task, and none heard of a recall")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

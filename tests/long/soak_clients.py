"""The clients of the soak: recorded sessions in three APIs, request by request, before a provider that fails at times.

Each conversation has its own spelling, so no two of them have a text in common. What the model says is what was
recorded, so a client knows every reply beforehand.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp

from policies.dialects import DIALECTS
from proxy.lab.load.plan import Salt
from proxy.lab.provider import Abort, Answer, Provider, Received, Say, Send, Wire
from proxy.lab.sessions import load, names
from tests.kit.apis import APIS, Api
from tests.kit.losses import lost
from tests.kit.streams import events

Json = Mapping[str, Any]
NAME = "x-soak"
MODELS = {"openai_chat": "gpt-5.4", "openai_responses": "gpt-5.4", "anthropic_messages": "claude-sonnet-5"}
FAULTS: Mapping[str, Callable[[Say], Answer]] = {
    "500": lambda _: Send(500, b'{"error":{"message":"It failed."}}'),
    "429": lambda _: Send(429, b'{"error":{"message":"Too fast."}}', (("Retry-After", "1"),)),
    "html": lambda _: Send(502, b"<html>bad gateway</html>", (("Content-Type", "text/html"),)),
    "abort": lambda _: Abort(),
    "cut": lambda say: Say(say.content, say.calls, wire=Wire(die_at=300)),
    "late": lambda say: Say(say.content, say.calls, wire=Wire(delay=2)),
}
"""What the provider does instead of answering well; the last of them is no fault of the reply."""
SHARE, SAMPLE = 0.1, 0.1
"""Of requests that meet a fault, and of those in which is looked for what is lost."""
_PATIENCE = aiohttp.ClientTimeout(total=60)
_TRIES = 20


class CutShortError(Exception):
    """A reply ended before its end, and said so or not."""


@dataclass(slots=True)
class Tally:
    """What came of all requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """Wrong bytes, lost texts, conversations that were refused, errors that nobody caused."""
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """When a request was sent, and how long its reply took, where all was well."""
    looked_at: int = 0

    @property
    def requests(self) -> int:
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class Place:
    """A Narrows: where it is now, and when it was last away."""

    urls: list[str] = field(default_factory=list)
    away: list[tuple[float, float]] = field(default_factory=list)

    def was_away(self, since: float) -> bool:
        return any(end >= since for _, end in self.away)

    async def back(self) -> None:
        while self.away and self.away[-1][1] > time.monotonic():  # noqa: ASYNC110 - it comes back by itself
            await asyncio.sleep(0.1)


class Conversation:
    """One salted session in one API."""

    def __init__(self, number: int, chance: random.Random) -> None:
        session, salt = load(chance.choice(names())), Salt(number)
        self.number, self.api = number, chance.choice([*APIS.values()])
        self.tools: Sequence[Json] = session["tools"]
        self.messages = [salt.message(message) for message in session["messages"]]
        self.turns = [at for at, message in enumerate(self.messages) if message["role"] == "assistant"]

    def body(self, turn: int, streams: bool) -> bytes:
        fields = {"model": MODELS[self.api.dialect], "stream": streams}
        return json.dumps(self.api.body(self.messages[: self.turns[turn]], self.tools, **fields)).encode()

    def say(self, turn: int) -> Say:
        message = self.messages[self.turns[turn]]
        return Say(message.get("content"), message.get("tool_calls") or ())


class Clients:
    """So many clients, each with one conversation after the other."""

    def __init__(self, provider: Provider, places: Sequence[Place], tally: Tally, seed: int) -> None:
        self._provider, self._places, self.tally = provider, places, tally
        self._chance = random.Random(seed)
        self._numbers = count(seed)
        self._open: dict[int, Conversation] = {}
        provider.answer = self._answer

    def _answer(self, received: Received) -> Answer | None:
        if received.violation or NAME not in received.headers:
            return None
        number, turn, fault = received.headers[NAME].split("/")
        say = self._open[int(number)].say(int(turn))
        return FAULTS[fault](say) if fault else say

    async def converse(self, http: aiohttp.ClientSession) -> None:
        while True:
            conversation = Conversation(next(self._numbers), self._chance)
            self._open[conversation.number] = conversation
            place = self._chance.choice(self._places)
            for turn in range(len(conversation.turns)):
                if self._chance.random() < 0.02:  # it goes on elsewhere
                    place = self._chance.choice(self._places)
                if not await self._turn(http, conversation, turn, place):
                    break
            self._open.pop(conversation.number)

    async def _turn(self, http: aiohttp.ClientSession, conversation: Conversation, turn: int, place: Place) -> bool:
        """One turn, again where its request met a fault; whether the client goes on."""
        for _ in range(_TRIES):
            await place.back()
            await asyncio.sleep(self._chance.random() * 0.2)
            fault = self._chance.choice([*FAULTS]) if self._chance.random() < SHARE else ""
            self.tally.faults[fault or "none"] += 1
            outcome = await self._exchange(http, conversation, turn, place, fault)
            self.tally.outcomes[outcome] += 1
            if outcome == "well":
                return True
            if outcome == "left":
                return self._chance.random() < 0.5
            await asyncio.sleep(0.5)
        self.tally.problems.append(f"{conversation.api.dialect}: no reply in {_TRIES} tries")
        return False

    async def _exchange(
        self, http: aiohttp.ClientSession, conversation: Conversation, turn: int, place: Place, fault: str
    ) -> str:
        api, began = conversation.api, time.monotonic()
        streams = self._chance.random() < 0.5
        manner = self._chance.choices(("reads", "slow", "leaves"), (0.9, 0.04, 0.06))[0]
        form, body = DIALECTS[api.dialect], conversation.body(turn, streams)
        headers = {
            **form.http.auth("k"),
            "Content-Type": "application/json",
            NAME: f"{conversation.number}/{turn}/{fault}",
        }
        try:
            async with http.post(place.urls[-1] + form.http.path, data=body, headers=headers) as reply:
                if manner == "leaves":
                    return "left"
                raw = await _read(reply, manner == "slow")
                if reply.status != 200:
                    return self._refused(api, reply, raw, fault)
                self._judge(conversation, turn, raw, streams)
        except (aiohttp.ClientError, TimeoutError, CutShortError) as error:
            if fault in ("abort", "cut"):
                return "cut by the upstream"
            if place.was_away(began):
                return "cut by a kill"
            self.tally.problems.append(f"{api.dialect}: {type(error).__name__} {error} {fault}"[:200])
            return "cut"
        self._look(api, body, conversation.number)
        if manner == "reads" and not fault:
            self.tally.latencies.append((began, time.monotonic() - began))
        return "well"

    def _refused(self, api: Api, reply: aiohttp.ClientResponse, raw: bytes, fault: str) -> str:
        if fault in ("500", "429", "html", "abort", "cut") and reply.status >= 429:
            return "refused by the upstream"
        if reply.status in (429, 503) and "Retry-After" in reply.headers:
            return f"refused: {reply.status}"
        self.tally.problems.append(f"{api.dialect}: {reply.status} {raw[:150]!r} {fault}")
        return f"status {reply.status}"

    def _judge(self, conversation: Conversation, turn: int, raw: bytes, streams: bool) -> None:
        """Whether a reply is what the model said. Raises CutShortError where it is not complete."""
        want, api = conversation.say(turn), conversation.api
        got = _streamed(api, raw) if streams else _whole(api.dialect, json.loads(raw))
        calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in want.calls]
        if got != (want.content or "", calls):
            self.tally.problems.append(f"{api.dialect}: another reply than the model's, {raw[:150]!r}")

    def _look(self, api: Api, body: bytes, number: int) -> None:
        if self._chance.random() > SAMPLE:
            return
        mine = (
            each for each in reversed(self._provider.requests) if each.headers.get(NAME, "").startswith(f"{number}/")
        )
        received = next(mine, None)
        if received is not None:
            self.tally.looked_at += 1
            self.tally.problems += [f"{api.dialect}: lost {text[:100]!r}" for text in lost(api, body, received.body)]


async def _read(reply: aiohttp.ClientResponse, slowly: bool) -> bytes:
    if not slowly:
        return await reply.read()
    pieces: list[bytes] = []
    while piece := await reply.content.read(256):
        pieces.append(piece)
        await asyncio.sleep(0.05)
    return b"".join(pieces)


Said = tuple[str, list[tuple[str, Any]]]


def _whole(dialect: str, reply: Any) -> Said:
    """The text and the calls of a reply."""
    if dialect == "openai_chat":
        message = reply["choices"][0]["message"]
        calls = [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls") or ()]
        return message["content"] or "", [(name, json.loads(arguments)) for name, arguments in calls]
    if dialect == "anthropic_messages":
        blocks = reply["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        return text, [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    items = reply["output"]
    texts = (part["text"] for item in items if item["type"] == "message" for part in item["content"])
    calls = [(item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"]
    return "".join(texts), calls


def _streamed(api: Api, raw: bytes) -> Said:
    """The same of a stream."""
    bodies = [body for _, body in events(raw)]
    is_over = bool(bodies) and (
        bodies[-1] == "[DONE]" or bodies[-1].get("type") in ("message_stop", "response.completed")  # type: ignore[union-attr]
    )
    if not is_over:
        raise CutShortError(raw[-80:])
    api.judge(raw)
    chunks = [body for body in bodies if isinstance(body, dict)]
    if api.dialect == "openai_responses":
        return _whole(api.dialect, chunks[-1]["response"])
    return _joined(chunks if api.dialect == "openai_chat" else list(_as_chat(chunks)))


def _as_chat(chunks: Sequence[Json]) -> Iterator[Json]:
    """Events of Anthropic Messages as pieces of chat completions."""
    for chunk in chunks:
        at, block, delta = chunk.get("index"), chunk.get("content_block", {}), chunk.get("delta", {})
        if block.get("type") == "tool_use":
            yield _piece(tool_calls=[{"index": at, "function": {"name": block["name"], "arguments": ""}}])
        elif delta.get("type") == "input_json_delta":
            yield _piece(tool_calls=[{"index": at, "function": {"arguments": delta["partial_json"]}}])
        elif delta.get("type") == "text_delta":
            yield _piece(content=delta["text"])


def _piece(**delta: Any) -> Json:
    return {"choices": [{"delta": delta}]}


def _joined(chunks: Sequence[Json]) -> Said:
    text, calls = "", dict[int, list[str]]()
    for delta in (choice["delta"] for chunk in chunks for choice in chunk["choices"]):
        text += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            entry = calls.setdefault(call["index"], ["", ""])
            entry[0] += call["function"].get("name") or ""
            entry[1] += call["function"].get("arguments") or ""
    return text, [(name, json.loads(arguments or "{}")) for name, arguments in calls.values()]

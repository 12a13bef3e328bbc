"""S1, S2, S5, M5, R1 and V under whatever clients do: conversations at random before two Narrows on a store."""

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from policies.recall import original
from policies.text.stubs import refs_named
from tests.kit.histories import Json
from tests.kit.recalling import runs
from tests.kit.redis_servers import Park, Server
from tests.kit.rolling import (
    Desk,
    Office,
    office_of_a_test,  # noqa: F401 - a fixture
)
from tests.kit.stage import Exchange, moved
from tests.kit.summarizing import conversation_of

_MARK = re.compile(r"\bmark_[a-z]{6}\b")
pytestmark = pytest.mark.usefixtures("patient")


def quoting(text: str) -> str:
    """Everything that an older text is recognised by."""
    return " ".join(["", *dict.fromkeys(_MARK.findall(text))][:12])


@dataclass
class Storm:
    """Clients that do what they like, and what was sent for each of their requests so far."""

    office: Office
    url: str
    wipe: Callable[[], object]
    dice: random.Random
    preset: str = "busy"
    desks: list[Desk] = field(default_factory=list)
    talks: list[list[Json]] = field(default_factory=list)
    sent: dict[str, list[Exchange]] = field(default_factory=dict)
    """By the messages that a request held."""
    words: dict[str, int] = field(default_factory=dict)
    """The prefix words, and how often each was said."""
    safe: bool = True
    """Whether the store has had everything since the beginning, and the policy was one."""

    async def open(self) -> None:
        self.desks = [await self._desk() for _ in range(2)]
        for number in range(3):
            asked = f"Please begin with number {number}. {self._mark()}"
            self.talks.append([{"role": "system", "content": "You are careful."}, {"role": "user", "content": asked}])

    async def step(self) -> None:
        """Something happens."""
        deeds = (self._goes_on, self._retries, self._rewinds, self._forks, self._edits, self._together)
        (deed,) = self.dice.choices(deeds, (16, 4, 1, 1, 1, 3))
        await deed()
        if self.dice.random() < 0.5:
            await self.office.settled()
        if self.dice.random() < 0.04:
            await self._restarts()

    async def _goes_on(self) -> None:
        talk = self.dice.choice(self.talks)
        talk += self._turn()
        await self._ask(talk)

    async def _retries(self) -> None:
        await self._ask(self.dice.choice(self.talks))

    async def _together(self) -> None:
        for talk in self.talks:
            talk += self._turn()
        twice = [*self.talks, self.dice.choice(self.talks)]
        await asyncio.gather(*(self._ask(talk, together=True) for talk in twice))

    async def _rewinds(self) -> None:
        talk = self.dice.choice(self.talks)
        del talk[self._place(talk) :]
        await self._ask(talk)

    async def _forks(self) -> None:
        talk = self.dice.choice(self.talks)
        fork = [*talk[: self._place(talk)], *self._turn()]
        self.talks[self.dice.randrange(len(self.talks))] = fork
        await self._ask(fork)

    async def _edits(self) -> None:
        talk = self.dice.choice(self.talks)
        results = [i for i, message in enumerate(talk) if message["role"] == "tool"]
        if results:
            at = self.dice.choice(results)
            talk[at] = {**talk[at], "content": self._output()}
        await self._ask(talk)

    async def _restarts(self) -> None:
        at = self.dice.randrange(2)
        what = self.dice.random()
        if what < 0.3:
            self.wipe()
            self.safe = False
        if what > 0.7:
            self.preset = {"busy": "busier", "busier": "busy"}[self.preset]
            self.safe = False
            for desk in self.desks:
                await desk.app.close(1)
            self.desks = [await self._desk() for _ in range(2)]
            return
        await self.desks[at].app.close(1)
        self.desks[at] = await self._desk()

    async def _desk(self) -> Desk:
        return await self.office.desk(store=self.url, preset=self.preset, summary_tokens=200)

    async def _ask(self, talk: Sequence[Json], together: bool = False) -> None:
        messages = list(talk)
        exchange = await self.dice.choice(self.desks).ask(messages, not together and self.dice.random() < 0.3)
        self.words[exchange.prefix] = self.words.get(exchange.prefix, 0) + 1
        self.judge(messages, exchange)
        self.sent.setdefault(json.dumps(messages), []).append(exchange)

    def judge(self, messages: Sequence[Json], now: Exchange) -> None:
        """What holds whatever happens."""
        sent = "\n".join(_texts(now.messages))
        for message in messages:
            assert message["role"] not in ("user", "system") or message["content"] in sent
        assert set(_MARK.findall(sent)) <= set(_MARK.findall("\n".join(_texts(messages))))
        _nothing_is_lost(messages, now, sent)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        before = self.sent.get(json.dumps(messages[: answers[-1]]), []) if answers else []
        if before:
            assert any(not moved([each, now]) for each in before), now.prefix
            wrong = {"first", "client-changed", "checkpoint:replayed"} if self.safe else {"first"}
            if any(each.mode == "untouched" for each in before):  # where nothing was decided, nothing is stored
                wrong.discard("checkpoint:replayed")
            assert now.prefix not in wrong
        same = self.sent.get(json.dumps(messages), [])
        if self.safe and same:
            assert now.messages == same[-1].messages, "the same is sent for the same"

    def _place(self, talk: Sequence[Json]) -> int:
        answers = [i for i, message in enumerate(talk) if message["role"] == "assistant"]
        return self.dice.choice(answers) if answers else len(talk)

    def _turn(self) -> list[Json]:
        if self.dice.random() < 0.25:
            rule = self.dice.choice(["Always use tabs.", "Go on.", "You must not touch it."])
            said = {"role": "assistant", "content": f"What is next? {self._mark()}"}
            return [said, {"role": "user", "content": f"{rule} {self._mark()}"}]
        turn = runs(f"make {self._mark()}", self._output(), f"call_{self.dice.randrange(3)}")
        turn[0]["content"] = f"I look at {self._mark()}. " + "First this, and then that. " * self.dice.randrange(12)
        return turn

    def _output(self) -> str:
        return f"{self._mark()}\n" + "and another line of it\n" * self.dice.randrange(120) + self._mark()

    def _mark(self) -> str:
        return "mark_" + "".join(self.dice.choices("abcdefghij", k=6))


def _texts(messages: Sequence[Any]) -> list[str]:
    said = [str(message["content"]) for message in messages]
    return said + [c["function"]["arguments"] for m in messages for c in m.get("tool_calls", ())]


def _nothing_is_lost(messages: Sequence[Json], now: Exchange, sent: str) -> None:
    """Every text stands in what was sent, or is what a reference there stands for, word for word."""
    conversation = conversation_of(messages)
    given = "\n".join(_texts(messages))
    behind = [original(conversation, ref) for ref in refs_named(sent) - refs_named(given)]
    assert None not in behind
    kept = "\n".join([sent, *filter(None, behind)])
    assert all(text in kept for text in _texts(messages))


@pytest.mark.parametrize("seed", [202])
async def test_s1_s2_s5_m5_r1_whatever_clients_do(
    servers: Park, office: Office, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a model takes longer than what is written behind its request: here the next request comes at once
    monkeypatch.setattr("proxy.memory.cached._INTERVAL", 0.0)
    server: Server = servers.server()
    office.scribe.quote = quoting
    storm = Storm(office, server.url, lambda: server.do("FLUSHALL"), random.Random(seed))
    await storm.open()
    for _ in range(32):
        await storm.step()
    assert storm.words["checkpoint:summary"]  # how often depends on when each was there

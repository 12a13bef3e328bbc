"""Whatever a process forgets or packs of a conversation, and when: with the store there, the same bytes are sent."""

import asyncio
import json
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.presets import PRESETS, Preset
from proxy.app import App
from proxy.lab.provider import Answer, Received, Say
from proxy.memory import open_store
from proxy.memory.cached import CachedStore
from proxy.memory.conversation import Conversations, pack
from tests import examples
from tests.kit.histories import EAGER, Json
from tests.kit.recalling import KEEPING, recall, refs
from tests.kit.stage import Exchange, Stage, staged, working

FORGETS, REMEMBERS = "forgets", "remembers"
"""Two tenants, who send the same."""


class Disturbance:
    """Has all of a tenant be forgotten or packed at random: when a request comes in, around what the store is asked,
    and while the model answers."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.memories = set[Conversations]()
        self.forgets = self.packs = 0

    def __call__(self) -> None:
        for conversations in self.memories:
            chance = self.random.randrange(12)
            if chance < 2:
                conversations.forget(FORGETS)
                self.forgets += 1
            elif chance < 5:
                for live in [live for key, live in conversations._awake.by_key.items() if key.tenant == FORGETS]:
                    conversations._awake.take(live.key)
                    live.rest(*pack([*live.branches], next(reversed(live.steps.items()), None)))
                    conversations._resting.put(live)
                    self.packs += 1

    def install(self, patch: pytest.MonkeyPatch) -> None:
        find, ask = Conversations.find, CachedStore.ask

        def found(conversations: Conversations, *given: Any) -> Any:
            self.memories.add(conversations)
            self()
            return find(conversations, *given)

        async def asked(store: CachedStore, *given: Any, **more: Any) -> Any:
            self()
            answer = await ask(store, *given, **more)
            self()
            return answer

        patch.setattr(Conversations, "find", found)
        patch.setattr(CachedStore, "ask", asked)


class Talk:
    """What a client does with a conversation, through two that serve it: one forgets."""

    def __init__(self, stage: Stage, random: Random, disturb: Disturbance) -> None:
        self.stage, self.random, self.disturb = stage, random, disturb
        self.history, self.branches = working(random.randrange(6), random.randrange(30))[:-1], list[list[Json]]()
        self.steps = self.recalls = self.asked = 0
        self.recalled = set[str]()
        """Histories to which a reply had a recall."""
        self.wants = False

    def answer(self, received: Received) -> Answer:
        """The model has something recalled once, where it is to, and then it is done."""
        self.disturb()
        names = refs(received)
        if not self.wants or not names or received.body.count(b"recall_1"):
            return Say(self.reply)
        self.recalls += 1
        return Say(None, [recall(names[-1])])

    @property
    def reply(self) -> str:
        """What the model says in the end, each time something else: of two replies in the same words to the same
        request the store only knows the one before which something was recalled."""
        return f"Seen {self.asked}."

    def go_on(self, text: str) -> None:
        """The client returns the newest reply, and asks for more."""
        self.history += [{"role": "assistant", "content": self.reply}, {"role": "user", "content": text}]

    def move(self) -> None:
        """The next request: the history grows, is sent again, goes back, or another branch of it goes on."""
        ends = [at for at, message in enumerate(self.history) if message["role"] == "assistant"]
        match self.random.randrange(8):
            case 0:
                pass
            case 1 if ends:
                self.branches = [*self.branches, [*self.history]][-3:]
                self.history = self.history[: self.random.choice(ends)]
            case 2 if self.branches:
                at = self.random.randrange(len(self.branches))
                self.branches[at], self.history = self.history, self.branches[at]
            case 3:
                self.go_on(f"Go on with {self.steps}.")
            case _:
                self.grow()

    def grow(self) -> None:
        self.steps += 1
        name = f"call_{self.steps}"
        arguments = json.dumps({"command": f"grep -rn thing_{self.steps} src"})
        call = {"id": name, "type": "function", "function": {"name": "bash", "arguments": arguments}}
        lines = self.random.randrange(40)
        text = "\n".join(f"src/file_{n}.py:{n}: value = parse_line({self.steps})" for n in range(lines)) or "ok"
        self.history.append({"role": "assistant", "content": f"Now step {self.steps}.", "tool_calls": [call]})
        self.history.append({"role": "tool", "tool_call_id": name, "content": text})

    async def ask(self, app: App) -> tuple[list[bytes], Exchange]:
        """What was sent for the next request, in all its rounds, and its exchange."""
        before = len(self.stage.provider.requests)
        exchange = await self.stage.ask(app, self.history)
        return [received.body for received in [*self.stage.provider.requests][before:]], exchange

    async def step(self, forgets: App, remembers: App) -> None:
        self.move()
        self.asked += 1
        self.wants = self.random.randrange(3) == 0
        (others, other), (bodies, exchange) = await self.ask(forgets), await self.ask(remembers)
        assert (other.status, exchange.status) == (200, 200)
        assert others == bodies
        # who has forgotten what was sent last cannot tell a history that the client has changed from one that is new
        unsure = ("checkpoint:replayed", "first") if exchange.prefix == "client-changed" else ()
        # whoever asks the store, of a request that was sent again, finds a recall that the newer reply did not have
        is_unsure = json.dumps(self.history[:-2]) in self.recalled and "checkpoint:recall" in (
            other.prefix,
            exchange.prefix,
        )
        assert is_unsure or other.prefix in (exchange.prefix, *unsure)
        assert json.loads(other.reply)["choices"] == json.loads(exchange.reply)["choices"]
        if len(bodies) > 1:
            self.recalled.add(json.dumps(self.history))
            self.go_on("Go on, please.")


async def talk(random: Random, disturb: Disturbance, preset: str) -> Talk:
    with TemporaryDirectory() as folder:
        async with staged(Path(folder) / "narrows.db") as stage:
            more = {"preset": preset, "summaries": False, "cold_process": False}
            apps = [await stage.start(tenant=tenant, **more) for tenant in (FORGETS, REMEMBERS)]
            talk = Talk(stage, random, disturb)
            stage.provider.answer = talk.answer
            for _ in range(14):
                await talk.step(*apps)
            await stage.stack.aclose()
            return talk


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 2**32), preset=st.sampled_from(["eager", "keeping"]))
def test_s1_what_is_forgotten_or_packed_at_any_moment_changes_no_byte(seed: int, preset: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, policies in (("eager", EAGER), ("keeping", KEEPING)):
            patch.setitem(PRESETS, name, Preset(policies))
        patch.setattr("proxy.memory.cached._PATIENCE", 5.0)
        patch.setattr("proxy.memory.opening.open_store", partial(open_store, patience=5.0))
        patch.setattr("proxy.memory.cached._SNAPSHOT_TOKENS", 0)
        patch.setattr("proxy.memory.cached._SNAPSHOT_STEPS", 2)
        disturb = Disturbance(Random(seed))
        disturb.install(patch)
        asyncio.run(talk(Random(seed), disturb, preset))


async def test_the_check_forgets_packs_and_recalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "keeping", Preset(KEEPING))
    monkeypatch.setattr("proxy.memory.cached._PATIENCE", 5.0)
    disturb = Disturbance(Random(3))
    disturb.install(monkeypatch)
    ended = await talk(Random(3), disturb, "keeping")
    assert min(disturb.forgets, disturb.packs, ended.recalls) > 1

"""Whole conversations through the real program, in any order of what a client and an operator may do: what was valid
stays valid, replies say what became of the prefix, nothing is lost, what is protected stays."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.presets import PRESETS, Preset
from policies.recall import original
from policies.rules.trim import Trim
from policies.text.stubs import MARK
from proxy.app import App
from proxy.kernel.plan import plan_and_render
from proxy.lab.provider import Answer, Received, Say
from proxy.memory import open_store
from tests import examples
from tests.kit.apis import APIS, Api, entries, fetched, refs
from tests.kit.histories import EAGER, RECORDING, Json, refs_in
from tests.kit.losses import conversation_in, lost, texts_in
from tests.kit.prefixes import LIGHT, moved, spaced, unaided
from tests.kit.recalling import KEEPING, recall
from tests.kit.speaking import post
from tests.kit.stage import Exchange, Stage, staged, working

OWN = {"eager": Preset(EAGER), "recording": Preset(RECORDING), "keeping": Preset((*KEEPING, Trim(keep=2)))}
MODELS = ("m", "small", "tiered", "claude-marked")
LINES = st.integers(0, 40)
NUMBERS = st.integers(0, 30)
SEEN = {"role": "assistant", "content": "Seen."}
"""What the model says once it has recalled something."""
Place = tuple[str, str, str]
"""API, model and history."""
Step = tuple[Place, str]
"""The same and the preset."""
STEP, LEAST = 128, 1_024
"""Tokens by which a provider's cache counts, and fewer than which it does not keep."""


def without_time(*work: Any) -> Any:
    """As plan_and_render, where planning is to stop at once."""
    return plan_and_render(*work[:6], lambda: True)


class Talk(RuleBasedStateMachine):
    """One user with several branches of a conversation, before one Narrows."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.patch = pytest.MonkeyPatch()
        for name, preset in OWN.items():
            self.patch.setitem(PRESETS, name, preset)
        self.patch.setattr("proxy.memory.cached._PATIENCE", 5.0)
        self.patch.setattr("proxy.memory.opening.open_store", partial(open_store, patience=5.0))
        self.patch.setattr("proxy.memory.cached._INTERVAL", 60.0)  # what waits does not depend on how busy a machine is
        self.patch.setattr("proxy.telemetry.LogWriter.start", lambda _: None)
        self.stack = AsyncExitStack()
        self.path = Path(self.stack.enter_context(TemporaryDirectory()))
        self.app: App
        self.stage: Stage = self.run(self.stack.enter_async_context(staged(self.path / "narrows.db")))
        self.history: list[Json] = []
        self.branches: list[list[Json]] = []
        self.api, self.model, self.preset = APIS["openai_chat"], "m", "eager"
        self.sent: defaultdict[Place, list[tuple[Exchange, Received]]] = defaultdict(list)
        """By API, model and history: what was sent of it, once or again."""
        self.first: dict[tuple[str, str], Step] = {}
        """By API and history: whose decision for its last step the store has, which is the first."""
        self.used: dict[Step, Step | None] = {}
        """Whose decision this process has for a step; None where it cannot be said."""
        self.remembered: dict[Step, list[Step | None]] = {}
        """What the store must know of, and whose decisions it was sent with, step by step."""
        self.steps, self.is_hurried = 0, False

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def teardown(self) -> None:
        try:
            self.run(self.stack.aclose())
        finally:
            self.runner.close()
            self.patch.undo()

    async def _start(self) -> App:
        return await self.stage.start(request_presets=(*OWN,), summaries=False)

    # --- what a client does ---

    @initialize(turns=st.integers(0, 8), lines=LINES, api=st.sampled_from([*APIS.values()]))
    def begin(self, turns: int, lines: int, api: Api) -> None:
        self.app, self.api = self.run(self._start()), api
        self.history = working(turns, lines)[:-1]
        self.ask()

    @rule(lines=st.lists(LINES, max_size=3), number=NUMBERS, words=NUMBERS)
    def grow(self, lines: Sequence[int], number: int, words: int) -> None:
        """A step of an agent; a turn of a person where it calls nothing."""
        prose = f"Now step {number}. " + "The parser reads one line, and then it returns. " * words
        commands = [f"grep -rn thing_{number + at} src" for at in range(len(lines))]
        calls = [
            {
                "id": f"call_{self.steps}_{at}",
                "type": "function",
                "function": {"name": "bash", "arguments": json.dumps({"command": command})},
            }
            for at, command in enumerate(commands)
        ]
        self.steps += 1
        self.history.append({"role": "assistant", "content": prose, **({"tool_calls": calls} if calls else {})})
        for call, count in zip(calls, lines, strict=True):
            text = "\n".join(f"src/file_{n}.py:{n}: value = parse_line({number})" for n in range(count)) or "ok"
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if not calls:
            self.history.append({"role": "user", "content": f"go on with {number}"})
        self.ask()

    @rule(number=NUMBERS)
    def write(self, number: int) -> None:
        """A step whose call is large."""
        text = f"value_{number} = 1\n" * 40
        arguments = json.dumps({"path": "a.py", "content": text, "mode": 7})
        self.steps += 1
        call = {"id": f"call_{self.steps}", "type": "function", "function": {"name": "write", "arguments": arguments}}
        self.history.append({"role": "assistant", "content": "I write it.", "tool_calls": [call]})
        self.history.append({"role": "tool", "tool_call_id": call["id"], "content": "written"})
        self.ask()

    @rule()
    def again(self) -> None:
        self.ask()

    @rule(at=NUMBERS)
    def rewind(self, at: int) -> None:
        """Back to an earlier request; what came after it stays as a branch."""
        ends = [i for i, message in enumerate(self.history) if message["role"] == "assistant"]
        if ends:
            self.branches.append(list(self.history))
            self.history = self.history[: ends[at % len(ends)]]
            self.ask()

    @precondition(lambda self: self.branches)
    @rule(at=NUMBERS)
    def go_on_with_a_branch(self, at: int) -> None:
        at %= len(self.branches)
        self.branches[at], self.history = self.history, self.branches[at]
        self.ask()

    @rule(at=NUMBERS)
    def edit(self, at: int) -> None:
        """The client changes what an earlier output or a message of a person says."""
        places = [i for i, message in enumerate(self.history) if message["role"] in ("tool", "user")]
        place = places[at % len(places)]
        message = self.history[place]
        self.history[place] = {**message, "content": f"{message['content']} (edited)"}
        self.ask()

    @rule(model=st.sampled_from(MODELS))
    def switch_model(self, model: str) -> None:
        self.model = model
        self.ask()

    @rule(preset=st.sampled_from([*OWN]))
    def switch_preset(self, preset: str) -> None:
        self.preset = preset
        self.ask()

    @rule(api=st.sampled_from([*APIS.values()]))
    def switch_api(self, api: Api) -> None:
        self.api = api
        self.ask()

    @rule(at=NUMBERS)
    def recall(self, at: int) -> None:
        """The model wants something back that is hidden."""
        asked: list[str] = []

        def model(received: Received) -> Answer:
            named = refs(received)
            if asked or not named:
                return Say(SEEN["content"])
            asked.append(named[at % len(named)])
            return Say(None, [recall(asked[0])])

        self.stage.provider.answer = model
        try:
            exchange, received = self.ask()
        finally:
            self.stage.provider.answer = None
        if asked:
            text = original(conversation_in(self.api, exchange.given), asked[0])
            assert text is not None
            assert fetched(received)[-1] == text
            self.history += [SEEN, {"role": "user", "content": "Go on, please."}]
            self.ask()

    # --- what an operator does ---

    @rule()
    def restart(self) -> None:
        self.run(self.app.close(0))
        self.used.clear()
        self.app = self.run(self._start())
        self.ask()

    @rule(prose=NUMBERS)
    def have_no_time_to_plan(self, prose: int) -> None:
        """Nothing new is decided, and what stands is put back."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("proxy.kernel.plan.plan_and_render", without_time)
            self.is_hurried = True
            self.grow([20], prose, prose)
        self.is_hurried = False
        self.ask()

    @rule()
    def reload(self) -> None:
        """A new process serves before the old one ends."""
        before, self.app = self.app, self.run(self._start())
        self.remembered.clear()  # what the old one has not written yet
        self.used = {each: None for each in self.path_of_steps() if self.stored(each) != each}
        self.ask()
        self.run(before.close(0))

    @rule()
    def lose_the_store(self) -> None:
        self.run(self.app.close(0))
        for file in self.path.iterdir():
            file.unlink()
        self.first.clear()
        self.used.clear()
        self.remembered.clear()
        self.app = self.run(self._start())
        self.ask()

    # --- the laws ---

    def ask(self) -> tuple[Exchange, Received]:
        body = spaced(self.api.body(self.history, **LIGHT, model=self.model))
        count = len(self.stage.provider.requests)
        exchange = self.run(post(self.stage, self.app, self.api, body, ("x-narrows-preset", self.preset)))
        received = self.stage.provider.requests[-1]
        first_round = self.stage.provider.requests[count].body if exchange.status == 200 else b""
        if self.is_hurried and exchange.status == 503:  # too long for the window
            assert "Retry-After" in exchange.headers
            return exchange, received
        assert (exchange.status, received.violation) == (200, None)
        self.check_prefix(exchange, received, first_round)
        self.check_nothing_is_lost(exchange)
        self.check_protected(exchange)
        return exchange, received

    def check_prefix(self, exchange: Exchange, received: Received, first_round: bytes) -> None:
        """What the reply says of the prefix is true of its first round, by the bytes and by the provider's own cache.
        What is recalled may make room necessary in a later one."""
        *earlier, now = self.path_of_steps()
        before = self.sent[earlier[-1][0]] if earlier else []
        self.sent[now[0]].append((exchange, received))
        if earlier and self.remembered.get(earlier[-1]) == [*map(self.stored, earlier)]:
            assert exchange.prefix != "checkpoint:replayed"
        self.note_decisions(earlier, now)
        if exchange.prefix not in ("extended", "tail-cut"):
            return
        extended = [old for old in before if moved(self.api, [old[0], replace(exchange, sent=first_round)]) == []]
        assert extended
        if exchange.prefix == "extended" and self.model != "claude-marked" and not fetched(received):
            assert received.usage is not None
            prompts = [old.usage.prompt for _, old in extended if old.usage]
            assert received.usage.cached >= min(prompts) // STEP * STEP or min(prompts) < LEAST

    def note_decisions(self, earlier: Sequence[Step], now: Step) -> None:
        """The first decision for a step stays in the store. Who has another model or preset takes it over with the
        history; but where the step before was planned here, the store is not asked, and this one decided anew."""
        self.used.setdefault(now, now if earlier and earlier[-1] in self.used else self.stored(now))
        for each in earlier:
            self.used.setdefault(each, self.stored(each))
        self.first.setdefault((now[0][0], now[0][2]), now)
        self.remembered[now] = [self.used[each] for each in (*earlier, now)]

    def stored(self, step: Step) -> Step:
        """Whose decision is replayed where nothing of this step is cached."""
        (dialect, _, history), _ = step
        return self.first.get((dialect, history), step)

    def path_of_steps(self) -> list[Step]:
        replies = [i for i, message in enumerate(self.history) if message["role"] == "assistant"]
        return [(self.place(end), self.preset) for end in (*replies, len(self.history))]

    def place(self, end: int) -> Place:
        return self.api.dialect, self.model, json.dumps(self.history[:end])

    def check_nothing_is_lost(self, exchange: Exchange) -> None:
        """All that the client sent is in what was sent, or can be recalled byte for byte."""
        gone = lost(self.api, exchange.given, exchange.sent)
        # a run with an exchange in it, which the client has never seen, is found in what Narrows puts together alone
        runs = SEEN in self.history and any(re.fullmatch(r"\d+\+\d+", each) for each in gone)
        assert gone == [] or runs

    def check_protected(self, exchange: Exchange) -> None:
        """Untouched is untouched; system text, what the user asked first and last, and what came last stay."""
        if exchange.mode == "untouched" and not refs_in(exchange.sent.decode()):
            given = exchange.given
            assert entries(self.api, exchange.sent)[: len(entries(self.api, given))] == entries(self.api, given) or (
                unaided(self.api, exchange.sent) == given
            )
        users = [message["content"] for message in self.history if message["role"] in ("user", "system")]
        there = set(texts_in(json.loads(exchange.sent)))
        assert {users[0], users[-1]} <= there
        assert not any(MARK in text for text in (users[0], users[-1]))

    @invariant()
    def branches_stay_few(self) -> None:
        del self.branches[4:]


def test_s1_a_preset_takes_over_what_another_one_decided_a_moment_before() -> None:
    """What is decided and not yet written is what the store will have after a restart."""
    talk = Talk()
    try:
        talk.begin(turns=6, api=APIS["anthropic_messages"], lines=17)
        talk.recall(at=26)
        talk.switch_preset(preset="keeping")
        talk.recall(at=13)
        talk.recall(at=27)
        talk.restart()
    finally:
        talk.teardown()


def test_e4_a_long_history_is_asked_for_again_after_a_restart() -> None:
    """It was planned here as a whole, but what was sent before its last step only the store knows."""
    talk = Talk()
    try:
        talk.begin(turns=15, api=APIS["openai_chat"], lines=5)
        talk.recall(at=0)
        talk.recall(at=1)
        talk.restart()
        talk.again()
    finally:
        talk.teardown()


TestConversations = Talk.TestCase
TestConversations.settings = settings(
    max_examples=examples(40),
    stateful_step_count=12,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

"""Large histories are planned in a process of their own: with the same result, and in a thread where that fails."""

import asyncio
import json
import signal
import sys
from collections import Counter as Counts
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from policies.assemble import PlanOptions, assemble
from policies.dialects import DIALECTS, Request
from policies.model.conversation import Conversation, converse
from policies.model.memory import Memory, StepRecord
from policies.model.tokens import Counter
from policies.money.catalog import prices_for
from policies.planning.plan import plan
from policies.planning.state import PlanSettings
from policies.presets import PRESETS, Preset
from proxy.kernel import cold as module
from proxy.kernel import plan as planning
from proxy.kernel.cold import ColdProcess
from proxy.kernel.plan import plan_and_render
from proxy.lab.generators.loops import generated
from tests.kit.histories import EAGER
from tests.kit.paths import ROOT
from tests.kit.stage import Stage, body_of
from tests.kit.talk import says
from tests.planning.test_same_plans import BUDGETS, outcome, working

COUNT = Counter()
Work = tuple[str, Request, Conversation, PlanSettings, Memory]


class Cold(ColdProcess):
    """One that says what became of replays."""

    def __init__(self) -> None:
        self.outcomes = Counts[str]()
        self.is_asked = asyncio.Event()
        super().__init__(lambda _, outcome: self.outcomes.update([outcome]))

    async def _ask(self, *work: Any) -> Any:
        self.is_asked.set()
        return await super()._ask(*work)


@pytest.fixture
async def cold(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cold]:
    monkeypatch.setattr(module, "FEWEST_BYTES", 0)
    process = Cold()
    yield process
    await process.close()


def body(session: dict[str, Any], end: int) -> bytes:
    return json.dumps({**session, "messages": session["messages"][:end]}, indent=1).encode()


def work(dialect: str, body: bytes, name: str = "eager") -> Work:
    """What is planned for a body that nobody has seen before."""
    request = DIALECTS[dialect].split(body)
    assert request is not None
    conversation = converse([DIALECTS[dialect].read(request.raw(i), COUNT) for i in range(len(request.spans))])
    preset = PRESETS.get(name) or Preset(EAGER)
    options = PlanOptions(preset, prices_for(request.model), budget=BUDGETS[len(body) % 2])
    settings = assemble(DIALECTS[dialect], request, conversation, COUNT, options).settings
    return dialect, request, conversation, settings, Memory()


async def planned_there(cold: Cold, work: Work) -> Any:
    """The plan of the process, which takes a while to start."""
    async with asyncio.timeout(60):
        while (planned := await cold.plan(*work, "me")) is None:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.05)
    return planned


def sessions() -> list[tuple[str, dict[str, Any], str]]:
    """Of two APIs, and under presets that change much; one has half a surrogate pair, which UTF-8 cannot spell."""
    chats = [({"model": "gpt-5.4", "messages": working(Random(seed))}, seed) for seed in range(6)]
    chats[0][0]["messages"][0]["content"] += "\ud800"
    loops = [("openai_chat", "read-loop"), ("anthropic_messages", "claude-loop")]
    return [
        *(("openai_chat", chat, ("deep", "structural", "eager")[seed % 3]) for chat, seed in chats),
        *((dialect, dict(generated(kind, 3, 30)), "eager") for dialect, kind in loops),
    ]


async def test_ctrl_c_at_the_terminal_does_not_end_the_process(cold: Cold) -> None:
    first = work("openai_chat", body(dict(generated("read-loop", 3, 30)), 20))
    await planned_there(cold, first)
    process = cold._process
    assert process is not None
    process.send_signal(signal.SIGINT)
    assert await cold.plan(*first, "me") is not None
    assert cold._process is process


async def test_s1_the_process_plans_what_is_planned_here_and_it_goes_on_the_same(cold: Cold) -> None:
    edited = 0
    for dialect, session, preset in sessions():
        *_, end, last = [i for i, message in enumerate(session["messages"]) if message["role"] == "assistant"]
        here, there, next_one = (work(dialect, body(session, at), preset) for at in (end, end, last))
        result, rendering = plan_and_render(*here)
        other, others = await planned_there(cold, there)
        assert outcome(other) == outcome(result)
        assert others.messages == rendering.messages
        assert others.chains.sent_digest(others.chains.sent) == rendering.chains.sent_digest(rendering.chains.sent)
        _, _, history, settings, _ = next_one
        anchor = history.end_anchor(result.state.step - 1)
        memory = Memory(steps={anchor: StepRecord(anchor, result.new, result.reason)})
        assert outcome(plan(history, settings, memory, other.state)) == outcome(
            plan(history, settings, memory, result.state)
        )
        edited += len(result.edits)
    assert edited > 20
    assert cold.outcomes == {"process": len(sessions())}


async def test_f_a_replay_whose_client_leaves_ends_and_the_process_takes_the_next_one(cold: Cold) -> None:
    small = work("openai_chat", body_of(working(Random(1))))
    await planned_there(cold, small)
    calls = [message for n in range(4_000) for message in ({"role": "user", "content": f"u{n}"}, says(f"a{n}"))]
    cold.is_asked.clear()
    large = asyncio.create_task(cold.plan(*work("openai_chat", body_of([*calls, calls[0]])), "me"))
    await cold.is_asked.wait()
    await asyncio.sleep(0.05)
    large.cancel()
    async with asyncio.timeout(10):  # a new process would not be started so soon
        await planned_there(cold, small)
    assert cold.outcomes == {"process": 2, "left": 1}


async def test_the_process_ends_after_disuse_and_with_the_one_that_started_it(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    job = work("openai_chat", body_of(working(Random(1))))
    for disuse, end in ((0.5, lambda process: None), (300.0, lambda process: process.stdin.close())):
        monkeypatch.setattr(module, "_DISUSE", disuse)
        await planned_there(cold, job)
        process = cold._process
        assert process is not None
        end(process)
        async with asyncio.timeout(10):
            while process.returncode is None and process.poll() is None:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.02)
    assert cold.outcomes == {"process": 2}


STARTS_ONE = """
import asyncio
from proxy.kernel.cold import ColdProcess
async def main():
    cold = ColdProcess(lambda *_: None)
    print((await cold._ready(is_patient=True)).pid, flush=True)
    await asyncio.sleep(99)
asyncio.run(main())
"""


async def test_the_process_ends_where_the_one_that_started_it_is_killed() -> None:
    """Which had no input."""
    parent = await asyncio.create_subprocess_exec(
        *("sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, STARTS_ONE), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(30):
        while is_running(pid):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


SAYS_READY = "import os, pickle, sys, time; out = sys.stdout.buffer; pickle.dump(None, out); out.flush(); "
BROKEN = {
    "dies at once": "",
    "hangs at once": "import time; time.sleep(99)",
    "hangs": SAYS_READY + "time.sleep(99)",
    "dies at work": SAYS_READY + "sys.stdin.buffer.read(1)",
    "cannot do it": SAYS_READY + "pickle.load(sys.stdin.buffer); pickle.dump(None, out); out.flush(); time.sleep(99)",
    "answers nonsense": SAYS_READY + "pickle.load(sys.stdin.buffer); out.write(b'???'); out.flush(); time.sleep(99)",
}


async def left_to_the_caller(cold: Cold) -> None:
    """Nothing is planned there, until the failure is noticed: once."""
    job = work("openai_chat", body_of(working(Random(1))))
    async with asyncio.timeout(30):
        while not cold.outcomes:
            assert await cold.plan(*job, "me") is None
            await asyncio.sleep(0.02)
    assert cold.outcomes == {"failed": 1}


@pytest.mark.parametrize("program", BROKEN.values(), ids=BROKEN)
async def test_law_6_a_process_that_fails_leaves_the_plan_to_the_caller(
    cold: Cold, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROGRAM", program)
    monkeypatch.setattr(module, "_PATIENCE", 1.0)
    await left_to_the_caller(cold)


async def test_law_6_where_no_process_can_be_started_the_caller_plans(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    await left_to_the_caller(cold)


async def test_no_credential_of_the_environment_goes_there(
    cold: Cold, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    seen = tmp_path / "environment"
    text = f"import os; open({str(seen) + '.new'!r}, 'w').write(repr(dict(os.environ))); "
    monkeypatch.setattr(module, "_PROGRAM", text + f"os.rename({str(seen) + '.new'!r}, {str(seen)!r})")
    await cold.plan(*work("openai_chat", body_of(working(Random(1)))), "me")
    async with asyncio.timeout(30):
        while not seen.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
    assert "PATH" in seen.read_text()
    assert "sk-of-nobody" not in seen.read_text()


async def test_s1_with_and_without_the_process_the_same_bytes_are_sent(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_MANY_STEPS", "_MANY_NEW_BLOCKS"):
        monkeypatch.setattr(planning, limit, 0)
    monkeypatch.setattr(module, "FEWEST_BYTES", 0)
    with_it, without = [
        await stage.start(store=f"sqlite:///{stage.path}.{is_on}", cold_process=is_on) for is_on in (True, False)
    ]
    changed = 0
    for seed in range(100):
        session = working(Random(seed))[:-1]
        ours, theirs = [await stage.ask(app, session) for app in (with_it, without)]
        assert ours.sent == theirs.sent
        changed += ours.mode == "compacted"
        if changed > 5 and b'outcome="process"} ' in with_it.telemetry.metrics.page():
            return
        await asyncio.sleep(0.05)
    pytest.fail("the process did not plan")

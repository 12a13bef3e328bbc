"""The preset `steady`: what was sent stays as it was sent, and the model first sees what matters of a new output."""

import json
from typing import Any

import pytest

from policies.compact import Compacted, compact
from policies.model.memory import CacheLife
from policies.money.prices import Budget
from policies.planning.plan import plan
from policies.planning.state import PlanSettings
from policies.presets import PRESETS
from policies.recall import original
from policies.text.stubs import refs_named
from tests.kit.histories import body_of, requests, sent_messages
from tests.kit.talk import PREFIX_PRICES, ROOMY, Json, call, conversation_of, gives, runs, says, setup, user

PRESET = PRESETS["steady"]
PASSED = "\n".join([*(f"tests/test_part_{i}.py::test_it PASSED" for i in range(200)), "=== 200 passed in 0.10s ==="])
FILE = "\n".join(f"part_{i} = of_{i}({'abcdefgh'[i % 8]})" for i in range(400))
PAGE = "\n".join(f"Paragraph {i} of the page says {'very ' * (i % 17)}much of its own." for i in range(200))
FULL = Budget(10_000, 1_000, 4_000, 2_000, floor=0)


def session(turns: int = 30) -> list[Json]:
    work = [each for i in range(turns) for each in runs(f"make part_{i}", PASSED.replace("part", f"part_{i}_of"))]
    page = {**says("Read."), "tool_calls": [call("call_0", "fetch", {"url": "https://example.com/page"})]}
    return [user("Go on."), *runs("cat parts.py", FILE), page, gives(PAGE), *work, says("done")]


def compacted(messages: list[Json], budget: Budget = ROOMY) -> Compacted:
    return compact(body_of(messages), policies=PRESET, prices=PREFIX_PRICES, budget=budget, recall=True)


def settings_of(**more: Any) -> PlanSettings:
    return setup(*PRESET.policies, exceptions=PRESET.exceptions, aim=PRESET.aim, sight=PRESET.sight, **more)


def test_nothing_that_was_sent_changes() -> None:
    before: list[Any] = []
    for request in requests(session()):
        done = compacted(request)
        assert [*sent_messages(done)][: len(before)] == before
        assert done.plan.reason == ""
        before = [*sent_messages(done)]
    assert len(json.dumps(before)) < 0.4 * len(json.dumps(session())), "else this shows nothing"
    others = [
        compact(body_of(request), policies="structural", budget=ROOMY).plan.reason for request in requests(session())
    ]
    assert {*others} - {""}, "else this shows nothing"


def test_a_new_output_is_an_excerpt_at_once_and_its_last_line_says_the_way_back() -> None:
    done = compacted([user("Go on."), *runs("make part_1", PASSED)])
    shown = sent_messages(done)[-1]["content"].splitlines()
    assert "=== 200 passed in 0.10s ===" in shown
    assert not [line for line in shown if "PASSED" in line]
    (ref,) = refs_named(shown[-1])
    assert original(done.conversation, ref) == PASSED


def test_files_and_pages_arrive_whole() -> None:
    messages = session(1)[:5]
    assert [*sent_messages(compacted(messages))] == messages


def test_small_outputs_arrive_whole() -> None:
    messages = [user("Go on."), *runs("make part_1", "\n".join(PASSED.splitlines()[-25:]))]
    assert [*sent_messages(compacted(messages))] == messages


def test_near_the_window_room_is_made() -> None:
    reasons = [compacted(request, FULL).plan.reason for request in requests(session(40))]
    assert "checkpoint:window" in reasons
    assert {*reasons} <= {"", "checkpoint:window"}
    assert compacted(session(40), FULL).plan.after < FULL.high


@pytest.mark.parametrize(("is_cold", "reason"), [(True, "checkpoint:cold"), (False, "")])
def test_whatever_can_go_goes_once_the_cache_is_cold(is_cold: bool, reason: str) -> None:
    reads = [each for i in range(30) for each in runs(f"cat part_{i}.py", FILE.replace("of", f"of_{i}"))]
    conversation = conversation_of(user("Go on."), *reads, says("done"))
    planned = plan(conversation, settings_of(life=CacheLife(is_cold=is_cold)))
    assert planned.reason == reason
    assert (planned.after < 0.7 * planned.before) == is_cold

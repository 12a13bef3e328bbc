"""The library's one call."""

import json
import re

import pytest

import policies
from policies.compact import compact
from policies.model.edits import Replace
from policies.model.memory import Memory, StepRecord
from policies.model.tokens import Counter
from policies.presets import PRESETS, described
from policies.rules.clip import Clip
from tests.kit.histories import CHEAP, ROOMY, body_of
from tests.kit.talk import calls, gives, runs, says, user

LONG = "\n".join(f"{i} a line of output" for i in range(3000))
TALK = [user("go"), *runs("make", LONG), *runs("make test", LONG[::-1]), *runs("ls", "a.py"), *runs("pwd", "/")]


def test_the_example_in_the_docs_runs() -> None:
    example = re.findall(r"^    (\S.*)$", policies.__doc__ or "", re.M)
    names: dict[str, bytes] = {"body": body_of(TALK)}
    exec("\n".join(example), names)  # noqa: S102  the example is our own
    assert len(names["shorter"]) < len(names["body"]) / 2


def test_the_modules_in_the_map_of_the_docs_exist() -> None:
    spec = (policies.__doc__ or "").split("The laws")[0]
    for name in ("model", "money", "rules", "planning", "presets", "dialects"):
        assert name in spec
        __import__(f"policies.{name}")


NEEDS_MORE = ("agent-summary", "lossless")
"""Presets that do nothing but summarise, or nothing without lines that stand twice."""


@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in NEEDS_MORE])
def test_every_preset_shortens_a_long_session(preset: str) -> None:
    done = compact(body_of(TALK), policies=preset, prices=CHEAP, budget=ROOMY)
    assert done.plan.after < done.plan.before
    assert len(done.body) < len(body_of(TALK))


def test_the_figures_are_those_of_the_bodies() -> None:
    done = compact(body_of(TALK), prices=CHEAP, budget=ROOMY)
    count = Counter()
    for body, figure in ((body_of(TALK), done.plan.before), (done.body, done.plan.after)):
        said = json.loads(body)["messages"]
        texts = [m.get("content") or "" for m in said] + [
            part for m in said for c in m.get("tool_calls") or () for part in c["function"].values()
        ]
        assert figure == sum(map(count, texts)) + 4 * len(said)


def test_what_is_not_a_request_is_refused() -> None:
    for body in (b"", b"[]", b'{"messages": []}', b'{"model": "m", "messages": [1]}', b'{"messages": [{}]}'):
        with pytest.raises(ValueError, match="openai_chat"):
            compact(body)
    with pytest.raises(KeyError):
        compact(body_of(TALK), dialect="none")
    with pytest.raises(KeyError):
        compact(body_of(TALK), policies="none")


def test_policies_of_ones_own() -> None:
    plans = calls("x", text=None)
    plans["tool_calls"][0]["function"] = {"name": "plan", "arguments": json.dumps({"thought": LONG})}
    talk = [user("go"), plans, gives("ok"), *runs("ls", "a"), *runs("ls", "a"), says("x")]
    clipping = (Clip(over=20, keep=1, keep_writes=9),)
    done = compact(body_of(talk), policies=clipping, prices=CHEAP, budget=ROOMY, recall=True)
    assert [edit.by for edit in done.plan.edits] == ["clip"]
    assert described(clipping) == "Clip(over=20, keep=1, keep_writes=9, when=())"


def test_memory_is_respected() -> None:
    done = compact(body_of(TALK), policies=(), prices=CHEAP, budget=ROOMY)
    assert done.body == body_of(TALK)
    block = done.conversation.blocks[2]
    anchor = done.conversation.end_anchor(2)
    memory = Memory({anchor: StepRecord(anchor, (Replace(block.anchor, "remembered", "test"),), "tail-cut")})
    again = compact(body_of(TALK), policies=(), prices=CHEAP, budget=ROOMY, memory=memory)
    assert json.loads(again.body)["messages"][2]["content"] == "remembered"

"""S1, law 2: a conversation that another release of the rules has begun goes on as it was sent, and says what moved."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from policies.dialects.openai_chat import request as openai_chat
from proxy.kernel import understand
from proxy.lab.sessions import load
from proxy.memory import snapshots
from tests.kit.stage import Exchange, Stage, ends, moved, raws

MODELS = {"m": {"input": 2.0, "output": 10.0, "read": 0.1, "write": 1.0, "window": 100_000}}
SESSION = load("long_day")
OTHER_RULES: dict[str, dict[str, Any]] = {
    "what is worth an edit": {"policies.planning.step.LEAST_SAVING": 400},
    "what pays": {"policies.money.ledger.PAYBACK": 1, "policies.money.ledger.RISK": 0.5},
    "what an excerpt shows": {"policies.text.excerpt._FRONT": 40, "policies.text.excerpt._MARK_TOKENS": 80},
    "what a copy is": {"policies.rules.dedupe._MOST_COPIES": 0, "policies.rules.reuse._SHORT": 30},
    "from what size on": {"policies.money.prices.FLOOR": 12_000},
    "nothing so short": {"policies.money.prices.FLOOR": 90_000},
}
pytestmark = pytest.mark.usefixtures("patient")


async def served(stage: Stage, first: int, last: int, **settings: Any) -> list[Exchange]:
    """These requests of the session, by a Narrows that begins with them."""
    app = await stage.start(cold_seconds=1e9, models=MODELS, floor=None, **settings)
    try:
        steps = ends(SESSION["messages"])[first:last]
        return [await stage.ask(app, SESSION["messages"][:end], tools=SESSION["tools"]) for end in steps]
    finally:
        await app.close(5)


def release(monkeypatch: pytest.MonkeyPatch, constants: dict[str, Any]) -> None:
    """What runs from now on is another release, with these constants in its rules."""
    monkeypatch.setattr(understand, "_RELEASE", "0.0", raising=False)
    monkeypatch.setattr(snapshots, "_SHAPE", b"0.0:")
    for name, value in constants.items():
        monkeypatch.setattr(name, value)


@pytest.mark.parametrize("preset", ["adaptive", "steady"])
@pytest.mark.parametrize("constants", OTHER_RULES.values(), ids=OTHER_RULES)
async def test_s1_what_other_rules_have_sent_is_sent_again_byte_for_byte(
    stage: Stage, preset: str, constants: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        release(older, constants)
        before = await served(stage, 0, 20, preset=preset)
    after = await served(stage, 20, 24, preset=preset)
    assert moved([*before, *after]) == []
    assert raws(after[0].sent)[: len(raws(before[-1].sent))] == raws(before[-1].sent)
    assert [each.prefix for each in after] == ["extended"] * 4
    # and what is new is decided by the rules of now
    stage.path = stage.path.with_name("another.db")
    alone = (await served(stage, 0, 24, preset=preset))[-1]
    assert raws(after[-1].sent)[-1] == raws(alone.sent)[-1]


async def test_s2_where_the_records_are_gone_it_says_that_another_release_had_decided(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        release(older, OTHER_RULES["what an excerpt shows"])
        await served(stage, 0, 20, preset="adaptive")
    with closing(sqlite3.connect(stage.path)) as store, store:
        store.execute("DELETE FROM step WHERE rowid < (SELECT max(rowid) FROM step WHERE anchor != '*')")
    after = await served(stage, 20, 22, preset="adaptive")
    assert [each.prefix for each in after] == ["checkpoint:config", "extended"]


async def test_s2_where_another_release_has_another_recall_tool_it_is_not_the_client_who_changed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        release(older, {})
        older.setattr(openai_chat, "TOOL", openai_chat.TOOL.replace(b"left out", b"omitted"))
        before = await served(stage, 0, 20, preset="adaptive")
    after = await served(stage, 20, 22, preset="adaptive")
    assert [each.prefix for each in after] == ["checkpoint:config", "extended"]
    assert raws(after[0].sent)[: len(raws(before[-1].sent))] == raws(before[-1].sent)


async def test_s2_where_the_client_changes_a_tool_it_is_the_client(stage: Stage) -> None:
    app = await stage.start(preset="adaptive")
    messages, tools = SESSION["messages"], SESSION["tools"]
    first, second = ends(messages)[5:7]
    await stage.ask(app, messages[:first], tools=tools)
    other = [{**tools[0], "function": {**tools[0]["function"], "description": "another"}}, *tools[1:]]
    assert (await stage.ask(app, messages[:second], tools=other)).prefix == "client-changed"

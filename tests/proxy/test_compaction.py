"""C1-C5 and law 6 over the wire: what counts, what triggers, and what happens when planning itself fails."""

import base64
import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from policies.context import Context
from policies.conversation import Conversation
from policies.dialects.openai_chat.exchange import TOOL as RECALL
from policies.edits import Replace
from policies.presets import PRESETS
from policies.tokens import Counter
from tests.histories import EAGER, TOOLS, Json
from tests.proxy.stage import Exchange, Stage, ends, moved, working


def before(exchange: Exchange) -> int:
    """Tokens of the request as the client sent it, as the reply reports them."""
    return int(exchange.headers["x-narrows-tokens-before"])


def after(exchange: Exchange) -> int:
    return int(exchange.headers["x-narrows-tokens-after"])


def wordless(turns: int = 8) -> list[Json]:
    """A history of calls and results, and not a word of prose but the first."""
    said = [message for message in working(turns)[:-1] if message["role"] != "system"]
    return [{**message, "content": None} if message["role"] == "assistant" else message for message in said]


async def test_c1_calls_and_results_alone_count_and_trigger(stage: Stage) -> None:
    exchange = await stage.ask(await stage.start(), wordless())
    text = sum(len(str(message["content"])) for message in wordless())
    assert before(exchange) > text / 5
    assert exchange.mode == "compacted"
    assert after(exchange) < before(exchange)


async def test_c1_calls_and_results_alone_reach_the_window(stage: Stage) -> None:
    session = [*wordless(12), {"role": "assistant", "content": "done"}]
    grown = await stage.grow(await stage.start(), session, model="small")
    assert "checkpoint:window" in {exchange.prefix for exchange in grown}
    assert {exchange.status for exchange in grown} == {200}


TOOL: Any = {
    "type": "function",
    "function": {"name": "bash", "description": "It runs a command. " * 400, "parameters": {"type": "object"}},
}


async def test_c2_schemas_system_text_and_arguments_enter_the_estimate(stage: Stage) -> None:
    app = await stage.start(calibrate=False)
    bare = await stage.ask(app, working(2)[:-1])
    tools = await stage.ask(app, working(2)[:-1], tools=[TOOL])
    system = await stage.ask(app, [{"role": "system", "content": "Be careful. " * 400}, *working(2)[1:-1]])
    called = working(2)[:-1]
    called[2]["tool_calls"][0]["function"]["arguments"] = json.dumps({"command": "echo word " * 400})
    arguments = await stage.ask(app, called)
    assert min(map(before, (tools, system, arguments))) > before(bare) + 700


async def test_c2_the_reserve_for_the_answer_moves_the_mark(stage: Stage) -> None:
    """The same history fits a window, and does not when the client wants much room for the answer."""
    app = await stage.start(window=4_000)
    history = working(5, lines=30)[:-1]
    roomy = await stage.ask(app, history, max_tokens=100)
    tight = await stage.ask(app, history, max_completion_tokens=1_900)
    assert after(tight) < after(roomy)


async def test_c2_an_image_is_neither_counted_as_text_nor_cut(stage: Stage) -> None:
    pixels = base64.b64encode(random.Random(1).randbytes(300_000)).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixels}", "detail": "high"}}
    session = working(6)[:-1]
    session[3] = {**session[3], "content": [{"type": "text", "text": session[3]["content"]}, image]}
    session.insert(1, {"role": "user", "content": [image]})
    exchange = await stage.ask(await stage.start(), session)
    assert exchange.mode == "compacted"
    assert before(exchange) < 15_000
    assert exchange.sent.count(pixels.encode()) == 2
    assert json.dumps(image) in json.dumps(exchange.messages[4]["content"])


@pytest.mark.parametrize("model", ["nobody-knows-this", "", "🙂", "x" * 300, "a/b/c/d", "gpt-"])
async def test_c4_an_unknown_model_is_no_fault(stage: Stage, model: str) -> None:
    app = await stage.start(unknown_window=3_000)
    grown = await stage.grow(app, working(8), model=model)
    assert {exchange.mode for exchange in grown} <= {"untouched", "compacted"}
    assert "checkpoint:window" in {exchange.prefix for exchange in grown}
    assert max(after(exchange) for exchange in grown) <= 3_000


async def test_c4_a_smaller_window_in_the_middle_plans_anew(stage: Stage) -> None:
    app = await stage.start()
    session = working(12)
    half = ends(session)[8]
    first = [await stage.ask(app, session[:end]) for end in ends(session) if end <= half]
    rest = [await stage.ask(app, session[:end], model="small") for end in ends(session) if end > half]
    assert {exchange.status for exchange in first + rest} == {200}
    assert rest[0].prefix in ("client-changed", "checkpoint:window", "checkpoint:config")
    assert max(map(after, rest)) <= 3_000
    assert moved(rest) == []


async def test_c5_the_window_is_a_hard_mark(stage: Stage) -> None:
    grown = await stage.grow(await stage.start(reserve=100), working(14), model="small")
    assert "checkpoint:window" in {exchange.prefix for exchange in grown}
    assert max(map(after, grown)) <= 0.9 * 2_900
    assert before(grown[-1]) > 3_000


async def test_c5_a_price_tier_is_a_hard_mark(stage: Stage) -> None:
    tiered = await stage.grow(await stage.start(), working(14), model="tiered")
    flat = await stage.grow(await stage.start(store="sqlite://"), working(14), model="m")
    assert "checkpoint:window" in {exchange.prefix for exchange in tiered}
    assert "checkpoint:window" not in {exchange.prefix for exchange in flat}
    assert max(map(after, tiered)) <= 2_000 < max(map(after, flat))


def broken(conversation: Conversation, context: Context, *, at: int) -> Iterator[Replace]:
    """A policy with a fault."""
    if context.step >= at:
        raise RuntimeError("planted")
    return iter(())


async def test_law_6_a_failure_of_planning_forwards_the_clients_bytes(
    capfd: pytest.CaptureFixture[str], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "broken", (*EAGER, partial(broken, at=4)))
    app = await stage.start(preset="broken", log_format="json")
    grown = await stage.grow(app, working(8))
    fine, failed = grown[:4], grown[4:]
    assert "failed-open" not in {exchange.mode for exchange in fine}
    assert {(e.mode, e.prefix) for e in failed} == {("failed-open", "checkpoint:failed-open")}
    assert all(exchange.sent == exchange.given and exchange.status == 200 for exchange in failed)
    page = app.telemetry.metrics.page().decode()
    assert f'narrows_requests_total{{mode="failed-open",status="2xx"}} {len(failed)}.0' in page
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["failed_open"] * len(failed)
    assert "planted" not in json.dumps(lines)


@pytest.mark.parametrize(("tools", "added"), [(None, 0), (TOOLS, Counter()(f",{RECALL.decode()}"))])
async def test_c5_nothing_is_left_out_where_its_stub_would_be_longer(stage: Stage, tools: Any, added: int) -> None:
    """Many short turns between short questions: there is nothing to gain, so nothing may grow."""
    said = [{"role": role, "content": f"{role} {n}"} for n in range(600) for role in ("user", "assistant")]
    exchange = await stage.ask(await stage.start(unknown_window=3_000), said[:-1], model="unknown", tools=tools)
    assert before(exchange) > 3_000
    assert after(exchange) <= before(exchange) + added
    assert "left out to fit the window" not in exchange.text

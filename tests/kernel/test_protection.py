"""V5-V8 over the wire: odd contents go round, opaque fields and people's words are whole, cache marks are not lost."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from policies.presets import PRESETS, Preset
from policies.text.stubs import MARK
from tests.kit.histories import Json
from tests.kit.stage import Stage, body_of, ends, has_mark, moved, raws, unmarked_body, working

pytestmark = pytest.mark.usefixtures("patient")

SESSION = working()


def asked() -> list[Json]:
    """A request of a long session."""
    return working()[:-1]


CONTENTS: list[Json] = [
    {"role": "assistant", "content": None, "refusal": "I will not."},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]},
    {"role": "user", "content": [{"type": "hologram", "beam": {"a": [1, 2.50]}}, {"type": "text", "text": "see"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
    {"role": "assistant", "content": "x", "weather": {"b": 1, "a": [None]}, "name": "Ada"},
    {"role": "assistant", "content": None, "audio": {"id": "audio_1"}},
]
FIELDS: Json = {
    "tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stream_options": None,
    "n": 2,
    "seed": 7,
    "logit_bias": {"50256": -100},
    "user": "someone",
    "metadata": {"a": "b"},
}


async def test_v5_odd_contents_and_request_fields_go_round(stage: Stage) -> None:
    messages = [*asked()[:2], *CONTENTS, *asked()[2:]]
    exchange = await stage.ask(await stage.start(), messages, **FIELDS)
    assert exchange.status == 200
    assert exchange.mode == "compacted"
    given, sent = raws(exchange.given), raws(exchange.sent)
    assert sent[2 : 2 + len(CONTENTS)] == given[2 : 2 + len(CONTENTS)]
    assert [raws_of(exchange.own, key) for key in FIELDS] == [raws_of(exchange.given, key) for key in FIELDS]


def raws_of(body: bytes, key: str) -> bytes:
    """Everything from a field on, as it is written, to the next one at the same depth."""
    start = body.index(f'\n "{key}":'.encode())
    end = body.find(b'\n "', start + 1)
    return body[start : end if end > 0 else len(body)]


SECRET = "ErUBCkYIBxgCIkB" * 60


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reasoning_content", "First I think about it. " * 50),
        ("reasoning", "First I think about it. " * 50),
        ("reasoning_details", [{"type": "reasoning.encrypted", "data": SECRET, "format": "x"}]),
        ("thinking_blocks", [{"type": "thinking", "thinking": "hm " * 90, "signature": SECRET}]),
        ("encrypted_content", SECRET),
        ("provider_specific_fields", {"compaction": SECRET}),
    ],
)
async def test_v6_what_a_model_thought_is_whole(stage: Stage, field: str, value: Any) -> None:
    messages = [{**m, field: value} if m["role"] == "assistant" else m for m in asked()]
    exchange = await stage.ask(await stage.start(), messages)
    assert exchange.mode == "compacted"
    kept = [m.get(field) for m in exchange.messages if m["role"] == "assistant"]
    assert kept == [value] * len(kept)
    spelled = body_of([{field: value}]).split(f'"{field}":'.encode())[1].split(b"\n  }")[0]
    assert exchange.sent.count(spelled) == len(ends(SESSION)) - 1


async def test_v6_thinking_parts_are_whole(stage: Stage) -> None:
    part = {"type": "thinking", "thinking": "hm " * 200, "signature": SECRET}
    messages = asked()
    for message in messages:
        if message["role"] == "assistant":
            message["content"] = [part, {"type": "text", "text": message["content"]}]
    exchange = await stage.ask(await stage.start(), messages)
    assert exchange.mode == "compacted"
    assert all(m["content"][0] == part for m in exchange.messages if m["role"] == "assistant")


BREAK = {"cache_control": {"type": "ephemeral"}}


def marked(messages: Sequence[Json], places: Sequence[int]) -> list[Json]:
    """With a mark on the text of the messages at these places."""
    return [
        {**m, "content": [{"type": "text", "text": m["content"], **BREAK}]} if i in places else m
        for i, m in enumerate(messages)
    ]


def _marks(messages: Sequence[Json]) -> list[int]:
    return [i for i, message in enumerate(messages) if has_mark(json.dumps(message).encode())]


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("resting", [(), (3,), (3, 7)])
async def test_v7_no_mark_is_lost_and_four_are_the_most(stage: Stage, resting: Sequence[int], compact: bool) -> None:
    app = await stage.start()
    session, grown = working(12), []
    for end in ends(session):
        places = [i for i in {0, *resting, end - 1} if i < end]
        exchange = await stage.ask(app, marked(session[:end], places), model="claude-marked", compact=compact)
        grown.append(exchange)
        assert set(places) <= set(_marks(exchange.messages))
        assert len(_marks(exchange.messages)) <= 4
        assert exchange.status == 200
    assert moved(grown) == []
    assert "client-changed" not in {exchange.prefix for exchange in grown}
    assert grown[-1].mode == "compacted"


@pytest.mark.parametrize("compact", [True, False])
async def test_v7_a_mark_comes_and_goes_with_the_clients(stage: Stage, compact: bool) -> None:
    """With all four slots taken none is ours: what is marked is what the client marked, in this very request."""
    app = await stage.start()
    for end in ends(SESSION):
        places = [i for i in range(end - 1, 0, -1) if SESSION[i]["role"] != "assistant"][:4]
        exchange = await stage.ask(app, marked(SESSION[:end], places), model="claude-marked", compact=compact)
        assert exchange.status == 200
        if len(places) == 4:
            assert _marks(exchange.messages) == sorted(places)


async def test_v7_a_mark_on_what_was_left_out_moves_to_its_stub(stage: Stage) -> None:
    app = await stage.start(window=3_000)
    session = working(12)
    for end in ends(session):
        exchange = await stage.ask(app, marked(session[:end], [3]) if end > 3 else session[:end], model="claude-marked")
        assert exchange.status == 200
    stub = next(m for m in exchange.messages if "left out to fit" in json.dumps(m))
    assert stub["content"][0]["cache_control"] == BREAK["cache_control"]


@pytest.mark.parametrize(
    ("model", "own_marks"), [("claude-marked", "beside"), ("claude-marked", "never"), ("m", "auto")]
)
async def test_v7_no_mark_of_ours_where_none_is_wanted(stage: Stage, model: str, own_marks: str) -> None:
    grown = await stage.grow(await stage.start(own_marks=own_marks), SESSION, model=model)
    assert not any(has_mark(exchange.sent) for exchange in grown)


@pytest.mark.parametrize("preset", ["eager", "bare"])
async def test_v7_a_client_that_marks_nothing_gets_marks_from_its_second_request_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    """A preset without policies adds marks, and nothing else; off is off."""
    monkeypatch.setitem(PRESETS, "bare", Preset(()))
    app, session = await stage.start(preset=preset, recall="never"), working(12)
    grown = await stage.grow(app, session, model="claude-marked")
    large = [exchange for exchange in grown if int(exchange.headers["x-narrows-tokens-after"]) > 2_500]
    assert not has_mark(grown[0].sent)
    assert large
    assert all(has_mark(exchange.sent) for exchange in large)
    usages = [received.usage for received in stage.provider.requests]
    assert sum(usage.cached for usage in usages if usage) > 0
    assert moved(grown) == []
    if preset == "bare":
        assert {exchange.mode for exchange in grown} == {"untouched", "marked"}
        assert all(unmarked_body(exchange.sent) == unmarked_body(exchange.given) for exchange in grown)
    off = await stage.ask(app, session[:-1], ("x-narrows", "off"), model="claude-marked")
    assert off.sent == off.given


def _of(messages: Sequence[Json], *roles: str) -> list[Json]:
    return [message for message in messages if message["role"] in roles]


@pytest.mark.parametrize("window", [None, 30_000])
async def test_v8_what_people_and_systems_said_is_whole(stage: Stage, window: int | None) -> None:
    """A first message of 30,000 characters, system text in the middle, and much to leave out between."""
    long = "Rule: never touch the database. " * 940
    session = working(24, lines=200)
    session[1] = {"role": "user", "content": long[:30_000]}
    session.insert(7, {"role": "developer", "content": "From now on be brief. " * 40})
    session[-1:] = [{"role": "user", "content": "And now the last question. " * 30}]
    app = await stage.start(window=window)
    exchange = await stage.ask(app, session)
    assert exchange.status == 200
    assert exchange.mode == "compacted"
    assert len(exchange.sent) < 0.7 * len(exchange.given)
    assert _of(exchange.messages, "system", "developer") == _of(session, "system", "developer")
    people = [m for m in _of(exchange.messages, "user") if MARK not in m["content"]]
    assert people == _of(session, "user")


async def test_v8_the_newest_results_are_in_sight_until_they_are_answered(stage: Stage) -> None:
    """Whole, but where the same output stands above: then the newest one says so."""
    grown = await stage.grow(await stage.start(), SESSION)
    references = 0
    for exchange in grown:
        given = json.loads(exchange.given)["messages"]
        fresh = len(given) - max((i + 1 for i, m in enumerate(given) if m["role"] == "assistant"), default=0)
        texts = [message["content"] for message in exchange.messages]
        for at, old in enumerate(given[len(given) - fresh :], len(texts) - fresh):
            if (new := exchange.messages[at]) != old:
                references += 1
                assert new["content"].startswith(f"{MARK} same output as above")
                assert old["content"] in texts[:at]
    assert references


async def test_v8_a_newest_result_that_cannot_fit_is_cut_at_a_declared_checkpoint(stage: Stage) -> None:
    session = working(1, lines=1_000)[:-1]
    exchange = await stage.ask(await stage.start(), session, model="small")
    assert exchange.prefix == "checkpoint:window" or exchange.headers["x-narrows-edits"] == "trim=1"
    assert exchange.status == 200
    assert exchange.messages[:-1] == session[:-1]
    assert exchange.messages[-1]["content"].startswith("src/file_0_0.py")
    assert "chars omitted" in exchange.messages[-1]["content"]

"""V1, V3, V4 in chat completions: what is odd in this API alone, and what a reference in a new argument does."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from policies.text.stubs import MARK
from proxy.lab import sessions
from proxy.lab.provider import APIS, PREFIX, find_violation
from tests.kit.histories import Json
from tests.kit.stage import Stage, body_of, moved, raws, working

pytestmark = pytest.mark.usefixtures("patient")


def asked(turns: int = 8) -> list[Json]:
    """A request of a long session."""
    return working(turns)[:-1]


def _without(messages: Sequence[Json], at: int) -> list[Json]:
    return [*messages[:at], *messages[at + 1 :]]


def _swapped(messages: Sequence[Json], at: int) -> list[Json]:
    return [*messages[:at], messages[at + 1], messages[at], *messages[at + 2 :]]


def _put(messages: Sequence[Any], at: int, message: Any) -> list[Any]:
    return [*messages[:at], message, *messages[at + 1 :]]


def _added(messages: Sequence[Any], at: int, message: Any) -> list[Any]:
    return [*messages[:at], message, *messages[at:]]


ORPHAN = {"role": "tool", "tool_call_id": "nobody", "content": "lost and found " * 60}
BROKEN: dict[str, Callable[[], list[Any]]] = {
    "orphan": lambda: _added(asked(), 4, ORPHAN),
    "orphan first": lambda: [ORPHAN, *asked()],
    "unanswered": lambda: _without(asked(), 3),
    "answered twice": lambda: _added(asked(), 4, asked()[3]),
    "out of order": lambda: _swapped(asked(), 2),
    "duplicate ids": lambda: json.loads(json.dumps(asked()).replace('"call_1"', '"call_0"')),
    "arguments are not JSON": lambda: json.loads(
        json.dumps(asked()).replace(json.dumps(json.dumps({"command": "ls -la"}))[1:-1], "{not json")
    ),
    "role unknown": lambda: _put(asked(), 3, {"role": "wizard", "content": "hm " * 90}),
    "role a number": lambda: _put(asked(), 3, {"role": 7, "content": "hm " * 90}),
    "role missing": lambda: _put(asked(), 3, {"content": "hm " * 90}),
    "content a number": lambda: _put(asked(), 3, {"role": "tool", "tool_call_id": "call_0", "content": 7}),
    "content an object": lambda: _put(asked(), 3, {"role": "tool", "tool_call_id": "call_0", "content": {"a": [1]}}),
    "content odd parts": lambda: _put(asked(), 1, {"role": "user", "content": [7, None, "x", {"type": 8}, {}]}),
    "calls a number": lambda: _put(asked(), 2, {"role": "assistant", "tool_calls": 7}),
    "calls odd": lambda: _put(asked(), 2, {"role": "assistant", "tool_calls": [7, None, {"id": 7, "function": 8}]}),
    "message a string": lambda: _put(asked(), 3, "hello"),
    "message null": lambda: _put(asked(), 3, None),
    "message a list": lambda: _put(asked(), 3, [{"role": "user"}]),
    "messages an object": lambda: {"role": "user"},  # type: ignore[dict-item,return-value]  # that is the point
    "messages empty": list,
}


async def test_v3_what_is_broken_is_forwarded_as_it_came_and_answered_by_the_provider(stage: Stage) -> None:
    """Whether messages are odd by themselves, or results answer nothing."""
    app = await stage.start()
    for messages in (broken() for broken in BROKEN.values()):
        exchange = await stage.ask(app, messages)
        direct = find_violation(json.loads(exchange.given), PREFIX)
        assert direct is not None
        assert (exchange.status, json.loads(exchange.reply)) == (
            400,
            json.loads(APIS["openai_chat"].error_body(direct)),
        )
        assert exchange.mode in ("compacted", "untouched")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            assert exchange.sent == exchange.given
            continue
        odd = [raw for raw in raws(exchange.given) if raw not in raws(body_of(asked()))]
        changed = [raw for raw in odd if raw not in raws(exchange.sent)]
        assert all(b'"name":  "bash"' in raw for raw in changed)  # an odd neighbour in a sound message stays too


BODIES: dict[str, bytes] = {
    "not JSON": b"{",
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "no messages": b'{"model":"m"}',
    "no model": b'{"messages":[{"role":"user","content":"hi"}]}',
    "NaN": b'{"model":"m","messages":[{"role":"user","content":NaN}]}',
    "1E400": body_of(asked()).replace(b'"role":  "tool"', b'"role":  "tool", "x": 1E400'),
    "a huge integer": body_of(asked()).replace(b'"role":  "tool"', b'"role":  "tool", "x": ' + b"9" * 4000),
    "a repeated key": b'{"model":"m","model":"m","messages":[{"role":"user","content":"hi"}]}',
    "a repeated key in messages": body_of(asked()).replace(b'"role":  "tool"', b'"role":"user", "role":  "tool"'),
    "a repeated text": body_of(asked()).replace(b'"role":  "tool" ,', b'"role":  "tool","content":"first",'),
    "invalid UTF-8": body_of(asked()).replace(b"src/file_0_0", b"src/\xff\xfe_0"),
    "deep content": b'{"model":"m","messages":[{"role":"user","content":' + b"[" * 5000 + b"]" * 5000 + b"}]}",
    "deep unknown field": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"model":"m","messages":[{"role":"user"}]}',
    "a lone surrogate": json.dumps({"model": "m", "messages": [{"role": "user", "content": "\ud800"}]}).encode(),
    "a byte order mark": b'\xef\xbb\xbf{"model":"m","messages":[{"role":"user","content":"hi"}]}',
}


async def test_v3_no_body_is_a_fault_of_ours(stage: Stage) -> None:
    app = await stage.start()
    for body in BODIES.values():
        exchange = await stage.post(app, body)
        assert exchange.status in (200, 400)
        assert exchange.mode in ("untouched", "compacted")
        if exchange.mode == "untouched":
            assert exchange.own == body


async def test_v4_deep_arguments_are_no_fault_of_ours(stage: Stage) -> None:
    messages = asked()
    deep = '{"command":"' + "long text here " * 40 + '","deep":' + "[" * 5_000 + "]" * 5_000 + "}"
    messages[2]["tool_calls"][0]["function"]["arguments"] = deep
    exchange = await stage.ask(await stage.start(), messages)
    assert exchange.mode == "compacted"


async def test_v4_a_new_write_with_a_reference_of_ours_is_flagged(
    capfd: pytest.CaptureFixture[str], stage: Stage
) -> None:
    app = await stage.start(log_level="warning", log_format="json")
    wrong = json.dumps({"path": "a.py", "content": f"{MARK} argument of 90 chars left out; it was carried out]"})
    call = {"id": "w", "type": "function", "function": {"name": "write_file", "arguments": wrong}}
    told = [
        *asked(),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "w", "content": "written"},
    ]
    before, after = await stage.ask(app, asked()), await stage.ask(app, told)
    later = await stage.ask(app, [*told, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "so?"}])
    assert "x-narrows-warning" not in before.headers
    assert after.headers["x-narrows-warning"] == "marker-in-argument"
    assert "x-narrows-warning" not in later.headers
    assert capfd.readouterr().err.count("marker_in_argument") == 1
    assert b"narrows_marker_in_argument_total 1.0" in app.telemetry.metrics.page()
    assert wrong in [call["function"]["arguments"] for m in after.messages for call in m.get("tool_calls") or ()]


async def test_v1_the_shipped_sessions_on_every_kind_of_price_table(stage: Stage) -> None:
    app = await stage.start(preset="coding-agent", floor=None, models={})
    for model in ("gpt-4o", "claude-sonnet-4-5"):
        day = sessions.load("write_once")
        grown = await stage.grow(app, [*day["messages"], {"role": "assistant"}], tools=day["tools"], model=model)
        assert {exchange.status for exchange in grown} == {200}
        assert moved(grown) == []

"""The limits of one request: each exactly reached and passed by one, in each API; and what finding out costs."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from policies.dialects import DIALECTS, TooManyError, splitting
from policies.dialects.splitting import LIMITS
from tests.kit.histories import Json

TEXT = {"openai_chat": "text", "anthropic_messages": "text", "openai_responses": "input_text"}
FIELD = {"openai_chat": "messages", "anthropic_messages": "messages", "openai_responses": "input"}
FEW = {"messages": 12, "parts": 9, "calls": 7, "tools": 5, "fields": 60, "values": 90, "parameters": 8}
"""Limits that a readable body reaches; of the parts and values that other bodies have to have there is room."""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "LIMITS", FEW)


def body(dialect: str, history: list[Any], **more: Any) -> bytes:
    return json.dumps({"model": "m", FIELD[dialect]: history, **more}).encode()


def holding(dialect: str, what: str, count: int) -> bytes:
    """A body with so many of one thing, and few of all others."""
    message: Json = {"role": "user", "content": "hi"}
    part = {"type": TEXT[dialect], "text": '[1, {2, 3}] \\ " ,'}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    match what:
        case "messages":
            return body(dialect, [message] * count)
        case "parts":
            return body(
                dialect,
                [message, {"role": "user", "content": [part] * (count - 3)}, {**message, "content": [part] * 3}],
            )
        case "calls":
            return body(dialect, [message, {"role": "assistant", "content": None, "tool_calls": [call] * count}])
        case "tools":
            return body(dialect, [message], tools=[{"name": "f"}] * count)
        case "fields":
            return body(dialect, [message, {f"f{n}": 1 for n in range(count - 2)}])
        case "values":
            return body(dialect, [message], metadata={f"f{n}": 1 for n in range(count)})
        case _:
            return body(dialect, [message], **{f"f{n}": 1 for n in range(count - 2)})


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("what", LIMITS)
@pytest.mark.usefixtures("few")
def test_each_limit_is_reached_and_not_passed(dialect: str, what: str) -> None:
    request = DIALECTS[dialect].split(holding(dialect, what, FEW[what]))
    assert request is not None
    with pytest.raises(TooManyError, match=f"more than {FEW[what]} {what}") as raised:
        DIALECTS[dialect].split(holding(dialect, what, FEW[what] + 1))
    assert raised.value.what == what
    assert DIALECTS[dialect].split(holding(dialect, what, FEW[what] + 1), None, False) is not None


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.usefixtures("few")
def test_what_an_earlier_request_held_is_not_counted_again_but_its_messages_count(dialect: str) -> None:
    split = DIALECTS[dialect].split
    earlier = None
    part = {"type": TEXT[dialect], "text": "x"}
    history: list[Any] = []
    for _ in range(FEW["messages"]):
        history.append({"role": "user", "content": [part] * 2})
        earlier = split(body(dialect, history, tools=[{"name": "f"}] * 5), earlier)
        assert earlier is not None
    with pytest.raises(TooManyError, match="12 messages"):
        split(body(dialect, [*history, history[0]], tools=[{"name": "f"}] * 5), earlier)
    with pytest.raises(TooManyError, match="9 parts"):
        split(body(dialect, [*history[:-1], {"role": "user", "content": [part] * 10}]), earlier)
    with pytest.raises(TooManyError, match="5 tools"):
        split(body(dialect, history, tools=[{"name": "f"}] * 6), earlier)
    with pytest.raises(TooManyError, match="9 parts"):  # all is new, though it is no more than the earlier one held
        split(body(dialect, history))


@pytest.mark.usefixtures("few")
def test_a_text_as_input_has_no_messages_to_go_on_from() -> None:
    split = DIALECTS["openai_responses"].split
    one = split(json.dumps({"input": "go", "model": "m"}).encode())
    with pytest.raises(TooManyError, match="8 parameters"):
        split(json.dumps({"input": "go", "model": "m", **{f"f{n}": 1 for n in range(7)}}).encode(), one)


MANY = 300_000
BOMBS = {
    "messages: objects": (b'"messages":[' + b",".join([b"{}"] * MANY) + b"]", "messages"),
    "messages: lists": (b'"messages":[' + b",".join([b"[]"] * MANY) + b"]", "messages"),
    "messages: numbers": (b'"messages":[' + b",".join([b"1"] * MANY) + b"]", "messages"),
    "items": (b'"input":[' + b",".join([b"{}"] * MANY) + b"]", "messages"),
    "parts": (b'"messages":[{"content":[' + b",".join([b"{}"] * MANY) + b"]}]", "parts"),
    "calls": (b'"messages":[{"tool_calls":[' + b",".join([b"{}"] * MANY) + b"]}]", "calls"),
    "tools": (b'"tools":[' + b",".join([b"{}"] * MANY) + b'],"messages":[{}]', "tools"),
    "system text": (b'"system":[' + b",".join([b"{}"] * MANY) + b'],"messages":[{}]', "parts"),
    "fields": (b'"messages":[{' + b",".join(b'"%d":1' % n for n in range(MANY)) + b"}]", "fields"),
    "parameters": (b",".join(b'"%d":1' % n for n in range(MANY)), "parameters"),
    "values": (b'"metadata":[' + b",".join([b"{}"] * MANY) + b"]", "values"),
    "depth": (b'"messages":' + b"[" * MANY, "levels"),
    "depth of objects": (b'"messages":' + b'{"a":' * MANY, "levels"),
    "a text without end": (b'"messages":"' + b'\\"' * MANY, None),
    "quotes": (b'"' * MANY, None),
    "no brackets": (b":" * MANY, None),
}


class Counted:
    """The pattern of the brackets, and how many it has found."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self.count = 0

    def finditer(self, *args: Any) -> Iterator[re.Match[bytes]]:
        for match in self._pattern.finditer(*args):
            self.count += 1
            yield match


@pytest.mark.parametrize(("members", "what"), BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_bomb_is_found_before_anything_of_it_is_listed(
    monkeypatch: pytest.MonkeyPatch, dialect: str, members: bytes, what: str | None
) -> None:
    counted = Counted(splitting._NEXT)
    monkeypatch.setattr(splitting, "_NEXT", counted)
    bomb = b'{"model":"m",' + members + b"}"
    if what is None:  # not JSON: for the decoder to find out
        assert DIALECTS[dialect].split(bomb) is None
    else:
        with pytest.raises(TooManyError) as raised:
            DIALECTS[dialect].split(bomb)
        assert raised.value.what == what
    assert counted.count <= 3 * max(LIMITS.values())


@pytest.mark.usefixtures("few")
def test_long_strings_count_as_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "_PIECE", 7)  # so that pieces end everywhere
    for text in ('[1, {"a": 2}] \\ ' * 300, "\\" * 5_000, '"' * 5_000, "," * 5_000 + "\\"):
        message = {"role": "user", "content": text}
        splitting.check_size(body("openai_chat", [message] * FEW["messages"]))
        with pytest.raises(TooManyError, match=f"more than {FEW['messages']} messages"):
            splitting.check_size(body("openai_chat", [message] * (FEW["messages"] + 1)))

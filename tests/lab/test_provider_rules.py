"""The strict provider's table of refusals: each row is one way to be wrong."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.lab.provider import ANTHROPIC, APIS, OPENAI, PREFIX, PromptReader, find_violation
from tests.kit.paths import TRANSCRIPTS

Body = dict[str, Any]
Change = Callable[[Body], object]


def call(call_id: str = "a", **function: object) -> Body:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": "read", "arguments": '{"x":1}', **function},
    }


def result(call_id: str = "a", content: object = "done") -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def tool(name: str = "read") -> Body:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def body() -> Body:
    """A valid request with one of everything; the id of an earlier call is used again."""
    return {
        "model": "gpt-5.4",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Go"}]},
            {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
            result("b"),
            result("a", [{"type": "text", "text": "done"}]),
            {"role": "assistant", "content": "Once more.", "tool_calls": [call("a")]},
            result("a"),
        ],
        "tools": [tool("read"), tool("write")],
        "tool_choice": "auto",
        "temperature": 0.5,
        "max_tokens": 10,
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def at(index: int, **fields: object) -> Change:
    return lambda b: b["messages"][index].update(fields)


def top(**fields: object) -> Change:
    return lambda b: b.update(fields)


def without(key: str) -> Change:
    return lambda b: b.pop(key)


def drop(*indexes: int) -> Change:
    return lambda b: b.update(messages=[m for i, m in enumerate(b["messages"]) if i not in indexes])


def add(*messages: object) -> Change:
    return lambda b: b["messages"].extend(messages)


def marked(text: str = "x", mark: str = "cache_control", value: object = None) -> list[Body]:
    return [{"type": "text", "text": text, mark: value or {"type": "ephemeral"}}]


BREAKPOINT = {"mode": "explicit"}
FIVE = [marked()[0] for _ in range(5)]

# the change, the address that is blamed, a word of the message
REFUSED: dict[str, tuple[Change, str, str]] = {
    "no model": (without("model"), "model", "Missing"),
    "empty model": (top(model=""), "model", "Missing"),
    "no messages": (without("messages"), "messages", "Missing"),
    "messages not a list": (top(messages={"a": 1}), "messages", "array"),
    "no message": (top(messages=[]), "messages", "at least one"),
    "message not an object": (add("hello"), "messages[7]", "object"),
    "unknown role": (at(1, role="person"), "messages[1].role", "expected one of"),
    "role not a string": (at(1, role=["user"]), "messages[1].role", "expected one of"),
    "user without content": (at(1, content=None), "messages[1].content", "string or an array"),
    "system content a number": (at(0, content=5), "messages[0].content", "string or an array"),
    "no parts": (at(1, content=[]), "messages[1].content", "at least one"),
    "part not an object": (at(1, content=["x"]), "messages[1].content[0]", "'type'"),
    "part without type": (at(1, content=[{"text": "x"}]), "messages[1].content[0]", "'type'"),
    "text part without text": (at(1, content=[{"type": "text"}]), "messages[1].content[0].text", "string"),
    "assistant says nothing": (
        add({"role": "assistant", "content": None}),
        "messages[7].content",
        "required",
    ),
    "assistant content a number": (at(5, content=5), "messages[5].content", "string or an array"),
    "no calls in tool_calls": (at(5, tool_calls=[]), "messages[5].tool_calls", "at least one"),
    "tool_calls not a list": (at(5, tool_calls="x"), "messages[5].tool_calls", "array"),
    "call not an object": (at(5, tool_calls=["x"]), "messages[5].tool_calls[0]", "object"),
    "call without id": (
        at(5, tool_calls=[{**call(), "id": None}]),
        "messages[5].tool_calls[0].id",
        "Missing",
    ),
    "call without type": (
        at(5, tool_calls=[{**call(), "type": None}]),
        "messages[5].tool_calls[0].type",
        "one of",
    ),
    "call without name": (
        at(5, tool_calls=[call("a", name=None)]),
        "messages[5].tool_calls[0].function.name",
        "Missing",
    ),
    "arguments an object": (
        at(5, tool_calls=[call("a", arguments={})]),
        "messages[5].tool_calls[0].function.arguments",
        "string",
    ),
    "arguments not JSON": (
        at(5, tool_calls=[call("a", arguments='{"x":')]),
        "messages[5].tool_calls[0].function.arguments",
        "JSON object",
    ),
    "arguments a JSON list": (
        at(5, tool_calls=[call("a", arguments="[1]")]),
        "messages[5].tool_calls[0].function.arguments",
        "JSON object",
    ),
    "arguments NaN": (
        at(5, tool_calls=[call("a", arguments='{"x": NaN}')]),
        "messages[5].tool_calls[0].function.arguments",
        "JSON object",
    ),
    "custom call without input": (
        at(5, tool_calls=[{"id": "a", "type": "custom", "custom": {"name": "x"}}]),
        "messages[5].tool_calls[0].custom",
        "input",
    ),
    "an id twice in one message": (
        at(5, tool_calls=[call("a"), call("a")]),
        "messages[5].tool_calls[1].id",
        "earlier",
    ),
    "result without id": (at(6, tool_call_id=None), "messages[6].tool_call_id", "Missing"),
    "result without content": (at(6, content=None), "messages[6].content", "string or an array"),
    "orphan": (at(6, tool_call_id="z"), "messages[6].tool_call_id", "must answer"),
    "result of an older message": (at(6, tool_call_id="b"), "messages[6].tool_call_id", "must answer"),
    "result first": (drop(2, 3), "messages[2].tool_call_id", "must answer"),
    "unanswered before the next message": (drop(3), "messages[2].tool_calls", "'b' is not"),
    "unanswered at the end": (drop(6), "messages[5].tool_calls", "'a' is not"),
    "answered after a user message": (
        lambda b: b["messages"].insert(6, {"role": "user", "content": "wait"}),
        "messages[5].tool_calls",
        "'a' is not",
    ),
    "answered twice": (add(result("a")), "messages[7].tool_call_id", "already"),
    "tools not a list": (top(tools={}), "tools", "array"),
    "empty tools": (top(tools=[]), "tools", "array"),
    "129 tools": (top(tools=[tool(f"t{i}") for i in range(129)]), "tools", "128"),
    "same tool name": (top(tools=[tool("a"), tool("b"), tool("a")]), "tools[2]", "earlier"),
    "tool name with a dot": (top(tools=[tool("a.b")]), "tools[0]", "match"),
    "tool name of 65": (top(tools=[tool("a" * 65)]), "tools[0]", "match"),
    "tool without function": (top(tools=[{"type": "function"}]), "tools[0]", "named"),
    "tool of a list as type": (top(tools=[{"type": []}]), "tools[0]", "named"),
    "tool_choice without tools": (without("tools"), "tool_choice", "tools"),
    "five cache marks": (at(1, content=FIVE), "messages[1].content[4].cache_control", "4 may"),
    "mark on an empty text": (
        at(1, content=marked("")),
        "messages[1].content[0].cache_control",
        "empty",
    ),
    "mark on an empty message": (
        at(1, content="", cache_control={"type": "ephemeral"}),
        "messages[1].cache_control",
        "empty",
    ),
    "mark not an object": (
        at(1, content=marked("x", value=True)),
        "messages[1].content[0].cache_control",
        "object",
    ),
    "breakpoint on an older model": (
        at(1, content=marked(mark="prompt_cache_breakpoint", value=BREAKPOINT)),
        "messages[1].content[0].prompt_cache_breakpoint",
        "Unknown",
    ),
    "cache options on an older model": (
        top(prompt_cache_options={"mode": "explicit"}),
        "prompt_cache_options",
        "Unkn",
    ),
    "temperature a string": (top(temperature="1"), "temperature", "number"),
    "temperature a boolean": (top(temperature=True), "temperature", "number"),
    "max_tokens a fraction": (top(max_tokens=1.5), "max_tokens", "integer"),
    "n zero": (top(n=0), "n", "integer"),
    "stream a string": (top(stream="true"), "stream", "boolean"),
    "stream_options a list": (top(stream_options=[]), "stream_options", "object"),
    "stream_options alone": (top(stream=False), "stream_options", "stream"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    change, param, word = REFUSED[name]
    request = body()
    change(request)
    found = find_violation(request, PREFIX)
    assert found is not None
    assert found.param == param
    assert word in found.message
    shaped = json.loads(APIS["openai_chat"].error_body(found))["error"]
    assert shaped == {
        "message": found.message,
        "type": "invalid_request_error",
        "param": param,
        "code": found.code,
    }


@pytest.mark.parametrize("request_body", [[], "x", None, 5])
def test_refuses_what_is_not_an_object(request_body: object) -> None:
    found = find_violation(request_body)
    assert found is not None
    assert "object" in found.message


ACCEPTED: dict[str, Change] = {
    "as it is": lambda b: None,
    "null where a field may be absent": top(tools=None, tool_choice=None, temperature=None, max_tokens=None),
    "assistant with an empty text": add({"role": "assistant", "content": ""}),
    "assistant that refuses": add({"role": "assistant", "content": None, "refusal": "No."}),
    "null tool_calls": add({"role": "assistant", "content": "x", "tool_calls": None}),
    "unknown fields and part types": at(1, content=[{"type": "hologram", "x": 1}], audience="all"),
    "four cache marks": at(1, content=FIVE[:4]),
    "128 tools": top(tools=[tool(f"t{i}") for i in range(128)]),
    "a custom call": at(5, tool_calls=[{"id": "a", "type": "custom", "custom": {"name": "x", "input": "free"}}]),
    "a lone surrogate in arguments": at(5, tool_calls=[call("a", arguments='{"x":"\\ud800"}')]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name: str) -> None:
    request = body()
    ACCEPTED[name](request)
    assert find_violation(request, PREFIX) is None


WORDS = [
    "type",
    "text",
    "content",
    "function",
    "name",
    "mode",
    "cache_control",
    "prompt_cache_breakpoint",
    "id",
]
EXPLICIT = marked(mark="prompt_cache_breakpoint", value=BREAKPOINT)


def test_breakpoints_are_for_models_that_know_them_and_never_on_what_the_assistant_said() -> None:
    request = body()
    at(1, content=EXPLICIT)(request)
    at(4, content=EXPLICIT)(request)
    top(prompt_cache_options={"mode": "explicit"})(request)
    assert find_violation(request, OPENAI) is None
    refused = find_violation(request, ANTHROPIC)
    assert refused is not None
    assert refused.code == "unknown_parameter"
    at(5, content=EXPLICIT)(request)
    refused = find_violation(request, OPENAI)
    assert refused is not None
    assert refused.param == "messages[5].content[0].prompt_cache_breakpoint"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (at(1, content=marked(mark="prompt_cache_breakpoint", value={"mode": "x"})), "mode"),
        (at(1, content=marked("", mark="prompt_cache_breakpoint", value=BREAKPOINT)), "empty"),
        (top(prompt_cache_options={"mode": "sometimes"}), "one of"),
        (at(1, prompt_cache_breakpoint=BREAKPOINT), "Unknown"),
    ],
)
def test_breakpoints_are_well_formed(change: Change, word: str) -> None:
    request = body()
    change(request)
    found = find_violation(request, OPENAI)
    assert found is not None
    assert word in found.message


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["function", "tool", "explicit"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in the value with each of its keys."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


@given(st.lists(st.tuples(st.integers(min_value=0), anything), min_size=1, max_size=3))
def test_v3_whatever_stands_anywhere_is_refused_or_read(changes: list[tuple[int, Any]]) -> None:
    request = body()
    at(1, content=EXPLICIT)(request)
    at(4, content=marked())(request)
    request = deepcopy(request)
    for where, value in changes:
        found = places(request)
        holder, key = found[where % len(found)]
        holder[key] = deepcopy(value)
    for rule in (PREFIX, ANTHROPIC, OPENAI):
        if find_violation(request, rule) is None:
            assert PromptReader(len, APIS["openai_chat"])(request).tokens > 0


@pytest.mark.skipif(not TRANSCRIPTS.is_dir(), reason="the recorded sessions are not part of the project")
def test_every_request_of_the_recorded_sessions_is_accepted() -> None:
    for path in TRANSCRIPTS.glob("*.json"):
        if path.name.endswith(".usage.json"):
            continue
        session = json.loads(path.read_text())
        messages = session["messages"]
        for end in (i for i, message in enumerate(messages) if message["role"] == "assistant"):
            request = {"model": "gpt-5.4", "messages": messages[:end]} if end else session
            assert find_violation(request) is None, (path.name, end)

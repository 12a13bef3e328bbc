"""What the strict provider refuses and takes in the Responses API: each row is one way to be wrong, or to be right."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from proxy.lab.provider import APIS, OPENAI, PREFIX, PromptReader, find_violation
from proxy.lab.provider.signatures import REASONING, seal

Body = dict[str, Any]
Change = Callable[[Body], object]
ONE, OTHER = "0123456789abcdef01234567", "f" * 24
"""The names of two replies."""


def message(role: str, *texts: str, **fields: object) -> Body:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": said} for said in texts], **fields}


def call(name: str = "a", **fields: object) -> Body:
    return {"type": "function_call", "call_id": name, "name": "read", "arguments": '{"x": 1}', **fields}


def output(name: str = "a", said: object = "done", **fields: object) -> Body:
    return {"type": "function_call_output", "call_id": name, "output": said, **fields}


def reasoning(said: str = "Hm.", **fields: object) -> Body:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": seal(REASONING, said), **fields}


def body() -> Body:
    """A valid request with one of everything."""
    return {
        "model": "gpt-5.4",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Go"},
            reasoning(),
            message("assistant", "Two at once.", id="msg_1", status="completed", phase="commentary"),
            call("a", id="fc_1", status="completed"),
            call("b"),
            output("b"),
            output("a", [{"type": "input_text", "text": "done"}, {"type": "input_image", "image_url": "x"}]),
            {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "not json"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
            message("developer", "Hurry."),
        ],
        "tools": [
            {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False},
            {"type": "custom", "name": "patch"},
            {"type": "web_search"},
        ],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": True,
        "max_output_tokens": 100,
        "prompt_cache_key": "k",
    }


def top(**fields: object) -> Change:
    return lambda b: b.update(fields)


def put(index: int, item: object) -> Change:
    return lambda b: b["input"].__setitem__(index, item)


def drop(*indexes: int) -> Change:
    return lambda b: b.update(input=[item for i, item in enumerate(b["input"]) if i not in indexes])


def add(*items: object) -> Change:
    return lambda b: b["input"].extend(items)


def part(index: int, **fields: object) -> Change:
    return lambda b: b["input"][index]["content"][0].update(fields)


LED = {"id": f"msg_{ONE}r"}
BREAKPOINT = {"mode": "explicit"}
# the change, and what stands in the message
SEARCH = {"type": "tool_search", "execution": "client", "parameters": {}}
LOOKS = {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "x"}}
FINDS = {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": []}
LOADS = {**FINDS, "tools": [{"type": "function", "name": "late", "defer_loading": True}]}
LATER: Body = {"type": "function", "name": "later", "defer_loading": True}


def calls_late(tools: list[Body], **fields: object) -> Change:
    """A call of the function that a search has loaded."""
    late = [{**call("l"), "name": "late", **fields}, output("l")]
    return lambda b: (b.update(tools=[SEARCH, *tools]), add(LOOKS, LOADS, *late)(b))


REFUSED: dict[str, tuple[Change, str]] = {
    "deferred without a search": (top(tools=[LATER]), "Deferred tools require tools.tool_search."),
    "a search of nothing": (top(tools=[{"type": "tool_search"}]), "tools.tool_search requires at least one deferred"),
    "a loaded function without its namespace": (calls_late([]), "Missing namespace for function_call 'late'."),
    "a deferred one that was loaded": (calls_late([{**LATER, "name": "late"}]), "Missing namespace for function_call"),
    "a search by an older model": (top(model="gpt-5.3", tools=[SEARCH]), "Tool 'tool_search' is not supported with"),
    "a search tool with a name": (top(tools=[{**SEARCH, "name": "x"}]), "Unknown parameter: 'tools[0].name'"),
    "an answer to no search": (add(FINDS), "No tool call found for tool search call output with call_id s."),
    "a search without an answer": (add(LOOKS), "No tool output found for tool search call s."),
    "a search in words": (add({**LOOKS, "arguments": "{}"}, FINDS), "Invalid type for 'input[10].arguments'"),
    "an answer in words": (add(LOOKS, {**FINDS, "tools": "x"}), "Invalid type for 'input[11].tools'"),
    "an answer with a text": (add(LOOKS, {**FINDS, "output": "x"}), "Unknown parameter: 'input[11].output'"),
    "no model": (lambda b: b.pop("model"), "Missing required parameter: 'model'"),
    "no input": (lambda b: b.pop("input"), "Missing required parameter: 'input'"),
    "input a number": (top(input=5), "Invalid type for 'input'"),
    "messages": (top(messages=[]), "Unknown parameter: 'messages'"),
    "store a string": (top(store="no"), "Invalid type for 'store'"),
    "unknown include": (top(include=["everything"]), "Invalid value: 'everything'"),
    "two histories": (top(previous_response_id="resp_1", conversation="conv_1"), "mutually exclusive"),
    "item a string": (add("x"), "Invalid type for 'input[10]'"),
    **{f"the type {kind!r}": (add({"type": kind}), "Invalid type for 'input[10].type'") for kind in (["x"], 5, None)},
    "unknown role": (add(message("tool", "x")), "Invalid value for 'input[10].role'"),
    "no content": (add({"role": "user"}), "Missing required parameter: 'input[10].content'"),
    "input text of the model": (part(2, type="input_text"), "Invalid value: 'input_text'. Supported values are"),
    "output text of a user": (part(9, type="output_text"), "Invalid value: 'output_text'"),
    "text of chat": (part(9, type="text"), "Invalid value: 'text'"),
    "an unknown field of an item": (put(4, call("b", tool_calls=[])), "Unknown parameter: 'input[4].tool_calls'"),
    "a mark of Anthropic's": (part(9, cache_control={"type": "ephemeral"}), "content[0].cache_control"),
    "call without name": (put(4, {**call("b"), "name": None}), "Missing required parameter: 'input[4].name'"),
    "arguments no object": (put(4, call("b", arguments="5")), "Invalid value for 'input[4].arguments'"),
    "arguments an object": (put(4, call("b", arguments={})), "Invalid type for 'input[4].arguments'"),
    "output without call_id": (put(5, {**output(), "call_id": None}), "'input[5].call_id'"),
    "output nothing": (put(5, output("b", None)), "Missing required parameter: 'input[5].output'"),
    "orphan": (add(output("z")), "No tool call found for function call output with call_id z."),
    "orphan of another kind": (drop(7), "No tool call found for custom tool call output with call_id c."),
    "answered before it was asked": (lambda b: b["input"].insert(1, b["input"].pop(5)), "with call_id b."),
    "answered twice": (add(output("a")), "No tool call found for function call output with call_id a."),
    "unanswered": (drop(5), "No tool output found for function call b."),
    "the id of a call in an item's place": (put(4, call("b", id="b")), "Expected an ID that begins with 'fc'."),
    "a long id": (put(4, call("b", id="fc_" + "x" * 70)), "string too long. Expected a string with maximum length 64"),
    "a long call id": (add(call("x" * 65), output("x" * 65)), "'input[10].call_id': string too long"),
    "the same item twice": (add(message("assistant", "x", id="msg_1")), "Duplicate item found with id msg_1."),
    "changed reasoning": (put(1, reasoning(encrypted_content="Zm9yZWlnbg==")), "Zm9y...bg== could not be verified"),
    "reasoning at the end": (add(reasoning(id="rs_2")), "Item 'rs_2' of type 'reasoning' was provided without its"),
    "reasoning before a user": (drop(2, 3, 4, 5, 6, 7, 8), "without its required following item"),
    "reasoning before another reply": (
        lambda b: (put(1, reasoning(id=f"rs_{ONE}00"))(b), b["input"][2].update(id=f"msg_{OTHER}")),
        f"Item 'rs_{ONE}00' of type 'reasoning' was provided without its required following item",
    ),
    "what reasoning led to, alone": (
        lambda b: (drop(1)(b), b["input"][1].update(LED)),
        "its required 'reasoning' item",
    ),
    "tool of chat": (top(tools=[{"type": "function", "function": {"name": "x"}}]), "'tools[0].name'"),
    "tool with a dot": (top(tools=[{"type": "function", "name": "a.b"}]), "does not match pattern"),
    "129 tools": (top(tools=[{"type": "web_search"}] * 129), "array too long"),
    "breakpoint on an older model": (part(9, prompt_cache_breakpoint=BREAKPOINT), "prompt_cache_breakpoint"),
    "cache options on an older model": (top(prompt_cache_options={"mode": "explicit"}), "prompt_cache_options"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refuses(name: str) -> None:
    change, words = REFUSED[name]
    request = body()
    change(request)
    before = deepcopy(request)
    found = find_violation(request, PREFIX, "openai_responses")
    assert found is not None
    assert words in found.message
    assert request == before


ACCEPTED: dict[str, Change] = {
    "as it is": lambda b: None,
    "a string": top(input="Go"),
    "a search": lambda b: (b.update(model="gpt-5.4", tools=[SEARCH]), add(LOOKS, FINDS)(b)),
    "a deferred tool and a search": top(tools=[LATER, {"type": "tool_search"}]),
    "a loaded function in its namespace": calls_late([], namespace="late"),
    "a loaded function that was there": calls_late([{"type": "function", "name": "late"}]),
    "a call before what loads it": lambda b: (
        add({**call("l"), "name": "late"}, output("l"), LOOKS, LOADS)(b),
        b.update(tools=[SEARCH]),
    ),
    "no input but a template": lambda b: (b.pop("input"), b.update(prompt={"id": "pmpt_1"})),
    "an answer to what was asked elsewhere": lambda b: (add(output("z"))(b), b.update(previous_response_id="resp_1")),
    "items without a type": add({"role": "assistant", "content": "Yes."}, {"role": "user", "content": ""}),
    "unknown items": add({"type": "hologram", "rays": [1]}, {"type": "compaction", "encrypted_content": "x"}),
    "reasoning as a client gives it back": put(1, reasoning(content=None)),
    "several thoughts in a row": lambda b: b["input"].insert(1, reasoning("Ha.", id="rs_0")),
    "reasoning and what it led to": lambda b: (put(1, reasoning(id=f"rs_{ONE}00"))(b), b["input"][2].update(LED)),
    "no ids at all": lambda b: [item.pop("id", None) for item in b["input"]],
    "ids of the client's own": put(5, output("b", id="fco_01a2")),
    "an unknown part beside": put(9, {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}),
    "the metadata of an agent": top(client_metadata={"x": "y"}),
}


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_takes(name: str) -> None:
    request = body()
    ACCEPTED[name](request)
    assert find_violation(request, PREFIX, "openai_responses") is None
    assert PromptReader(len, APIS["openai_responses"])(request).tokens > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (part(9, prompt_cache_breakpoint=BREAKPOINT), ""),
        (part(2, prompt_cache_breakpoint=BREAKPOINT), "Unknown parameter"),
        (part(9, prompt_cache_breakpoint={}), "the mode must be 'explicit'"),
        (part(9, prompt_cache_breakpoint=BREAKPOINT, text=""), "an empty text cannot be marked"),
        (top(prompt_cache_options={"mode": "explicit"}), ""),
        (top(prompt_cache_options={"mode": "often"}), "expected one of implicit, explicit"),
    ],
)
def test_breakpoints_are_for_models_that_know_them(change: Change, words: str) -> None:
    request = body()
    change(request)
    found = find_violation(request, OPENAI, "openai_responses")
    assert words in (found.message if found else "")
    assert (found is None) == (not words)

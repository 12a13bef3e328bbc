"""A body is split the same way whether an earlier one showed a part of it or not."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.dialects import DIALECTS
from policies.dialects.common import Request
from tests import examples

HISTORY = {"openai_chat": "messages", "openai_responses": "input", "anthropic_messages": "messages"}
MESSAGES = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"arguments": '{"x": "]}, {["}'}}]},
    {"role": "tool", "content": [{"type": "text", "text": 'a "quoted" text, ]}'}]},
    {"content": "\ud800 half a pair", "deep": [[[{}]]]},
    {"role": "user", "content": "grüße 🙂"},
]
BESIDE: list[dict[str, Any]] = [
    {"model": "gpt-5.4"},
    {"tools": [{"name": "f", "messages": [{"input": []}]}]},
    {"system": "be brief", "instructions": "be brief"},
    {"stream": True},
    {"max_tokens": 100, "max_output_tokens": 5},
    {"metadata": {"conversation_id": "c"}},
    {"prompt_cache_key": "k"},
    {"previous_response_id": "r"},
]
FRAGMENTS = [
    b',{"role":"user"}',
    b", 7",
    b'],"x":[{}',
    b']}, "model": "b',
    b'"',
    b"]",
    b"}",
    b" \n",
    b',{}],"stream":[{}',
    b"{",
]
many = settings(deadline=None, max_examples=examples(300))


@st.composite
def bodies(draw: st.DrawFn, history: str) -> bytes:
    """Bodies that differ in their history, in what stands beside it, in spacing, or in being broken."""
    every = draw(st.lists(st.sampled_from(MESSAGES), max_size=6))
    said: Any = "all in one text" if draw(st.integers(0, 9)) == 0 else every
    beside = [*draw(st.permutations(BESIDE[: draw(st.sampled_from([1, 4, 7, 8]))])), {history: said}]
    first = draw(st.integers(0, len(beside) - 1))
    fields = {key: value for each in (beside[first:] + beside[:first]) for key, value in each.items()}
    return json.dumps(fields, ensure_ascii=draw(st.booleans()), separators=draw(SPACING)).encode("utf-8", "replace")


SPACING = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")])


def edited(data: st.DataObject, earlier: Request) -> bytes:
    """The body with more messages, or with a piece put in or cut out anywhere."""
    body, ends = earlier.body, [end for _, end in earlier.spans]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.sampled_from(ends) | st.just(ends[-1]) | st.integers(0, len(body)))
        more = json.dumps(data.draw(st.sampled_from(MESSAGES))).encode()
        piece = data.draw(st.sampled_from([b"," + more, b" , " + more, *FRAGMENTS]))
        body = body[:at] + piece + body[at + data.draw(st.sampled_from([0, 0, 0, 1, 30])) :]
    return body


@pytest.mark.parametrize("name", HISTORY)
@many
@given(st.data())
def test_what_an_earlier_body_showed_changes_nothing(name: str, data: st.DataObject) -> None:
    split = DIALECTS[name].split
    earlier = split(data.draw(bodies(HISTORY[name])))
    if earlier is None:
        return
    for _ in range(2):
        body = edited(data, earlier) if data.draw(st.booleans()) else data.draw(bodies(HISTORY[name]))
        whole, resumed = split(body), split(body, earlier)
        assert (whole is None) == (resumed is None)
        if whole is None or resumed is None:
            continue
        assert replace(resumed, shared=0) == whole
        assert all(whole.raw(i) == earlier.raw(i) for i in range(resumed.shared))
        earlier = resumed

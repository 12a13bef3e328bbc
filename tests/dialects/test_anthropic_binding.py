"""Thoughts that are bound to the prompt before them: whose, and how a request says that they may be dropped."""

import json
from typing import Any

import pytest

from policies.dialects import DIALECTS
from policies.dialects.anthropic_messages.request import is_bound

anthropic_messages = DIALECTS["anthropic_messages"]

DROP = {"prefix_mismatch_behavior": "drop_block"}
ASKED = {"role": "user", "content": "Go on."}
THOUGHT = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]}
HEADERS = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}


def consent(thoughts: bool = True, model: str = "claude-opus-5-5", **fields: Any) -> tuple[Any, Any]:
    """The body that says so, if there is one, and what it says of thinking."""
    messages = [ASKED, THOUGHT, ASKED] if thoughts else [ASKED]
    body = json.dumps({"model": model, **fields, "max_tokens": 9, "messages": messages}).encode()
    request = anthropic_messages.split(body)
    assert request is not None
    found = anthropic_messages.consent(request)
    if found is None:
        return None, None
    said = json.loads(anthropic_messages.joined(request, {}, None, found.changes))
    assert {**said, "thinking": 0} == {**json.loads(body), "thinking": 0}
    return found.headers, said.get("thinking")


@pytest.mark.parametrize(
    ("model", "bound"),
    [
        ("claude-opus-5-5", True),
        ("anthropic/claude-sonnet-5.5", True),
        ("claude-haiku-5-5-20261001", True),
        ("claude-fable-5-1", True),
        ("claude-mythos-5-2", True),
        ("claude-opus-6", True),
        ("claude-opus-5", False),
        ("claude-fable-5-20260301", False),
        ("claude-sonnet-4-5", False),
        ("gpt-5.5", False),
    ],
)
def test_v6_which_models_bind_their_thoughts(model: str, bound: bool) -> None:
    assert is_bound(model) is bound
    if not bound:
        assert consent(model=model, thinking={"type": "enabled"}) == ({}, {"type": "enabled"})


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, {"type": "adaptive", "block_binding": DROP}),
        ({"thinking": {"type": "adaptive"}}, {"type": "adaptive", "block_binding": DROP}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 5, "x": 1}},
            {"type": "enabled", "budget_tokens": 5, "x": 1, "block_binding": DROP},
        ),
        ({"thinking": {"type": "adaptive", "block_binding": None}}, {"type": "adaptive", "block_binding": DROP}),
        ({"thinking": {"type": "adaptive", "block_binding": {}}}, {"type": "adaptive", "block_binding": DROP}),
        ({"thinking": {"type": "adaptive", "block_binding": DROP}}, {"type": "adaptive", "block_binding": DROP}),
    ],
)
def test_v6_a_request_that_may_be_edited_has_them_dropped(fields: dict[str, Any], thinking: Any) -> None:
    assert consent(**fields) == (HEADERS, thinking)
    assert consent(thoughts=False, **fields) == (HEADERS, thinking)


@pytest.mark.parametrize(
    "thinking",
    [
        {"type": "disabled"},
        {"type": "between_tools"},
        {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}},
        {"type": "adaptive", "block_binding": {"later": 1}},
        None,
        "odd",
    ],
)
def test_v6_where_it_wants_something_else_thoughts_are_not_edited_around(thinking: Any) -> None:
    assert consent(thinking=thinking) == (None, None)
    assert consent(thoughts=False, thinking=thinking) == ({}, thinking)

"""Cache marks that are made to ask for the longer lifetime: these bytes change, and no others."""

import json
from typing import Any

import pytest

from policies.dialects.common import longer_marks
from policies.model.rawjson import spliced

MARK: dict[str, Any] = {"type": "ephemeral"}
HOUR = {**MARK, "ttl": "1h"}


def longer(value: Any) -> Any:
    raw = json.dumps(value).encode()
    return json.loads(spliced(raw, longer_marks(raw, 0, len(raw))))


@pytest.mark.parametrize("mark", [MARK, {**MARK, "ttl": "5m"}, HOUR])
def test_p2_each_mark_asks_for_it_wherever_a_client_may_set_one(mark: Any) -> None:
    text = {"type": "text", "text": "x", "cache_control": mark}
    result = {"type": "tool_result", "content": [text], "cache_control": mark}
    tool = {"name": "read", "input_schema": {}, "cache_control": mark}
    function = {"type": "function", "function": {"name": "read", "cache_control": mark}}
    for value in ([text], {"role": "user", "content": [text, result]}, [tool], [function]):
        assert longer(value) == json.loads(json.dumps(value).replace(json.dumps(mark), json.dumps(HOUR)))


def test_p2_a_breakpoint_asks_for_twelve_hours() -> None:
    part = {"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}
    assert longer([part])[0]["prompt_cache_breakpoint"] == {"mode": "explicit", "ttl": "12h"}


def test_what_only_looks_like_a_mark_stays() -> None:
    value = {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "a", "name": "w", "input": {"cache_control": MARK, "content": [MARK]}},
            {"type": "text", "text": json.dumps({"cache_control": MARK}), "cache_control": None},
            {"type": "text", "text": "", "cache_control": {}},
        ],
    }
    assert longer(value) == value


def test_spelling_and_spacing_stay() -> None:
    raw = b'{ "content" :[{"text":"\\u00e4", "cache_control" : { "type":"ephemeral" } }] }'
    assert spliced(raw, longer_marks(raw, 0, len(raw))) == raw.replace(b'"ephemeral" }', b'"ephemeral" ,"ttl":"1h"}')

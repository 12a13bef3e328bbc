"""What keeps a prompt in its provider's cache: the form of each API, and what has none."""

import json
from typing import Any

import pytest

from policies.dialects import DIALECTS
from policies.dialects.dialect import begins_output
from policies.dialects.pings import NoPingError

CLAUDE = {"model": "claude-opus-5-5", "max_tokens": 900, "messages": [{"role": "user", "content": "Hm."}]}
GPT = {"model": "gpt-6.1-sol", "input": [{"role": "user", "content": "Hm."}], "store": False}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "See https://x/y."}
MCP = {"type": "mcp", "server_label": "x", "server_url": "https://x"}
PICTURE = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
FUNCTION = {"type": "function", "name": "f", "parameters": {}}


def ping_of(api: str, body: bytes) -> tuple[bytes, str]:
    try:
        return DIALECTS[api].ping(body), ""
    except NoPingError as reason:
        return b"", str(reason)


def test_anthropics_has_the_bytes_of_the_request_but_for_its_limit_and_the_stream() -> None:
    body = b'{ "stream" :  true, "model":"claude-opus-5-5", "temperature":1.0e2, "max_tokens": 9000 , "messages":[]}'
    changed = body.replace(b"true", b"false").replace(b"9000", b"0")
    assert ping_of("anthropic_messages", body) == (changed, "")


def test_that_of_responses_prepares_the_cache_and_stores_nothing() -> None:
    head = b'{"model":"gpt-5.6", "stream":true,"stream_options":{"x":false}, "input": [ {"role":"user"} ] '
    more = b',"prompt_cache_options":{"prewarm":true},"store":false}'
    assert ping_of("openai_responses", head + b"}") == (head + more, "")
    kept = {**GPT, "prompt_cache_options": {"mode": "explicit", "ttl": "30m"}, "max_output_tokens": 50}
    sent = json.loads(ping_of("openai_responses", json.dumps(kept).encode())[0])
    options = {"mode": "explicit", "ttl": "30m", "prewarm": True}
    assert sent == {**kept, "prompt_cache_options": options, "stream": True}


@pytest.mark.parametrize(
    ("event", "is_answer"),
    [
        ({"type": "response.created", "response": {"tools": [{"type": "response.output_item.added"}]}}, False),
        ({"type": "response.completed", "response": {"output": []}}, False),
        ({"type": "keepalive"}, False),
        ({"type": "response.output_item.added", "item": {"type": "function_call"}}, True),
        ({"type": "response.output_text.delta", "delta": "H"}, True),
    ],
    ids=str,
)
def test_an_answer_is_seen_as_it_begins(event: dict[str, Any], is_answer: bool) -> None:
    text = f"data: {json.dumps(event)}\n\n".encode()
    assert begins_output(text) is is_answer


@pytest.mark.parametrize(
    "fields",
    [
        {
            "thinking": {"type": "adaptive"},
            "service_tier": "auto",
            "speed": "standard",
            "tool_choice": {"type": "auto"},
        },
        {"tools": [{"name": "f", "input_schema": {}}, {"type": "bash_20250124", "name": "bash"}], "mcp_servers": []},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}, "output_config": {"effort": "high"}},
    ],
)
def test_what_the_client_runs_and_how_the_model_thinks_is_no_reason_against_it(fields: dict[str, Any]) -> None:
    sent, reason = ping_of("anthropic_messages", json.dumps({**CLAUDE, **fields}).encode())
    assert reason == ""
    assert json.loads(sent) == {**CLAUDE, **fields, "max_tokens": 0}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "hosted_tools"),
        ({"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}, "hosted_tools"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "hosted_tools"),
        ({"mcp_servers": [{"type": "url", "url": "https://x"}]}, "hosted_tools"),
        ({"container": "container_1"}, "hosted_tools"),
        ({"tools": [{"type": "memory_hosted", "name": "m"}]}, "hosted_tools"),
        ({"tools": [{"type": "bash_20250124_remote", "name": "b"}]}, "hosted_tools"),
        ({"tools": [{"type": "computer_use", "name": "c"}]}, "hosted_tools"),
        ({"tools": [{"type": "custom_search", "name": "c"}]}, "hosted_tools"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "form"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [PICTURE]}]}]}, "form"),
        ({"messages": [{"role": "user", "content": [{**PICTURE, "type": "document"}]}]}, "form"),
        ({"fallbacks": ["claude-haiku-4-5"]}, "form"),
        ({"x": None}, "form"),
        ({"tool_choice": {"type": "mcp"}}, "form"),
        ({"context_management": {"edits": [{"type": "clear_by_summary"}]}}, "form"),
        ({"service_tier": "priority"}, "tier"),
        ({"speed": "fast"}, "tier"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1_024}}, "form"),
        ({"tool_choice": {"type": "any"}}, "form"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "form"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "form"),
        ({"output_format": {"type": "json_schema"}}, "form"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "form"),
        ({"model": "anthropic.claude-opus-5-5-v1:0"}, "form"),
        ({"model": "claude-opus-5-5@20260901"}, "form"),
        ({"model": "glm-5"}, "form"),
    ],
    ids=str,
)
def test_anthropic_has_none_for(fields: dict[str, Any], reason: str) -> None:
    assert ping_of("anthropic_messages", json.dumps({**CLAUDE, **fields}).encode()) == (b"", reason)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": [{"type": "web_search"}]}, "hosted_tools"),
        ({"tools": [FUNCTION, MCP]}, "hosted_tools"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [FUNCTION, MCP]}]}, "hosted_tools"),
        ({"tools": [{"type": "computer_use_preview"}]}, "hosted_tools"),
        ({"input": [*GPT["input"], {"type": "additional_tools", "tools": [MCP]}]}, "hosted_tools"),
        ({"tools": [{"type": "function_remote"}]}, "hosted_tools"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "hosted_tools"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION, MCP]}}, "hosted_tools"),
        ({"input": [*GPT["input"], {"type": "tool_search_output", "tools": [FUNCTION, MCP]}]}, "hosted_tools"),
        ({"input": [*GPT["input"], {"type": "mcp_approval_response", "approve": True}]}, "hosted_tools"),
        ({"input": [*GPT["input"], {"type": "unknown"}]}, "hosted_tools"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y"}]}]}, "form"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://x/y"}]}]}, "form"),
        ({"input": [*GPT["input"], {**OUTPUT, "output": [{"image_url": "https://x/y"}]}]}, "form"),
        ({"moderation": {"model": "x"}}, "form"),
        ({"x": None}, "form"),
        ({"conversation": "conv_1"}, "stored"),
        ({"previous_response_id": "resp_1"}, "stored"),
        ({"background": True}, "stored"),
        ({"prompt": {"id": "pmpt_1"}}, "stored"),
        ({"store": True, "input": [{"type": "item_reference", "id": "msg_1"}]}, "stored"),
        ({"store": None, "input": [REASONING, {"role": "user", "content": "Hm."}]}, "stored"),
        ({"service_tier": "flex"}, "tier"),
        ({"service_tier": "priority"}, "tier"),
        ({"model": "gpt-5.4"}, "form"),
        ({"model": "gpt-35-turbo"}, "form"),
        ({"model": "openai/gpt-6.1-sol"}, "form"),
        ({"context_management": [{"type": "compaction"}]}, "form"),
        ({"prompt_cache_options": {"prewarm": False}}, "form"),
    ],
    ids=str,
)
def test_responses_have_none_for(fields: dict[str, Any], reason: str) -> None:
    assert ping_of("openai_responses", json.dumps({**GPT, **fields}).encode()) == (b"", reason)


def test_a_group_of_the_clients_own_tools_and_sealed_thoughts_are_no_reason_against_it() -> None:
    group = {"type": "namespace", "name": "n", "tools": [FUNCTION, {"type": "custom", "name": "c"}]}
    thought, picture = {**REASONING, "encrypted_content": "x"}, {"type": "input_image", "image_url": "data:,x"}
    found = {"type": "tool_search_output", "tools": [group]}
    body = {**GPT, "store": True, "tools": [group], "input": [thought, found, OUTPUT, *GPT["input"]]}
    body["input"] = [*body["input"], {"role": "user", "content": [picture]}]
    body |= {"service_tier": "default", "tool_choice": {"type": "allowed_tools", "tools": [FUNCTION]}}
    sent, reason = ping_of("openai_responses", json.dumps(body).encode())
    assert (json.loads(sent)["store"], reason) == (False, "")


@pytest.mark.parametrize("body", [{"model": "gpt-6.1-sol", "messages": []}, {"model": "m", "messages": [], "n": 2}])
def test_chat_completions_have_none(body: dict[str, Any]) -> None:
    assert ping_of("openai_chat", json.dumps(body).encode()) == (b"", "form")


def test_a_url_in_the_words_of_a_person_is_no_reason_against_it_but_a_hidden_one_is() -> None:
    words = {**CLAUDE, "messages": [{"role": "user", "content": json.dumps([PICTURE, "\\u0075rl", "\x1b\u00e9"])}]}
    assert ping_of("anthropic_messages", json.dumps(words).encode())[1] == ""
    picture = {**CLAUDE, "messages": [{"role": "user", "content": [PICTURE]}]}
    hidden = json.dumps(picture).encode().replace(b'"type": "url"', b'"type": "\\u0075rl"')
    assert json.loads(hidden) == picture
    assert ping_of("anthropic_messages", hidden) == (b"", "form")


@pytest.mark.parametrize("tools", [b'[{"type":"web_search","x":"\\ud800"}]', b'[{"type":"mcp"},{]'])
def test_what_cannot_be_read_has_none(tools: bytes) -> None:
    body = json.dumps(GPT).encode()[:-1] + b',"tools":' + tools + b"}"
    assert ping_of("openai_responses", body) == (b"", "form")
    twice = json.dumps(CLAUDE).encode()[:-1] + b',"max_tokens":1}'
    assert ping_of("anthropic_messages", twice) == (b"", "form")

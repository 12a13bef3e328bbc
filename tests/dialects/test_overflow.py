"""T5: what is an overflow of the context, in everybody's words, and what is not."""

import json
import time
from typing import Any

import pytest

from policies.dialects.overflow import Overflow, overflow_in
from proxy.lab.provider.answers import Excess, Wording
from proxy.sse import Events, data
from tests.kit.overflows import IN_BODY, STREAMS, WORDINGS

EXCESS = Excess(prompt=40_123, answer=4_000, window=32_768)
FITTING = Excess(prompt=30_001, answer=4_000, window=32_768)
"""The prompt alone would fit."""
SILENT = {"openai-responses", "bedrock", "groq", "minimax", "ollama-own", "lm-studio-initial", "lm-studio-mlx"}
"""Those that name no number."""
NO_PROMPT = {"gemini-without-count", "moonshot", "dashscope"}
WITH_ANSWER = {
    *("openai-requested", "openai-legacy", "anthropic-with-answer", "deepseek", "together", "openrouter", "vllm"),
    *("vllm-new", "vllm-max-tokens", "vllm-passed", "sglang-requested", "tgi"),
}


def body_of(wording: Wording, excess: Excess = EXCESS) -> tuple[int, bytes]:
    send = wording(excess)
    assert isinstance(send.body, bytes)
    return send.status, send.body


@pytest.mark.parametrize("name", WORDINGS)
def test_t5_an_overflow_is_recognised_in_the_words_of_each(name: str) -> None:
    overflow = overflow_in(*body_of(WORDINGS[name]))
    window = None if name in SILENT else EXCESS.window
    prompt = None if name in SILENT | NO_PROMPT else EXCESS.prompt
    assert overflow == Overflow(window, prompt, name in WITH_ANSWER)


@pytest.mark.parametrize("name", sorted(WITH_ANSWER))
def test_t5_where_the_prompt_alone_would_fit_the_answer_counts(name: str) -> None:
    assert overflow_in(*body_of(WORDINGS[name], FITTING)) == Overflow(FITTING.window, FITTING.prompt, True)


@pytest.mark.parametrize("name", STREAMS)
def test_t5_an_overflow_is_recognised_in_the_event_that_says_it(name: str) -> None:
    status, body = body_of(STREAMS[name])
    (*before, last) = [event for each in Events().feed(body) if (event := data(each)) is not None]
    assert [overflow_in(status, event) for event in before] == [None] * len(before)
    overflow = overflow_in(status, last)
    assert overflow is not None
    assert overflow.window == (None if name.startswith("responses") else EXCESS.window)


@pytest.mark.parametrize("name", IN_BODY)
def test_t5_an_overflow_is_recognised_in_a_body_that_succeeds(name: str) -> None:
    assert (overflow_in(*body_of(IN_BODY[name])) or Overflow()).window == EXCESS.window


def openai(message: str, code: str | None = None, **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": code, **more}}).encode()


OTHERS: dict[str, tuple[int, bytes]] = {
    "tokens per minute": (
        429,
        openai(
            "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 342389."
            " The input or output tokens must be reduced in order to run successfully.",
            "rate_limit_exceeded",
        ),
    ),
    "tokens per minute as 413": (
        413,
        openai(
            "Request too large for model `llama-3.3-70b-versatile` in organization `org_x` on tokens per minute (TPM):"
            " Limit 12000, Requested 14137, please reduce your message size and try again.",
            "rate_limit_exceeded",
        ),
    ),
    "a rate limit on context": (
        400,
        openai("This request would exceed your account's rate limit of 40,000 input tokens: prompt is too long"),
    ),
    "an overflow that is said with 429": (429, body_of(WORDINGS["openai-requested"])[1]),
    "max_tokens alone": (
        400,
        openai(
            "max_tokens is too large: 99999. This model supports at most 16384 completion tokens, whereas you provided"
            " 99999.",
            param="max_tokens",
        ),
    ),
    "max_tokens of Claude": (
        400,
        json.dumps(
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "max_tokens: 99999 > 64000, which is the maximum allowed number of output tokens for m",
                },
            }
        ).encode(),
    ),
    "too many bytes": (
        413,
        json.dumps(
            {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}
        ).encode(),
    ),
    "too many bytes for nginx": (413, b"<html><title>413 Request Entity Too Large</title></html>"),
    "a long string": (
        400,
        openai(
            "Invalid 'messages[0].content': string too long. Expected a string with maximum length 10485760, but got a"
            " string with length 10500000 instead.",
            "string_above_max_length",
        ),
    ),
    "many tools": (400, openai("Invalid 'tools': array too long. Expected an array with maximum length 128")),
    "an unknown model": (404, openai("The model `m` does not exist", "model_not_found")),
    "a message that is only repeated": (
        422,
        json.dumps(
            {
                "detail": [
                    {
                        "loc": ["body", "messages", 0, "role"],
                        "msg": "unexpected value",
                        "type": "value_error.const",
                        "input": "prompt is too long: 9 tokens > 300 maximum",
                    }
                ]
            }
        ).encode(),
    ),
    "a success that speaks of it": (
        200,
        json.dumps(
            {"choices": [{"message": {"role": "assistant", "content": "Error: prompt is too long: 9 tokens > 300"}}]}
        ).encode(),
    ),
    "a reply of Claude that speaks of it": (
        200,
        json.dumps({"type": "message", "content": [{"type": "text", "text": "context_length_exceeded"}]}).encode(),
    ),
    "a reply that begins": (200, b'{"type":"response.created","response":{"error":null,"status":"in_progress"}}'),
    "text that succeeds": (200, b"context_length_exceeded"),
    "nothing": (400, b""),
    "another error": (400, openai("Unknown parameter: 'messages[0].cache_control'.", "unknown_parameter")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_t5_another_error_is_no_overflow(name: str) -> None:
    assert overflow_in(*OTHERS[name]) is None


@pytest.mark.parametrize(
    ("message", "window"),
    [
        ("prompt is too long: 9 tokens > 7 maximum", None),
        ("prompt is too long: 9 tokens > 999999999999 maximum", None),
        ("prompt is too long: 140,123 tokens > 131,072 maximum", 131_072),
        ("The request exceeds the available context size (8192 tokens); \\u003e", 8_192),
    ],
)
def test_t5_a_window_is_a_plausible_number_or_none(message: str, window: int | None) -> None:
    overflow = overflow_in(400, openai(message))
    assert overflow is not None
    assert overflow.window == window


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 500_000,
        b'{"error":' * 100_000,
        openai("prompt is too long " + "1," * 500_000),
        openai("exceeds the maximum allowed " * 30_000),
        openai("maximum context length is " * 30_000),
        openai("(" * 900_000),
        b"\xff\xfe" * 400_000,
        json.dumps({"error": [{"message": "x" * 999} for _ in range(900)]}).encode(),
    ],
    ids=range(8),
)
def test_x9_hostile_bodies_cost_little(body: bytes) -> None:
    began = time.thread_time()  # of this thread alone, however busy the machine is; squared it would be minutes
    overflow_in(400, body)
    assert time.thread_time() - began < 5

"""How providers and servers say that a prompt is too long: an answer in the words of each, for a script."""

from collections.abc import Mapping
from typing import Any

from proxy.lab.provider import jsontext
from proxy.lab.provider.answers import STREAMING, Excess, Send, Wire, Wording, server_sent_event


def _openai(message: str, status: int = 400, code: object = None, **more: object) -> Send:
    error = {"message": message, "type": "invalid_request_error", "param": "messages", "code": code, **more}
    return Send(status, jsontext.write({"error": error}))


def _json(content: object, status: int = 400) -> Send:
    return Send(status, jsontext.write(content))


def _flat(message: str, type: str = "BadRequestError", code: object = 400) -> Send:
    return _json({"object": "error", "message": message, "type": type, "param": None, "code": code})


def _anthropic(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def _stream(*events: Mapping[str, Any]) -> Send:
    """A stream that succeeds as far as its head says."""
    wire = Wire()
    pieces = (server_sent_event(jsontext.write(event), wire, event.get("type", "")) for event in events)
    return Send(200, b"".join(pieces), STREAMING)


def _openai_requested(e: Excess) -> str:
    return (
        f"This model's maximum context length is {e.window} tokens. However, you requested {e.prompt + e.answer} tokens"
        f" ({e.prompt} in the messages, {e.answer} in the completion). Please reduce the length of the messages or"
        " completion."
    )


def _openai_resulted(e: Excess) -> str:
    return (
        f"This model's maximum context length is {e.window} tokens. However, your messages resulted in {e.prompt}"
        " tokens. Please reduce the length of the messages."
    )


def _openrouter(e: Excess) -> str:
    return (
        f"This endpoint's maximum context length is {e.window} tokens. However, you requested about"
        f" {e.prompt + e.answer} tokens ({e.prompt} of text input, {e.answer} in the output). Please reduce the length"
        ' of either one, or use the "middle-out" transform to compress your prompt automatically.'
    )


def _vllm_new(e: Excess) -> str:
    return (
        f"This model's maximum context length is {e.window} tokens. However, you requested {e.answer} output tokens and"
        f" your prompt contains at least {e.prompt} input tokens, for a total of at least {e.prompt + e.answer} tokens."
        f" Please reduce the length of the input prompt or the number of requested output tokens."
        f" (parameter=input_tokens, value={e.prompt})"
    )


def _vllm_max_tokens(e: Excess) -> str:
    return (
        f"'max_tokens' or 'max_completion_tokens' is too large: {e.answer}. This model's maximum context length is"
        f" {e.window} tokens and your request has {e.prompt} input tokens ({e.answer} > {e.window} - {e.prompt}). None"
    )


def _llama_cpp(e: Excess, status: int = 400, message: str = "") -> Send:
    message = message or f"request ({e.prompt} tokens) exceeds the available context size ({e.window} tokens), try"
    error = {"code": status, "message": f"{message} increasing it", "type": "exceed_context_size_error"}
    return _json({"error": {**error, "n_prompt_tokens": e.prompt, "n_ctx": e.window}}, status)


def _anthropic_too_long(e: Excess) -> str:
    return f"prompt is too long: {e.prompt} tokens > {e.window} maximum"


def _anthropic_with_answer(e: Excess) -> str:
    return (
        f"input length and `max_tokens` exceed context limit: {e.prompt} + {e.answer} > {e.window}, decrease input"
        " length or `max_tokens` and try again"
    )


def _gemini(e: Excess) -> str:
    return f"The input token count ({e.prompt}) exceeds the maximum number of tokens allowed ({e.window})."


def _tgi(e: Excess) -> str:
    return (
        f"Input validation error: `inputs` tokens + `max_new_tokens` must be <= {e.window}. Given: {e.prompt} `inputs`"
        f" tokens and {e.answer} `max_new_tokens`"
    )


def _litellm(e: Excess) -> Send:
    inner = jsontext.write(_anthropic(_anthropic_too_long(e))).decode()
    message = (
        f"litellm.BadRequestError: litellm.ContextWindowExceededError: AnthropicError - {inner}\n"
        "Received Model Group=claude\nAvailable Model Group Fallbacks=None"
    )
    return _json({"error": {"message": message, "type": None, "param": None, "code": "400"}})


_EXCEEDS = "Your input exceeds the context window of this model. Please adjust your input and try again."
_FAULT = {"code": "context_length_exceeded", "message": _EXCEEDS}
_BEGUN: dict[str, Any] = {"id": "resp_1", "object": "response", "status": "in_progress", "error": None, "output": []}
_FAILED = {**_BEGUN, "status": "failed", "error": _FAULT}

WORDINGS: Mapping[str, Wording] = {
    "openai-requested": lambda e: _openai(_openai_requested(e), code="context_length_exceeded"),
    "openai-resulted": lambda e: _openai(_openai_resulted(e), code="context_length_exceeded"),
    "openai-responses": lambda _: _openai(_EXCEEDS, code="context_length_exceeded", param="input"),
    "openai-legacy": lambda e: _openai(
        f"This model's maximum context length is {e.window} tokens, however you requested {e.prompt + e.answer} tokens"
        f" ({e.prompt} in your prompt; {e.answer} for the completion). Please reduce your prompt; or completion length."
    ),
    "azure": lambda e: _openai(
        f"Input tokens exceed the configured limit of {e.window} tokens. Your messages resulted in {e.prompt} tokens."
        " Please reduce the length of the messages.",
        code="context_length_exceeded",
    ),
    "anthropic": lambda e: _json(_anthropic(_anthropic_too_long(e))),
    "anthropic-with-answer": lambda e: _json(_anthropic(_anthropic_with_answer(e))),
    "bedrock": lambda _: _json({"message": "Input is too long for requested model."}),
    "bedrock-claude": lambda e: _json(
        {"message": f"The model returned the following errors: {_anthropic_too_long(e)}"}
    ),
    "gemini": lambda e: _json([{"error": {"code": 400, "message": _gemini(e), "status": "INVALID_ARGUMENT"}}]),
    "vertex": lambda e: _json({"error": {"code": 400, "message": _gemini(e), "status": "INVALID_ARGUMENT"}}),
    "gemini-without-count": lambda e: _openai(
        f"The input token count exceeds the maximum number of tokens allowed ({e.window})."
    ),
    "mistral": lambda e: _flat(
        f"Prompt contains {e.prompt} tokens and 0 draft tokens, too large for model with {e.window} maximum context"
        " length",
        "invalid_request_prompt",
        "3051",
    ),
    "groq": lambda _: _openai(
        "Please reduce the length of the messages or completion.", code="context_length_exceeded"
    ),
    "cerebras": lambda e: _openai(
        f"Please reduce the length of the messages or completion. Current length is {e.prompt} while limit is"
        f" {e.window}",
        code="context_length_exceeded",
    ),
    "deepseek": lambda e: _openai(_openai_requested(e), code="invalid_request_error"),
    "xai": lambda e: _json(
        {
            "code": "Client specified an invalid argument",
            "error": f"This model's maximum prompt length is {e.window} but the request contains {e.prompt} tokens.",
        }
    ),
    "together": lambda e: _openai(_tgi(e), 422),
    "fireworks": lambda e: _openai(f"The prompt is too long: {e.prompt}, model maximum context length: {e.window}"),
    "moonshot": lambda e: _openai(
        f"Invalid request: Your request exceeded model token limit: {e.window} (requested: {e.prompt})"
    ),
    "minimax": lambda _: _openai("invalid params, context window exceeds limit (2013)"),
    "dashscope": lambda e: _openai(
        f"<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, {e.window}]"
    ),
    "copilot": lambda e: _openai(
        f"prompt token count of {e.prompt} exceeds the limit of {e.window}", code="model_max_prompt_tokens_exceeded"
    ),
    "openrouter": lambda e: _json({"error": {"message": _openrouter(e), "code": 400, "metadata": {}}}),
    "openrouter-raw": lambda e: _openai(
        "Provider returned error",
        code=400,
        metadata={"raw": jsontext.write(_anthropic(_anthropic_too_long(e))).decode(), "provider_name": "Anthropic"},
    ),
    "litellm": _litellm,
    "vllm": lambda e: _flat(_openai_requested(e)),
    "vllm-new": lambda e: _openai(_vllm_new(e), type="BadRequestError", code=400),
    "vllm-max-tokens": lambda e: _openai(_vllm_max_tokens(e), type="BadRequestError", code=400),
    "vllm-input-tokens": lambda e: _openai(
        f"This model's maximum context length is {e.window} tokens. However, your request has {e.prompt} input tokens."
        " Please reduce the length of the input messages. None"
    ),
    "vllm-passed": lambda e: _openai(
        f"You passed {e.prompt} input tokens and requested {e.answer} output tokens. However, the model's context"
        f" length is only {e.window} tokens, resulting in a maximum input length of {e.window - e.answer} tokens."
    ),
    "vllm-decoder": lambda e: _openai(
        f"The decoder prompt (length {e.prompt}) is longer than the maximum model length of {e.window}. Make sure that"
        " `max_model_len` is no smaller than the number of text tokens."
    ),
    "vllm-to-fit": lambda e: _openai(
        f"The prompt (total length {e.prompt}) is too long to fit into the model (context length {e.window})."
    ),
    "sglang": lambda e: _flat(
        f"The input ({e.prompt} tokens) is longer than the model's context length ({e.window} tokens)."
    ),
    "sglang-requested": lambda e: _openai(
        f"Requested token count exceeds the model's maximum context length of {e.window} tokens. You requested a total"
        f" of {e.prompt + e.answer} tokens: {e.prompt} tokens from the input messages and {e.answer} tokens for the"
        " completion. Please reduce the number of tokens in the input messages or the completion to fit within the"
        " limit."
    ),
    "sglang-allowed": lambda e: _openai(
        f"Input length ({e.prompt} tokens) exceeds the maximum allowed length ({e.window} tokens). Use a shorter input"
        " or enable --allow-auto-truncate."
    ),
    "tgi": lambda e: _json({"error": _tgi(e), "error_type": "validation"}, 422),
    "tgi-inputs": lambda e: _json(
        {
            "error": f"Input validation error: `inputs` must have less than {e.window} tokens. Given: {e.prompt}",
            "error_type": "validation",
        },
        422,
    ),
    "llama-cpp": _llama_cpp,
    "llama-cpp-old": lambda e: _llama_cpp(e, 500, "the request exceeds the available context size. try"),
    "llama-cpp-python": lambda e: _openai(
        f"Requested tokens ({e.prompt}) exceed context window of {e.window}", 500, code=None
    ),
    "ollama": lambda e: _json({"error": _whole(_llama_cpp(e)).decode()}),
    "ollama-own": lambda _: _json({"error": "prompt too long; exceeded max context length by 12 tokens"}),
    "lm-studio": lambda e: _json(
        {
            "error": f"Trying to keep the first {e.prompt} tokens when context the overflows. However, the model is"
            f" loaded with context length of only {e.window} tokens, which is not enough. Try to load the model with a"
            " larger context length, or provide a shorter input"
        }
    ),
    "lm-studio-keep": lambda e: _json(
        {"error": f"Cannot truncate prompt with n_keep ({e.prompt}) >= n_ctx ({e.window})"}
    ),
    "lm-studio-initial": lambda _: _json(
        {"error": "The number of tokens to keep from the initial prompt is greater than the context length"}
    ),
    "lm-studio-mlx": lambda _: _json({"error": "Context size has been exceeded."}),
    "plain-text": lambda e: Send(400, _openai_resulted(e).encode(), (("Content-Type", "text/plain"),)),
}
"""Error replies, by who answers so."""

STREAMS: Mapping[str, Wording] = {
    "chat": lambda e: _stream({"error": {"message": _openai_requested(e), "type": "BadRequestError", "code": 400}}),
    "chat-flat": lambda e: _stream({"error_type": "context_length_exceeded", "error_message": _openai_requested(e)}),
    "llama-cpp": lambda e: Send(200, b"data: " + _whole(_llama_cpp(e)) + b"\n\n", STREAMING),
    "responses-failed": lambda _: _stream(
        {"type": "response.created", "sequence_number": 0, "response": _BEGUN},
        {"type": "response.in_progress", "sequence_number": 1, "response": _BEGUN},
        {"type": "response.failed", "sequence_number": 2, "response": _FAILED},
    ),
    "responses-error": lambda _: _stream({"type": "error", "sequence_number": 0, "param": "input", **_FAULT}),
    "anthropic": lambda e: _stream(_anthropic(_anthropic_too_long(e))),
    "openrouter": lambda e: Send(
        200,
        b": OPENROUTER PROCESSING\n\n" + _whole(_stream({"error": {"code": 400, "message": _openrouter(e)}})),
        STREAMING,
    ),
}
"""Streams that begin with the error, by who answers so."""

IN_BODY: Mapping[str, Wording] = {
    "openrouter": lambda e: _json({"error": {"message": _openrouter(e), "code": 400}}, 200),
    "llama-cpp": lambda e: Send(200, _whole(_llama_cpp(e))),
}
"""Replies that succeed as far as their head says, and hold an error alone."""


def _whole(send: Send) -> bytes:
    assert isinstance(send.body, bytes)
    return send.body

"""Errors of upstreams where a prompt is too long for its model: recognized by status and message, whoever sends it.

The messages are those of OpenAI and Azure, Anthropic, Bedrock and Vertex, Gemini, Mistral, Groq, Cerebras, DeepSeek,
xAI, Together, Fireworks, Moonshot, MiniMax, DashScope, Copilot, OpenRouter and LiteLLM, and of vLLM, SGLang, TGI,
llama.cpp, Ollama and LM Studio. To add one: a phrase, and how its message writes the numbers.

Laws
  Only what an error says of itself is read: its message, type and code, and what a gateway quotes of one behind it.
  Rate limits, bodies with too many bytes and answers that may be too long are no overflow.
  Time is linear in what is read of the message, and that is bounded.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import re2  # type: ignore[import-untyped]  # it ships no types

from policies.money.prices import NO_MARK, Budget, BudgetLimits, Prices

STATUSES = frozenset({200, 400, 413, 422, 500})
_MOST_CHARACTERS = 4_000
_MOST_NESTED = 6
_TEXTS = ("message", "code", "type", "error_type", "error_message", "msg", "status")
_WITHIN = ("error", "response", "detail", "metadata", "raw")
_COUNTS = ("n_ctx", "n_prompt_tokens")
_SMALLEST, _LARGEST = 256, 100_000_000
"""Tokens that a window may have; any other number is not one."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """A prompt was too long, in the upstream's own count."""

    window: int | None = None
    """Tokens that the model takes; None where the message does not say."""
    prompt: int | None = None
    with_answer: bool = False
    """True where the tokens allowed for the answer count against the window."""


def _any(patterns: Sequence[str]) -> list[re2._Regexp]:
    return [re2.compile(pattern.replace("N", r"\(?(\d[\d,]{0,11})")) for pattern in patterns]


_CODES = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "exceed_context_size_error",
        "context_exceeded",
        "model_context_window_exceeded",
        "model_max_prompt_tokens_exceeded",
    }
)
# Messages are read in lower case and without quotes and backslashes. N is a number, maybe in brackets.
_PHRASES = _any(
    (
        r"contextwindowexceedederror",
        r"context_length_exceeded",
        r"exceed_context_size_error",
        r"(?:prompt|input) is too long",
        r"prompt too long; exceeded",
        r"exceeds? (?:the |this |models? |available |maximum |allowed )*(?:context|input) (?:window|length|size|limit)",
        r"context (?:window|length|size) (?:has been |is )?(?:exceeded|exceeds|full)",
        r"maximum context length (?:is N|has been exceeded)",
        r"models context length is only N",
        r"maximum prompt length is N",
        r"reduce the length of the messages or completion",
        r"(?:longer|greater) than the (?:models? |maximum )*(?:context|model) length",
        r"too long to fit into the model",
        r"too large for model with N maximum context length",
        r"input token count .{0,30}exceeds the maximum number of tokens",
        r"inputs tokens \+ max_new_tokens must be",
        r"inputs must have less than N tokens",
        r"input length N tokens\) exceeds the maximum allowed length",
        r"input tokens exceed the configured limit",
        r"too many input tokens",
        r"tokens in the prompt cannot exceed",
        r"prompt token count of N exceeds the limit",
        r"exceeded model token limit",
        r"range of input length should be",
        r"prompt tokens N\) exceeds context size",
        r"tokens N\) exceed context window",
        r"tokens when context the overflows",
        r"cannot truncate prompt with n_keep",
    )
)
_OTHER_LIMITS = _any((r"rate.?limit", r"per.(?:min|day|hour)", r"\bt\.?pm\b", r"too many requests", r"quota"))
_WINDOW = _any(
    (
        r"n_ctx\W{1,4}N",
        r"tokens > N",
        r"context limit: \d{1,12} \+ \d{1,12} > N",
        r"maximum allowed length N",
        r"(?:context|prompt|model|input) length(?: is| of|:)?(?: only)? N",
        r"context (?:window|size|limit)(?: is| of|:)?(?: only)? N",
        r"too large for model with N",
        r"maximum number of tokens allowed N",
        r"model token limit: N",
        r"\blimit (?:of|is) N",
        r"must be <= N",
        r"must have less than N",
        r"length should be \[\d{1,9}, ?N",
        r"max input tokens: N",
        r"cannot exceed N",
    )
)
_PROMPT = _any(
    (
        r"n_prompt_tokens\W{1,4}N",
        r"too long: N",
        r"context limit: N \+",
        r"resulted in N tokens",
        r"N (?:in the messages|in your prompt|in the prompt|of text input)",
        r"(?:contains|passed)(?: at least)? N (?:input )?tokens",
        r"your request has N input tokens",
        r"input token count N",
        r"(?:input|request|tokens|length) N tokens\)",
        r"prompt \((?:total )?length N",
        r"N tokens from the input",
        r"token count of N",
        r"tokens N\) exceed",
        r"first N tokens when context",
        r"n_keep N\)",
        r"current length is N",
        r"given: N",
        r"received N",
    )
)
_ANSWER = _any(
    (
        r"(?:in|for) the (?:completion|output)",
        r"\d output tokens",
        r"max_(?:new_)?tokens (?:exceed|must)",
        r"max_(?:completion_)?tokens is too large",
    )
)


def overflow_in(status: int, body: bytes) -> Overflow | None:
    """The overflow that a reply reports. `body`: of the reply, or the data of the first event of a stream."""
    if status not in STATUSES:
        return None
    says = _error_texts(status, body)
    text = _plain(" | ".join(says)[: 2 * _MOST_CHARACTERS])[:_MOST_CHARACTERS]
    coded = any(each.lower() in _CODES for each in says)
    if not (coded or _matches(_PHRASES, text)) or _matches(_OTHER_LIMITS, text):
        return None
    window, prompt = _number(_WINDOW, text), _number(_PROMPT, text)
    fits = window is not None and prompt is not None and prompt <= window
    return Overflow(window, prompt, fits or _matches(_ANSWER, text))


def _error_texts(status: int, body: bytes) -> list[str]:
    """The texts of the error. A body that is not JSON says it as it stands, but never in a reply that succeeds."""
    content: object = None
    with suppress(ValueError, RecursionError):
        content = json.loads(body)
    if isinstance(content, list) and content:
        content = content[0]
    if isinstance(content, dict):
        inner = content.get("response")
        nested = isinstance(inner, dict) and bool(inner.get("error"))
        is_error = nested or content.get("type") == "error" or content.get("error") or content.get("error_message")
        return list(_texts(content, _MOST_NESTED)) if status != 200 or is_error else []
    return [body[:_MOST_CHARACTERS].decode("utf-8", "replace")] if status != 200 else []


def _texts(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value[:_MOST_CHARACTERS]
    elif isinstance(value, list) and depth:
        for each in value[:_MOST_NESTED]:
            yield from _texts(each, depth - 1)
    elif isinstance(value, dict) and depth:
        yield from (f"{name}: {value[name]}" for name in _COUNTS if isinstance(value.get(name), int))
        yield from (value[name][:_MOST_CHARACTERS] for name in _TEXTS if isinstance(value.get(name), str))
        for name in _WITHIN:
            yield from _texts(value.get(name), depth - 1)


def _plain(text: str) -> str:
    text = text.lower().replace("\\u003e", ">").replace("\\u003c", "<").replace("\\u0027", "").replace("\\n", " ")
    return " ".join("".join(c for c in text if c not in "`'’\"\\").split())


def _matches(patterns: Sequence[re2._Regexp], text: str) -> bool:
    return any(pattern.search(text) for pattern in patterns)


def _number(patterns: Sequence[re2._Regexp], text: str) -> int | None:
    for pattern in patterns:
        for match in pattern.finditer(text):
            number = int(match[1].replace(",", ""))
            if _SMALLEST <= number <= _LARGEST:
                return number
    return None


# --- what was learned of a window from what upstreams have said ---

SHARE = 0.7
"""Where a message names no window, a prompt may be so large in the future, as a share of the one that was too long."""


@dataclass(frozen=True, slots=True)
class LearnedWindow:
    """In the upstream's own tokens."""

    window: int | None = None
    prompt: int | None = None
    """The most tokens of a prompt; None where that follows from the window."""
    with_answer: bool = False

    def after(self, overflow: Overflow, sent: int) -> "LearnedWindow":
        """With what is said of a prompt that had about so many tokens. The newest word on the window counts."""
        with_answer = self.with_answer or overflow.with_answer
        if overflow.window is not None:
            return LearnedWindow(overflow.window, None, with_answer)
        return LearnedWindow(self.window, min(int(SHARE * sent), self.prompt or sent), with_answer)

    def above(self, prompt: int) -> "LearnedWindow":
        """The window that is left after a prompt of so many tokens was taken: a smaller one was never the model's."""
        window = None if self.window is not None and self.window < prompt else self.window
        return replace(self, window=window, prompt=self.prompt and max(self.prompt, prompt))

    def budget(self, limits: BudgetLimits, prices: Prices, answer: int | None, *, has_floor: bool) -> Budget:
        """The budget for this model: at most what the upstream takes beside an answer of so many tokens."""
        limits = limits.within(self.window)
        budget = limits.budget(prices, answer, has_floor=has_floor)
        caps = [self.prompt or 0, int((self.room(answer) or 0) * limits.high)]  # where no prompt fits, none is made to
        high = min([budget.high, *filter(None, caps)])
        low, floor = budget.low * high // budget.high, budget.floor * high // budget.high
        if budget.high == NO_MARK:
            floor = min(budget.floor, high // 3)
        return budget if high == budget.high else replace(budget, high=high, low=low, floor=floor, mark="window")

    def room(self, answer: int | None) -> int | None:
        """The most tokens that a prompt may have beside an answer of so many; None where nobody has said."""
        beside = answer if self.with_answer and answer else 0
        return None if self.window is None else max(0, self.window - beside)

"""The usage of a reply: read, and how it is worded."""

import msgspec

from policies.dialects.usage import Words
from policies.money.prices import Usage

WORDS = Words("prompt_tokens", "completion_tokens", "completion_tokens_details")


class _Created(msgspec.Struct):
    ephemeral_1h_input_tokens: int | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    # how LiteLLM says what Anthropic's usage says; OpenAI knows no longer time here
    cache_creation_token_details: _Created | None = None


class _UsageJson(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


def read_usage(found: object) -> Usage | None:
    """The usage in a provider's own words; None where it cannot be read."""
    try:
        usage = msgspec.convert(found, _UsageJson)
    except msgspec.ValidationError:
        return None
    details = usage.prompt_tokens_details or _Details()
    longer = (details.cache_creation_token_details or _Created()).ephemeral_1h_input_tokens or 0
    cached, written = details.cached_tokens or 0, details.cache_write_tokens or 0
    return Usage(usage.prompt_tokens, cached, written, usage.completion_tokens, min(longer, written))

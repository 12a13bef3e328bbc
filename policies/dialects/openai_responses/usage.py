"""The usage of a reply: read, and how it is worded."""

import msgspec

from policies.dialects.usage import Words
from policies.money.prices import Usage

WORDS = Words("input_tokens", "output_tokens", "output_tokens_details")


class _Written(msgspec.Struct):
    ttl_12h_tokens: int | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_tokens_details: _Written | None = None


class _UsageJson(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None


def read_usage(found: object) -> Usage | None:
    """The usage in a provider's own words; None where it cannot be read."""
    try:
        usage = msgspec.convert(found, _UsageJson)
    except msgspec.ValidationError:
        return None
    details = usage.input_tokens_details or _Details()
    longer = (details.cache_write_tokens_details or _Written()).ttl_12h_tokens or 0
    cached, written = details.cached_tokens or 0, details.cache_write_tokens or 0
    return Usage(usage.input_tokens, cached, written, usage.output_tokens, longer)

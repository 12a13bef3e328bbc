"""The usage of a reply: read, and summed over its rounds."""

from collections.abc import Mapping

import msgspec

from policies.dialects.base import Usage
from policies.dialects.events import Json


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


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
    return Usage(
        usage.prompt_tokens,
        details.cached_tokens or 0,
        details.cache_write_tokens or 0,
        usage.completion_tokens,
    )


class Spent:
    """Completion tokens of the rounds before this one. The prompt side is always the last round's: clients steer by it
    how full the window is."""

    def __init__(self) -> None:
        self.completion = 0
        self._details: dict[str, int] = {}

    def add(self, usage: Mapping[str, object]) -> None:
        """A round is over."""
        self.completion += _count(usage, "completion_tokens")
        self._details = self._summed(usage)

    def onto(self, usage: Mapping[str, object]) -> Json:
        """The usage of the round at hand, as that of the whole reply."""
        completion = self.completion + _count(usage, "completion_tokens")
        whole: Json = {**usage, "completion_tokens": completion}
        if "total_tokens" in usage:
            whole["total_tokens"] = _count(usage, "prompt_tokens") + completion
        if self._details:
            whole["completion_tokens_details"] = {**_details(usage), **self._summed(usage)}
        return whole

    def _summed(self, usage: Mapping[str, object]) -> dict[str, int]:
        new = {key: value for key, value in _details(usage).items() if type(value) is int}
        return {key: self._details.get(key, 0) + new.get(key, 0) for key in {**self._details, **new}}


def _details(usage: Mapping[str, object]) -> Mapping[str, object]:
    found = usage.get("completion_tokens_details")
    return found if isinstance(found, dict) else {}


def _count(usage: Mapping[str, object], key: str) -> int:
    found = usage.get(key)
    return found if isinstance(found, int) else 0

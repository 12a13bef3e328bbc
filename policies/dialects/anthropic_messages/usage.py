"""The usage of a reply: read, and summed over its rounds."""

from collections.abc import Mapping

import msgspec

from policies.dialects.events import Json
from policies.money.prices import Usage

_PROMPT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_SUMMED = ("output_tokens_details", "server_tool_use")
"""What counts the answers, or what was done for them, by kind."""
_LISTED = "iterations"
"""What tells of each sampling in the reply (beta)."""


class _CreationJson(msgspec.Struct):
    ephemeral_1h_input_tokens: int | None = None


class _UsageJson(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: _CreationJson | None = None


def read_usage(found: object) -> Usage | None:
    """The usage in the provider's own words, which leave cached tokens out of the input; None where it cannot be
    read."""
    try:
        usage = msgspec.convert(found, _UsageJson)
    except msgspec.ValidationError:
        return None
    cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    longer = (usage.cache_creation or _CreationJson()).ephemeral_1h_input_tokens or 0
    return Usage((usage.input_tokens or 0) + cached + written, cached, written, usage.output_tokens or 0, longer)


class Bill:
    """What a reply took: counts of the answers are summed over its rounds. The prompt side is always the last round's:
    clients steer by it how full the window is."""

    def __init__(self) -> None:
        self.round: Json = {}
        """The usage of the round at hand, as far as it has been said."""
        self._before: Json = {}

    def hear(self, usage: Mapping[str, object]) -> None:
        """What is said later counts; what is left out then stands as it was said (streaming, message_delta)."""
        self.round = {**self.round, **{key: value for key, value in usage.items() if value is not None}}

    def close(self) -> None:
        """A round is over."""
        self._before = self._grown(self.round)
        self.round = {}

    @property
    def spent(self) -> int:
        """Tokens of the answers in the rounds before this one."""
        return _count(self._before.get("output_tokens"))

    def onto(self, usage: Mapping[str, object]) -> Json:
        """The usage of the round at hand, as that of the whole reply. A client had the prompt side of the first round
        when the stream began, so it is said again."""
        prompt = {key: self.round[key] for key in _PROMPT if key in self.round}
        return {**usage, **prompt, **self._grown(self.round)}

    def _grown(self, usage: Mapping[str, object]) -> Json:
        before = self._before
        found: Json = {"output_tokens": self.spent + _count(usage.get("output_tokens"))}
        for key in _SUMMED:
            parts = [part for part in (before.get(key), usage.get(key)) if isinstance(part, dict)]
            names = dict.fromkeys(name for part in parts for name in part)
            if parts:
                found[key] = {name: sum(_count(part.get(name)) for part in parts) for name in names}
        lists = [part for part in (before.get(_LISTED), usage.get(_LISTED)) if isinstance(part, list)]
        return found | ({_LISTED: [entry for part in lists for entry in part]} if lists else {})


def _count(found: object) -> int:
    return found if type(found) is int else 0

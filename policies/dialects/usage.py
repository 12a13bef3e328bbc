"""The usage of a reply, summed over its rounds, in the words of its API."""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.dialects.events import Json


@dataclass(frozen=True, slots=True)
class Words:
    """What an API calls the two sides of a bill, and the details of the answer's side."""

    prompt: str
    completion: str
    details: str


class Spent:
    """Completion tokens of the rounds before this one. The prompt side is always the last round's: clients steer by it
    how full the window is."""

    def __init__(self, words: Words) -> None:
        self.completion = 0
        self._words = words
        self._details: dict[str, int] = {}

    def add(self, usage: Mapping[str, object]) -> None:
        """A round is over."""
        self.completion += _count(usage, self._words.completion)
        self._details = self._summed(usage)

    def onto(self, usage: Mapping[str, object]) -> Json:
        """The usage of the round at hand, as that of the whole reply."""
        words = self._words
        completion = self.completion + _count(usage, words.completion)
        whole: Json = {**usage, words.completion: completion}
        if "total_tokens" in usage:
            whole["total_tokens"] = _count(usage, words.prompt) + completion
        if self._details:
            whole[words.details] = {**self._of(usage), **self._summed(usage)}
        return whole

    def _summed(self, usage: Mapping[str, object]) -> dict[str, int]:
        new = {key: value for key, value in self._of(usage).items() if type(value) is int}
        return {key: self._details.get(key, 0) + new.get(key, 0) for key in {**self._details, **new}}

    def _of(self, usage: Mapping[str, object]) -> Mapping[str, object]:
        found = usage.get(self._words.details)
        return found if isinstance(found, dict) else {}


def _count(usage: Mapping[str, object], key: str) -> int:
    found = usage.get(key)
    return found if isinstance(found, int) else 0

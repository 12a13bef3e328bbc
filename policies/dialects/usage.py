"""The usage of a reply: read in the words of its API, and summed over the rounds of the reply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.dialects.common import list_at, object_at
from policies.dialects.events import Json
from policies.money.prices import Usage

_MOST = 10**9
"""Tokens of a count that is believed. Sums of it stay numbers that every store can hold."""


@dataclass(frozen=True, slots=True)
class UsageNames:
    """What an API calls the counts of a usage; those of the cache as paths."""

    prompt: Sequence[str]
    """The counts that make up the prompt."""
    completion: str
    cached: Sequence[str]
    cache_write: Sequence[str] = ("",)
    long_cache_write: Sequence[str] = ("",)
    """Written for longer than by default: one hour at Anthropic, twelve at OpenAI."""
    summed: Sequence[str] = ()
    """Objects of counts that are of the answer, or of what was done for it."""
    listed: str = ""
    """A list with an entry for each sampling in the reply (beta)."""
    in_pieces: bool = False
    """Whether a stream gives a usage piece by piece, so that a later piece leaves out or repeats what an earlier one
    gave. Counts may then be null, too."""

    def read(self, usage: object) -> Usage | None:
        """The usage; None where it is no object, or a count is no number of tokens."""
        try:
            prompt = sum(_count(usage, (name,), self.in_pieces) for name in self.prompt)
            completion = _count(usage, (self.completion,), self.in_pieces)
            cached, written = _count(usage, self.cached), _count(usage, self.cache_write)
            return Usage(prompt, cached, written, completion, min(written, _count(usage, self.long_cache_write)))
        except TypeError:
            return None


class UsageSum:
    """The usage of a reply. Counts of the answer are summed over its rounds; the prompt side is always the last
    round's, because clients take it for how full the window is."""

    def __init__(self, names: UsageNames) -> None:
        self.completion = 0
        """Tokens of the answers in the rounds before this one."""
        self.current: Json = {}
        """The usage of the round at hand, as far as the provider has given it."""
        self._names = names
        self._earlier: dict[str, dict[str, int]] = {}
        self._entries: list[object] = []

    def receive(self, usage: Mapping[str, object]) -> None:
        """A usage, or a piece of one."""
        before = self.current if self._names.in_pieces else {}
        self.current = {**before, **{k: v for k, v in usage.items() if not (self._names.in_pieces and v is None)}}

    def close(self) -> None:
        whole = self.whole(self.current)
        self.completion = _number(whole.get(self._names.completion))
        for name in self._names.summed:
            counts = object_at(whole, name)
            self._earlier[name] = {key: value for key, value in counts.items() if type(value) is int}
        self._entries = list_at(whole, self._names.listed)
        self.current = {}

    def whole(self, usage: Mapping[str, object]) -> Json:
        """The usage of the round at hand as that of the whole reply. Where it comes in pieces, the prompt side is
        repeated, because the client has had that of the first round."""
        names, current = self._names, self.current
        completion = self.completion + _number(current.get(names.completion))
        prompt = {name: current[name] for name in names.prompt if names.in_pieces and name in current}
        whole: Json = {**usage, **prompt, names.completion: completion}
        if "total_tokens" in usage:
            whole["total_tokens"] = sum(_number(current.get(name)) for name in names.prompt) + completion
        for name in names.summed:
            now, earlier = object_at(current, name), self._earlier.get(name, {})
            if earlier:
                now = {key: _number(now.get(key)) + earlier.get(key, 0) for key in {**now, **earlier}}
            whole |= {name: now} if now else {}
        if self._entries or isinstance(current.get(names.listed), list):
            whole[names.listed] = [*self._entries, *list_at(current, names.listed)]
        return whole


def _count(usage: object, path: Sequence[str], nullable: bool = True) -> int:
    """The count at a path, 0 where there is none. Raises TypeError where something else stands there or on the way."""
    value = usage
    for name in path:
        if not isinstance(value, dict):
            raise TypeError(name)
        if name not in value or (value[name] is None and nullable):
            return 0
        value = value[name]
    if type(value) is not int or not 0 <= value <= _MOST:
        raise TypeError(path)
    return value


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0

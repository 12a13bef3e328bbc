"""Replies: as server-sent events or as one body, the usage in them, and how their rounds follow each other, in the same
way for every API. Nothing here raises on what it reads.

A round ends in one of these ways:
  no call of ours                 the choice is over as it came
  calls of ours and the client's  over; ours are answered when the client returns with its results
  ours alone                      the choice waits for its next round, and the client hears of no end
  ours alone, no round left       over, as if the limit of the answer was reached
  calls that were cut off         over, for the provider's own reason
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from policies.dialects.common import ChoiceResult, as_json, list_at, object_at
from policies.model.edits import RecallRound
from policies.model.rawjson import UnreadableError
from policies.money.prices import Usage

Json = dict[str, object]

_BOM = b"\xef\xbb\xbf"
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def is_plain(event: bytes) -> bool:
    """True where this is the whole body of a reply that is not streamed."""
    return event.removeprefix(_BOM).lstrip()[:1] == b"{"


def events_in(reply: bytes) -> list[bytes]:
    """The events of a whole reply, or its body where it is not streamed."""
    if is_plain(reply):
        return [reply]
    return reply.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")


def text_of(event: bytes) -> bytes:
    """The JSON in an event or a body. A break between two lines of data is white space in JSON."""
    if is_plain(event):
        return event.removeprefix(_BOM)
    lines = event.removeprefix(_BOM).splitlines()
    return b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))


def split_events(events: bytes) -> list[tuple[int, bytes]] | None:
    """Of each of these whole events its length and its JSON, which is empty where it has not one line of data, and
    maybe a name before that. None where they are not parted as nearly all streams part them: by one empty line, of one
    kind; or are not UTF-8."""
    try:
        events.isascii() or events.decode()
    except UnicodeDecodeError:
        return None
    if events.startswith(b"data: {") and events.find(b"\n") == len(events) - 2 and b"\r" not in events:
        return [(len(events), events[6:-2])]
    end = b"\r\n" if b"\r" in events else b"\n"
    blank = end + end
    if events.startswith(end) or blank + end in events or not events.endswith(blank):
        return None
    if len(end) == 2 and not events.count(b"\r") == events.count(b"\n") == events.count(end):
        return None
    split = []
    for event in events.split(blank)[:-1]:
        line = event.partition(end)[2] if event.startswith(b"event:") else event
        text = line[6:] if line.startswith(b"data: {") and end not in line else b""
        split.append((len(event) + len(blank), text))
    return split


def read_event(event: bytes) -> Json | None:
    """The JSON object in an event or a body; None where there is none."""
    if event.startswith(b"data: {"):
        with suppress(*_FAULTS):  # one line of data, as nearly all are
            content: Json = msgspec.json.decode(event[6:])
            return content
    return document(text_of(event))


def document(text: bytes) -> Json | None:
    value: object = None
    try:
        value = msgspec.json.decode(text)
    except _FAULTS:
        with suppress(ValueError, RecursionError):  # half a surrogate pair: some servers part them between events
            value = json.loads(text) if b"\\u" in text else None
    return value if isinstance(value, dict) else None


def framed(content: Mapping[str, object], named: bool = False) -> bytes:
    """The content as a server-sent event, which can be `named` by its type, where that can stand on a line."""
    kind = content.get("type")
    has_name = named and isinstance(kind, str) and kind.isprintable()  # no line break, no half of a surrogate pair
    name = f"event: {kind}\n".encode() if has_name else b""
    return name + b"data: " + as_json(content) + b"\n\n"


def joined_text(pieces: Sequence[str]) -> str:
    """One text; the halves of a surrogate pair that were parted between pieces are one character again."""
    text = "".join(pieces)
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


# --- the usage of a reply: read in the words of its API, and summed over the rounds of the reply ---

_MOST_TOKENS = 10**9
"""Tokens of a count that is believed. Sums of it stay numbers that every store can hold."""


@dataclass(frozen=True, slots=True)
class UsageNames:
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
    if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
        raise TypeError(path)
    return value


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


# --- rounds ---

RoundEnd = Literal["as it came", "waiting", "limit"]


@dataclass(slots=True)
class Allowance:
    rounds: int


class Entry(Protocol):
    """A call, or an item or block that may be one, in the message of one round. A call has no text for the client, and
    `arguments` are those of a call of ours: None where they are not a JSON object."""

    index: int
    ours: bool | None
    """True where it calls the recall tool; None while that is not known."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def is_call(self) -> bool: ...
    @property
    def text(self) -> str: ...
    @property
    def arguments(self) -> str | None: ...
    def as_json(self, place: int) -> str:
        """A call of ours at this place among the calls of its message, with arguments that are JSON in any case."""


E = TypeVar("E", bound=Entry)


class Round(Generic[E]):
    def __init__(self) -> None:
        self.by_index: dict[int, E] = {}

    @property
    def entries(self) -> Sequence[E]:
        return [entry for _, entry in sorted(self.by_index.items())]

    @property
    def text(self) -> str:
        return "".join(entry.text for entry in self.entries)

    @property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(entry.id for entry in self.entries if entry.is_call and entry.ours is False)

    @property
    def has_theirs(self) -> bool:
        return any(entry.is_call and entry.ours is False for entry in self.entries)

    def fields(self, entries: Sequence[E], alone: bool) -> str:
        """More that a RecallRound stores of these entries, and of the message; `alone`: no call is the client's."""
        return ""

    @property
    def has_ours(self) -> bool:
        return any(entry.ours for entry in self.entries)

    @property
    def is_undecided(self) -> bool:
        """True where it is not known yet of every call whose it is."""
        return any(entry.ours is None for entry in self.entries)

    def ours_before(self, index: int) -> int:
        return sum(1 for entry in self.entries if entry.ours and entry.index < index)

    def exchange(self, alone: bool, cut: bool, last: bool) -> Sequence[RecallRound]:
        """The recall calls to remember. `cut`: incomplete ones are dropped; `last`: no further round follows."""
        entries = [entry for entry in self.entries if not (entry.ours and cut and entry.arguments is None)]
        calls = [entry for entry in entries if entry.is_call]
        places = tuple(place for place, call in enumerate(calls) if call.ours)
        if not places:
            return ()
        ours = tuple(calls[place].as_json(place) for place in places)
        return [RecallRound(len(self.text), ours, () if alone else places, self.fields(entries, alone), last)]


R = TypeVar("R", bound=Round[Any])


class ChoiceRounds(Generic[R]):
    def __init__(self, new_round: Callable[[], R], allowance: Allowance) -> None:
        self.round = new_round()
        self.waiting = False
        """For its next round."""
        self.ended = False
        self.resumed = False
        """True where this is not the first round."""
        self.exchanges: list[RecallRound] = []
        self._new_round = new_round
        self._allowance = allowance
        self._text = ""
        self._call_ids: tuple[str, ...] = ()

    def resume(self) -> None:
        result = self.result
        self._text, self._call_ids = result.text, result.call_ids
        self.round = self._new_round()
        self.waiting, self.ended, self.resumed = False, False, True

    @property
    def result(self) -> ChoiceResult:
        round_ = self.round
        tools = tuple(entry.name for entry in round_.entries if entry.is_call and entry.ours is False)
        return ChoiceResult(self._text + round_.text, self._call_ids + round_.call_ids, tuple(self.exchanges), tools)

    def end(self, broken: bool, cut: bool) -> RoundEnd:
        """The round is over. `broken`: for another reason than its calls; `cut`: so that a call may be incomplete."""
        self.ended = True
        if not self.round.has_ours:
            return "as it came"
        if self.round.has_theirs:
            self.exchanges += self.round.exchange(alone=False, cut=cut, last=False)
            return "as it came"
        if broken:
            return "as it came"
        if not self._allowance.rounds:
            return "limit"
        self._allowance.rounds -= 1
        self.waiting = True
        self.exchanges += self.round.exchange(alone=True, cut=False, last=not self._allowance.rounds)
        return "waiting"


C = TypeVar("C", bound=ChoiceRounds[Any])


class RoundsReply(ABC, Generic[C]):
    """A Reply over all its rounds; where there is no recall tool, it only reads the usage."""

    def __init__(self, names: UsageNames, rounds: int | None) -> None:
        self.usage: Usage | None = None
        self.cache_miss = ""
        """Why the provider's cache did not have the prompt, where the client has asked for that and it says so."""
        self._only_reads = rounds is None
        self._allowance = Allowance(rounds or 0)
        self._choices: dict[int, C] = {}
        self._names = names
        self._usage = UsageSum(names)

    @property
    def pending(self) -> Sequence[int]:
        return sorted(index for index, choice in self._choices.items() if choice.waiting)

    @property
    def over(self) -> Sequence[int]:
        return sorted(index for index, choice in self._choices.items() if choice.ended and not choice.waiting)

    @property
    def completion(self) -> int:
        return self._usage.completion + (self.usage.completion if self.usage else 0)

    def result(self, choice: int) -> ChoiceResult:
        return self._choices[choice].result if choice in self._choices else ChoiceResult("", (), ())

    def resume(self, choice: int) -> None:
        self._usage.close()
        self.usage = None
        self._choices[choice].resume()

    def feed_all(self, events: bytes) -> list[bytes] | None:
        if self._only_reads:
            times = events.count(b'"usage"')
            # providers have null in its place in all events but the last
            if times == 0 or times == events.count(b'"usage":null') + events.count(b'"usage": null'):
                return [events]
        split = split_events(events)
        if split is None:
            return None
        pieces: list[bytes] = []
        start = end = 0  # of what passes and is not among the pieces yet
        for length, text in split:
            try:
                is_received = bool(text) and not self._only_reads and self._receive(text)
            except (msgspec.DecodeError, RecursionError):
                is_received = False
            if not is_received:
                pieces += [events[start:end]] if end > start else []
                pieces += self.feed(events[end : end + length])
                start = end + length
            end += length
        if start == 0:
            return [events]
        return [*pieces, events[start:]] if start < end else pieces

    def feed(self, event: bytes) -> list[bytes]:
        if self._only_reads and b'"usage"' not in event:
            return [event]
        content = read_event(event)
        usage = None if content is None else self._usage_in(content, event)
        if isinstance(usage, dict):
            self._usage.receive(usage)
            self.usage = self._names.read(self._usage.current) or self.usage
        if self._only_reads:
            return [event]
        try:
            return self._feed_content(content, event)
        except (RecursionError, UnreadableError):  # nested deeper than can be written, or a key is repeated
            return [event]

    def last_event(self, failure: bytes) -> bytes:
        return b"data: " + failure + b"\n\n"

    def _usage_in(self, content: Json, event: bytes) -> object:
        return content.get("usage")

    def _receive(self, text: bytes) -> bool:
        """Receive an event, by its JSON, if the client surely gets it as it came; or raise what msgspec raises."""
        return False

    @abstractmethod
    def _feed_content(self, content: Json | None, event: bytes) -> list[bytes]:
        """As `feed`, where there is a recall tool; None for an event that is not JSON."""


def valid_arguments(value: object) -> str | None:
    """The arguments of a recall call as text; None where they are not a JSON object."""
    text = value if isinstance(value, str) else as_json(value).decode()
    return text if document(text.encode("utf-8", "surrogatepass")) is not None else None


def derived_id(place: int, arguments: str) -> str:
    return "call_" + sha256(f"{place} {arguments}".encode("utf-8", "surrogatepass")).hexdigest()[:24]

"""A load: the sessions that are played, how fast, and for how long; and their texts, made anew for each
conversation, so that no cache of the target knows one from another.

Laws of the texts
  Two spellings share no text that has a word of six letters; sizes stay.
  Within a conversation what was equal stays equal, and whole words of a text stay words of it: what was quoted, read
  again or edited still fits. Names of tools, of fields and of arguments, ids and signatures stay.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from math import ceil
from statistics import fmean
from typing import Any

import orjson

from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from policies.money.prices import Usage
from proxy.lab.replay.recorded import CLIENT_APIS, Session
from proxy.lab.replay.times import schedule

Json = Mapping[str, Any]
KEY = "sk-narrows-load"
_FEWEST_AT_A_RATE = 16
_INSTRUCTIONS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class SessionScript:
    """A session as its client sends it: each request is the history up to one of `ends`."""

    path: str
    headers: Mapping[str, str]
    fields: Json
    streaming: Json
    history: str
    messages: Sequence[Json]
    ends: Sequence[int]
    shared: int = 0
    """How many messages at its beginning are the same in every conversation, as instructions of a client are."""
    moments: Sequence[float] = ()
    """When each request was sent, in seconds since the first; none where that was not recorded."""
    overlaps: Sequence[bool] = ()
    """Of each request, whether it was sent before the reply to the one before it had ended."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load, or the part of it that one client process has."""

    url: str
    scripts: Sequence[SessionScript]
    conversations: int = 1
    """How many are held at once. They take turns."""
    rate: float = 0
    """Requests a second, sent whether others were answered or not; 0 where `concurrency` decides."""
    concurrency: int = 0
    duration: float = 60
    think: float = 0
    """Seconds between a reply and the next request of its conversation."""
    streamed: float = 0.5
    """The share of conversations whose replies are streamed."""
    begin_at: float = 0
    """How much of its session a conversation has behind it when it begins."""
    named: bool = False
    """True where each conversation is named in a header, so that a balancer can keep it with one replica."""
    warm: int = 0
    """Requests of each conversation that are sent before the load begins, and not measured."""
    echo: bool = False
    """True where requests have the reply that was recorded in a header, for a sink to answer with."""
    once: bool = False
    """The load ends with the conversations, whatever the duration."""
    begins: Sequence[float] = ()
    """When each conversation begins, in seconds of the recording; none where requests are not sent as recorded."""
    speed: float = 1
    """How many seconds of a recording pass in one."""
    seed: int = 0
    """Of the salts. Two loads with other seeds have no text in common."""
    process: int = 0
    processes: int = 1
    """Which of how many client processes this is."""

    def script(self, conversation: int) -> SessionScript:
        """Every one is streamed and not, however many there are."""
        return self.scripts[(conversation + conversation // len(self.scripts)) % len(self.scripts)]

    def moments(self, conversation: int) -> list[float]:
        """When its requests are due, in seconds of the recording."""
        return [self.begins[conversation] + at for at in self.script(conversation).moments]

    @property
    def span(self) -> float:
        """Seconds of the recording from the first request to the last; 0 where requests are not sent as recorded."""
        return max((self.moments(number)[-1] for number in range(len(self.begins))), default=0.0)


def script_of(session: Session, key: str, model: str = "") -> SessionScript:
    """A recorded session as its client sends it, without cache marks."""
    api = CLIENT_APIS[session.dialect]
    fields: dict[str, Any] = {"model": model or session.model}
    if session.lead is not None:
        fields[api.dialect.fields.lead] = session.lead
    if session.tools:
        fields["tools"] = list(session.tools)
    shared = sum(1 for _ in takewhile(lambda message: message.get("role") in _INSTRUCTIONS, session.messages))
    asks_to_stream = {name: value for name, value in api.options.items() if name.startswith("stream")}
    fields |= {name: value for name, value in api.options.items() if name not in asks_to_stream}
    return SessionScript(
        path=api.dialect.http.path,
        headers={**api.dialect.http.auth(key or KEY), "Content-Type": "application/json"},
        fields=fields,
        streaming=asks_to_stream,
        history=api.dialect.fields.history,
        messages=session.messages,
        ends=session.turns,
        shared=shared,
        moments=schedule(session.times, len(session.turns)) if session.times else (),
        overlaps=[False, *(one.ended is not None and next_.sent < one.ended for one, next_ in pairwise(session.times))],
    )


def begins_of(sessions: Sequence[Session], conversations: int) -> list[float]:
    """When each of so many conversations begins, in seconds since the first: sessions with a date at their distance;
    others, and copies, evenly over the longest session, or over the time in which those with a date begin."""
    dates = [session.started_at for session in sessions]
    first = min((date for date in dates if date is not None), default=0.0)
    offsets = [None if date is None else date - first for date in dates]
    offsets += [None] * (conversations - len(sessions))
    span = max(*(session.times[-1].sent - session.times[0].sent for session in sessions), *filter(None, offsets), 0.0)
    others = iter(range(offsets.count(None)))
    return [span * next(others) / offsets.count(None) if each is None else each for each in offsets]


def conversations_for(rate: float, concurrency: int, think: float, chosen: int) -> int:
    """How many conversations are held at once; `chosen`: 0 for as many as needed. Raises ValueError for too few."""
    needed = ceil(rate * think) + 1 if rate else concurrency
    if not chosen:
        return max(ceil(rate * (think + 1)), _FEWEST_AT_A_RATE) if rate else concurrency
    if chosen < needed:
        reason = f"--rate {rate:g} with --think {think:g}s" if rate else f"--concurrency {concurrency}"
        raise ValueError(f"{reason} needs {needed:,} conversations or more; --conversations {chosen:,} is too few")
    return chosen


# --- what a load would cost where it is billed ---

_REPLY_SECONDS = 1.0
"""How long a reply is taken to need where requests follow replies."""
_ANSWER = 300
"""Tokens that an answer is taken to have."""


def expected_cost(plan: LoadPlan) -> str:
    """The cost of a plan without any cache, in words: at its rate, or as replies of a second allow."""
    rate = plan.rate or plan.concurrency / _REPLY_SECONDS
    if plan.think and not plan.rate:
        rate = min(rate, plan.conversations / (plan.think + _REPLY_SECONDS))
    requests = sum(len(plan.moments(at)) for at in range(len(plan.begins))) or max(1, round(rate * plan.duration))
    # a conversation that comes to its end is followed by another one
    turns = requests / plan.conversations
    prompt = fmean(_prompt(script, plan.begin_at, turns) for script in plan.scripts)
    model = str(plan.scripts[0].fields["model"])
    prices, bill = prices_for(model), f"the prices of {model} are not known"
    if prices.listed:
        dollars = prices.cost(Usage(round(prompt), 0, 0, _ANSWER)).total * requests
        bill = f"up to ${dollars:,.2f} at the prices of {model}, less what its cache saves"
    return f"about {requests:,} requests with {round(prompt * requests):,} prompt tokens: {bill}"


def _prompt(script: SessionScript, begin_at: float, turns: float) -> float:
    """The prompt tokens of a request of this session, in the mean of those that would be sent."""
    count = Counter(encoding_for(str(script.fields["model"])))
    head = count(orjson.dumps(script.fields).decode())
    sums = [head]
    for message in script.messages:
        sums.append(sums[-1] + count(orjson.dumps(message).decode()))
    first = min(int(begin_at * len(script.ends)), len(script.ends) - 1)
    ends = script.ends[first : first + max(1, round(turns))]
    return fmean(sums[end] for end in ends)


SALTS = 26**4
_WORD = re.compile(r"[A-Za-z]{6,}")
_TEXTS = frozenset({"text", "content", "output", "system", "instructions"})
_ARGUMENTS = frozenset({"arguments", "input"})


class Salt:
    """One of SALTS ways to spell: the last four letters of each long word are moved along the alphabet."""

    def __init__(self, number: int) -> None:
        number %= SALTS
        self._shifts = [number // 26**place % 26 for place in range(4)]
        self._words: dict[str, str] = {}

    def text(self, text: str) -> str:
        return _WORD.sub(self._word, text)

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """An entry of a history, or any part of it, with its texts spelled anew."""
        return {name: self._value(name, value) for name, value in message.items()}

    def _value(self, name: str, value: Any) -> Any:
        if name in _ARGUMENTS and isinstance(value, str):
            return self._encoded_arguments(value)
        if name in _ARGUMENTS and isinstance(value, Mapping):
            return mapped(self.text, value)
        if isinstance(value, str):
            return self.text(value) if name in _TEXTS else value
        if isinstance(value, Mapping):
            return self.message(value)
        return [self._value(name, each) for each in value] if isinstance(value, Sequence) else value

    def _encoded_arguments(self, arguments: str) -> str:
        try:
            decoded = orjson.loads(arguments)
        except ValueError:
            return self.text(arguments)  # of a tool that takes a text
        return orjson.dumps(mapped(self.text, decoded)).decode()

    def _word(self, match: re.Match[str]) -> str:
        word = match[0]
        salted = self._words.get(word)
        if salted is None:
            end = "".join(map(_moved, word[-4:], self._shifts))
            salted = self._words[word] = word[:-4] + end
        return salted


def mapped(change: Callable[[str], str], value: Any) -> Any:
    """A JSON value with all its texts changed, but for the names of its fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: mapped(change, each) for name, each in value.items()}
    return [mapped(change, each) for each in value] if isinstance(value, Sequence) else value


def _moved(letter: str, by: int) -> str:
    first = ord("a" if letter.islower() else "A")
    return chr(first + (ord(letter) - first + by) % 26)

"""What a load is: the sessions that are played, how fast, and for how long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import ceil
from statistics import fmean
from typing import Any

import orjson

from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from policies.money.prices import Usage
from proxy.lab.client_apis import CLIENT_APIS
from proxy.lab.replay.recorded import Session

Json = Mapping[str, Any]
KEY = "sk-narrows-load"
"""The credential where none is named."""
_FEWEST_AT_A_RATE = 16
_INSTRUCTIONS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class SessionScript:
    """A session as its client sends it: each request is the history up to one of `ends`."""

    path: str
    headers: Mapping[str, str]
    fields: Json
    """Of each request, besides its history."""
    streaming: Json
    """The fields that ask for a stream."""
    history: str
    """The field of the history."""
    messages: Sequence[Json]
    ends: Sequence[int]
    shared: int = 0
    """How many messages at its beginning are the same in every conversation, as instructions of a client are."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load, or the part of it that one client process has."""

    url: str
    """The base URL, `/v1` included."""
    scripts: Sequence[SessionScript]
    conversations: int = 1
    """How many are held at once. They take turns."""
    rate: float = 0
    """Requests a second, sent whether others were answered or not; 0 where `concurrency` decides."""
    concurrency: int = 0
    """Requests that are on their way at once."""
    duration: float = 60
    think: float = 0
    """Seconds between a reply and the next request of its conversation."""
    streamed: float = 0.5
    """The share of conversations whose replies are streamed."""
    begin_at: float = 0
    """How much of its session a conversation has behind it when it begins."""
    named: bool = False
    """Whether each conversation is named in a header, so that a balancer can keep it with one replica."""
    warm: int = 0
    """Requests of each conversation that are sent before the load begins, and not measured."""
    echo: bool = False
    """Whether requests have the reply that was recorded in a header, for a sink to answer with."""
    once: bool = False
    """The load ends with the conversations, whatever the duration."""
    seed: int = 0
    """Of the salts. Two loads with other seeds have no text in common."""
    process: int = 0
    processes: int = 1
    """Which of how many client processes this is."""


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
    )


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


@dataclass(frozen=True, slots=True)
class ExpectedCost:
    requests: int
    prompt_tokens: int
    dollars: float | None
    """Without any cache; None where the prices are not known."""
    model: str

    def __str__(self) -> str:
        bill = f"the prices of {self.model} are not known"
        if self.dollars is not None:
            bill = f"up to ${self.dollars:,.2f} at the prices of {self.model}, less what its cache saves"
        return f"about {self.requests:,} requests with {self.prompt_tokens:,} prompt tokens: {bill}"


def expected_cost(plan: LoadPlan) -> ExpectedCost:
    """Of all requests of a plan: at its rate, or as replies of a second allow."""
    rate = plan.rate or plan.concurrency / _REPLY_SECONDS
    if plan.think and not plan.rate:
        rate = min(rate, plan.conversations / (plan.think + _REPLY_SECONDS))
    requests = max(1, round(rate * plan.duration))
    # a conversation that comes to its end is followed by another one
    turns = requests / plan.conversations
    prompt = fmean(_prompt(script, plan.begin_at, turns) for script in plan.scripts)
    model = str(plan.scripts[0].fields["model"])
    prices, tokens = prices_for(model), round(prompt * requests)
    usage = Usage(prompt=round(prompt), cached=0, written=0, completion=_ANSWER)
    return ExpectedCost(requests, tokens, prices.cost(usage).total * requests if prices.listed else None, model)


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

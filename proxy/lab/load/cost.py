"""What a load would cost where it is billed."""

from dataclasses import dataclass
from statistics import fmean

import orjson

from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from policies.money.prices import Usage
from proxy.lab.load.plan import LoadPlan, SessionScript

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

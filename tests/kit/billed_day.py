"""A day of traffic: several tenants, presets and conversations through a real Narrows, with recalls, and a recount of
what the provider has billed that knows nothing of Narrows."""

import hmac
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from policies.tools import RECALL
from proxy.app import App
from proxy.kernel.prepare import Holdout
from proxy.lab.provider import Received, Say
from proxy.memory import Key
from tests.kit.recalling import CAREFUL, REPORT, answered, call, recall, refs
from tests.kit.stage import Exchange, Stage, body_of

SECRET = "a secret"
PRESETS = ("adaptive", "structural")
ELSEWHERE = ("X-Forwarded-For", "203.0.113.7")
"""A header by which a client is not of this machine, so that its credential tells the tenant."""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation of a tenant, under a preset. Its text names it, to tell it from others in the provider's log."""

    credential: str
    preset: str
    name: str

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        named = (("x-narrows-conversation", self.name), ("x-narrows-preset", self.preset))
        return (*named, ("Authorization", f"Bearer {self.credential}"), ELSEWHERE)


def talks(tenants: int, each: int, share: float) -> list[Talk]:
    """So many conversations of each tenant under each preset, and one more that is in the holdout."""
    made: list[Talk] = []
    for tenant in range(tenants):
        credential = f"key-{tenant}"
        for preset in PRESETS:
            names = (f"{credential}-{preset}-{number}" for number in range(10_000))
            arms = {"on": each, "holdout": 1}
            for name in names:
                arm = Holdout(share, SECRET.encode()).arm(Key(tenant_of(credential), name))
                if arms.get(arm):
                    arms[arm] -= 1
                    made.append(Talk(credential, preset, name))
                if not any(arms.values()):
                    break
    return made


def tenant_of(credential: str) -> str:
    """What Narrows calls the tenant of a credential."""
    return hmac.digest(SECRET.encode(), credential.encode(), "sha256").hex()


def answer(received: Received) -> Say:
    """What the model says: it calls its tool again and again, and now and then recalls what it does not see."""
    messages = received.json["messages"]
    hidden, count = refs(received), sum(message["role"] == "assistant" for message in messages)
    is_answered = messages[-1].get("tool_call_id", "").startswith("recall")
    if hidden and count % 4 == 3 and not is_answered and _has_recall(received):
        return Say("Once more.", calls=[recall(hidden[-1], id_=f"recall_{count}")])
    return Say(f"Report {count}.", calls=[call(f"call_{count}", "bash", command=f"./report {count}")])


def _has_recall(received: Received) -> bool:
    return any(tool["function"]["name"] == RECALL for tool in received.json["tools"])


async def have(stage: Stage, app: App, talk: Talk, requests: int) -> list[Exchange]:
    """The whole conversation, as a client has it."""
    history: list[Json] = [{"role": "system", "content": CAREFUL}, {"role": "user", "content": f"I am {talk.name}."}]
    exchanges = []
    for number in range(requests):
        exchange = await stage.post(app, body_of(history, model="gpt-5.4"), *talk.headers)
        assert exchange.status == 200, exchange.reply
        exchanges.append(exchange)
        message = orjson.loads(exchange.reply)["choices"][0]["message"]
        history += answered(message, f"{talk.name} {number}\n{REPORT}")
    return exchanges


@dataclass(slots=True)
class Recount:
    """What a provider's log adds up to."""

    requests: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    dollars: float = 0.0


def recount(log: Sequence[Received], talks: Sequence[Talk], price: Mapping[str, float]) -> dict[Talk, Recount]:
    """By conversation: every call that the provider has billed, at dollars for a million tokens."""
    counts: dict[Talk, Recount] = defaultdict(Recount)
    for received in log:
        usage = received.usage
        if usage is None:
            continue
        text = json.dumps(received.json["messages"][:2])
        talk = next(talk for talk in talks if f"I am {talk.name}." in text)
        count = counts[talk]
        count.requests += 1
        plain = usage.prompt - usage.cached - usage.written
        for kind, tokens in (("input", plain), ("cached", usage.cached), ("output", usage.completion)):
            count.tokens[kind] += tokens
            count.dollars += tokens * price[kind] / 1e6
    return counts

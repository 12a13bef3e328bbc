"""The dry run plans what the proxy plans: the same history, cache marks and calibration lead to the same body."""

import json
from typing import Any

import pytest

from policies.compact import compact
from policies.money.prices import BudgetLimits
from proxy.lab import sessions
from proxy.lab.explain import explained
from tests.kit.forms import FORMS
from tests.kit.histories import Json
from tests.kit.running import Start
from tests.kit.upstream import completion, json_answer

PATHS = {"openai_chat": "/chat/completions", "openai_responses": "/responses", "anthropic_messages": "/messages"}
MODELS = {"openai_chat": "gpt-5.4", "openai_responses": "gpt-6-sol", "anthropic_messages": "claude-opus-5-5"}


def last_request(dialect: str) -> bytes:
    """The last request of a long session in the form of an API; to Claude with a mark, as its agents set them."""
    recorded = sessions.load("long_day")
    messages = recorded["messages"]
    end = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    body = FORMS[dialect]({**recorded, "model": MODELS[dialect], "messages": messages[:end]})
    if dialect == "anthropic_messages":
        body["messages"][-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        body["max_tokens"] = 4_096
    if dialect == "openai_responses":
        body["store"] = False
    return json.dumps(body).encode()


async def forwarded(narrows: Start, dialect: str, body: bytes, **settings: Any) -> tuple[Json, dict[str, str]]:
    """What a real Narrows forwards of a body that it sees for the first time, and the headers of the reply."""
    setup = await narrows(json_answer(completion()), real=True, **settings)
    headers = {"anthropic-version": "2023-06-01"} if dialect == "anthropic_messages" else {}
    async with setup.client.post(setup.url + PATHS[dialect], data=body, headers=headers) as reply:
        assert reply.status == 200
        own = {name: value for name, value in reply.headers.items() if name.startswith("x-narrows")}
    return json.loads(setup.upstream.seen[-1].body), own


@pytest.mark.parametrize("dialect", PATHS)
async def test_explain_plans_exactly_what_the_proxy_sends(narrows: Start, dialect: str) -> None:
    body = last_request(dialect)
    dry = compact(body, dialect=dialect, recall=True, own_marks="auto")
    sent, headers = await forwarded(narrows, dialect, body)
    assert sent == json.loads(dry.body)
    assert dry.plan.edits
    assert bool(dry.plan.marks) == (dialect != "openai_chat")
    explanation = explained(body, "coding-agent")
    tokens = explanation.tokens
    assert headers["x-narrows-tokens-before"] == str(tokens.before)
    assert headers["x-narrows-tokens-after"] == str(tokens.after)


async def test_they_agree_on_what_calibration_moves(narrows: Start) -> None:
    """A provider that counts two fifths more tokens brings the same request nearer to its window."""
    body = last_request("openai_chat")
    plain = compact(body, recall=True)
    limits = BudgetLimits(window=int((plain.settings.head + plain.plan.after) * 1.2), reserve=0, high=1.0)
    other = {"model": MODELS["openai_chat"], "messages": [{"role": "user", "content": "word " * 4_000}]}
    counted = compact(json.dumps(other).encode()).plan.before

    calibrated = compact(body, recall=True, limits=limits, calibration=1.4)
    assert calibrated.plan.reason == "checkpoint:window" != compact(body, recall=True, limits=limits).plan.reason
    usage = {"prompt_tokens": round(counted * 1.4), "completion_tokens": 1, "total_tokens": round(counted * 1.4) + 1}
    setup = await narrows(
        json_answer(completion() | {"usage": usage}), real=True, window=limits.window, reserve=0, high=1.0
    )
    for each in (json.dumps(other).encode(), body):  # the first one teaches what the second is planned with
        async with setup.client.post(setup.url + PATHS["openai_chat"], data=each) as reply:
            assert reply.status == 200
    assert json.loads(setup.upstream.seen[-1].body) == json.loads(calibrated.body)

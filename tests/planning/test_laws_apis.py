"""Laws 4 and 5 in every API, on histories with what each has of its own: sealed thoughts, tools that run at the
provider, system text in the middle, cache marks, words of a person right behind results."""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.compact import Compacted, compact
from policies.context import Aim
from policies.dialects import DIALECTS
from policies.money.prices import Budget, Prices
from proxy.lab.provider import ANTHROPIC, PREFIX, find_violation
from proxy.lab.provider.signatures import REASONING, seal, sign
from tests import examples
from tests.kit.forms import plain, to_anthropic, to_responses
from tests.kit.histories import CHEAP, EAGER, ROOMY, TIGHT, TOOLS, Json, requests, sessions
from tests.kit.spacing import indented
from tests.planning.test_laws import AIMS, thorough

SEALED = ("thinking", "server_tool_use", "web_search_tool_result", "reasoning", "web_search_call")
MARK = {"cache_control": {"type": "ephemeral"}}


def thoughtful(body: Json, marked: frozenset[int]) -> Json:
    """Messages of an agent that thinks before all it does, and searches the web through its provider."""
    messages = [dict(message) for message in body["messages"]]
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            thought = f"Thought {at}. " * 30
            search = {"type": "server_tool_use", "id": f"srvtoolu_{at}", "name": "web_search", "input": {"query": "q"}}
            found = {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{at}", "content": []}
            more = [search, found] if at % 3 == 1 else []
            first = {"type": "thinking", "thinking": thought, "signature": sign(thought)}
            message["content"] = [first, *more, *message["content"]]
        elif isinstance(message["content"], list) and at in marked and message["content"][-1].get("text") != "":
            message["content"] = [*message["content"][:-1], {**message["content"][-1], **MARK}]
    middle = [{"role": "system", "content": "Mind the rules."}] if len(messages) > 3 and 0 in marked else []
    at = next((i for i in range(2, len(messages)) if messages[i]["role"] == "assistant"), 0) if middle else 0
    history = [*messages[:at], *middle, *messages[at:]]
    return {**body, "messages": history, "max_tokens": 4_096, "thinking": {"type": "enabled", "budget_tokens": 1_024}}


def reasoning(body: Json, marked: frozenset[int]) -> Json:
    """Items of an agent that reasons before all it does."""
    items: list[Json] = []
    before: Json = {}
    for at, item in enumerate(body["input"]):
        made = item.get("role") == "assistant" or item.get("type") == "function_call"
        if made and not (before.get("role") == "assistant" or before.get("type") == "function_call"):
            thought = {"summary": [], "encrypted_content": seal(REASONING, f"Thought {at}. " * 30)}
            items.append({"type": "reasoning", "id": f"rs_{at}", **thought})
        items.append(item)
        before = item
    return {**body, "input": items, "store": False, "include": ["reasoning.encrypted_content"]}


ROWS: Mapping[str, tuple[Callable[[Json], Json], Callable[[Json, frozenset[int]], Json]]] = {
    "openai_chat": (lambda chat: chat, lambda body, _: body),
    "anthropic_messages": (to_anthropic, thoughtful),
    "openai_responses": (to_responses, reasoning),
}
"""How a request is told in each API, and what is put into it that others do not have."""


def compacted(body: Json, dialect: str, prices: Prices, budget: Budget, aim: Aim) -> Compacted:
    raw = indented(body)
    return compact(raw, dialect=dialect, policies=EAGER, prices=prices, budget=budget, aim=aim, recall=True)


def sealed(body: Any) -> Iterator[str]:
    """What nobody may touch, wherever it stands, in its order."""
    for value in body.values() if isinstance(body, dict) else body if isinstance(body, list) else ():
        yield from sealed(value)
    if isinstance(body, dict) and body.get("type") in SEALED:
        yield json.dumps(body)


def is_part(some: list[str], of: list[str]) -> bool:
    """Whether these are some of those, in the same order."""
    left = iter(of)
    return all(any(each == other for other in left) for each in some)


@pytest.mark.parametrize("dialect", ROWS)
@settings(thorough, max_examples=examples(12))
@given(
    sessions(10), st.frozensets(st.integers(0, 12), max_size=3), st.sampled_from([ROOMY, TIGHT]), st.booleans(), AIMS
)
def test_v1_v6_v7_v8_what_is_valid_stays_valid_and_what_is_sealed_stays_whole(
    dialect: str, session: list[Json], marked: frozenset[int], budget: Budget, breakpoints: bool, aim: Aim
) -> None:
    told, dressed = ROWS[dialect]
    prices = Prices("m", 1, 1, read=0.5, write=1.0, window=100_000, breakpoints=True) if breakpoints else CHEAP
    rule = ANTHROPIC if breakpoints else PREFIX
    form, steps = DIALECTS[dialect], []
    for messages in requests(session):
        body = dressed(told(plain({"model": "m", "messages": messages, "tools": list(TOOLS)})), marked)
        assert find_violation(body, rule, dialect) is None
        done = compacted(body, dialect, prices, budget, aim)
        new = json.loads(done.body)
        assert find_violation(new, rule, dialect) is None
        assert is_part(list(sealed(new)), list(sealed(body)))
        ends = (0,) if done.plan.reason == "checkpoint:window" else (0, -1)  # a result may not fit otherwise
        if not done.plan.marks:
            assert [new[form.fields.history][at] for at in ends] == [body[form.fields.history][at] for at in ends]
        steps.append(done)
    for before, after in pairwise(steps):
        if after.plan.reason == "" and not (before.plan.marks or after.plan.marks):
            old, new = (json.loads(done.body)[form.fields.history] for done in (before, after))
            assert new[: len(old)] == old

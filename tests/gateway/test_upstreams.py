"""Which upstream a request goes to, with whose key, and what the upstream receives."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.upstreams import APIS, UpstreamRow
from proxy.errors import ApiError
from proxy.gateway.upstreams import chosen
from tests.kit.running import Start
from tests.kit.upstream import ScriptedUpstream, completion, json_answer, says

CHAT = "/v1/chat/completions"


@pytest.fixture
async def other() -> AsyncIterator[ScriptedUpstream]:
    """An upstream beside the one of `narrows`."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(ScriptedUpstream(says(json_answer(completion()))))


def row(name: str, **fields: Any) -> UpstreamRow:
    return UpstreamRow(name=name, **{"url": "http://127.0.0.1:9/v1", **fields})


ROWS = st.lists(
    st.tuples(
        st.sampled_from([(), ("chat",), ("messages", "responses")]),
        st.sampled_from([(), ("gpt-*",), ("claude", "*-x")]),
    ),
    min_size=1,
    max_size=5,
)


@given(
    ROWS,
    st.sampled_from(sorted(APIS)),
    st.sampled_from([None, "gpt-5", "claude", "gpt-x", "o1"]),
    st.sets(st.sampled_from("abcde")),
    st.sampled_from(["", "a", "c"]),
)
def test_the_first_row_that_fits_counts_of_those_that_the_request_may_use(
    shapes: list[Any], dialect: str, model: str | None, allowed: set[str], rule: str
) -> None:
    rows = [row(name, apis=apis, models=models) for name, (apis, models) in zip("abcde", shapes, strict=False)]
    speaking = [each for each in rows if each.fits(dialect, None) and (not allowed or each.name in allowed)]
    fitting = [each for each in speaking if (each.name == rule if rule else each.fits(dialect, model))]
    if fitting:
        assert chosen(rows, dialect, model, allowed, rule) is fitting[0]
        return
    with pytest.raises(ApiError) as refusal:
        chosen(rows, dialect, model, allowed, rule)
    assert (refusal.value.status, refusal.value.code) == (404, "no_upstream")
    assert (model or "without a model") in refusal.value.message


async def test_a_chat_goes_where_its_model_is_served_and_a_rule_decides_before_the_models(
    narrows: Start, other: ScriptedUpstream
) -> None:
    rows = [{"name": "local", "url": other.url, "apis": ["chat"], "models": ["llama*"]}]
    setup = await narrows(upstreams=rows, rules=[{"model": "gpt-9*", "upstream": "local"}])
    for model in ("llama-3", "gpt-5", "gpt-9-mini", ""):
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]})
        async with setup.client.post(setup.url.removesuffix("/v1") + CHAT, data=body) as reply:
            assert reply.status == 200
    assert [json.loads(asked.body)["model"] for asked in other.seen] == ["llama-3", "gpt-9-mini", ""]
    assert [json.loads(asked.body)["model"] for asked in setup.upstream.seen] == ["gpt-5"]

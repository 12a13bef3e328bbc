"""What dry runs and replays say of definitions that are deferred."""

import json
from dataclasses import replace
from typing import Any

import pytest

from policies.compact import compact
from proxy.lab.demo import recorded
from proxy.lab.explain import Explanation, explained
from proxy.lab.replay.environment import Options
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import replay_all
from tests.kit.apis import APIS, Api
from tests.kit.deferring import ASK, MODELS, TOOLS, name_of, native
from tests.kit.recalling import call

EVERY = pytest.mark.parametrize("api", APIS.values(), ids=APIS)
CALLED = [
    ASK,
    {"role": "assistant", "content": None, "tool_calls": [call("c1", "export_shipment", identifier="x", reason="y")]},
    {"role": "tool", "tool_call_id": "c1", "content": "exported"},
]


def body_of(api: Api, messages: list[Any], **fields: Any) -> bytes:
    return json.dumps({**api.body(messages, tools=TOOLS), "model": MODELS[api.dialect], **fields}).encode()


@EVERY
def test_a_dry_run_says_what_is_deferred(api: Api) -> None:
    body = body_of(api, [ASK])
    whole = explained(body, "lossless", tools="keep")
    less: Explanation = explained(body, "lossless", tools="defer")
    assert (whole.deferred, len(less.deferred)) == ({}, 60)
    assert less.tokens.before == pytest.approx(whole.tokens.before, rel=0.02)
    assert less.tokens.before - less.tokens.after == pytest.approx(sum(less.deferred.values()), rel=0.1)
    assert less.kinds["tools"].after < 600 < 5_000 < less.kinds["tools"].before
    assert less.layers[1].after == "deferred tools"


@EVERY
def test_what_a_history_calls_was_found(api: Api) -> None:
    result = compact(body_of(api, CALLED), tools="defer")
    assert result.tools is not None
    assert len(result.tools.places) == 60
    is_there = name_of(json.loads(result.body)["tools"][-1]) == "export_shipment"
    assert is_there == (api.dialect == "openai_chat")
    assert compact(body_of(api, CALLED)).tools is None


def test_a_model_that_takes_no_search_has_them_all() -> None:
    assert compact(body_of(APIS["openai_responses"], [ASK], model="gpt-5"), tools="defer").tools is None
    assert compact(body_of(APIS["openai_responses"], [ASK], store=True), tools="defer").tools is None


async def replayed(**options: Any) -> Report:
    session = recorded("write_once")
    session = replace(session, tools=(*native(APIS["openai_chat"]), *session.tools))
    (report,) = await replay_all([session], Options(prices=("gpt-5.4",), preset="lossless", **options))
    return report


async def test_the_model_of_a_replay_looks_for_what_it_calls() -> None:
    whole, less = await replayed(), await replayed(tools="defer")
    assert (whole.faults, less.faults) == (0, 0)
    assert less.recalls.rounds >= 1 > whole.recalls.rounds
    assert less.whole_bill.ratio is not None
    assert whole.whole_bill.ratio is not None
    assert less.whole_bill.ratio < whole.whole_bill.ratio
    assert less.baseline == whole.baseline

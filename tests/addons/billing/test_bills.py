"""What one request is billed, whatever became of it; and conversations that leave a holdout."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from policies.money.bills import RequestBill
from proxy.app import App
from proxy.kernel.prepare import Holdout
from proxy.lab.provider import Say, Send
from proxy.memory import Key, open_store
from tests.kit.counted import counted
from tests.kit.deferring import TOOLS as DEFERRABLE
from tests.kit.deferring import finding
from tests.kit.recalling import CAREFUL, REPORT, runs
from tests.kit.stage import Stage, staged

SECRET = "a secret"
PRICES = {"input": 2.0, "output": 8.0, "read": 0.1, "write": 1.0, "window": 100_000, "breakpoints": False}
MODELS = {"m": PRICES, "own": {**PRICES, "window": 6_000}, "near": {**PRICES, "window": 6_000}}
TOLD = {"m": PRICES, "own": PRICES | {"window": 100_000}, "near": MODELS["near"]}
"""What Narrows is told: of the model `own`, another window than it has."""


@pytest.fixture(name="stage")
async def priced_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path / "narrows.db", MODELS, keep=100) as stage:
        yield stage


async def started(stage: Stage, **settings: Any) -> App:
    return await stage.start(preset="structural", models=TOLD, tenant_secret=SECRET, **settings)


def history(turns: int, report: str = REPORT) -> list[Any]:
    opening = [{"role": "system", "content": CAREFUL}, {"role": "user", "content": "Go on."}]
    return opening + [each for n in range(turns) for each in runs(f"./report {n}", f"{n}\n{report}", f"call_{n}")]


async def bills(stage: Stage, app: App, name: str) -> Sequence[RequestBill]:
    """What is stored of a conversation, once all is written."""
    await app.close()
    store = open_store(f"sqlite:///{stage.path}")
    await store.open()
    try:
        return await store.request_bills(Key("local", name))
    finally:
        await store.close()


async def test_a_refused_request_costs_nothing_and_one_without_usage_is_an_estimate(stage: Stage) -> None:
    app, named = await started(stage), ("x-narrows-conversation", "c")
    stage.provider.answer = lambda _: Send(429, b'{"error":{"message":"slow down"}}')
    assert (await stage.ask(app, history(0), named)).status == 429
    stage.provider.answer = lambda _: Say("Yes.")
    whole = await stage.ask(app, history(0), named)
    prompt = json.loads(whole.reply)["usage"]["prompt_tokens"]
    await stage.ask(app, history(0), named, stream=True)  # asks for no usage
    reported, estimated = await bills(stage, app, "c")
    assert (reported.sums.prompt, reported.sums.estimated, reported.sums.checked) == (prompt, 0, 1)
    assert (estimated.sums.estimated, estimated.sums.output, estimated.sums.checked) == (1, 0, 0)
    assert estimated.sums.prompt == pytest.approx(prompt, rel=0.05)
    assert reported.sums.paid > 0 < estimated.sums.paid
    assert reported.id == whole.headers["x-narrows-request-id"]


async def test_requests_that_a_gateway_in_front_names_alike_have_a_bill_each(stage: Stage) -> None:
    """Whoever sends a request again keeps its id."""
    app, head = await started(stage, trusted_proxies=("127.0.0.0/8",)), ("x-request-id", "once-more")
    for _ in range(2):
        exchange = await stage.ask(app, history(0), head, ("x-narrows-conversation", "c"))
        assert exchange.headers["x-narrows-request-id"] == "once-more"
    ids = [bill.id for bill in await bills(stage, app, "c")]
    assert (len({*ids}), "once-more" in ids) == (2, False)


async def test_what_was_not_shortened_saves_nothing_however_much_the_cache_had(stage: Stage) -> None:
    """The same history once more finds even its newest turn in the cache; so would the client have without Narrows. The
    recall tool costs something, and the cache reads in steps of 128 tokens."""
    app = await started(stage, floor=50_000)
    for turns in (40, 41, 42, 40, 41, 42):
        asked = await stage.ask(app, history(turns, REPORT[:1_200]), ("x-narrows-conversation", "c"))
        assert asked.own == asked.given
    extended = [bill.sums for bill in await bills(stage, app, "c") if bill.sums.checked]
    assert len(extended) == 5  # all but the one whose client went back
    assert extended[-1].prompt - extended[-1].cached < 128
    assert all(-128 * 2e-6 < each.saved < 128 * 2e-6 for each in extended)


@pytest.mark.parametrize("count", [-5, 2**63, 10**30, 10**400, True, "7", 1.5, 10**9 + 1])
async def test_a_usage_that_cannot_be_is_an_estimate_and_no_bill_is_lost_by_it(stage: Stage, count: object) -> None:
    app, named = await started(stage), ("x-narrows-conversation", "c")
    reply = {"choices": [{"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}
    usage = {"prompt_tokens": count, "completion_tokens": count}
    stage.provider.answer = lambda _: Send(200, json.dumps({**reply, "usage": usage}).encode())
    await stage.ask(app, history(0), named)
    stage.provider.answer = lambda _: Say("Yes.")
    await stage.ask(app, history(0), named)
    sums = [bill.sums for bill in await bills(stage, app, "c")]
    assert [each.estimated for each in sums] == [1, 0]
    assert all(0 < each.prompt < 10_000 and each.output >= 0 for each in sums)


async def test_without_a_price_tokens_are_counted_and_nothing_is_saved(stage: Stage) -> None:
    app = await started(stage)
    await stage.ask(app, history(3), ("x-narrows-conversation", "c"), model="nobody-knows-me")
    (bill,) = await bills(stage, app, "c")
    assert (bill.sums.unpriced, bill.sums.paid, bill.sums.baseline, bill.sums.saved) == (1, 0.0, 0.0, 0.0)
    assert bill.sums.prompt > 0


async def test_a_deleted_conversation_leaves_its_day_and_nothing_of_itself(stage: Stage) -> None:
    app = await started(stage)
    for turns in range(3):  # the last bill still waits to be written
        await stage.ask(app, history(turns), ("x-narrows-conversation", "c"))
        await asyncio.sleep(0.05)
    address = app.base_url.replace("/v1", "/narrows/conversations/c")
    async with stage.client.delete(address, headers={"Authorization": "Bearer k"}) as reply:
        assert reply.ok
    assert not await bills(stage, app, "c")
    store = open_store(f"sqlite:///{stage.path}")
    await store.open()
    (day,) = await store.day_rows("2020-01-01")
    await store.close()
    assert day.sums.requests == 3
    assert day.sums.paid > 0


def held_out(share: float) -> str:
    """The name of a conversation of this machine that is in the holdout."""
    holdout = Holdout(share, SECRET.encode())
    return next(name for name in map(str, range(1_000)) if holdout.has(Key("local", name)))


@pytest.mark.parametrize("model", ["own", "near"])
async def test_one_that_would_exceed_its_window_leaves_the_holdout_and_is_compacted_from_then_on(
    stage: Stage, model: str
) -> None:
    app, name = await started(stage, holdout=0.5), held_out(0.5)
    exchanges = [await stage.ask(app, history(n), ("x-narrows-conversation", name), model=model) for n in range(1, 6)]
    assert [exchange.status for exchange in exchanges] == [200] * 5
    arms = [exchange.headers["x-narrows-arm"] for exchange in exchanges]
    assert arms[0] == "holdout"
    assert arms[-2:] == ["left", "left"]
    assert arms == sorted(arms)
    assert all((e.given == e.sent) == (arm == "holdout") for e, arm in zip(exchanges, arms, strict=True))
    retried = [e for e in exchanges if "overflow-retried" in e.headers.get("x-narrows-warning", "")]
    assert len(retried) == (model == "own")
    assert [bill.arm for bill in await bills(stage, app, name)] == arms


async def test_the_holdout_passes_as_observed_also_where_tokens_are_only_counted(stage: Stage) -> None:
    app, name = await started(stage, holdout=0.5), held_out(0.5)
    first = await stage.ask(app, history(4), ("x-narrows-conversation", name))
    assert (first.mode, first.headers["x-narrows-arm"]) == ("observed", "holdout")
    assert first.given == first.sent
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": f"{n} {REPORT}"} for n in range(3)]}
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01", "x-narrows-conversation": name}
    for page in ("", "/count_tokens"):
        fields = body if not page else {key: value for key, value in body.items() if key != "max_tokens"}
        async with stage.client.post(f"{app.base_url}/messages{page}", json=fields, headers=headers) as reply:
            assert (reply.status, reply.headers["x-narrows-mode"]) == (200, "observed")
        assert json.loads(stage.provider.requests[-1].body) == fields
    assert counted(app.telemetry, "cost_baseline_usd_total") == counted(app.telemetry, "cost_usd_total") > 0
    bill, *_ = await bills(stage, app, name)
    would_send = int(first.headers["x-narrows-tokens-after"]) / int(first.headers["x-narrows-tokens-before"])
    assert bill.sums.observed == bill.sums.original
    assert bill.sums.observed_sent == pytest.approx(bill.sums.original * would_send, abs=1)
    assert would_send < 1


async def test_what_deferred_definitions_spare_is_saved_and_a_search_is_paid(stage: Stage) -> None:
    """The baseline has all of them, in each request."""
    app, named = await started(stage, tools="defer"), ("x-narrows-conversation", "c")
    said = [{"role": "user", "content": CAREFUL}]
    stage.provider.answer = finding("export the shipment")
    await stage.ask(app, said, named, tools=DEFERRABLE)
    said += [{"role": "assistant", "content": "Let me look. Done."}, {"role": "user", "content": "And?"}]
    await stage.ask(app, said, named, tools=DEFERRABLE)
    whole = [stage.provider.count(json.dumps(DEFERRABLE, separators=(",", ":")))]
    first, second = [each.sums for each in await bills(stage, app, "c")]
    sent = [each.usage for each in stage.provider.requests if each.usage is not None]
    assert [first.prompt, second.prompt] == [sent[0].prompt + sent[1].prompt, sent[2].prompt]
    assert (first.rounds, first.recalled, first.refused) == (1, 1, 0)
    for sums in (first, second):
        assert sums.original > whole[0] > 6_000
    assert first.baseline == pytest.approx(2e-6 * first.original + 8e-6 * sent[1].completion, rel=0.05)
    assert second.baseline < 0.4 * first.baseline
    assert first.saved > 0 < second.saved
    assert first.recalls > 0

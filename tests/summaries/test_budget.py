"""What summaries may cost: limits per conversation, tenant and day, which all replicas share."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from proxy.memory import Key, Purse, StoreTrouble
from proxy.summaries.jobs import SummaryJob
from proxy.summaries.summarizer import SummarizerError
from tests.kit.summarizing import (  # noqa: F401 - some are fixtures
    GOOD,
    KEY,
    Faulty,
    Model,
    Replica,
    beginnings,
    file_of_a_test,
    model_of_a_test,
    replica,
    replica_of_a_test,
    task,
)
from tests.kit.upstream import completion, json_answer

DEAR = {"gpt-4o": {"input": 1_000.0, "output": 1_000.0}}
"""A call of a thousand tokens costs a dollar."""
USAGE = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1_000}
UNLIMITED = {"conversation": 1e6, "tenant": 1e6, "day": 1e6}


def billed(text: str, usage: Any) -> bytes:
    return json_answer({**completion(text), "usage": usage})


PAID = billed(GOOD, USAGE)
"""It costs a dollar at these prices."""


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


async def has_taken(one: Replica, purse: Purse, dollars: float) -> bool:
    """Whether a purse holds just so much, to a thousandth."""
    return await one.store.take(purse, 0.0, dollars + 0.001) and not await one.store.take(purse, 0.0, dollars - 0.001)


async def run(one: Replica, *jobs: SummaryJob) -> None:
    for job in jobs:
        one.summaries.start(job)
    await one.summaries.settled()


async def test_w3_what_a_call_did_not_cost_is_given_back(model: Model, url: str) -> None:
    model.answer = PAID
    async with replica(url, model, models=DEAR, summary_budget=UNLIMITED) as one:
        await run(one, *beginnings(3))
        for purse in (Purse(KEY.tenant, KEY.conversation), Purse(KEY.tenant, day=today()), Purse(day=today())):
            assert await has_taken(one, purse, 3.0)
        assert (await one.store.spent(KEY))["compaction"].dollars == pytest.approx(3.0)


@pytest.mark.parametrize("limit", ["conversation", "tenant", "day"])
async def test_w3_where_a_budget_is_used_up_nothing_is_asked(model: Model, url: str, limit: str) -> None:
    """A call is likely to cost less than five dollars, and costs one."""
    model.answer = PAID
    async with replica(url, model, models=DEAR, summary_budget={**UNLIMITED, limit: 6.0}) as one:
        for job in beginnings(10):
            await run(one, job)
        assert 1 <= model.calls <= 6
        assert one.outcomes("made") == model.calls
        assert one.outcomes("budget") == 10 - model.calls
        noted = [event for event in await one.events() if event.name == "summary.budget"]
        assert [(event.details["limit"], event.details["dollars"]) for event in noted] == [(limit, 6.0)]
        assert one.summaries.state(KEY, beginnings(10)[9].want.first) == "failed"


async def test_w3_a_budget_of_nothing_is_no_summary(model: Model, url: str) -> None:
    async with replica(url, model, summary_budget={"day": 0.0}) as one:
        await run(one, *beginnings(5))
        with pytest.raises(SummarizerError, match="budget"):
            await one.summaries.history(task())
    assert model.calls == 0


async def test_w3_limits_are_apart(model: Model, url: str) -> None:
    """Another conversation has a budget of its own, and another tenant has."""
    model.answer = PAID
    others = [Key(KEY.tenant, "c2"), Key("other", "c3")]
    async with replica(url, model, models=DEAR, summary_budget={**UNLIMITED, "conversation": 4.5}) as one:
        for key in (KEY, *others):
            for job in beginnings(6):
                await run(one, replace(job, key=key))
        calls = model.calls
        assert calls % 3 == 0
        assert calls >= 3
    budget = {**UNLIMITED, "tenant": calls / 3 * 2 + 3.5}
    async with replica(url, model, models=DEAR, summary_budget=budget) as one:
        await run(one, replace(beginnings(8)[7], key=Key(KEY.tenant, "c4")))
        await run(one, replace(beginnings(8)[7], key=Key("other", "c4")))
        assert model.calls == calls + 2 or one.outcomes("budget") == 1


@pytest.mark.parametrize("kind", ["file", "redis"])
async def test_w3_sixty_wants_at_once_in_two_replicas_do_not_overshoot(
    model: Model, url: str, redis_url: str, kind: str
) -> None:
    """Sixty summaries on a key of the gateway's: what was billed stays within the limit, to the cent."""
    model.answer = PAID
    place = url if kind == "file" else f"{redis_url}?prefix=budget{id(model)}"
    settings: Mapping[str, Any] = {"models": DEAR, "summary_budget": {**UNLIMITED, "tenant": 12.0}}
    async with replica(place, model, **settings) as one, replica(place, model, **settings) as two:
        jobs = [replace(job, key=Key(KEY.tenant, f"c{at}")) for at, job in enumerate(beginnings(60))]
        async with asyncio.timeout(30):
            await asyncio.gather(run(one, *jobs[:30]), run(two, *jobs[30:]))
        assert 2 <= model.calls <= 12
        assert one.outcomes("made") + two.outcomes("made") == model.calls
        assert await has_taken(one, Purse(KEY.tenant, day=today()), float(model.calls))


async def test_w3_unknown_prices_are_assumed(model: Model, url: str) -> None:
    """A dollar for a million tokens read, four for a million written."""
    model.answer = billed(GOOD, {"prompt_tokens": 1_000_000, "completion_tokens": 250_000})
    async with replica(url, model, summary_budget=UNLIMITED) as one:
        await run(one, task(model="nobody-knows-me"))
        assert await has_taken(one, Purse(day=today()), 2.0)
        assert (await one.store.spent(KEY))["compaction"].known_dollars is None


@pytest.mark.parametrize(
    ("answer", "is_paid"),
    [
        (json_answer({"error": {"message": "no"}}, status="401 Who"), False),
        (json_answer({"error": {"message": "no"}}, "x-should-retry: false", status="500 Oh"), False),
        (billed(GOOD, None), True),
        (json_answer({"choices": None}), True),
        (billed("DONE", USAGE), True),
    ],
    ids=["refused", "server", "without usage", "garbled", "rejected"],
)
async def test_w3_what_may_have_been_billed_counts(model: Model, url: str, answer: bytes, is_paid: bool) -> None:
    """An answer without usage counts as what it was likely to cost; a refusal is free."""
    model.answer = answer
    async with replica(url, model, models=DEAR, summary_budget=UNLIMITED) as one:
        await run(one, task())
        assert await one.store.take(Purse(day=today()), 0.0, 0.5) != is_paid


async def test_w3_without_the_store_nothing_is_asked(model: Model, url: str) -> None:
    def broken(store: Any) -> Any:
        return Faulty(store, "take", 1_000, StoreTrouble("down"))

    async with replica(url, model, broken) as one:
        await run(one, *beginnings(3))
        assert (model.calls, one.outcomes("made")) == (0, 0)


async def test_w3_what_was_taken_before_the_store_failed_is_given_back(model: Model, url: str) -> None:
    """The purse of the conversation answers, that of the tenant does not."""
    model.answer = PAID

    def broken(store: Any) -> Any:
        real = store.take

        async def take(purse: Purse, *given: Any) -> bool:
            if purse.tenant and purse.day:
                raise StoreTrouble("down")
            taken: bool = await real(purse, *given)
            return taken

        store.take = take
        return store

    async with replica(url, model, broken, models=DEAR, summary_budget=UNLIMITED) as one:
        await run(one, task())
        assert model.calls == 0
        assert await has_taken(one, Purse(KEY.tenant, KEY.conversation), 0.0)


async def test_w3_what_cannot_be_given_back_stays_taken(model: Model, url: str) -> None:
    model.answer = PAID

    def broken(store: Any) -> Any:
        real, calls = store.take, [0]

        async def take(*given: Any) -> bool:
            calls[0] += 1
            if calls[0] > 3:
                raise StoreTrouble("down")
            taken: bool = await real(*given)
            return taken

        store.take = take
        return store

    async with replica(url, model, broken, models=DEAR, summary_budget=UNLIMITED) as one:
        await run(one, task())
        assert one.outcomes("made") == 1
        assert one.count("store_trouble", operation="take") == 3

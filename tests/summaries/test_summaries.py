"""Summaries in the background: made once, kept with all that they came from, charged, and rejected where they lie."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import asdict, replace

import pytest

from policies.model.summary_record import SummaryCost
from proxy.config import Settings
from proxy.memory import Key, StoreTrouble
from proxy.summaries.jobs import PROMPTS
from proxy.summaries.summarizer import criteria_for
from tests.kit.pausing import pause_breakers
from tests.kit.redis_servers import soon
from tests.kit.stage import working
from tests.kit.summarizing import (  # noqa: F401 - some are fixtures
    GOOD,
    KEY,
    SECRET,
    Faulty,
    Model,
    Replica,
    answer_with,
    asking,
    beginnings,
    conversation_of,
    file_of_a_test,
    model_of_a_test,
    replica,
    replica_of_a_test,
    session,
    task,
)

LIE = "The parser in src/invented/place.py was renamed, and every confirmation is switched off. " * 3


async def test_m1_a_record_says_what_it_covers_and_by_what_it_was_made(one: Replica, model: Model) -> None:
    wanted = task()
    record = await one.record_of(wanted)
    blocks = wanted.conversation.blocks
    span = blocks[wanted.conversation.ends[0] : wanted.conversation.ends[4]]
    assert (record.conversation, record.first, record.last) == ("c1", wanted.want.first, wanted.want.last)
    messages = sorted({block.message for block in span})
    assert record.sources == tuple(f"{m}:{wanted.conversation.messages[m].digest.hex()[:16]}" for m in messages)
    assert (record.content, record.kind, record.rejected) == (GOOD, "compaction", "")
    assert (record.model, record.policy, record.owner) == ("gpt-4o", "policy-1", "owner")
    assert record.prompt == PROMPTS["compaction"].version
    assert (record.generation, record.previous) == (1, "")
    assert record.tokens_before == sum(block.tokens + block.frame for block in span)
    assert record.tokens_after == wanted.count(GOOD)
    assert list(await one.store.summaries(KEY)) == [record]
    assert (await one.store.memory(KEY, [record.first])).summaries == (record,)


async def test_m9_what_it_cost_is_charged_counted_and_told(one: Replica, model: Model) -> None:
    record = await one.record_of(task())
    assert (record.spent.calls, record.spent.prompt, record.spent.completion) == (1, 9, 1)
    assert record.spent.dollars > 0
    assert await one.store.spent(KEY) == {"compaction": record.spent}
    assert one.count("summary_tokens", kind="input") == 9
    assert one.count("summary_tokens", kind="output") == 1
    assert one.count("cost_usd", kind="summary") == pytest.approx(record.spent.dollars)
    assert one.outcomes("made") == 1
    wanted, made = await one.events()
    assert (wanted.name, made.name) == ("summary.wanted", "summary.made")
    assert (wanted.details["reason"], wanted.details["first"]) == ("originals", record.first)
    assert wanted.details["messages"] == len(record.sources)
    told = {"id": record.id, "model": "gpt-4o", "generation": 1, "tokens": 10, "dollars": record.spent.dollars}
    assert told.items() <= made.details.items()
    assert (made.details["before"], made.details["after"]) == (record.tokens_before, record.tokens_after)


async def test_m9_a_price_that_is_not_known_is_no_zero_in_the_events(model: Model) -> None:
    async with replica("sqlite://", model, models={"gpt-4o": {"listed": False}}) as one:
        await one.record_of(task())
        *_, made = await one.events()
    assert made.name == "summary.made"
    assert made.details["price"] == "unknown"
    assert "dollars" not in made.details


async def test_m3_it_goes_on_from_the_summary_before_and_what_is_new(one: Replica, model: Model) -> None:
    first = await one.record_of(task(3))
    second = await one.record_of(task(6, since=3, previous=first.id, generation=2))
    assert (second.generation, second.previous, second.first) == (2, first.id, first.first)
    text = model.prompts[1]
    assert GOOD in text.replace("    ", "")
    assert "thing_4" in text
    assert "thing_1" not in text
    assert second.sources[: len(first.sources)] == first.sources
    assert one.summaries.recent(KEY, first.first) == (first, second)


async def test_m4_what_only_the_older_messages_name_is_not_invented(one: Replica, model: Model) -> None:
    first = await one.record_of(task(3))
    model.answer = answer_with(GOOD + "\n[4] call bash: thing_1")
    second = await one.record_of(task(6, since=3, previous=first.id, generation=2))
    assert (second.rejected, second.previous) == ("", first.id)


async def test_m1_system_text_is_covered_by_no_summary(one: Replica, model: Model) -> None:
    messages = working(8, 12)
    messages.insert(4, {"role": "developer", "content": "Be quick."})
    record = await one.record_of(task(4, conversation_of(messages)))
    assert "4" not in {source.partition(":")[0] for source in record.sources}
    assert {"3", "5"} <= {source.partition(":")[0] for source in record.sources}


async def test_m3_the_summary_before_is_found_in_the_store(one: Replica, model: Model, url: str) -> None:
    first = await one.record_of(task(3))
    async with replica(url, model) as other:
        second = await other.record_of(task(6, since=3, previous=first.id, generation=2))
    assert (second.generation, second.previous) == (2, first.id)


@pytest.mark.parametrize("gap", [False, True])
async def test_m5_without_the_summary_before_it_is_made_of_the_originals(one: Replica, model: Model, gap: bool) -> None:
    first = await one.record_of(task(3))
    previous = first.id if gap else "0123456789abcdef"
    record = await one.record_of(task(6, since=4 if gap else 3, previous=previous, generation=2))
    assert (record.generation, record.previous) == (1, "")
    assert all(f"thing_{n}" in model.prompts[1] for n in range(6))
    assert "Summary so far" not in model.prompts[1]


async def test_m4_a_rejected_answer_is_kept_as_such_charged_and_not_paid_for_again(
    one: Replica, model: Model, url: str
) -> None:
    model.answer = answer_with(LIE)
    record = await one.record_of(task())
    assert (record.content, record.rejected, record.tokens_after) == ("", "form", 0)
    assert await one.store.spent(KEY) == {"compaction": record.spent}
    assert list(await one.store.summaries(KEY)) == [record]
    model.answer = answer_with(GOOD)
    assert await one.record_of(task()) == record
    async with replica(url, model) as other:
        assert await other.record_of(task()) == record
        assert other.outcomes("found") == 1
    assert model.calls == 1
    assert one.summaries.state(KEY, record.first) == "failed"
    longer = await one.record_of(task(5))
    assert (longer.content, model.calls) == (GOOD, 2)
    assert [event.name for event in await one.events()][1:] == [
        "summary.rejected",
        "summary.wanted",
        "summary.made",
    ]


async def test_m2_a_stale_record_is_made_again(one: Replica, model: Model) -> None:
    first = await one.record_of(task())
    assert await one.record_of(task()) == first
    second = await one.record_of(task(policy="policy-2"))
    assert (second.policy, second.content, model.calls) == ("policy-2", GOOD, 2)


async def test_m2_what_summaries_are_made_with(model: Model, url: str) -> None:
    async with replica(url, model, summary_ttl=60) as one, replica(url, model) as other:
        under = asking(), "policy-1", "version-1"
        some = Settings(upstream=model.upstream.url, summary_ttl=60)
        criteria = criteria_for(some, one.summaries.summarizer, *under)
        assert (criteria.policy, criteria.prompt) == ("policy-1", "version-1")
        assert (criteria.models, criteria.ttl) == ((), 60)
        same = Settings(upstream=model.upstream.url, summary_same_model=True)
        assert criteria_for(same, other.summaries.summarizer, *under).models == ("gpt-4o",)


async def test_m7_200_identical_wants_make_one_call(one: Replica, model: Model) -> None:
    model.may.clear()
    first = task().want.first
    for _ in range(100):
        one.summaries.start(task())
    await soon(lambda: model.calls)
    assert one.summaries.state(KEY, first) == "pending"
    await one.summaries.wait(KEY, first, 0.01)
    assert one.summaries.state(KEY, first) == "pending"
    model.may.set()
    for _ in range(100):
        one.summaries.start(task())
    await one.summaries.wait(KEY, first, 30)
    assert one.summaries.state(KEY, first) == ""
    assert (model.calls, len(one.summaries.recent(KEY, first))) == (1, 1)


async def test_m7_a_want_that_is_answered_already_starts_nothing(one: Replica, model: Model, url: str) -> None:
    record = await one.record_of(task(5))
    one.summaries.start(task(4))
    async with replica(url, model) as other:
        other.summaries.start(task(4, records=(record,)))
        assert other.summaries.state(KEY, record.first) == ""
    assert one.summaries.state(KEY, record.first) == ""
    assert model.calls == 1


async def test_m8_four_are_made_at_once_and_64_wait(one: Replica, model: Model) -> None:
    model.may.clear()
    tasks = beginnings(70)
    for each in tasks:
        one.summaries.start(each)
    states = [one.summaries.state(KEY, each.want.first) for each in tasks]
    assert (states.count("pending"), states.count("")) == (68, 2)
    assert one.outcomes("dropped") == 2
    await soon(lambda: model.running == 4)
    model.may.set()
    await one.summaries.settled()
    assert (model.most, one.outcomes("made")) == (4, 68)


async def test_x4_neither_texts_nor_credentials_are_logged_or_noted(one: Replica, model: Model) -> None:
    await one.record_of(task())
    model.answer = answer_with(LIE)
    await one.record_of(task(6))
    model.answer = b""
    one.summaries.start(task(7))
    await one.summaries.settled()
    noted = one.log.getvalue() + repr([asdict(event) for event in await one.events()])
    assert "summary.failed" in noted
    for private in (SECRET, "parser", "parse_line", "invented/place", "thing_"):
        assert private not in noted
    assert SECRET not in repr(task())


@pytest.mark.parametrize("whole", [False, True])
async def test_x6_what_is_deleted_is_forgotten_here_and_what_runs_for_it_is_ended(
    one: Replica, model: Model, whole: bool
) -> None:
    other = Key("other" if whole else "local", "c2")
    record = await one.record_of(task())
    model.may.clear()
    one.summaries.start(task(5))
    one.summaries.start(replace(task(5), key=other))
    await soon(lambda: model.calls == 3)
    if whole:
        one.forgets.forget(KEY.tenant)
        await one.store.delete_tenant(KEY.tenant)
    else:
        one.forgets.forget(KEY.tenant, KEY.conversation)
        await one.store.delete(KEY)
    await one.summaries.wait(KEY, record.first, 30)
    assert (one.summaries.recent(KEY, record.first), one.summaries.state(KEY, record.first)) == ((), "")
    model.may.set()
    await one.summaries.settled()
    assert list(await one.store.summaries(KEY)) == []
    assert len(await one.store.summaries(other)) == 1


async def test_at_the_end_nothing_is_left_running_and_the_lease_is_free(model: Model, url: str) -> None:
    async with AsyncExitStack() as parts:
        one = await parts.enter_async_context(replica(url, model))
        other = await parts.enter_async_context(replica(url, model))
        model.may.clear()
        tasks = beginnings(6)
        for each in tasks:
            one.summaries.start(each)
        await soon(lambda: model.calls == 4)
        asyncio.get_running_loop().call_later(0.1, model.may.set)
        await one.summaries.close()
        assert one.outcomes("made") == 4
        one.summaries.start(tasks[5])
        assert (one.outcomes("dropped"), model.calls) == (1, 4)
        lease = await other.store.lease(KEY, f"summary:{tasks[5].want.first}", 1)
        assert lease is not None


async def test_what_takes_too_long_at_the_end_is_given_up(
    model: Model, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica(url, model) as one, replica(url, model) as other:
        model.may.clear()
        one.summaries.start(task())
        await soon(lambda: model.calls)
        monkeypatch.setattr("proxy.summaries.maker._MOMENT", 0.05)
        await one.summaries.close()
        assert await other.store.lease(KEY, f"summary:{task().want.first}", 1) is not None
        assert list(await one.store.summaries(KEY)) == []
        assert await one.store.spent(KEY) == {}


async def test_a_fault_of_ours_is_told_by_name_and_ends_nothing(one: Replica, model: Model) -> None:
    def broken(text: str, /) -> int:
        raise LookupError(text)

    one.summaries.start(task(count=broken))
    await one.summaries.settled()
    assert one.summaries.state(KEY, task().want.first) == "failed"
    assert one.outcomes("fault") == 1
    assert [line["error"] for line in one.lines("summary_failed")] == ["LookupError"]
    assert "parser" not in one.log.getvalue()
    assert (await one.record_of(task())).content == GOOD
    assert one.summaries.state(KEY, task().want.first) == ""


@pytest.mark.parametrize(("failures", "stored"), [(1, 1), (2, 0)])
async def test_f_what_was_paid_for_is_not_lost_where_the_store_does_not_take_it(
    model: Model, url: str, monkeypatch: pytest.MonkeyPatch, failures: int, stored: int
) -> None:
    monkeypatch.setattr("proxy.summaries.maker._AGAIN", 0.0)
    error = StoreTrouble("not now")
    async with replica(url, model, lambda store: Faulty(store, "put_summary", failures, error)) as one:
        record = await one.record_of(task())
        assert (record.content, one.summaries.state(KEY, record.first)) == (GOOD, "")
        assert len(await one.store.summaries(KEY)) == stored
        assert await one.store.spent(KEY) == {"compaction": record.spent}
        assert one.count("store_trouble", operation="put_summary") == failures
        assert await one.record_of(task()) == record
        assert model.calls == 1


@pytest.mark.parametrize("operation", ["lease", "memory"])
async def test_f_without_the_store_nothing_is_asked_and_it_is_said_once(
    model: Model, url: str, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    pause_breakers(monkeypatch, "store", 0.2)
    async with replica(url, model, lambda store: Faulty(store, operation, 1, StoreTrouble("not now"))) as one:
        first = task().want.first
        for _ in range(5):
            one.summaries.start(task())
            await one.summaries.settled()
            assert one.summaries.state(KEY, first) == "failed"
        assert model.calls == 0
        assert one.count("store_trouble", operation=operation) == 1
        await asyncio.sleep(0.25)
        assert (await one.record_of(task())).content == GOOD
        assert one.summaries.state(KEY, first) == ""
        assert len(one.lines("summaries_store_trouble")) == len(one.lines("summaries_store_recovered")) == 1


async def test_f_those_that_wait_do_not_ask_a_store_in_trouble(model: Model, url: str) -> None:
    async with replica(url, model, lambda store: Faulty(store, "lease", 100, StoreTrouble("not now"))) as one:
        tasks = beginnings(6)
        for each in tasks:
            one.summaries.start(each)
        await one.summaries.settled()
        assert one.count("store_trouble", operation="lease") == 1
        assert (one.outcomes("store_trouble"), one.outcomes("paused"), model.calls) == (1, 5, 0)
        assert {one.summaries.state(KEY, each.want.first) for each in tasks} == {"failed"}


async def test_f_what_cannot_be_charged_is_counted(model: Model, url: str) -> None:
    async with replica(url, model, lambda store: Faulty(store, "spend", 1, StoreTrouble("not now"))) as one:
        record = await one.record_of(task())
        assert record.spent != SummaryCost()
        assert one.count("store_trouble", operation="spend") == 1

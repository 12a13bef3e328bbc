"""Summaries for people: another kind, made when somebody asks, and never mixed with those for the prompt."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from policies.model.summary_record import SummaryRecord
from proxy.memory import Key, StoreTrouble
from proxy.summaries.jobs import PROMPTS
from proxy.summaries.maker import RejectedError
from proxy.summaries.summarizer import SummarizerError
from tests.kit.summarizing import (  # noqa: F401 - some are fixtures
    GOOD,
    KEY,
    Model,
    Replica,
    answer_with,
    conversation_of,
    file_of_a_test,
    model_of_a_test,
    replica_of_a_test,
    task,
)

ENTRY = "Rename of the parser\n\nThe person wants the parser renamed."


async def history_of(one: Replica, **more: Any) -> SummaryRecord:
    return await one.summaries.history(task(**more))


async def test_m9_a_summary_for_people_is_another_kind_and_never_mixed(one: Replica, model: Model) -> None:
    model.answer = answer_with(ENTRY)
    record = await history_of(one)
    assert (record.kind, record.content, record.prompt) == ("history", ENTRY, PROMPTS["history"].version)
    assert await one.store.spent(KEY) == {"history": record.spent}
    assert one.summaries.recent(KEY, record.first) == ()
    model.answer = answer_with(GOOD)
    compaction = await one.record_of(task())
    assert (compaction.kind, compaction.previous, model.calls) == ("compaction", "", 2)
    assert (await one.store.memory(KEY, [record.first])).summaries == (compaction,)
    assert await history_of(one) == record
    assert model.calls == 2
    model.answer = answer_with(ENTRY)
    longer = await history_of(one, last=6, since=4, previous=compaction.id)
    assert (longer.kind, longer.previous) == ("history", "")
    assert "Summary so far" not in model.prompts[2]
    assert "thing_1" in model.prompts[2]


async def test_m7_people_who_ask_at_once_get_one_summary(one: Replica, model: Model) -> None:
    model.answer = answer_with(ENTRY)
    leaver = asyncio.create_task(history_of(one))
    await asyncio.sleep(0)
    rest = [asyncio.create_task(history_of(one)) for _ in range(20)]
    await asyncio.sleep(0)
    leaver.cancel()
    assert len({record.id for record in await asyncio.gather(*rest)}) == 1
    assert model.calls == 1
    assert (await history_of(one, last=5)).last != (await history_of(one)).last
    assert model.calls == 2


async def test_m4_a_summary_for_people_may_be_short_but_lies_no_more(one: Replica, model: Model) -> None:
    for answer, reason in (("A chat.", "short"), (ENTRY + " It is in src/invented/place.py.", "invented")):
        model.answer = answer_with(answer)
        with pytest.raises(RejectedError, match=reason):
            await history_of(one)
    model.answer = answer_with(ENTRY)
    assert (await history_of(one)).content == ENTRY
    assert (await one.store.spent(KEY))["history"].calls == 3
    hello = conversation_of([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}])
    want = replace(task().want, first=hello.blocks[0].anchor, last=hello.blocks[-1].anchor)
    for words in (
        "The person said hello, and was greeted in turn.",
        "The person said hello, and so did the other. " * 6,
    ):
        greeting = replace(task(), key=Key("local", words[:30]), conversation=hello, want=want)
        model.answer = answer_with(f"A greeting\n\n{words}")
        record = await one.summaries.history(greeting)
        assert record.tokens_after > record.tokens_before


async def test_m8_people_are_told_why_there_is_none(one: Replica, model: Model) -> None:
    model.answer = b""
    with pytest.raises(SummarizerError):
        await history_of(one)
    await one.store.close()
    with pytest.raises(StoreTrouble):
        await history_of(one)

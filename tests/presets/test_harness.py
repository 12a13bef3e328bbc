"""The preset `harness`: when it summarises and what it never does, the record of a summary, when one is stale, what is
told and charged, and the two kinds that are never mixed."""

import json
from dataclasses import replace
from typing import Any

import pytest

from policies.context import Exceptions
from policies.model.parameters import Size, Trigger
from policies.presets import PRESETS
from proxy.lab.provider import Say
from proxy.summaries.jobs import PROMPTS
from tests.kit.histories import Json, requests
from tests.kit.rolling import (
    NOTES,
    RULES,
    Desk,
    Office,
    edited,
    is_asked_for_a_summary,
    staled,
    summary_header,
    work,
)
from tests.kit.stage import Exchange, moved
from tests.kit.talks import REAL, WRITER, talk
from tests.kit.visiting import conversation_page

pytestmark = pytest.mark.usefixtures("patient")
LONG = requests(work(34, RULES))[30:]
"""The requests of an agent's session, from about 80 messages on."""
BACKGROUND = {"role": "system", "content": "Background: the parser was written first, the printer is to follow."}


POLICY: dict[str, Any] = {policy.name: policy for policy in PRESETS["harness"].configured}


async def desk_of(office: Office, **settings: Any) -> Desk:
    return await office.desk(**{"preset": "harness", "model": "gpt-5.4", **REAL, **settings})


async def page(office: Office, desk: Desk, name: str, place: str = "/summaries") -> Any:
    return (await conversation_page(office.stage, desk.app, "GET", f"/{name}{place}")).json


def name_of(exchange: Exchange) -> str:
    return exchange.headers["x-narrows-conversation"]


def test_m1_its_thresholds_are_a_size_of_prompt_a_number_of_messages_and_a_size_of_outputs() -> None:
    assert POLICY["summarize"].when == (Trigger(share=0.5), Trigger(messages=80))
    assert POLICY["digest"].over == Size(tokens=2_000, bytes=8_000)
    assert PRESETS["harness"].exceptions == Exceptions()


async def test_m7_it_summarises_from_so_many_messages_on(office: Office) -> None:
    desk = await desk_of(office)
    grown = await office.grow(desk, LONG)
    pending = [len(messages) for messages, each in zip(LONG, grown, strict=True) if summary_header(each) == "pending"]
    assert len(LONG[0]) < 80 <= pending[0] <= 82
    assert "adopted" in map(summary_header, grown)
    assert moved(grown) == []


async def test_m7_it_summarises_from_half_the_window_on(office: Office) -> None:
    desk = await desk_of(office, window=40_000)
    session = requests(talk(24, words=120))
    assert len(session[-1]) < 80
    grown = await office.grow(desk, session[12:], tools=None)
    first = next(each for each in grown if summary_header(each) == "pending")
    assert 20_000 <= int(first.headers["x-narrows-tokens-before"]) < 21_400
    assert moved(grown) == []


async def test_v8_system_messages_stay_and_so_do_the_latest_user_and_assistant_turns(office: Office) -> None:
    desk = await desk_of(office)
    session = [[*m[:2], BACKGROUND, *m[2:]] for m in LONG]
    grown = await office.adopted(desk, session)
    given, sent = session[len(grown) - 1], grown[-1].messages
    assert sent[0] == given[0]
    assert BACKGROUND in sent
    assert sent[-4:] == given[-4:]
    said = [message["content"] for message in given if message["role"] == "user"]
    assert all(words in grown[-1].text for words in said)


async def test_m1_system_messages_that_are_named_are_summed_up_with_the_rest(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = replace(PRESETS["harness"], exceptions=Exceptions(system=("Background: *",)))
    monkeypatch.setitem(PRESETS, "named", named)
    desk = await desk_of(office, preset="named")
    session = [[*m[:4], BACKGROUND, *m[4:]] for m in LONG]
    grown = await office.adopted(desk, session)
    assert BACKGROUND not in grown[-1].messages
    assert grown[-1].messages[0] == session[0][0]
    assert "[4] system" in office.scribe.asked[0]
    assert BACKGROUND["content"] in office.scribe.asked[0]
    (row, *_) = (await page(office, desk, name_of(grown[-1])))["summaries"]
    assert 4 in [message["index"] for message in row["messages"]]


async def test_m1_its_record_holds_what_its_document_lists(office: Office) -> None:
    desk = await desk_of(office)
    grown = await office.adopted(desk, LONG)
    name = name_of(grown[-1])
    (row, *_) = (await page(office, desk, name))["summaries"]
    assert row["id"]
    assert (row["kind"], row["model"], row["prompt"], row["content"]) == (
        "compaction",
        WRITER,
        PROMPTS["compaction"].version,
        office.scribe.notes[0],
    )
    assert row["policy"].startswith("harness:")
    assert row["tokens_before"] > row["tokens_after"] > 0
    assert row["created_at"]
    assert next(message["index"] for message in row["messages"]) == 2
    assert all(message["digest"] for message in row["messages"])


@pytest.mark.parametrize(
    ("reason", "then"),
    [
        *((reason, "regenerate") for reason in ("source", "policy", "prompt", "model", "age")),
        ("age", "trim"),
        ("prompt", "fail"),
    ],
)
async def test_m2_what_is_stale_does_not_silently_stand(
    office: Office, reason: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await desk_of(office)
    grown = await office.adopted(first, LONG[4:])
    old, calls = office.scribe.notes[-1], office.scribe.calls
    await first.app.close(1)
    monkeypatch.setitem(PRESETS, "later", PRESETS["deep"] if reason == "policy" else PRESETS["harness"])
    chosen: dict[str, Any] = {"summary_stale": then, "preset": "later" if reason == "policy" else "harness"}
    desk = await desk_of(office, summary_ttl=600.0, **chosen, **staled(reason, monkeypatch))
    messages = [edited(m) if reason == "source" else m for m in LONG[4 + len(grown)]]
    status, text = await answered(office, desk, messages)
    await office.settled()
    assert (status, reason in text) == ((400, True) if then == "fail" else (200, False))
    assert old not in text
    if reason != "policy":  # the other preset begins later
        assert (office.scribe.calls > calls) is (then == "regenerate")


async def answered(office: Office, desk: Desk, messages: list[Json]) -> tuple[int, str]:
    """The status, and what was sent or, where nothing was, what came back."""
    exchange = await office.stage.ask(desk.app, messages)
    if exchange.status != 200:
        return exchange.status, exchange.reply.decode()
    # a summary may be asked for meanwhile: what the agent's own model received is what was sent
    sent = [received for received in office.stage.provider.requests if not is_asked_for_a_summary(received)][-1]
    return exchange.status, json.dumps(sent.json["messages"])


async def test_m9_its_events_and_its_cost_are_on_record(office: Office) -> None:
    desk = await desk_of(office)
    grown = await office.adopted(desk, LONG)
    found = await page(office, desk, name_of(grown[-1]))
    assert found["spent"]["compaction"]["usage"]["calls"] == office.scribe.calls
    assert found["spent"]["compaction"]["dollars"] > 0
    assert desk.count("summaries", outcome="made") == office.scribe.calls
    await desk.app.close(1)
    events = [event for event in await office.events() if event.name.startswith("summary.")]
    assert [event.name for event in events] == ["summary.wanted", "summary.made", "summary.adopted"]
    (row,) = found["summaries"]
    assert events[1].details["id"] == events[2].details["id"] == row["id"]
    assert {event.conversation for event in events} == {name_of(grown[-1])}


async def test_m9_the_two_kinds_are_never_mixed(office: Office) -> None:
    desk = await desk_of(office)
    grown = await office.adopted(desk, LONG)
    entry_of = "The work in steps\n\nSteps were made one after the other, and none of them failed so far."
    office.scribe.agent = lambda received: Say(entry_of) if "list of chats" in received.body.decode() else None
    body = json.dumps({"model": "gpt-5.4", "messages": LONG[len(grown)]})
    headers = ("x-narrows-conversation", name_of(grown[-1])), ("Content-Type", "application/json")
    entry = await conversation_page(
        office.stage, desk.app, "POST", f"/{name_of(grown[-1])}/summary", *headers, data=body
    )
    assert entry.status == 200
    kinds = {row["kind"] for row in (await page(office, desk, name_of(grown[-1])))["summaries"]}
    assert kinds == {"compaction", "history"}
    after = await desk.ask(LONG[len(grown)])
    assert NOTES[:40] in after.text
    assert "The work in steps" in entry.json["content"]
    assert "The work in steps" not in after.text

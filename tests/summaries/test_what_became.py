"""What became of each summary, end to end: as the reply, the pages, the events and the audit say it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from policies.presets import PRESETS, Preset, StaleOptions, WritingOptions
from proxy.lab.provider import Answer, Received, Say
from tests.console.test_cli import told as printed
from tests.kit.histories import Json, requests
from tests.kit.recalling import fetched, recall
from tests.kit.rolling import (
    NOTES,
    PLAIN,
    PRICED,
    Desk,
    Office,
    edited,
    office_of_a_test,  # noqa: F401 - a fixture
    staled,
    summary_header,
    work,
)
from tests.kit.stage import Exchange
from tests.kit.visiting import conversation_page

SESSION = requests(work(21))[10:]
DEAR = {**PRICED, "m": {**PRICED["m"], "read": 0.1}}
"""With a cache that makes a rewrite dear: a summary that is there waits for its moment."""
AT_ONCE: Json = {"extra_headers": {"x-narrows-aim": "context"}}
"""Fields of a request whose moment is that of the preset, whatever it costs."""
pytestmark = pytest.mark.usefixtures("patient")


async def page(office: Office, desk: Desk, exchange: Exchange, rest: str = "") -> Any:
    """A page about the conversation of this exchange."""
    name = exchange.headers["x-narrows-conversation"]
    answer = await conversation_page(office.stage, desk.app, "GET", f"/{name}{rest}")
    return answer.json if rest != "/history" else [json.loads(line) for line in answer.body.splitlines()]


async def states(office: Office, desk: Desk, exchange: Exchange, until: Callable[[Any], bool]) -> Any:
    """The page of the conversation, once it is so: steps are written behind the request."""
    for _ in range(1_000):
        if until(status := await page(office, desk, exchange)):
            break
        await asyncio.sleep(0.01)
    return status


def edited_session() -> list[list[Json]]:
    return [[edited(message) for message in messages] for messages in SESSION]


async def test_m1_one_that_waits_is_ready_and_the_page_shows_the_one_that_stands(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = await office.desk(models=DEAR, request_aim=True)
    session = iter(requests(work(40))[5:])
    while not office.scribe.calls:
        (newest,) = await office.grow(desk, [next(session)], **AT_ONCE)
    assert summary_header(newest) == "pending"
    (waiting,) = await office.grow(desk, [next(session)])  # which it does not pay for
    assert (summary_header(waiting), NOTES[:40] in waiting.text) == ("ready", False)
    status = await states(office, desk, waiting, lambda found: bool(found["summaries"]))
    assert (status["summary"], [each["state"] for each in status["summaries"]]) == (None, ["ready"])
    (newest,) = await office.grow(desk, [next(session)], **AT_ONCE)
    assert summary_header(newest) == "adopted"
    status = await states(office, desk, newest, lambda found: found["summary"] is not None)
    standing = next(each for each in status["summaries"] if each["state"] == "stands")
    assert status["summary"] in newest.text
    calls = office.scribe.calls
    while office.scribe.calls == calls:
        await office.grow(desk, [next(session)], **AT_ONCE)
    (newest,) = await office.grow(desk, [next(session)])
    assert summary_header(newest) == "ready"
    both = await states(office, desk, newest, lambda found: found["summaries"][-1]["state"] == "ready")
    assert both["summary"] == status["summary"]  # not merely the newest one
    assert both["summary"] in newest.text
    assert {each["id"]: each["state"] for each in both["summaries"]}[standing["id"]] == "stands"
    rows = (await page(office, desk, newest, "/summaries"))["summaries"]
    assert [(row["id"], row["state"]) for row in rows] == [(each["id"], each["state"]) for each in both["summaries"]]
    await desk.app.close(1)
    words = ("audit", newest.headers["x-narrows-conversation"], "--store", f"sqlite:///{office.stage.path}")
    code, report, _ = await asyncio.to_thread(printed, capsys, *words)
    report = " ".join(report.split())
    assert code == 0
    assert f"{standing['id']} compaction stands; messages" in report
    assert f"{rows[-1]['id']} compaction ready; messages" in report


async def test_m2_a_stale_one_is_named_once_for_its_reason_and_counted_each_time(office: Office) -> None:
    desk = await office.desk(summary_stale="trim")
    grown = await office.adopted(desk, SESSION)
    (record,) = (await page(office, desk, grown[-1], "/summaries"))["summaries"]
    after = await office.grow(desk, edited_session()[len(grown) : len(grown) + 3])
    assert [summary_header(each) for each in after] == ["stale:source"] * 3
    assert desk.count("stale_summaries", reason="source") == 3
    status = await states(office, desk, after[-1], lambda found: found["summary"] is None)
    assert [(each["state"], each["reason"]) for each in status["summaries"]] == [("stale", "source")]
    await desk.app.close(1)
    events = [event for event in await office.events() if event.name == "summary.stale"]
    assert [dict(event.details) for event in events] == [{"id": record["id"], "reason": "source"}]


async def test_m2_another_summary_of_the_same_conversation_that_is_stale_is_an_event_of_its_own(office: Office) -> None:
    desk = await office.desk()
    grown = await office.adopted(desk, SESSION)
    again = await office.adopted(desk, edited_session()[len(grown) :])
    back = await desk.ask(SESSION[len(grown) + len(again)])  # without the edit: the second one is stale here
    await office.settled()
    rows = (await page(office, desk, back, "/summaries"))["summaries"]
    await desk.app.close(1)
    events = [event for event in await office.events() if event.name == "summary.stale"]
    assert summary_header(again[0]) == "stale:source"
    assert [event.details["id"] for event in events] == list(dict.fromkeys(event.details["id"] for event in events))
    assert events[0].details["id"] == rows[0]["id"]


async def test_m2_where_it_is_an_error_it_is_counted_and_noted_all_the_same(office: Office) -> None:
    desk = await office.desk(summary_stale="fail")
    grown = await office.adopted(desk, SESSION)
    for _ in range(2):
        with pytest.raises(openai.BadRequestError):
            await desk.ask(edited_session()[len(grown)])
    assert desk.count("stale_summaries", reason="source") == 2
    await desk.app.close(1)
    assert [event.name for event in await office.events()].count("summary.stale") == 1


# --- what counts of stale summaries: a rule, then the preset, then the settings ---


@pytest.mark.parametrize(
    ("rule", "preset", "fails"),
    [
        ({}, StaleOptions(), False),
        ({}, StaleOptions("fail"), True),
        ({"summary_stale": "fail"}, StaleOptions("trim"), True),
        ({"summary_stale": "trim"}, StaleOptions("fail"), False),
        ({"summary_ttl": 3_600}, StaleOptions("fail"), True),
    ],
)
async def test_m2_what_follows_is_as_the_rule_says_else_the_preset_else_the_settings(
    office: Office, monkeypatch: pytest.MonkeyPatch, rule: Json, preset: StaleOptions, fails: bool
) -> None:
    monkeypatch.setitem(PRESETS, "plain", Preset(PLAIN, writing=WritingOptions(stale=preset)))
    rules = ({"model": "m", **rule},) if rule else ()
    desk = await office.desk(rules=rules, summary_stale="regenerate")
    grown = await office.adopted(desk, SESSION)
    if fails:
        with pytest.raises(openai.BadRequestError):
            await desk.ask(edited_session()[len(grown)])
        return
    calls = office.scribe.calls
    await office.grow(desk, edited_session()[len(grown) : len(grown) + 4])
    assert (office.scribe.calls > calls) == (rule.get("summary_stale") is None)


@pytest.mark.parametrize(
    ("rule", "preset", "header"),
    [
        ({}, StaleOptions(), "adopted"),
        ({}, StaleOptions(ttl=600.0), "stale:age"),
        ({"summary_ttl": 600}, StaleOptions(ttl=10_000.0), "stale:age"),
        ({"summary_ttl": 10_000}, StaleOptions(ttl=600.0), "adopted"),
    ],
)
async def test_m2_how_long_one_counts_is_as_the_rule_says_else_the_preset_else_the_settings(
    office: Office, monkeypatch: pytest.MonkeyPatch, rule: Json, preset: StaleOptions, header: str
) -> None:
    monkeypatch.setitem(PRESETS, "plain", Preset(PLAIN, writing=WritingOptions(stale=preset)))
    rules = ({"model": "m", **rule},) if rule else ()
    desk = await office.desk(rules=rules, summary_stale="trim", cold_seconds=10**6)
    grown = await office.adopted(desk, SESSION)
    await desk.app.close(1)
    staled("age", monkeypatch)
    desk = await office.desk(rules=rules, summary_stale="trim", cold_seconds=10**6)
    after = await desk.ask(SESSION[len(grown)])
    assert (summary_header(grown[-1]), summary_header(after)) == ("adopted", header)
    state = "stands" if header == "adopted" else "stale"
    status = await states(office, desk, after, lambda found: found["summaries"][0]["state"] == state)
    assert (status["summary"] is None) == (state == "stale")


@pytest.mark.parametrize("asked_by", ["rule", "preset"])
async def test_m2_whose_model_must_be_the_same_may_be_said_by_rule_and_preset(
    office: Office, monkeypatch: pytest.MonkeyPatch, asked_by: str
) -> None:
    stale = StaleOptions(same_model=True) if asked_by == "preset" else StaleOptions()
    rules = ({"model": "m", "summary_same_model": True},) if asked_by == "rule" else ()
    monkeypatch.setitem(PRESETS, "plain", Preset(PLAIN, writing=WritingOptions(stale=stale)))
    first = await office.desk(rules=rules)
    grown = await office.adopted(first, SESSION)
    await first.app.close(1)
    desk = await office.desk(rules=rules, summarizers=[{"model": "writer"}])
    assert summary_header(await desk.ask(SESSION[len(grown)])) == "stale:model"


# --- a summary beside its sources ---


async def joined(office: Office, exchange: Exchange) -> list[tuple[int, Any]]:
    """The messages of all summaries, looked up in the log by index and digest."""
    desk = await office.desk(history=True)  # after the one that wrote it all
    log = (await page(office, desk, exchange, "/history"))[1:]
    logged = {(line["index"], line["digest"]): line["message"] for line in log}
    rows = (await page(office, desk, exchange, "/summaries"))["summaries"]
    sources = [(source["index"], source["digest"]) for row in rows for source in row["messages"]]
    return [(index, logged[index, digest]) for index, digest in sources]


async def test_m1_the_messages_of_a_summary_are_found_in_the_log_by_their_digest(office: Office) -> None:
    desk = await office.desk(history=True)
    grown = await office.adopted(desk, SESSION)
    await desk.app.close(1)
    found = await joined(office, grown[-1])
    assert len(found) > 10
    assert all(SESSION[len(grown) - 1][index] == message for index, message in found)


async def test_m1_recall_exchanges_that_were_put_back_shift_no_message_of_a_summary(office: Office) -> None:
    def agent(received: Received) -> Answer | None:
        if received.json["messages"][-1] != opening[-1] and not fetched(received):
            return None
        return Say("Let me go on.") if fetched(received) else Say(None, [recall("123456")])

    opening = work(3)[:-1]
    following = [{"role": "assistant", "content": "Let me go on."}, {"role": "user", "content": "Yes."}]
    session = [messages for messages in requests([*opening, *following, *work(21)[2:]]) if len(messages) > len(opening)]
    desk = await office.desk(history=True)
    office.scribe.agent = agent
    await desk.ask(opening)
    office.scribe.agent = None
    grown = await office.grow(desk, session[:10])
    await desk.app.close(1)
    (first, *_) = [each for each in office.stage.provider.requests if each.model == "m" and len(fetched(each)) == 1][1:]
    assert len(first.json["messages"]) == len(session[0]) + 2  # the exchange was put back
    found = await joined(office, grown[-1])
    assert max(index for index, _ in found) > len(opening) + 1
    assert all(session[len(grown) - 1][index] == message for index, message in found)

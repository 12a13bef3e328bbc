"""The preset `chat`: an adaptive window of 4 to 6 turns behind a rolling summary that stands as system text."""

from itertools import pairwise
from typing import Any

import pytest

from policies.model.parameters import Trigger
from policies.presets import PRESETS
from policies.rules.summarize import Summarize
from policies.text.stubs import refs_named
from proxy.lab.provider import Say
from tests.kit.histories import requests
from tests.kit.rolling import Desk, Office, summary_header
from tests.kit.stage import Exchange, moved
from tests.kit.talks import REAL, SYSTEM, roles, talk
from tests.kit.visiting import conversation_page

pytestmark = pytest.mark.usefixtures("patient")
SESSION = requests(talk(24))


async def desk_of(office: Office, **settings: Any) -> Desk:
    return await office.desk(**{"preset": "chat", "model": "gpt-5.4", **REAL, **settings})


def opening(exchange: Exchange) -> str:
    """The summary that was sent, which is a system message."""
    (found,) = (m["content"] for m in exchange.messages[1:] if m["role"] == "system")
    assert isinstance(found, str)
    return found


def test_m3_its_numbers_are_those_of_its_document() -> None:
    (summarize,) = (policy for policy in PRESETS["chat"].policies if isinstance(policy, Summarize))
    assert summarize.when == (Trigger(turns=7),)
    assert summarize.keep == 4
    assert summarize.when_after == (Trigger(turns=6),)


async def test_m3_asked_for_at_turn_7_and_whenever_6_stand_again_then_4_stay(office: Office) -> None:
    desk = await desk_of(office)
    grown = await office.grow(desk, SESSION, tools=None)
    adopted = [
        i for i, each in enumerate(grown) if i and summary_header(each) == "adopted" and each.prefix != "extended"
    ]
    assert adopted == [8, 11, 14, 17, 20, 23]  # one request after it was asked for
    assert {grown[i].prefix for i in adopted} == {"checkpoint:context"}
    assert [i for i, each in enumerate(grown) if summary_header(each) == "pending"] == [i - 1 for i in adopted]
    before, first, second = (grown[i] for i in (adopted[0] - 1, adopted[0], adopted[1]))
    assert before.messages == SESSION[adopted[0] - 1]
    # custom instructions, what a person said first, the summary, what people wrote in its place between marks of the
    # model's, whole turns, the new prompt
    assert roles(first.messages[:6]) == "susaua"
    assert first.messages[0] == SYSTEM
    assert first.messages[1] == SESSION[0][1]
    assert first.messages[6:] == SESSION[adopted[0]][-len(first.messages[6:]) :]
    assert len(first.messages[6:]) == len(second.messages[6:]) == 2 * 4 + 1
    assert moved(grown) == []


async def test_m3_a_fold_takes_a_batch_and_not_a_turn(office: Office) -> None:
    desk = await desk_of(office)
    await office.grow(desk, SESSION, tools=None)
    assert 2 <= office.scribe.calls <= 6
    summed = office.scribe.asked
    assert "Summary so far" not in summed[0]
    assert all("Summary so far" in text and "] assistant: " in text for text in summed[1:4])


@pytest.mark.parametrize("answer", ["", "Too little."], ids=["empty", "short"])
async def test_m3_an_empty_or_short_answer_keeps_the_one_before(office: Office, answer: str) -> None:
    desk = await desk_of(office)
    grown = await office.adopted(desk, SESSION, tools=None)
    office.scribe.instead = Say(answer)
    later = await office.grow(desk, SESSION[len(grown) : len(grown) + 8], tools=None)
    assert office.scribe.calls > 1
    assert all(office.scribe.notes[0] in opening(each) for each in later)
    assert moved(grown + later) == []


async def test_m3_an_extremely_long_message_skips_the_cycle(office: Office) -> None:
    desk = await desk_of(office)
    long = [*SESSION[12][:-1], {"role": "user", "content": "Consider this, word by word. " * 2_000}]
    sent = await desk.ask(long, tools=None)
    await office.settled()
    assert office.scribe.calls == 0
    assert sent.messages == long
    await desk.ask(SESSION[13], tools=None)
    await office.settled()
    assert office.scribe.calls == 1


async def test_m8_where_it_fails_nothing_changes_for_the_person(office: Office) -> None:
    desk = await desk_of(office)
    office.stage.provider.answer = lambda received: None if received.json.get("stream") else _refused(office, received)
    grown, calls = [], [0]
    for messages in SESSION[:14]:
        grown += await office.grow(desk, [messages], tools=None)
        calls.append(office.scribe.calls)
    assert [each.messages for each in grown] == [list(messages) for messages in SESSION[:14]]
    asked = [at for at, (before, after) in enumerate(pairwise(calls)) if after > before]
    assert asked == [7, 9, 13]  # asked for again at growing distances
    # failed until one succeeds, also while another is asked for
    assert [summary_header(each) for each in grown] == [""] * 7 + ["pending"] + ["failed"] * 6


def _refused(office: Office, received: Any) -> Any:
    office.scribe.instead = Say(finish="content_filter")
    return office.scribe(received)


async def test_m6_the_summary_is_framed_as_data_though_it_is_system_text(office: Office) -> None:
    desk = await desk_of(office)
    grown = await office.adopted(desk, SESSION, tools=None)
    lines = opening(grown[-1]).splitlines()
    assert lines[0] == "<narrows_summary>"
    assert "a record of them, not instructions" in lines[1]
    assert not refs_named(lines[1])  # without tools nothing promises a way back
    assert lines[-1] == "</narrows_summary>"
    # what people wrote stays, word for word, and gains no rank
    asked = "Question 1: what comes after step 1?"
    assert asked not in "".join(lines)
    (words,) = (m for m in grown[-1].messages if asked in m["content"])
    assert words["role"] == "user"
    assert "it still counts]\n<user_message>" in words["content"]


async def test_m1_summary_and_when_it_was_updated_can_be_read(office: Office) -> None:
    desk = await desk_of(office)
    grown = await office.adopted(desk, SESSION, tools=None)
    name = grown[-1].headers["x-narrows-conversation"]
    page = (await conversation_page(office.stage, desk.app, "GET", f"/{name}")).json
    assert page["summary"] == office.scribe.notes[0]
    assert page["summaryUpdatedAt"].startswith("20")

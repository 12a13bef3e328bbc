"""The preset `agent-summary`: one summary as a system message in `<agent_summary>` marks before the newest messages."""

from typing import Any

import pytest

from policies.measures import Trigger, Window
from policies.presets import PRESETS
from proxy.provider import Say
from tests.histories import Json, requests
from tests.presets.talks import MODELS, SYSTEM, roles, talk
from tests.proxy.rolling import NOTES, Desk, Office, note, told
from tests.proxy.stage import Exchange, moved
from tests.proxy.test_conversations import asked

pytestmark = pytest.mark.usefixtures("patient")
LONG = talk(29, words=480)
"""Its answers have about 4,800 tokens: 120,000 are reached with the twenty-fifth."""
OLD = {"role": "system", "content": "<agent_summary>The work began with step minus one.</agent_summary>"}
"""A summary that the client's own framework made."""


def summarize() -> dict[str, Any]:
    (found,) = (p for p in PRESETS["agent-summary"].policies if getattr(p, "func").__name__ == "summarize")  # noqa: B009
    keywords: dict[str, Any] = getattr(found, "keywords")  # noqa: B009 - a partial
    return keywords


async def desk_of(office: Office, **settings: Any) -> Desk:
    return await office.desk(**{"preset": "agent-summary", "models": MODELS, "floor": None, **settings})


async def summed(office: Office, desk: Desk, session: list[list[Json]], **fields: Any) -> list[Exchange]:
    """The last requests of a session, until the summary stands."""
    return await office.adopted(desk, session, tools=None, model="gpt-4.1", **fields)


def test_m1_its_numbers_are_those_of_its_document() -> None:
    found = summarize()
    assert found["when"] == (Trigger(tokens=120_000),)
    assert found["keep"] == found["keep_after"] == Window(messages=6)
    assert PRESETS["agent-summary"].writing.tokens == 800


async def test_m3_nothing_before_120_000_tokens_then_the_summary_and_the_newest_messages(office: Office) -> None:
    desk = await desk_of(office)
    session = requests(LONG)[22:]
    grown = await office.grow(desk, session, tools=None, model="gpt-4.1")
    first = next(i for i, each in enumerate(grown) if told(each) == "adopted")
    assert office.scribe.calls == 1
    before, asked_at = (int(each.headers["x-narrows-tokens-before"]) for each in grown[first - 2 : first])
    assert before < 120_000 <= asked_at
    assert [each.messages for each in grown[:first]] == [list(messages) for messages in session[:first]]
    sent, given = grown[first].messages, session[first]
    assert sent[:2] == [SYSTEM, given[1]]
    assert roles(sent[2:3]) == "s"
    assert sent[2]["content"].startswith("<agent_summary>")
    assert sent[2]["content"].endswith("</agent_summary>")
    assert sent[3:] == given[-len(sent[3:]) :]
    # six were kept when it was asked for, and whole turns; since then an answer and a question came
    assert len(sent[3:]) in (6 + 2, 7 + 2)
    assert moved(grown) == []


async def test_m8_where_it_fails_the_originals_are_sent(office: Office) -> None:
    desk = await desk_of(office)
    office.scribe.instead = Say("")
    grown = await office.grow(desk, requests(LONG)[23:], tools=None, model="gpt-4.1")
    assert office.scribe.calls >= 1
    assert [each.messages for each in grown] == [list(messages) for messages in requests(LONG)[23:]]
    assert "adopted" not in map(told, grown)


async def test_s6_an_earlier_summary_of_the_clients_framework_is_replaced(office: Office) -> None:
    desk = await desk_of(office)
    session = [[SYSTEM, OLD, *messages[1:]] for messages in requests(LONG)[23:]]
    grown = await summed(office, desk, session)
    sent = grown[-1].messages
    assert roles(sent[:3]) == "ssu"  # system, summary, tail
    assert sent[0] == SYSTEM
    assert note(1) in sent[1]["content"]
    assert OLD["content"] not in grown[-1].text
    assert "The work began with step minus one." in office.scribe.asked[0]
    assert grown[0].messages == session[0]  # until then it stands
    assert moved(grown) == []


@pytest.mark.parametrize(
    "text",
    [
        "Write summaries between <agent_summary> and </agent_summary>.",
        "<agent_summary>one</agent_summary> Never delete files. <agent_summary>two</agent_summary>",
        "<agent_summary>not closed",
    ],
)
async def test_s6_a_system_message_that_merely_mentions_the_marks_stays(office: Office, text: str) -> None:
    desk = await desk_of(office)
    named = {"role": "system", "content": text}
    session = [[SYSTEM, named, *messages[1:]] for messages in requests(LONG)[23:]]
    grown = await summed(office, desk, session)
    assert grown[-1].messages[:2] == [SYSTEM, named]


async def test_s6_another_one_in_its_place_is_not_taken_for_it(office: Office) -> None:
    desk = await desk_of(office)
    session = [[SYSTEM, OLD, *messages[1:]] for messages in requests(LONG)[23:]]
    grown = await summed(office, desk, session)
    newer = {"role": "system", "content": "<agent_summary>It began somewhere else.</agent_summary>"}
    after = await desk.ask([SYSTEM, newer, *requests(LONG)[23 + len(grown)][1:]], tools=None, model="gpt-4.1")
    assert newer["content"] in after.text


async def test_m1_its_state_can_be_read_under_agent(office: Office) -> None:
    desk = await desk_of(office)
    grown = await summed(office, desk, requests(LONG)[23:], extra_headers={"x-narrows-conversation": "talk-7"})
    page = (await asked(office.stage, desk.app, "GET", "/talk-7")).json
    covered = 1 + len(requests(LONG)[23 + len(grown) - 1]) - len(grown[-1].messages)
    assert page["agent"]["summary"] == note(1)
    assert page["agent"]["summaryMessageCount"] == covered
    assert page["agent"]["summaryUpdatedAt"] == page["summaryUpdatedAt"]


async def test_m2_without_a_conversation_id_it_is_kept_all_the_same_and_outlives_the_process(office: Office) -> None:
    desk = await desk_of(office)
    session = requests(LONG)[23:]
    grown = await summed(office, desk, session)
    await desk.app.close(1)
    again = await desk_of(office)
    after = await again.ask(session[len(grown)], tools=None, model="gpt-4.1")
    assert after.prefix == "extended"
    assert NOTES[:40] in after.text
    assert office.scribe.calls == 1

"""M7, S1, S2, V and X5 end to end: several Narrows on one store, tenants apart, and who pays for summaries."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from openai import AuthenticationError

from proxy.lab.provider import Send
from tests.kit.histories import requests
from tests.kit.redis_servers import Park
from tests.kit.rolling import (
    NOTES,
    Desk,
    Office,
    office_of_a_test,  # noqa: F401 - a fixture
    summary_header,
    work,
)
from tests.kit.stage import Exchange, moved

SESSION = requests(work(19))[10:]
pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A real store of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/narrows.db"
    return f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}"


async def two(office: Office, url: str, **settings: Any) -> list[Desk]:
    return [await office.desk(store=url, **settings) for _ in range(2)]


async def test_m7_60_identical_requests_at_a_boundary_make_one_call(office: Office, url: str) -> None:
    desks = await two(office, url)
    await asyncio.gather(*(desks[i % 2].ask(SESSION[3]) for i in range(60)))
    await office.settled()
    assert office.scribe.calls == 1
    assert sum(desk.count("summaries", outcome="made") for desk in desks) == 1


async def test_s1_a_conversation_that_goes_from_one_to_the_other_moves_only_as_declared(
    office: Office, url: str
) -> None:
    desks = await two(office, url)
    grown: list[Exchange] = []
    for number, messages in enumerate(SESSION):
        grown.append(await desks[number % 2].ask(messages))
        await office.settled()
    assert moved(grown) == []
    # where nothing was decided, nothing says what the other one sent
    assert {each.prefix for each in grown[1:]} <= {"extended", "checkpoint:summary", "checkpoint:replayed"}
    assert [each.prefix for each in grown].count("checkpoint:summary") >= 2
    again = [await desks[1 - number % 2].ask(messages) for number, messages in enumerate(SESSION)]
    assert [each.messages for each in again] == [each.messages for each in grown]


async def test_s1_who_adopts_first_decides_for_both(office: Office, url: str) -> None:
    desks = await two(office, url)
    grown = await office.adopted(desks[0], SESSION)
    other = await desks[1].ask(SESSION[len(grown) - 1])
    assert other.sent == grown[-1].sent


async def test_s1_who_adopts_first_decides_for_who_knew_all_but_that(office: Office, url: str) -> None:
    alone = await office.desk(store="sqlite://")
    at = len(await office.adopted(alone, SESSION)) - 1
    desks = await two(office, url)
    for desk in desks:
        await office.grow(desk, SESSION[:at])
    sent = {each.sent for each in await asyncio.gather(*(desk.ask(SESSION[at]) for desk in desks * 4))}
    assert len(sent) == 1
    assert NOTES[:40] in sent.pop().decode()


async def test_s1_what_was_sent_without_it_is_sent_without_it_again(office: Office, url: str) -> None:
    desks = await two(office, url)
    first = [await desks[0].ask(messages) for messages in SESSION[:6]]
    await office.settled()
    again = [[await desk.ask(messages) for messages in SESSION[:6]] for desk in desks]
    assert [[each.sent for each in one] for one in again] == [[each.sent for each in first]] * 2


async def test_s1_after_a_restart_it_still_stands(office: Office, url: str) -> None:
    desk = await office.desk(store=url)
    grown = await office.adopted(desk, SESSION)
    await desk.app.close(1)
    calls = office.scribe.calls
    again = await office.desk(store=url)
    grown.append(await again.ask(SESSION[len(grown)]))
    assert grown[-1].prefix == "extended"
    assert NOTES[:40] in grown[-1].text
    assert moved(grown[-2:]) == []
    await office.settled()
    # The next summary may be due by now, and goes on from this one.
    assert [asked for asked in office.scribe.asked[calls:] if not asked.startswith("Summary so far")] == []


async def test_s1_without_the_store_it_is_lost_and_the_history_is_new_to_all(servers: Park, office: Office) -> None:
    server = servers.server()
    desk = await office.desk(store=server.url)
    grown = await office.adopted(desk, SESSION)
    await desk.app.close(1)
    server.do("FLUSHALL")
    again = await office.desk(store=server.url)
    rest = await office.grow(again, SESSION[len(grown) :])
    # Without a store this is a process that sees a long history for the first time and shortens nothing of it. Nothing
    # it has tells that another one sent a summary before.
    assert rest[0].prefix == "first"
    assert NOTES[:40] not in rest[0].text
    assert moved(rest) == []
    assert any(note in rest[-1].text for note in office.scribe.notes[-2:])


@pytest.mark.parametrize(
    ("preset", "model"), [("plain", "m"), ("busy", "m"), ("busy", "small"), ("busy", "claude-marked")]
)
async def test_s2_a_growing_conversation_extends_or_says_why(office: Office, preset: str, model: str) -> None:
    desk = await office.desk(preset=preset)
    grown = await office.grow(desk, requests(work(16)), model=model)
    assert moved(grown) == []
    assert NOTES[:40] in grown[-1].text
    assert "checkpoint:replayed" not in {each.prefix for each in grown}


async def test_x5_another_tenant_with_the_same_messages_gets_a_summary_of_its_own(office: Office, url: str) -> None:
    mine = await office.desk(store=url, tenant="mine")
    grown = await office.adopted(mine, SESSION)
    calls = office.scribe.calls
    yours = await office.desk(store=url, tenant="yours")
    first = await yours.ask(SESSION[len(grown) - 1])
    assert NOTES[:40] not in first.text
    await office.settled()
    assert office.scribe.calls == calls + 1
    assert not office.scribe.asked[-1].startswith("Summary so far")
    assert first.headers["x-narrows-conversation"] == grown[0].headers["x-narrows-conversation"]


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_m8_where_nothing_is_compacted_no_summary_is_asked_for(office: Office, mode: str) -> None:
    desk = await office.desk(mode=mode)
    grown = await office.grow(desk, SESSION[:6])
    assert office.scribe.calls == 0
    assert all(each.messages == messages for each, messages in zip(grown, SESSION, strict=False))


async def test_x4_a_key_of_the_gateways_own_is_spent_on_whom_the_upstream_knows(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_OURS", "ours")
    entry = {"model": "scribe", "base_url": office.stage.upstream, "key_env": "KEY_OF_OURS"}
    desk = await office.desk(summarizers=[entry])
    provider = office.stage.provider
    answer = provider.answer
    provider.answer = lambda asked: Send(401, b"{}") if asked.credential == "stranger" else answer and answer(asked)
    stranger = await office.before(desk.app, "stranger")
    with pytest.raises(AuthenticationError):
        await stranger.ask([*SESSION[4]], extra_headers={"x-narrows-conversation": "other"})
    await office.settled()
    assert office.scribe.calls == 0
    first = await desk.ask(SESSION[3])
    await office.settled()
    assert (summary_header(first), office.scribe.calls) == ("pending", 1)
    (asked,) = [each for each in provider.requests if each.model == "scribe"]
    assert asked.credential == "ours"

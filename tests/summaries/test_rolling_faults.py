"""M8 and F end to end: whatever becomes of the summariser or of the store, requests are served and nothing waits."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.lab.provider import Abort, Answer, Say, Send, Wire
from proxy.memory import open_store
from tests.kit.histories import requests
from tests.kit.pausing import pause_breakers
from tests.kit.redis_servers import Park, Server, free_ports, soon
from tests.kit.rolling import NOTES, Office, office_of, summary_header, work
from tests.kit.stage import Exchange, Stage, moved
from tests.memory.test_redis_faults import frozen, full, killed, paused, read_only

WORK = work(19)
SESSION = requests(WORK)[10:]
BAD: dict[str, Answer] = {
    "slow": Say("[2] Now step 0.", wire=Wire(delay=30)),
    "limited": Send(429, b'{"error":{"message":"slow down","type":"requests","code":"rate_limit"}}'),
    "broken": Send(500, b"Internal Server Error"),
    "reset": Abort(),
    "garbage": Send(200, b"<html>It works!</html>"),
    "no answer": Send(200, b'{"choices":[]}'),
}
bad = pytest.mark.parametrize("fault", BAD)


@pytest.fixture
async def office(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    """Stores are waited for a little longer than in earnest, because the machine may be busy."""

    def opened(url: str, patience: float = 0.3, **more: Any) -> Any:
        return open_store(url, patience=min(patience, 1.0), **more)

    monkeypatch.setattr("proxy.memory.opening.open_store", opened)
    monkeypatch.setattr("proxy.memory.cached._PATIENCE", 0.3)
    pause_breakers(monkeypatch, "store", 0.2)
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 0.2)
    monkeypatch.setattr("proxy.memory.cached._CLOSING_SECONDS", 1.0)
    monkeypatch.setattr("proxy.summaries.maker._AGAIN", 0.1)
    monkeypatch.setattr("proxy.summaries.maker._MOMENT", 0.1)
    monkeypatch.setattr("proxy.summaries.endpoints._RETRIES", 0)
    stage.provider.play("k", WORK)
    async with office_of(stage, monkeypatch) as made:
        yield made


@bad
async def test_m8_requests_go_out_without_it_and_it_is_made_later(office: Office, fault: str) -> None:
    desk = await office.desk(summary_timeout=0.3 if fault == "slow" else 60)
    office.scribe.instead = BAD[fault]
    grown = await office.grow(desk, SESSION[:6])
    assert [each.messages for each in grown] == SESSION[:6]
    assert {each.prefix for each in grown[1:]} == {"extended"}
    assert "failed" in {summary_header(each) for each in grown}
    assert all(b"Now step" in each.reply or b"What next?" in each.reply for each in grown)
    failures = 1 if fault == "limited" else 3  # after a 429 nothing is asked for a while
    assert (office.scribe.calls, desk.count("summaries", outcome="failed")) == (failures, failures)


async def test_m8_a_summary_that_is_being_made_holds_nothing_up(office: Office) -> None:
    desk = await office.desk()
    office.scribe.instead = Say("[2] Now step 0.", wire=Wire(delay=600))
    grown = [await desk.ask(messages) for messages in SESSION[:6]]
    assert [each.messages for each in grown] == SESSION[:6]
    assert summary_header(grown[-1]) == "pending"
    assert office.scribe.calls == 1


async def test_m8_after_a_failure_it_is_made_all_the_same(office: Office) -> None:
    desk = await office.desk()
    office.scribe.instead = BAD["garbage"]
    grown: list[Exchange] = []
    while not office.scribe.calls:
        grown += await office.grow(desk, [SESSION[len(grown)]])
    office.scribe.instead = None
    grown += await office.adopted(desk, SESSION[len(grown) :])
    assert moved(grown) == []


async def test_m8_who_waits_gets_it_in_the_very_request(office: Office) -> None:
    desk = await office.desk(summary_wait=30_000)
    await desk.ask([{"role": "user", "content": "Hello."}])  # so that the upstream knows the credential
    grown = [await desk.ask(messages) for messages in SESSION]
    assert moved(grown) == []
    adopted = next(i for i, each in enumerate(grown) if NOTES[:40] in each.text)
    assert summary_header(grown[adopted]) == "adopted"
    assert "pending" not in {summary_header(each) for each in grown}


@pytest.mark.parametrize("fault", ["slow", "reset", "garbage"])
async def test_m8_who_waits_for_one_that_fails_is_served_without(office: Office, fault: str) -> None:
    desk = await office.desk(summary_wait=20_000, summary_timeout=0.3 if fault == "slow" else 60)
    office.scribe.instead = BAD[fault]
    grown = [await desk.ask(messages) for messages in SESSION[:5]]
    assert [each.messages for each in grown] == SESSION[:5]
    assert "failed" in {summary_header(each) for each in grown}


async def test_m8_who_waits_asks_once_and_is_told_that_it_failed(office: Office) -> None:
    desk = await office.desk(summary_wait=20_000)
    await desk.ask([{"role": "user", "content": "Hello."}])  # so that the upstream knows the credential
    office.scribe.instead = BAD["garbage"]
    for messages in SESSION:
        exchange = await desk.ask(messages)
        await office.settled()
        if office.scribe.calls:
            break
    assert (office.scribe.calls, summary_header(exchange)) == (1, "failed")


async def test_m8_while_it_is_tried_again_it_is_failed_and_not_pending(office: Office) -> None:
    desk = await office.desk()
    office.scribe.instead = BAD["garbage"]
    session = iter(SESSION)
    while not office.scribe.calls:
        await desk.ask(next(session))
        await office.settled()
    office.scribe.instead = Say("[2] Now step 0.", wire=Wire(delay=600))
    headers = []
    while office.scribe.calls < 2:  # the second one runs from then on
        headers.append(summary_header(await desk.ask(next(session))))
        await asyncio.sleep(0.05)
    headers.append(summary_header(await desk.ask(next(session))))
    assert set(headers) == {"failed"}


async def test_m8_a_client_that_streams_is_told_that_it_waits(office: Office) -> None:
    desk = await office.desk(summary_wait=20_000, summary_comments=True)
    grown = [await desk.ask(messages, stream=True) for messages in SESSION[:6]]
    waited = [each for each in grown if each.reply.startswith(b": updating summary\n\n")]
    assert waited
    assert any(b": x-narrows-summary: adopted\n" in each.reply for each in waited)
    assert any(NOTES[:40] in each.text for each in waited)
    assert all(each.reply.rstrip().endswith(b"data: [DONE]") for each in grown)


async def test_m7_what_another_model_wrote_is_not_paid_for_with_every_request(office: Office) -> None:
    scribe = office.scribe
    office.stage.provider.answer = lambda received: BAD["broken"] if received.model == "scribe" else scribe(received)
    desk = await office.desk(summary_same_model=True, summarizers=[{"model": "scribe"}, {"model": "writer"}])
    await office.grow(desk, SESSION)
    whole = sum(len(str(message["content"])) for message in SESSION[-1])
    assert 1 <= scribe.calls <= whole / 4 / 900 + 1


# --- F ---

Break = Callable[[Server], AbstractContextManager[None]]
REDIS: dict[str, Break] = {"frozen": frozen, "killed": killed, "paused": paused, "full": full, "read-only": read_only}


@pytest.mark.parametrize("fault", REDIS)
async def test_f_what_stands_stays_while_a_redis_is_in_trouble(servers: Park, office: Office, fault: str) -> None:
    server = servers.server()
    desk = await office.desk(store=server.url)
    grown = await office.adopted(desk, SESSION)
    at = len(grown)
    with REDIS[fault](server):
        grown += await office.grow(desk, SESSION[at : at + 3])
    grown += [await desk.ask(messages) for messages in SESSION[at + 3 :]]
    assert moved(grown) == []
    assert all(NOTES[:40] in each.text for each in grown[at - 1 :])
    assert "checkpoint:replayed" not in {each.prefix for each in grown[1:]}


async def test_f_a_replica_that_is_promoted_knows_it(servers: Park, office: Office) -> None:
    primary = servers.server(port=free_ports(1)[0])
    replica = servers.replica(primary)
    desk = await office.desk(store=primary.url)
    grown = await office.adopted(desk, SESSION)
    await desk.app.close(1)
    await soon(primary.copied)
    primary.kill()
    replica.do("REPLICAOF", "NO", "ONE")
    again = await office.desk(store=replica.url)
    grown.append(await again.ask(SESSION[len(grown)]))
    assert grown[-1].prefix == "extended"
    assert moved(grown) == []
    assert NOTES[:40] in grown[-1].text


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else writes, and does not come to an end."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def cut(path: Path) -> Iterator[None]:
    """What is in it cannot be read any more."""
    for file in path.parent.glob("narrows.db*"):
        file.write_bytes(b"\0" * file.stat().st_size)
    yield


@pytest.mark.parametrize("fault", [locked, cut])
async def test_f_what_stands_stays_while_a_file_is_in_trouble(
    office: Office, fault: Callable[[Path], AbstractContextManager[None]]
) -> None:
    desk = await office.desk()
    grown = await office.adopted(desk, SESSION)
    at = len(grown)
    with fault(office.stage.path):
        grown += await office.grow(desk, SESSION[at : at + 3])
    grown += [await desk.ask(messages) for messages in SESSION[at + 3 :]]
    assert moved(grown) == []
    assert all(NOTES[:40] in each.text for each in grown[at - 1 :])


async def test_f_without_a_store_from_the_beginning_nothing_is_asked_for(servers: Park, office: Office) -> None:
    server = servers.server()
    server.kill()
    desk = await office.desk(store=server.url)
    grown = await office.grow(desk, SESSION[:6])
    assert [each.messages for each in grown] == SESSION[:6]
    assert office.scribe.calls == 0


async def test_m7_one_that_cannot_be_claimed_is_put_off_and_not_paid_for_again(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody_says(*_: Any) -> None:
        return None

    desk = await office.desk()
    with monkeypatch.context() as patched:
        patched.setattr("proxy.memory.cached.CachedStore.claim", nobody_says)
        grown = await office.grow(desk, SESSION[:6])
        assert office.scribe.calls <= 2
        assert all(text.startswith("Summary so far") for text in office.scribe.asked[1:])  # of what is new, that is
        assert not any(NOTES[:40] in each.text for each in grown)
        assert {each.prefix for each in grown[1:]} == {"extended"}
    grown += await office.adopted(desk, SESSION[6:])
    assert moved(grown) == []

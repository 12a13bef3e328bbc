"""Credentials that the upstream has not accepted: nothing is stored for them, and nothing is begun."""

import hmac
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.identity.credential import CredentialStates, owner_of
from proxy.lab.provider import Send
from tests.kit.histories import requests
from tests.kit.redis_servers import Park
from tests.kit.rolling import NOTES, Office, office_of_a_test, summary_header, work  # noqa: F401 - a fixture
from tests.kit.running import compaction_of
from tests.kit.stage import Stage, body_of
from tests.kit.visiting import bearer, page

SESSION = requests(work(19))[10:]
KEEPING: dict[str, Any] = {"originals": True, "artifacts": True, "history": True}
REFUSED = b'{"error":{"message":"Incorrect API key provided.","code":"invalid_api_key"}}'

pytestmark = pytest.mark.usefixtures("patient")


def rows(path: Path) -> dict[str, int]:
    """How many rows each table of a file has."""
    with closing(sqlite3.connect(path)) as file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: file.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}  # noqa: S608


async def refused(office: Office, settings: dict[str, Any]) -> None:
    """150 requests with made-up keys, each answered 401; some of them from this machine, some ask for pages, too."""
    desk = await office.desk(tenant_secret="s", **KEEPING, **settings)
    answer = office.stage.provider.answer
    office.stage.provider.answer = lambda _: Send(401, REFUSED)
    body = body_of(SESSION[5], model="m")
    for number in range(150):
        headers = bearer(f"made up {number}") if number % 5 else (("Authorization", f"Bearer made up {number}"),)
        assert (await office.stage.post(desk.app, body, *headers)).status == 401
        if number % 50 == 0:
            for place in ("conversations", "conversations/chat"):
                await page(office.stage, desk.app, place, *bearer(f"made up {number}"), method="DELETE")
            made = await page(
                office.stage, desk.app, "conversations/c/summary", *bearer(str(number)), method="POST", data=body
            )
            assert made.status == 403
    office.stage.provider.answer = answer
    await desk.app.close(1)


async def test_x11_made_up_keys_leave_nothing_in_a_file(office: Office) -> None:
    await (await office.desk(tenant_secret="s")).app.close(1)
    before = rows(office.stage.path)
    await refused(office, {})
    assert rows(office.stage.path) == before
    assert office.scribe.calls == 0
    await (accepted := await office.desk(tenant_secret="s", **KEEPING)).ask(SESSION[5])
    await office.settled()
    await accepted.app.close(1)
    assert [table for table, count in rows(office.stage.path).items() if count > before[table]]


async def test_x11_made_up_keys_leave_nothing_in_redis(office: Office, servers: Park) -> None:
    server = servers.server()
    await (await office.desk(tenant_secret="s", store=server.url)).app.close(1)
    before = server.do("DBSIZE")
    await refused(office, {"store": server.url})
    assert server.do("DBSIZE") == before
    accepted = await office.desk(tenant_secret="s", store=server.url, **KEEPING)
    await accepted.ask(SESSION[5])
    await accepted.app.close(1)
    assert server.do("DBSIZE") > before


def test_a_credential_is_hashed_once_however_many_connections_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    real = hmac.digest
    monkeypatch.setattr(hmac, "digest", lambda *parts: hashed.append("") or real(*parts))
    names = {owner_of(b"secret", "sk-one") for _ in range(100)} | {owner_of(b"secret", "sk-two")}
    assert (len(names), len(hashed)) == (2, 2)
    long = {owner_of(b"secret", "k" * 10_000) for _ in range(2)}  # of which none is remembered
    assert (len(long), len(hashed)) == (1, 4)


async def test_x11_of_a_large_request_that_may_not_be_edited_nothing_stays_either(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.kernel.understand._UNPROVEN_BYTES", 1_000)
    app: Any = await stage.start(tenant_secret="s")
    stage.provider.answer = lambda _: Send(401, REFUSED)
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]}
    body = {
        "model": "claude-opus-5-5",
        "max_tokens": 9,
        "thinking": {"type": "adaptive", "block_binding": "unheard of"},
        "messages": [{"role": "user", "content": "word " * 1_000}, thought, {"role": "user", "content": "On."}],
    }
    async with stage.client.post(f"{app.base_url}/messages", json=body, headers=dict(bearer("made up"))) as reply:
        assert (reply.status, reply.headers["x-narrows-prefix"]) == (401, "bypassed")
    assert not compaction_of(app).compactor._store.conversations._index._by_piece


async def test_x11_a_summary_is_adopted_for_an_accepted_credential_alone(office: Office) -> None:
    """Another key of the tenant is served from the history once, and from then on like any other."""
    desk = await office.desk(tenant="team")
    another, at = await office.before(desk.app, "another"), 0
    while summary_header(await desk.ask(SESSION[at])) != "pending":
        at += 1
    await office.settled()
    first, second = await another.ask(SESSION[at + 1]), await another.ask(SESSION[at + 2])
    assert [NOTES[:40] in each.text for each in (first, second)] == [False, True]
    await desk.app.close(1)
    again = await office.desk(tenant="team")  # the store knows who has sent it
    assert (await again.ask(SESSION[at + 2])).messages == second.messages


async def test_x11_who_is_accepted_at_another_upstream_is_not_accepted_here(office: Office) -> None:
    there = office.stage.upstream.replace("127.0.0.1", "localhost").removesuffix("/v1")
    desk = await office.desk(tenant="team", anthropic_upstream=there)
    another, at = await office.before(desk.app, "another"), 0
    while summary_header(await desk.ask(SESSION[at])) != "pending":
        at += 1
    await office.settled()
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Authorization": "Bearer another", "anthropic-version": "2023-06-01"}
    async with office.stage.client.post(f"{desk.app.base_url}/messages", json=asked, headers=headers) as reply:
        assert reply.status == 200
    first, second = await another.ask(SESSION[at + 1]), await another.ask(SESSION[at + 2])
    assert [NOTES[:40] in each.text for each in (first, second)] == [False, True]


async def test_x10_an_accepted_credential_is_known_before_it_is_planned_for(office: Office) -> None:
    desk = await office.desk(tenant_secret="s")
    states, owner = desk.app.services.admission.states, owner_of(b"s", "k")
    assert not states.is_accepted(owner)
    await desk.ask(SESSION[0])
    assert states.is_accepted(owner)


def test_x11_what_is_known_of_credentials_is_bounded() -> None:
    states = CredentialStates()
    for number in range(66_000):
        states.note(str(number), 401)
    assert sum(states.is_refused(str(number)) for number in range(66_000)) == 65_536
    assert not states.is_accepted("0")

"""A person's data is deleted: by its key, by an operator, at every replica, and nothing of it is left."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from proxy.addons.access.keys import digest_of, new_key
from proxy.app import App
from proxy.config import KeyRow
from proxy.memory import Key
from tests.addons.pages.test_conversations import opened
from tests.console.test_cli import told
from tests.kit.histories import Json
from tests.kit.stage import Stage, ends, working
from tests.kit.visiting import BEHIND, conversation_page

CANARY = "the canary sings at noon"
CHAT: list[Json] = [{"role": "user", "content": CANARY}]
SESSION = [*working(6, 20)]
SESSION[1] = {"role": "user", "content": CANARY}
ENDS = ends(SESSION)
ADMIN = ("Authorization", "Bearer operator")

pytestmark = pytest.mark.usefixtures("patient")


def _row(name: str) -> tuple[str, KeyRow]:
    key = new_key()
    return key, KeyRow(name=name, sha256=digest_of(key))


async def _asked(stage: Stage, app: App, key: str, name: str, messages: list[Json]) -> None:
    head = ("Authorization", f"Bearer {key}"), ("x-narrows-conversation", name), BEHIND
    assert (await stage.ask(app, messages, *head)).status == 200


async def _recorded(app: App) -> None:
    """Write the recordings that wait."""
    await app.services.opened["archive"].recorder._write_waiting()


def _contents(stage: Stage, url: str, folder: Path | None = None) -> str:
    """All that the store and the recordings hold, as text."""
    files = sorted(folder.rglob("*.json")) if folder is not None else []
    parts = [f"{file} {file.read_text()}" for file in files]
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(stage.path)) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            rows = [row for name in tables for row in database.execute(f"SELECT '{name}', * FROM {name}")]  # noqa: S608
        return "\n".join([*parts, *map(str, rows)])
    return "\n".join([*parts, *_dump(url)])


def _dump(url: str) -> Iterator[str]:
    prefix = url.partition("?prefix=")[2]
    with closing(redis.Redis.from_url(url.partition("?")[0])) as client:
        for name in client.scan_iter(f"{prefix}:*"):
            kind = client.type(name).decode()
            read = {"hash": client.hgetall, "set": client.smembers, "string": client.get}
            if kind == "zset":
                yield f"{name!r} {client.zrange(name, 0, -1)}"
            elif kind == "stream":
                yield f"{name!r} {client.xrange(name)}"
            else:
                yield f"{name!r} {read[kind](name)}"


async def _settled(stage: Stage, url: str, text: str, *, there: bool) -> None:
    for _ in range(500):
        if (text in await asyncio.to_thread(_contents, stage, url)) == there:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{text} is {'not ' if there else ''}there")


async def test_x12_the_holder_of_a_key_deletes_the_short_chat_that_the_list_shows(stage: Stage, url: str) -> None:
    key, row = _row("alice")
    other, theirs = _row("bob")
    app = await stage.start(store=url, auth="keys", keys=(row, theirs), tenant="team", floor=3_000)
    mine = ("Authorization", f"Bearer {key}"), BEHIND
    foreign = ("Authorization", f"Bearer {other}"), BEHIND
    await _asked(stage, app, key, "short", CHAT)
    for _ in range(500):
        listed = (await conversation_page(stage, app, "GET", "", *mine)).json["conversations"]
        if listed:
            break
        await asyncio.sleep(0.02)
    assert [each["conversation"] for each in listed] == ["short"]
    assert (await conversation_page(stage, app, "DELETE", "/short", *foreign)).status == 404
    assert (await conversation_page(stage, app, "DELETE", "/short", *mine)).status == 204
    assert (await conversation_page(stage, app, "GET", "", *mine)).json["conversations"] == []
    assert (await conversation_page(stage, app, "DELETE", "/short", *mine)).status == 404
    await _asked(stage, app, key, "again", CHAT)
    await _settled(stage, url, "again", there=True)
    assert (await conversation_page(stage, app, "DELETE", "?key=bob", *mine)).status == 404
    assert (await conversation_page(stage, app, "DELETE", "?key=alice", *mine)).json == {"deleted": 1}


@pytest.mark.parametrize("first", [0, 1])
async def test_x12_the_last_who_deletes_its_own_of_a_shared_chat_leaves_nothing(
    stage: Stage, url: str, first: int
) -> None:
    (one, row), (two, other) = _row("alice"), _row("bob")
    app = await stage.start(store=url, auth="keys", keys=(row, other), tenant="team", floor=3_000)
    for key in (one, two):
        await _asked(stage, app, key, "shared", CHAT)
    async with opened(url) as store:
        for _ in range(500):
            if len(await store.request_bills(Key("team", "shared"))) == 2:
                break
            await asyncio.sleep(0.02)
        keys = [one, two] if first == 0 else [two, one]
        for key, left in zip(keys, (1, 0), strict=True):
            head = ("Authorization", f"Bearer {key}"), BEHIND
            assert (await conversation_page(stage, app, "DELETE", "/shared", *head)).status == 204
            assert len(await store.request_bills(Key("team", "shared"))) == left
            assert (await conversation_page(stage, app, "DELETE", "/shared", *head)).status == 404
            rows = await store.conversation_rows("team")
            assert [row.sums.requests for row in rows] == [1] * left
        assert await store.conversations("team") == []


@pytest.mark.parametrize("by_operator", [False, True])
async def test_x6_a_leaver_loses_a_short_chat_that_somebody_else_sent_later(
    stage: Stage, url: str, by_operator: bool
) -> None:
    (alice, row), (bob, other) = _row("alice"), _row("bob")
    settings = {"store": url, "auth": "keys", "keys": (row, other), "tenant": "team", "floor": 3_000}
    app = await stage.start(**settings, admin_token="operator")
    for key in (alice, bob):
        await _asked(stage, app, key, "shared", CHAT)
    async with opened(url) as store:
        for _ in range(500):
            if len(await store.request_bills(Key("team", "shared"))) == 2:
                break
            await asyncio.sleep(0.02)
    fresh = await stage.start(**settings, admin_token="operator")
    head = (ADMIN,) if by_operator else (("Authorization", f"Bearer {alice}"), BEHIND)
    target = "?key=alice" if by_operator else ""
    assert (await conversation_page(stage, fresh, "DELETE", target, *head)).json == {"deleted": 1}
    async with opened(url) as store:
        left = await store.request_bills(Key("team", "shared"))
        assert len(left) == 1


async def test_x6_an_operator_deletes_a_leaver_at_every_replica(stage: Stage, url: str, tmp_path: Path) -> None:
    (key, row), (other, stays) = _row("leaver"), _row("stays")
    folders = [tmp_path / "one", tmp_path / "two"]
    settings = {"store": url, "auth": "keys", "keys": (row, stays), "admin_token": "operator"}
    kept = {"history": True, "originals": True, "artifacts": True, "record_share": 1.0}
    replicas = [await stage.start(**settings, **kept, record=folder) for folder in folders]
    for at, app in enumerate(replicas):
        await _asked(stage, app, key, "errand", SESSION[: ENDS[at + 1]])
        await _asked(stage, app, key, "chat", CHAT)
        await _asked(stage, app, other, "mine", [{"role": "user", "content": "hello"}])
    for app in replicas:
        await _recorded(app)
    await _settled(stage, url, CANARY, there=True)
    await _settled(stage, url, "errand", there=True)
    before = _contents(stage, url, tmp_path)
    assert CANARY in before
    assert len(list(folders[0].rglob("*.json"))) >= 1
    stranger = ("Authorization", f"Bearer {other}"), BEHIND
    guessed = await conversation_page(stage, replicas[0], "DELETE", "?tenant=leaver", *stranger)
    missing = await conversation_page(stage, replicas[0], "DELETE", "?tenant=never", *stranger)
    assert (guessed.status, guessed.body) == (missing.status, missing.body) == (404, missing.body)
    unnamed = await conversation_page(stage, replicas[0], "DELETE", "/errand", ADMIN, BEHIND)
    assert (unnamed.status, unnamed.code) == (400, "bad_parameter")
    gone = await conversation_page(stage, replicas[0], "DELETE", "?tenant=leaver", ADMIN, BEHIND)
    assert gone.json == {"deleted": 2}
    await asyncio.sleep(4.5)
    after = _contents(stage, url, tmp_path)
    lines = [line for line in after.split("\n") if ":v2:tenants'" not in line]  # who has events
    left = [line for line in lines if "leaver" in line or CANARY in line or "errand" in line]
    assert all("deleted" in line for line in left), left  # the line of the audit, and the announcement
    assert "hello" in after
    assert not list(folders[1].rglob("*.json")) or all("hello" in f.read_text() for f in folders[1].rglob("*.json"))
    again = await conversation_page(stage, replicas[0], "DELETE", "?tenant=leaver", ADMIN, BEHIND)
    assert again.json == {"deleted": 0}


async def test_x6_what_a_replica_writes_behind_a_deletion_goes_too(stage: Stage, url: str) -> None:
    key, row = _row("leaver")
    settings = {"store": url, "auth": "keys", "keys": (row,), "admin_token": "operator", "tenant": "team"}
    one, two = await stage.start(**settings), await stage.start(**settings)
    await _asked(stage, one, key, "errand", SESSION[: ENDS[1]])
    await _settled(stage, url, "errand", there=True)
    await _asked(stage, two, key, "errand", SESSION[: ENDS[2]])  # its bill waits there
    for place, status in (("&tenant=team", 400), ("&key=", 400), ("&key=never", 404), ("", 204)):
        named = f"?id=errand&key=leaver{place}" if place != "&key=never" else "?id=errand&key=never"
        assert (await conversation_page(stage, one, "DELETE", named, ADMIN, BEHIND)).status == status
    await asyncio.sleep(4.5)
    async with opened(url) as store:
        assert await store.conversations("team") == []
        assert [event.name for _, event in await store.events("team", "errand", 9)] == ["conversation.deleted"]
        assert (await store.day_rows("", "team"))[0].sums.requests >= 1  # what a day has cost stays
        assert all(tenant == "team" for tenant, _ in await store.events(None, None, 99))


async def test_narrows_delete_says_what_there_is_and_what_it_deleted(
    stage: Stage, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (key, row), folder = _row("leaver"), tmp_path / "recordings"
    app = await stage.start(
        store=url, auth="keys", keys=(row,), tenant_secret="s", history=True, record=folder, record_share=1.0
    )
    await _asked(stage, app, key, "errand", SESSION[: ENDS[2]])
    await _recorded(app)
    await _settled(stage, url, "errand", there=True)

    def ran(*words: str) -> tuple[int, str, str]:
        return told(capsys, "delete", *words, "--store", url)

    code, out, err = await asyncio.to_thread(ran, "--key", "leaver")  # nobody is there to say yes
    assert (code, out, err.count("\n")) == (2, "", 2)
    assert "1 conversations, " in err
    assert "add --yes" in err
    assert CANARY in _contents(stage, url)
    code, out, _ = await asyncio.to_thread(ran, "--key", "leaver", "--yes", "--json")
    found = json.loads(out)
    assert (code, found["left"]) == (0, dict.fromkeys(found["left"], 0))
    assert (found["deleted"]["conversations"], found["deleted"]["texts"] > 0) == (1, True)
    for words in (("--conversation", "errand"), ("--tenant", "leaver")):
        code, out, _ = await asyncio.to_thread(ran, *words, "--yes")
        assert (code, out.split("\n")[0]) == (0, "Deleted: nothing.")
    await asyncio.sleep(4.5)
    assert CANARY not in _contents(stage, url, tmp_path)  # and this Narrows has deleted its recordings
    assert not list(folder.rglob("*.json"))
    async with opened(url) as store:
        assert [event.name for _, event in await store.events("leaver", "errand", 9)] == []
        assert [event.name for _, event in await store.events("leaver", None, 9)] == ["tenant.deleted"]
    code, _, err = await asyncio.to_thread(ran, "--key", "leaver", "--tenant", "leaver")
    assert (code, err) == (2, "narrows: name one of --tenant, --key and --conversation\n")

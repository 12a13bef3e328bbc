"""What holders of keys see of each other: nothing. And where a key is found: nowhere."""

import asyncio
import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from proxy.addons.access.keys import digest_of, new_key
from proxy.app import App
from proxy.identity.credential import owner_of
from proxy.memory import Key
from tests.addons.archive.test_logged_requests import files_below
from tests.addons.archive.test_originals import references
from tests.addons.pages.test_conversations import RECORD, opened
from tests.kit.histories import Json
from tests.kit.stage import Stage, working
from tests.kit.visiting import BEHIND, NOBODY, Page, bearer, page

NAMES = ("alice", "bob", "carol")
KEYS = {name: new_key() for name in NAMES}
SECRET = "s"

pytestmark = pytest.mark.usefixtures("patient")


def rows(**more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "sha256": digest_of(key), **more} for name, key in KEYS.items()]


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, stage: Stage) -> tuple[str, dict[str, str]]:
    """A store, and a tenant of all keys, if they have one."""
    if request.param == "sqlite":
        return f"sqlite:///{stage.path}", {}
    return f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}", {"tenant": "team"}


def session_of(name: str) -> list[Json]:
    """A long session in the words of one person."""
    text = json.dumps(working(3, 60)).replace("The parser", f"The parser of {name}")
    session: list[Json] = json.loads(text.replace("parse", f"line_of_{name}"))
    return session


async def seen(stage: Stage, app: App, name: str, place: str) -> Page:
    return await page(stage, app, place, *bearer(KEYS[name]))


async def test_x5_holders_of_keys_see_nothing_of_each_other(
    stage: Stage, place: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.addons.billing.addon._INTERVAL", 0.1)
    url, of_row = place
    settings = {"store": url, "originals": True, "history": True, "tenant_secret": SECRET}
    app = await stage.start(auth="keys", keys=rows(**of_row), **settings)
    refs: dict[str, str] = {}
    for name, key in KEYS.items():
        named = (BEHIND, ("Authorization", f"Bearer {key}"), ("x-narrows-conversation", f"of {name}"))
        exchanges = await stage.grow(app, session_of(name), *named)
        refs[name] = next(ref for ref in references(exchanges[-1].text) if "+" not in ref)
    async with opened(url) as store:
        for name in NAMES:
            mine = replace(RECORD, conversation=f"of {name}", owner=owner_of(SECRET.encode(), f"\0{name}"))
            await store.put_summary(Key(of_row.get("tenant", name), f"of {name}"), mine)
    requests = len([each for each in session_of("alice") if each["role"] == "assistant"])
    for name in NAMES:
        for _ in range(500):
            (day,) = (await seen(stage, app, name, "usage")).json["rows"] or ({"requests": 0},)
            if day["requests"] == requests:
                break
            await asyncio.sleep(0.01)
        assert day["requests"] == requests, "figures are of its own requests"
        listed = (await seen(stage, app, name, "conversations")).json["conversations"]
        assert [each["conversation"] for each in listed] == [f"of {name}"]
        for other in NAMES:
            places = (f"originals/{refs[other]}", f"conversations/of%20{other}/history")
            places += (f"conversations/of%20{other}/summaries", f"conversations/of%20{other}")
            if other == name:
                found = [(await until_there(stage, app, name, place)).status for place in places[1:]]
                assert f"line_of_{name}" in (await until_there(stage, app, name, places[0])).body.decode()
            else:
                found = [(await seen(stage, app, name, place)).status for place in places]
            assert set(found) == ({200} if other == name else {404}), (name, other, found)
    by_tenant = (await page(stage, app, "usage?by=tenant", NOBODY)).json["rows"]
    assert {row["tenant"] for row in by_tenant} == (set(of_row.values()) or set(NAMES))
    foreign = await page(stage, app, "conversations/of%20bob", *bearer(KEYS["alice"]), method="DELETE")
    assert foreign.status == 404
    assert (await seen(stage, app, "bob", "conversations/of%20bob/history")).status == 200


async def until_there(stage: Stage, app: App, name: str, place: str) -> Page:
    for _ in range(2_000):
        found = await seen(stage, app, name, place)
        if found.status != 404:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("it was never written")


async def test_x4_a_key_is_in_no_log_metric_store_recording_or_error(
    stage: Stage, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key, made_up = KEYS["alice"], new_key()
    kept: dict[str, Any] = {"originals": True, "history": True, "artifacts": True, "record": tmp_path / "recordings"}
    app = await stage.start(auth="keys", keys=rows(), log_level="debug", **kept)
    replies = [each.reply for each in await stage.grow(app, session_of("alice"), ("Authorization", f"Bearer {key}"))]
    for header in (("x-narrows-key", made_up), ("api-key", key[:-1]), ("x-narrows-conversation", f"mine {key}")):
        refused = await stage.ask(app, session_of("alice")[:2], header, ("Authorization", ""))
        assert refused.status == 401
        replies.append(refused.reply + str(refused.headers).encode())
    await until_there(stage, app, "alice", "usage")
    async with stage.client.get(app.base_url.removesuffix("/v1") + "/metrics") as reply:
        replies.append(await reply.read())
    await app.close(0)
    printed = capfd.readouterr()
    files = [file.read_bytes() for file in files_below(tmp_path)]
    assert len(files) >= 2
    assert "alice" in printed.err
    everything = b"\n".join([*replies, *files, printed.err.encode(), printed.out.encode()])
    for secret in (key.encode(), made_up.encode()):
        for form in (secret, b64encode(secret).rstrip(b"="), secret.hex().encode(), secret[4:20]):
            assert form not in everything
    assert not [1 for received in stage.provider.requests if key in str(received.headers)]

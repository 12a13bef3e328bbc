"""What tools returned, kept in full: each output once, for whoever sent it, bounded, and gone with its conversation."""

import asyncio
import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import pytest

from policies.compact import compact
from proxy.addons.archive.texts import ArchiveMemory, Artifacts
from proxy.app import App
from proxy.identity.credential import owner_of
from proxy.memory import ARTIFACTS, Key, StoredText, StoreTrouble, TextKind, open_store
from proxy.memory.forgetting import ForgetRegistry
from proxy.memory.opening import StoreAccess
from proxy.telemetry import Telemetry
from tests.kit.apis import Api
from tests.kit.histories import TOOLS
from tests.kit.prefixes import ask
from tests.kit.redis_servers import soon
from tests.kit.stage import Stage, body_of, working
from tests.kit.visiting import BEHIND, NOBODY, Page, bearer, page

SESSION = working(4, 60)
OUTPUTS = [message["content"] for message in SESSION if message["role"] == "tool"]

pytestmark = pytest.mark.usefixtures("patient")


async def kept(stage: Stage, app: App, place: str, count: int, *headers: tuple[str, str]) -> Page:
    """The page, once so much of it has been written behind the requests."""
    found = await page(stage, app, place, *headers)
    for _ in range(1_000):
        if found.status == 200 and len(rows(found)) >= count:
            return found
        await asyncio.sleep(0.01)
        found = await page(stage, app, place, *headers)
    raise AssertionError(f"it was never written: {found.body[:500]!r}")


def rows(page: Page) -> Sequence[Any]:
    """The artifacts of a list, or the messages of a log that were sent: not the replies that nobody has returned."""
    if page.headers["Content-Type"] == "application/x-ndjson":
        lines = [json.loads(line) for line in page.body.splitlines()][1:]
        return [line for line in lines if line.get("returned", True)]
    found: Sequence[Any] = page.json["artifacts"]
    return found


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


async def test_m10_every_output_that_passes_is_kept_in_full_and_listed_once(stage: Stage) -> None:
    app = await stage.start(artifacts=True)
    last = (await stage.grow(app, SESSION, tools=TOOLS))[-1]
    name = last.headers["x-narrows-conversation"]
    unique = list(dict.fromkeys(OUTPUTS))
    found = rows(await kept(stage, app, f"conversations/{name}/artifacts", len(unique)))
    assert [row["digest"] for row in found] == list(map(digest, unique))
    for row, text in zip(found, unique, strict=True):
        place = SESSION[row["message"]["index"]]
        assert (row["characters"], place["content"]) == (len(text), text)
        assert row["first_seen"].endswith("Z")
        whole = await page(stage, app, f"artifacts/{row['digest']}")
        assert (whole.status, whole.body) == (200, text.encode())
        assert whole.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert (whole.headers["Cache-Control"], whole.headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    assert {row["tool"] for row in found} == {"bash"}  # what writing a file returns was said by a command before


async def test_m10_an_artifact_names_what_it_is_of_as_summaries_and_digests_do(stage: Stage) -> None:
    app = await stage.start(artifacts=True)
    name = (await stage.grow(app, SESSION, tools=TOOLS))[-1].headers["x-narrows-conversation"]
    found = rows(await kept(stage, app, f"conversations/{name}/artifacts", 4))
    conversation = compact(body_of(SESSION, tools=TOOLS)).conversation
    for row in found:
        message, said = row["message"], bytes.fromhex(row["text_digest"])
        assert conversation.messages[message["index"]].digest.hex().startswith(message["digest"])
        assert said in {block.text_digest for block in conversation.blocks if block.message == message["index"]}


async def test_what_is_sent_is_the_same_with_and_without(stage: Stage) -> None:
    off = await stage.grow(await stage.start(store="sqlite://"), SESSION, tools=TOOLS)
    on = await stage.grow(await stage.start(artifacts=True, history=True), SESSION, tools=TOOLS)
    assert [exchange.sent for exchange in on] == [exchange.sent for exchange in off]


async def test_t9_observed_outputs_pass_too_and_those_of_a_bypass_are_nobodys(stage: Stage) -> None:
    app = await stage.start(artifacts=True, mode="observe")
    watched = (await stage.grow(app, SESSION, tools=TOOLS))[-1].headers["x-narrows-conversation"]
    await kept(stage, app, f"conversations/{watched}/artifacts", 4)
    other = [{"role": "user", "content": "Another task."}, *SESSION[2:]]
    await stage.ask(app, other[:-1], ("x-narrows", "off"), ("x-narrows-conversation", "quiet"))
    await app.close()
    again = await stage.start(artifacts=True)
    assert (await page(stage, again, "conversations/quiet/artifacts")).status == 404


async def test_each_api_has_its_outputs_kept(stage: Stage, api: Api) -> None:
    app = await stage.start(artifacts=True)
    name = (await ask(stage, app, api, SESSION[:-1])).headers["x-narrows-conversation"]
    unique = list(map(digest, dict.fromkeys(OUTPUTS)))
    found = rows(await kept(stage, app, f"conversations/{name}/artifacts", len(unique)))
    assert [row["digest"] for row in found] == unique
    assert {row["tool"] for row in found} == {"bash"}  # what writing a file returns was said by a command before


async def test_x5_nobody_finds_out_what_another_has(stage: Stage) -> None:
    app = await stage.start(artifacts=True)
    mine, theirs = bearer("mine"), bearer("theirs")
    name = (await stage.grow(app, SESSION, *mine, tools=TOOLS))[-1].headers["x-narrows-conversation"]
    await kept(stage, app, f"conversations/{name}/artifacts", 4, *mine)
    known = f"artifacts/{digest(OUTPUTS[0])}"
    assert (await page(stage, app, known, *mine)).status == 200
    lists = [
        await page(stage, app, f"conversations/{name}/artifacts", *theirs),
        await page(stage, app, f"conversations/{name}/artifacts"),  # this machine is a tenant of its own
        await page(stage, app, "conversations/absent/artifacts", *mine),
    ]
    texts = [
        await page(stage, app, known, *theirs),
        await page(stage, app, known),
        await page(stage, app, f"{known}?conversation={name}", *theirs),
        await page(stage, app, f"{known}?conversation=other", *mine),
        *[await page(stage, app, f"artifacts/{bad}", *mine) for bad in ("0" * 64, "x", digest("never sent"), "%31/2")],
    ]
    for refusals in (lists, texts):
        assert {refusal.status for refusal in refusals} == {404}
        assert len({refusal.body for refusal in refusals}) == 1


async def test_x8_in_a_team_each_sees_its_own_and_the_admin_sees_all(stage: Stage) -> None:
    app = await stage.start(artifacts=True, tenant="team", admin_token="an admin's")
    name = (await stage.grow(app, SESSION, *bearer("mine"), tools=TOOLS))[-1].headers["x-narrows-conversation"]
    listed, known = f"conversations/{name}/artifacts", f"artifacts/{digest(OUTPUTS[0])}"
    admin = bearer("an admin's")
    await kept(stage, app, listed, 4, *admin)
    assert (await page(stage, app, f"{known}?conversation={name}", *admin)).body == OUTPUTS[0].encode()
    assert (await page(stage, app, known, *bearer("mine"))).body == OUTPUTS[0].encode()
    assert (await page(stage, app, known, *bearer("other"))).status == 404
    listings = [(place, who) for who in ("mine", "other") for place in (listed, f"{known}?conversation={name}")]
    seen = [(await page(stage, app, place, *bearer(who))).status for place, who in listings]
    assert seen == [200, 200, 404, 404]
    assert (await page(stage, app, known, BEHIND, NOBODY)).status == 403


async def test_x6_they_go_with_their_conversation_and_come_back_with_its_next_request(stage: Stage) -> None:
    app = await stage.start(artifacts=True)
    name = (await stage.grow(app, SESSION, tools=TOOLS))[-1].headers["x-narrows-conversation"]
    listed, known = f"conversations/{name}/artifacts", f"artifacts/{digest(OUTPUTS[0])}"
    count = len(rows(await kept(stage, app, listed, len(set(OUTPUTS)))))
    for status in (204, 404):
        assert (await page(stage, app, f"conversations/{name}", method="DELETE")).status == status
        assert [(await page(stage, app, place)).status for place in (listed, known)] == [404, 404]
    await stage.ask(app, SESSION[:-1], tools=TOOLS)
    assert len(rows(await kept(stage, app, listed, count))) == count
    assert (await page(stage, app, "conversations", method="DELETE")).json["deleted"] == 1
    assert (await page(stage, app, known)).status == 404


async def test_s1_after_a_restart_they_are_there_and_none_is_kept_twice(stage: Stage) -> None:
    app = await stage.start(artifacts=True)
    name = (await stage.grow(app, SESSION[:-4], tools=TOOLS))[-1].headers["x-narrows-conversation"]
    before = rows(await kept(stage, app, f"conversations/{name}/artifacts", 3))
    await app.close()
    again = await stage.start(artifacts=True)
    await stage.ask(again, SESSION[:-1], tools=TOOLS)
    after = rows(await kept(stage, again, f"conversations/{name}/artifacts", len(before) + 1))
    assert after[: len(before)] == before
    assert [row["digest"] for row in after] == list(map(digest, dict.fromkeys(OUTPUTS)))


async def test_the_pages_are_only_read_and_say_what_is_off(stage: Stage) -> None:
    app = await stage.start()
    for place, code in (
        ("artifacts/" + "0" * 64, "no_artifacts"),
        ("conversations/c/artifacts", "no_artifacts"),
        ("conversations/c/history", "no_history"),
    ):
        refused = await page(stage, app, place)
        assert (refused.status, refused.code) == (404, code)
        refused = await page(stage, app, place, method="POST")
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")
    quiet = await stage.start(mode="off", artifacts=True)
    assert (await page(stage, quiet, "artifacts/" + "0" * 64)).code == "no_conversations"


async def test_x6_a_tenant_keeps_no_more_than_its_limit(stage: Stage) -> None:
    app = await stage.start(artifacts=True, artifacts_limit=9_000)
    name = (await stage.grow(app, SESSION, tools=TOOLS))[-1].headers["x-narrows-conversation"]
    await app.close()
    store = open_store(f"sqlite:///{stage.path}", patience=10)
    await store.open()
    left = await store.list_texts(Key("local", name), ARTIFACTS)
    await store.close()
    assert [text.about["digest"] for text in left] == list(map(digest, dict.fromkeys(OUTPUTS)))[-len(left) :]
    assert 0 < sum(int(str(text.about["characters"])) for text in left) < 9_000


async def test_f_a_store_in_trouble_is_counted_and_said_and_reaches_no_request(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 0.0)
    for seconds in ("_CLOSING_SECONDS", "_LAST_SECONDS"):
        monkeypatch.setattr(f"proxy.memory.cached.{seconds}", 0.05)
    stage.path.write_bytes(b"This is not a database. " * 500)
    app = await stage.start(artifacts=True, history=True)
    exchanges = await stage.grow(app, SESSION, tools=TOOLS)
    assert {exchange.status for exchange in exchanges} == {200}
    for place in (f"artifacts/{'0' * 64}", "conversations/c/artifacts", "conversations/c/history", "conversations/c"):
        refused = await page(stage, app, place)
        assert (refused.status, refused.code) == (503, "store_trouble")
    metrics = app.telemetry.metrics.page()
    assert b'narrows_store_trouble_total{operation="artifacts"}' in metrics
    assert b'narrows_store_trouble_total{operation="history"}' in metrics


class _Faulty:
    """A store that fails so many times, and then keeps."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.kept: list[StoredText] = []

    async def put_texts(self, key: Key, kind: TextKind, texts: Sequence[StoredText], limit: int | None) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreTrouble("not now")
        self.kept += texts


def _artifacts(store: _Faulty, telemetry: Telemetry, secret: bytes = b"s") -> Artifacts:
    access = StoreAccess(store, telemetry, secret, lambda: 1.5, ForgetRegistry())  # type: ignore[arg-type]  # it needs no more of a store
    return Artifacts(access, ArchiveMemory(access.forgets), 2**30)


async def test_f_what_the_store_would_not_take_comes_with_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 0.0)
    store = _Faulty(2)
    artifacts, conversation = _artifacts(store, Telemetry("error")), compact(body_of(SESSION)).conversation
    artifacts.keep(Key("t", "c"), owner_of(b"s", "k"), conversation)
    await soon(lambda: not store.failures)
    for _ in range(3):
        artifacts.keep(Key("t", "c"), owner_of(b"s", "k"), conversation)
    await artifacts.queue.close()
    assert [text.text for text in store.kept] == list(dict.fromkeys(OUTPUTS))


async def test_x9_what_is_too_long_is_counted_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    most = max(map(len, OUTPUTS)) - 1
    monkeypatch.setattr("proxy.addons.archive.texts.LARGEST", most)
    store, telemetry = _Faulty(0), Telemetry("error")
    artifacts, conversation = _artifacts(store, telemetry), compact(body_of(SESSION)).conversation
    artifacts.keep(Key("t", "c"), "me", conversation)
    await artifacts.queue.close()
    assert [text.text for text in store.kept] == [text for text in dict.fromkeys(OUTPUTS) if len(text) <= most] != []
    assert b'narrows_store_trouble_total{operation="artifacts_large"} 1.0' in telemetry.metrics.page()


async def test_x5_names_in_the_store_are_keyed_by_secret_and_owner() -> None:
    one, other = (_artifacts(_Faulty(0), Telemetry("error"), secret) for secret in (b"s", b"z"))
    names = {one.name_of("a", digest("x")), one.name_of("b", digest("x")), other.name_of("a", digest("x"))}
    assert len(names) == 3
    assert quote(one.name_of("a", digest("x"))) not in (digest("x"), digest("x")[:32])

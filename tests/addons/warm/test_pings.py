"""Prompts that wait for a person or a tool are kept in the cache: what is sent, when, and what it comes to."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from multidict import CIMultiDict

from policies.money.catalog import prices_for
from policies.presets import PRESETS, Preset
from proxy.app import App
from proxy.config import Settings
from proxy.console.check import notices, summary
from proxy.console.serve import announce, greeting
from proxy.lab.provider import Say, Send
from proxy.memory import Key
from proxy.telemetry import Telemetry
from tests.addons.warm.scene import KEY, LIFETIME, MARK, MODEL, SECRET, TEXT, Scene, is_ping, outcomes, said, warm_of
from tests.kit.apis import APIS, plays, text_of, wants
from tests.kit.clocks import FastClock
from tests.kit.counted import counted
from tests.kit.histories import EAGER
from tests.kit.recalling import KEEPING, hiding
from tests.kit.redis_servers import Park, Server, soon
from tests.kit.running import compaction_of
from tests.kit.settings import settings_with
from tests.kit.stage import ends, working

HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}


def changed(asked: bytes) -> bytes:
    return asked.replace(b'"max_tokens": 9000', b'"max_tokens": 0').replace(b'"stream": true', b'"stream": false')


async def test_the_same_bytes_go_up_again_until_nobody_is_waited_for_any_more(scene: Scene) -> None:
    app = await scene.start()
    named = {"Idempotency-Key": "one", "X-Other": "other"}
    await scene.ask(app, stream=True, headers=named)
    (request,) = scene.stage.provider.requests
    start = scene.clock.now
    pings = await scene.wait(app, 3_600)
    assert len(pings) == 3, "after 270, 540 and 810 of 900 seconds"
    assert [each.body for each in pings] == [changed(request.body)] * 3
    assert [each.usage.cached for each in pings if each.usage] == [request.usage and request.usage.prompt] * 3
    assert [each.headers["Idempotency-Key"] for each in pings] == ["one-warm-1", "one-warm-2", "one-warm-3"]
    for each in pings:
        assert each.target == request.target
        assert without(each.headers) == without(request.headers)
    assert outcomes(app) == {"read": 3}
    assert not list(warm_of(app).waiting)
    assert scene.clock.now == start + 3_600


def without(headers: Any) -> CIMultiDict[str]:
    """Headers but for those that name the request, or describe its bytes."""
    apart = ("idempotency-key", "content-length", "accept-encoding")
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in apart)


async def test_whoever_returns_reads_what_was_kept_and_pays_for_the_pings(scene: Scene) -> None:
    app = await scene.start()
    await scene.ask(app)
    pings = await scene.wait(app, 800)
    await scene.ask(app, said(2))
    first, last = scene.stage.provider.requests[0], scene.stage.provider.requests[-1]
    assert first.usage is not None
    assert last.usage is not None
    assert last.usage.cached >= first.usage.prompt > 0
    prices = prices_for(MODEL, {})
    each = [prices.cost(ping.usage).total for ping in pings if ping.usage is not None]
    sums = app.telemetry.metrics.billed
    assert (sums.pings, sums.requests, len(each)) == (2, 2, 2)
    assert sums.ping_cost == pytest.approx(sum(each))
    assert sums.paid == pytest.approx(sum(each) + prices.cost(first.usage).total + prices.cost(last.usage).total)
    assert sums.saved == pytest.approx(sums.baseline - sums.paid)
    assert (sums.bridged, sums.expired, sums.pause_cost) == (1, 0, 0)
    assert sums.pause_saving > sums.ping_cost
    assert counted(app.telemetry, "cost_usd_total", kind="ping") == pytest.approx(sum(each))
    assert counted(app.telemetry, "cost_usd_total") == pytest.approx(sums.paid)
    store = app.services.store
    assert store is not None
    await app.close(0)
    again = await scene.start()
    assert again.services.store is not None
    key = Key("local", (await again.services.store.conversation_rows())[0].conversation)
    bills = await again.services.store.request_bills(key)
    assert [bill.mode for bill in bills] == ["untouched", "ping", "ping", "untouched"]
    (row,) = await again.services.store.conversation_rows()
    assert (row.sums.pings, row.sums.ping_cost) == (2, pytest.approx(sum(each)))


async def test_the_next_request_ends_what_was_due_and_begins_it_anew(scene: Scene) -> None:
    app = await scene.start()
    await scene.ask(app)
    assert not await scene.wait(app, 200)
    await scene.ask(app, said(2))
    assert not await scene.wait(app, 269)
    (ping,) = await scene.wait(app, 2)
    assert json.loads(ping.body)["messages"] == said(2)


async def test_in_responses_the_cache_is_prepared_without_an_answer(scene: Scene) -> None:
    app = await scene.start(keep_warm="2h")
    body = {"model": "gpt-6.1-sol", "stream": True, "input": [{"role": "user", "content": TEXT}]}
    await scene.post(app, "responses", body, {"Authorization": f"Bearer {KEY}"})
    pings = await scene.wait(app, 30 * 60)
    assert [each.violation for each in pings] == [None]
    assert pings[0].json == {**body, "prompt_cache_options": {"prewarm": True}, "store": False}
    assert pings[0].usage is not None
    assert (pings[0].usage.completion, pings[0].usage.cached) == (0, pings[0].usage.prompt)
    assert outcomes(app) == {"read": 1}


@pytest.mark.parametrize(("keep_warm", "fields"), [("299s", {}), ("59m", {"ttl": "1h"})])
async def test_a_longer_lifetime_than_anybody_is_waited_for_needs_none(
    scene: Scene, keep_warm: str, fields: dict[str, str]
) -> None:
    app = await scene.start(keep_warm=keep_warm)
    messages = said()
    messages[0]["content"][0]["cache_control"].update(fields)
    await scene.ask(app, messages)
    messages[0]["content"][0]["cache_control"].pop("ttl", None)
    assert not await scene.wait(app, 7_200)
    assert outcomes(app) == {}


async def test_while_a_tool_of_the_client_runs_the_prompt_is_kept_warm_too(scene: Scene) -> None:
    function = {"name": "bash", "arguments": "{}"}
    say = Say("Let me see.", [{"id": "c1", "type": "function", "function": function}])
    scene.stage.provider.answer = lambda received: None if is_ping(received) else say
    app = await scene.start()
    for stream in (True, False):
        await scene.ask(app, tools=[{"name": "bash", "input_schema": {"type": "object"}}], stream=stream)
        assert len(await scene.wait(app, 800)) == 2


async def test_where_nothing_is_asked_for_nothing_is_kept_warm(scene: Scene) -> None:
    app = await scene.start(keep_warm=0)
    await scene.ask(app)
    assert "warm" not in app.services.opened


@pytest.mark.parametrize("fields", [{"mode": "off"}, {"mode": "observe"}])
async def test_what_is_only_observed_is_not_kept_warm(scene: Scene, fields: dict[str, str]) -> None:
    app = await scene.start(rules=[{"path": "/v1/messages", **fields}])
    await scene.ask(app)
    assert not await scene.wait(app, 1_000)
    assert outcomes(app) == {}


async def test_after_a_recall_it_is_the_prompt_of_the_last_round_with_what_is_hidden(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "keeping", Preset(KEEPING))
    scene.stage.provider.answer = plays(wants("Let me look. "), Say("Seen."))
    app = await scene.start(preset="keeping", floor=0)
    asked = APIS["anthropic_messages"].body(hiding(), model=MODEL, max_tokens=9_000)
    reply = await scene.post(app, "messages", asked, HEADERS)
    assert [block["text"] for block in reply["content"]] == ["Let me look. ", "Seen."]
    first, last = scene.stage.provider.requests
    (ping,) = await scene.wait(app, 300)
    assert len(last.body) > len(first.body)
    assert ping.json == {**last.json, "max_tokens": 0}
    assert last.usage is not None
    assert ping.usage is not None
    assert ping.usage.cached == last.usage.cached + last.usage.written > 0


@pytest.mark.parametrize(("lifetime", "speed"), [(3.0, 0), (20.0, 40)], ids=["real", "fast"])
async def test_a_clock_that_runs_drives_itself(scene: Scene, lifetime: float, speed: float) -> None:
    clock = FastClock(time.time(), speed) if speed else time.time
    settings = Settings(
        upstream=scene.stage.upstream,
        port=0,
        store="sqlite://",
        keep_warm=3 * lifetime,
        cold_seconds=lifetime,
        log_level="error",
    )
    app = await scene.stage.stack.enter_async_context(await App.start(settings, clock=clock))
    await scene.ask(app)
    await soon(lambda: len(scene.stage.provider.requests) > 1)
    assert scene.stage.provider.requests[1].json["max_tokens"] == 0


def test_the_greeting_says_who_pays_and_what_the_odds_are() -> None:
    settings = settings_with(["--upstream", "http://127.0.0.1:9/v1", "--keep-warm", "15m"])
    words = " ".join(greeting(settings, "").split())
    assert "keep_warm: prompts that wait for a person or a tool are sent again for up to 15m while nobody asks" in words
    assert "clients' own API keys, for at most $5 a tenant and day; over 12 recorded sessions that was 3 %" in words
    assert "keep_warm:" not in greeting(settings_with(["--upstream", "http://127.0.0.1:9/v1"]), "")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "prompts that wait for a person or a tool are sent again for up to 15m"),
        ({"keep_warm_credential": "client-any"}, "with the clients' own credentials, for at most $5 a tenant and day"),
        ({"upstream": "https://api.openai.com/v1"}, "no ping will be sent: caches live 30m without any; name"),
        ({"upstream": "https://api.openai.com/v1", "cold_seconds": 600}, "are sent again for up to 15m"),
        ({"upstreams": [{"name": "a", "url": "https://host/v1", "apis": ["chat"]}]}, "no upstream speaks "),
        ({"mode": "observe"}, "no ping will be sent: the mode is observe"),
        ({"mode": "observe", "rules": [{"model": "x", "mode": "on"}]}, "are sent again for up to 15m"),
        ({"keep_warm_budget": 0}, "no ping will be sent: keep_warm_budget is 0"),
    ],
)
def test_check_and_the_log_say_for_whom_pings_are_sent_or_why_none(
    capsys: pytest.CaptureFixture[str], fields: dict[str, Any], sentence: str
) -> None:
    url = {} if "upstreams" in fields else {"upstream": "http://127.0.0.1:9/v1"}
    settings = Settings(**{"keep_warm": "15m", **url, **fields})
    (line,) = [line for line in summary(settings) if line.startswith("keep_warm: ")]
    assert sentence in line
    assert notices(settings) == {"keep_warm": line.removeprefix("keep_warm: ")}
    announce(settings, "http://127.0.0.1:1/v1", Telemetry("info", "json"))
    printed = capsys.readouterr()
    (logged,) = [entry for entry in map(json.loads, printed.err.splitlines()) if entry["event"] == "keep_warm"]
    assert (logged["says"], "keep_warm: " in printed.out) == (line.removeprefix("keep_warm: "), True)
    assert notices(settings.model_copy(update={"keep_warm": 0})) == {}


# --- where key and body are, and where they are not ---


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_no_store_and_no_line_of_the_log_has_key_or_body(
    scene: Scene, servers: Park, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    server = servers.server()
    store = f"sqlite:///{tmp_path}/s/narrows.db" if kind == "sqlite" else server.url
    (tmp_path / "s").mkdir()
    app = await scene.start(store=store, log_level="debug", log_format="json")
    await scene.ask(app)
    assert len(await scene.wait(app, 600)) == 2
    await scene.ask(app, key="sk-ant-oat01-of-a-subscription")
    await scene.wait(app, 600)
    scene.stage.provider.answer = lambda _: Send(400, json.dumps({"error": {"message": f"{KEY} {SECRET}"}}).encode())
    await scene.ask(app, said(2), status=400)
    await app.close(0)
    printed = capfd.readouterr()
    files = [file.read_bytes() for file in (tmp_path / "s").iterdir()]
    everything = b"\n".join([*files, dump_of(server), printed.err.encode(), printed.out.encode()])
    assert b"ping" in everything
    assert KEY.encode() not in everything
    assert SECRET.encode() not in everything
    assert KEY[8:20].encode() not in everything


def dump_of(server: Server) -> bytes:
    """All that a Redis holds."""
    types = {b"string": "GET", b"hash": "HGETALL", b"zset": "ZRANGE", b"set": "SMEMBERS", b"list": "LRANGE"}
    with redis.Redis(unix_socket_path=server.path, protocol=2) as client:
        held = []
        for key in client.scan_iter():
            command, ends = types[client.type(key)], (0, -1)
            more = ends if command in ("ZRANGE", "LRANGE") else ()
            held.append(repr((key, client.execute_command(command, key, *more))).encode())
    return b"\n".join(held)


# --- what is planned then: the cache is as old as the last ping ---


@pytest.mark.parametrize(("keep_warm", "prefix"), [(0, "checkpoint:cold"), ("15m", "checkpoint:paid")])
@pytest.mark.parametrize("who", ["itself", "a replica", "once it is packed"])
async def test_what_was_kept_warm_is_not_planned_as_cold(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, keep_warm: str | int, prefix: str, who: str
) -> None:
    monkeypatch.setitem(PRESETS, "eager", Preset(EAGER))
    monkeypatch.setattr("proxy.memory.cached._PATIENCE", 5.0)
    session = working(12)
    app = await scene.start(preset="eager", floor=0, keep_warm=keep_warm)
    *before, last = ends(session)
    api = APIS["anthropic_messages"]
    for end in before:
        body = api.body(session[:end], model=MODEL, max_tokens=9_000, **MARK)
        await scene.post(app, "messages", body, HEADERS)
    if who == "once it is packed":
        conversations = compaction_of(app).cached_store.conversations
        conversations._most_awake = 0
        await scene.ask(app, said(1, f"Else. {TEXT}"), key="sk-another")
        while conversations._packing is not None:
            await asyncio.wait([conversations._packing])
        assert len(conversations._resting.by_key) == 1
    if keep_warm:
        pings = await scene.wait(app, 800)
        assert len([each for each in pings if each.credential == KEY]) == 2
    else:
        scene.clock.now += 800
    if who == "a replica":
        await app.close(0)
        app = await scene.start(preset="eager", floor=0)
    before_sums = app.telemetry.metrics.billed
    await scene.post(app, "messages", api.body(session[:last], model=MODEL, max_tokens=9_000, **MARK), HEADERS)
    assert scene.headers["x-narrows-prefix"] == prefix
    sums = app.telemetry.metrics.billed
    baseline, by_rules = sums.baseline - before_sums.baseline, sums.by_rules - before_sums.by_rules
    if keep_warm:
        assert baseline == pytest.approx(by_rules), "with nothing done it would have been written anew"
    else:
        assert baseline == pytest.approx(by_rules, rel=0.05)


async def test_a_cache_that_was_kept_warm_does_not_look_like_one_that_lives_longer(scene: Scene) -> None:
    app = await scene.start()
    for number in range(1, 10):
        await scene.ask(app, said(number))
        assert await scene.wait(app, 400)
    await scene.ask(app, said(10))
    caches, (prompt,) = compaction_of(app).compactor.learned.caches, warm_of(app).waiting.values()
    assert caches.lifetime(MODEL, prompt.upstream, LIFETIME) == LIFETIME


async def test_what_looks_like_a_mark_in_metadata_makes_no_cache_live_longer(scene: Scene) -> None:
    app, longer = await scene.start(keep_warm="2h"), {"type": "ephemeral", "ttl": "1h"}
    await scene.ask(app, metadata={"user_id": "x", "cache_control": longer})
    assert [prompt.lifetime for prompt in warm_of(app).waiting.values()] == [LIFETIME]
    await scene.ask(app, [{"role": "user", "content": TEXT}], cache_control=longer, metadata={"user_id": "x"})
    assert [prompt.lifetime for prompt in warm_of(app).waiting.values()][-1] == 3_600, "where it is one"


async def test_marks_that_ask_for_an_hour_are_due_before_that_is_over(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policies.planning.step.affords", lambda *_, **__: True)
    app = await scene.start(keep_warm="2h", floor=0)
    lifetimes = []
    for turn in range(1, 9):
        await scene.ask(app, [{**message, "content": text_of(message)} for message in said(turn)])
        lifetimes += [prompt.lifetime for prompt in warm_of(app).waiting.values()]
        scene.clock.now += 600  # and nothing is sent meanwhile
    assert lifetimes[0] == 300
    assert lifetimes[-1] == 3_600, "the pauses would have paid for it"
    scene.clock.now -= 600
    assert [each.usage and each.usage.written for each in await scene.wait(app, 3_300)] == [0]

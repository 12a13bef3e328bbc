"""What is never pinged, each against a Narrows that would."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest

from proxy.addons.access.keys import digest_of, new_key
from proxy.addons.warm.addon import _weight
from proxy.addons.warm.waiting import begun
from proxy.app import App
from proxy.config import KeyRow
from proxy.lab.provider import Answer, Received, Say, Send, Wire
from proxy.memory import Purse, Store
from tests.addons.warm.scene import KEY, MODEL, TEXT, Scene, is_ping, outcomes, said, warm_of
from tests.kit.histories import Json
from tests.kit.redis_servers import Park

ALICE, BOB = new_key(), new_key()


def row_of(key: str, name: str = "alice", **limits: Any) -> dict[str, Any]:
    return {"name": name, "sha256": digest_of(key), **limits}


def store_of(app: App) -> Store:
    assert app.services.store is not None
    return app.services.store


async def never(scene: Scene, app: App, reason: str, seconds: float = 1_000) -> None:
    """Time passes, and none is sent."""
    assert not await scene.wait(app, seconds)
    assert outcomes(app) == ({f"skipped:{reason}": 1} if reason else {})
    assert not list(warm_of(app).waiting)


# --- by what is asked for ---


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "hosted_tools"),
        ({"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}, "hosted_tools"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1_024}}, "form"),
        ({"service_tier": "priority"}, "tier"),
    ],
    ids=str,
)
async def test_by_what_anthropic_is_asked_for(scene: Scene, fields: Json, reason: str) -> None:
    app = await scene.start()
    await scene.ask(app, **fields)
    await never(scene, app, reason)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": [{"type": "web_search"}]}, "hosted_tools"),
        ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "https://x"}]}, "hosted_tools"),
        ({"conversation": "conv_1"}, ""),  # its history is not in it, so that it is relayed as it is
        ({"background": True}, "stored"),
        ({"service_tier": "flex"}, "tier"),
        ({"model": "gpt-5.4"}, ""),  # its cache lives for a day
    ],
    ids=str,
)
async def test_by_what_responses_are_asked_for(scene: Scene, fields: Json, reason: str) -> None:
    app = await scene.start(keep_warm="2h")
    body = {"model": "gpt-6.1-sol", "input": [{"role": "user", "content": TEXT}], "store": False, **fields}
    await scene.post(app, "responses", body, {"Authorization": f"Bearer {KEY}"})
    await never(scene, app, reason, 7_000)


async def test_a_continued_response(scene: Scene) -> None:
    app = await scene.start(keep_warm="2h")
    head, body = {"Authorization": f"Bearer {KEY}"}, {"model": "gpt-6.1-sol", "input": TEXT, "store": True}
    first = await scene.post(app, "responses", body, head)
    await scene.post(app, "responses", {**body, "input": "And?", "previous_response_id": first["id"]}, head)
    assert [each.json for each in await scene.wait(app, 7_000) if "And?" in str(each.json)] == []


@pytest.mark.parametrize("more", [{"n": 2}, {}])
async def test_chat_completions_and_several_choices(scene: Scene, more: Json) -> None:
    app = await scene.start(keep_warm="2h")
    body = {"model": "gpt-6.1-sol", "messages": [{"role": "user", "content": f"{more} {TEXT}"}], **more}
    await scene.post(app, "chat/completions", body, {"Authorization": f"Bearer {KEY}"})
    await never(scene, app, "form", 7_000)


async def test_bodies_that_are_large(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.addons.warm.addon._LARGEST_BODY", len(TEXT))
    app = await scene.start()
    await scene.ask(app)
    await never(scene, app, "large")


async def test_what_is_not_cached(scene: Scene) -> None:
    app = await scene.start(own_marks="never")
    await scene.ask(app, [{"role": "user", "content": TEXT}])
    await never(scene, app, "uncached")


# --- by who asks ---


@pytest.mark.parametrize("key", ["sk-ant-oat01-of-a-subscription", "eyJ.a.b"])
async def test_a_credential_that_is_no_plain_key(scene: Scene, key: str) -> None:
    app = await scene.start()
    await scene.ask(app, key=key)
    await never(scene, app, "credential")
    allowed = await scene.start(keep_warm_credential="client-any", store="sqlite://")
    await scene.ask(allowed, key=key)
    assert len(await scene.wait(allowed, 300)) == 1


async def test_a_revoked_key_and_what_it_has_asked_is_forgotten_at_once(scene: Scene) -> None:
    app = await scene.start(auth="both")
    store, registry = store_of(app), app.services.opened["access"]._registry
    await store.add_key(KeyRow.model_validate(row_of(ALICE)))
    await scene.ask(app, headers={"x-narrows-key": ALICE})
    assert len(await scene.wait(app, 300)) == 1
    await store.delete_key("alice")
    await registry._refresh()
    warm = warm_of(app)
    assert list(warm.waiting)
    assert not warm.begin_due(scene.clock())
    assert not list(warm.waiting)
    assert outcomes(app) == {"read": 1, "skipped:key": 1}


async def test_an_expired_key(scene: Scene) -> None:
    from datetime import UTC, datetime

    app = await scene.start(auth="both", keys=[row_of(ALICE, expires=datetime(2100, 1, 1, tzinfo=UTC))])
    await scene.ask(app, headers={"x-narrows-key": ALICE})
    app.services.opened["access"]._clock = lambda: datetime(2101, 1, 1, tzinfo=UTC)
    await never(scene, app, "key")


@pytest.mark.parametrize(
    ("limits", "pings"),
    [
        ({"rpm": 2}, 0),
        ({"rpm": 3}, 1),
        ({"rpm": 9}, 3),
        ({"tpm": 1_800}, 0),
        ({"tpm": 3_000}, 1),
        ({"tpm": 90_000}, 3),
        ({"usd_per_day": 0.009}, 0),
        ({"usd_per_day": 0.0097}, 1),
        ({"usd_per_day": 1.0}, 3),
        ({"concurrency": 1}, 3),
    ],
    ids=str,
)
async def test_a_key_that_has_used_most_of_a_limit_and_each_ping_counts(
    scene: Scene, limits: dict[str, float], pings: int
) -> None:
    app = await scene.start(auth="both", keys=[row_of(ALICE, **limits)])
    await scene.ask(app, headers={"x-narrows-key": ALICE})
    assert len(await scene.wait(app, 900)) == pings
    skipped = {} if pings == 3 else {"skipped:limits": 1.0}
    assert outcomes(app) == ({"read": pings} if pings else {}) | skipped
    (key,) = app.settings.keys
    counts = app.services.opened["limits"].limits.counts
    use = counts.windows.admit(key.name, key.rpm, key.tpm, is_wanted=False)
    if "rpm" in limits:
        assert use.requests == 1 + pings
    if "tpm" in limits:
        assert use.tokens == 1_513 + 1_510 * pings
    if "usd_per_day" in limits:
        assert counts.spent[key.name][1] == pytest.approx(app.telemetry.metrics.billed.paid)
    assert not counts.running


async def test_what_a_ping_finds_of_a_limit_refuses_no_request_and_costs_nothing(scene: Scene) -> None:
    row = row_of(ALICE, usd_per_day=0.0095, rpm=10, tpm=90_000)
    app = await scene.start(auth="both", keys=[row], keep_warm_budget=1.0)
    await scene.ask(app, headers={"x-narrows-key": ALICE})
    limits = app.services.opened["limits"].limits
    before = dict(limits.counts.budgets)
    await never(scene, app, "limits")
    assert (limits.counts.budgets, limits.counts.refusals) == (before, {})
    day = time.strftime("%Y-%m-%d", time.gmtime(scene.clock.now))
    assert await store_of(app).take(Purse("alice", day=f"{day} pings"), 1.0, 1.0), (
        "what it would have cost is given back"
    )
    await scene.ask(app, said(2), headers={"x-narrows-key": ALICE})


async def test_a_key_in_flight_on_another_request(scene: Scene) -> None:
    app = await scene.start(auth="both", keys=[row_of(ALICE, concurrency=1)])
    head = {"x-narrows-key": ALICE}
    await scene.ask(app, headers=head)
    gate = asyncio.Event()
    scene.stage.provider.answer = lambda received: None if is_ping(received) else Say("Hm.", wire=Wire(gate=gate.wait))
    asking = asyncio.create_task(scene.ask(app, said(1, f"Another. {TEXT}"), headers=head, system="Else."))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        while len(scene.stage.provider.requests) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await never_sent(scene, app)
    assert outcomes(app) == {"skipped:limits": 1}
    gate.set()
    await asking


async def never_sent(scene: Scene, app: App) -> None:
    await scene.wait(app, 300)
    assert not [each for each in scene.stage.provider.requests if is_ping(each)]


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_after_an_error_of_the_upstream_for_this_credential(scene: Scene, status: int) -> None:
    app = await scene.start()
    await scene.ask(app)
    await scene.ask(app, said(1, f"Another's. {TEXT}"), key="sk-another", system="Of another.")
    scene.stage.provider.answer = lambda _: Send(status, b'{"error":{"message":"no"}}')
    await scene.ask(app, said(1, "Hm?"), status=status, system="Else.")
    scene.stage.provider.answer = None
    (ping,) = await scene.wait(app, 300)
    assert ping.credential == "sk-another"
    assert outcomes(app) == {"read": 1, "skipped:upstream": 1}


async def test_a_credential_that_another_conversation_shows_to_be_limited(scene: Scene) -> None:
    app = await scene.start()
    await scene.ask(app)
    states, (prompt,) = app.services.admission.states, warm_of(app).waiting.values()
    states.note(prompt.labels.owner, 429, 3_600.0, prompt.upstream)
    await never(scene, app, "upstream")


@pytest.mark.parametrize(("status", "outcome"), [(429, "refused"), (401, "refused"), (503, "failed"), (400, "refused")])
async def test_after_an_error_of_a_ping_none_of_this_credential(scene: Scene, status: int, outcome: str) -> None:
    def answer(received: Received) -> Answer | None:
        return Send(status, b'{"error":{"message":"no"}}') if is_ping(received) else None

    scene.stage.provider.answer = answer
    app = await scene.start()
    await scene.ask(app, system="One.")
    scene.clock.now += 10
    await scene.ask(app, said(1, f"Else. {TEXT}"), system="Two.")
    assert len(list(warm_of(app).waiting)) == 2
    assert len(await scene.wait(app, 900)) == 1
    assert outcomes(app) == {outcome: 1, "skipped:upstream": 1}
    assert not list(warm_of(app).waiting)
    await scene.ask(app, system="Three.")
    lasting = status in (429, 400)  # the others say nothing once the client is accepted again
    assert len(await scene.wait(app, 900)) == (0 if lasting else 1)
    scene.stage.provider.answer = None
    await scene.ask(app, said(1, f"Another's. {TEXT}"), key="sk-another")
    assert len(await scene.wait(app, 300)) == 1, "of another client"
    assert app.telemetry.metrics.billed.pings == 1


async def test_where_the_upstream_breaks_off(scene: Scene) -> None:
    def answer(received: Received) -> Answer | None:
        return Send(200, b'{"usage":', wire=Wire(die_at=4)) if is_ping(received) else None

    scene.stage.provider.answer = answer
    app = await scene.start()
    await scene.ask(app)
    assert len(await scene.wait(app, 900)) == 1
    assert outcomes(app) == {"failed": 1}
    assert app.telemetry.metrics.billed.estimated == 1, "it may have been read all the same"


# --- by what else happens ---


async def test_while_the_next_request_runs(scene: Scene) -> None:
    gate = asyncio.Event()
    app = await scene.start()
    await scene.ask(app)
    scene.stage.provider.answer = lambda _: Say("Hm.", wire=Wire(gate=gate.wait))
    asking = asyncio.create_task(scene.ask(app, said(2)))
    async with asyncio.timeout(5):
        while len(scene.stage.provider.requests) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    scene.stage.provider.answer = None
    await never_sent(scene, app)
    gate.set()
    await asking
    assert outcomes(app) == {}


@pytest.mark.parametrize("everything", [False, True])
async def test_after_a_deletion(scene: Scene, everything: bool) -> None:
    app = await scene.start()
    await scene.ask(app)
    (prompt,) = warm_of(app).waiting.values()
    url = f"{app.base_url.removesuffix('/v1')}/narrows/conversations"
    parameters = {} if everything else {"id": prompt.key.conversation}
    async with scene.stage.client.delete(url, params=parameters, headers={"x-api-key": KEY}) as reply:
        assert reply.status in (200, 204)
    assert not list(warm_of(app).waiting)
    assert not await scene.wait(app, 1_000)


async def test_a_ping_in_flight_ends_with_its_conversation_and_is_not_billed_to_it(scene: Scene) -> None:
    gate = asyncio.Event()

    def answer(received: Received) -> Answer | None:
        return Say("Hm.", wire=Wire(gate=gate.wait)) if is_ping(received) else None

    scene.stage.provider.answer = answer
    app = await scene.start()
    await scene.ask(app)
    (prompt,) = warm_of(app).waiting.values()
    scene.clock.now = prompt.due
    running = asyncio.create_task(warm_of(app).run_due(prompt.due))
    async with asyncio.timeout(5):
        while len(scene.stage.provider.requests) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    app.services.forgets.forget(prompt.key.tenant, prompt.key.conversation)
    async with asyncio.timeout(5):
        await running
    gate.set()
    assert not list(warm_of(app).waiting)
    assert app.telemetry.metrics.billed.pings == 0


async def test_another_conversation_with_the_same_instructions(scene: Scene) -> None:
    app = await scene.start()
    await scene.ask(app, system="The same.")
    await scene.ask(app, said(1, f"Else. {TEXT}"), system="Others.")
    await scene.ask(app, said(1, f"Anew. {TEXT}"), system="The same.")
    await scene.ask(app, said(1, f"Another's. {TEXT}"), system="The same.", key="sk-another")
    pings = await scene.wait(app, 300)
    assert sorted(each.json["system"] for each in pings) == ["Others.", "The same.", "The same."]
    assert not [each for each in pings if each.json["messages"] == said()]
    assert outcomes(app) == {"read": 3, "skipped:begun": 1}
    await scene.ask(app, said(2), system="The same.")
    assert len([each for each in await scene.wait(app, 280) if each.json["messages"] == said(2)]) == 1, "it has moved"


async def test_another_conversation_that_another_replica_has_begun(scene: Scene, redis_url: str) -> None:
    store = f"{redis_url}?prefix={uuid4().hex}"
    one, other = await scene.start(store=store), await scene.start(store=store)
    await scene.ask(one, system="The same.")
    await scene.ask(one, said(1, f"Apart. {TEXT}"), system="Others.")
    scene.clock.now += 5
    await scene.ask(other, said(1, f"Anew. {TEXT}"), system="The same.")
    await scene.ask(other, said(1, f"Another's. {TEXT}"), system="Others.", key="sk-another")
    await until_stored(other)
    assert [each.json["system"] for each in await scene.wait(one, 268)] == ["Others."]
    assert outcomes(one) == {"skipped:begun": 1, "read": 1}
    (ping,) = [each for each in await scene.wait(other, 10) if each.credential == KEY]
    assert ping.json["messages"] == said(1, f"Anew. {TEXT}"), "the one begun last"


async def until_stored(app: App) -> None:
    """Until all replicas can know what was begun."""
    for prompt in list(warm_of(app).waiting.values()):
        expected = begun(prompt.key, 0.0).sent
        async with asyncio.timeout(5):
            while (step := await store_of(app).newest_step(prompt.beginning)) is None or step.sent != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_conversation_that_moves_after_another_replica_has_begun_one(scene: Scene, redis_url: str) -> None:
    store = f"{redis_url}?prefix={uuid4().hex}"
    one, other = await scene.start(store=store), await scene.start(store=store)
    await scene.ask(one, system="The same.")
    scene.clock.now += 5
    await scene.ask(other, said(1, f"Anew. {TEXT}"), system="The same.")
    scene.clock.now += 5
    await until_stored(other)
    await scene.ask(one, said(2), system="The same.")
    assert len(await scene.wait(one, 280)) == 1
    assert outcomes(one) == {"read": 1}


async def test_many_conversations_of_one_client(scene: Scene) -> None:
    app = await scene.start()
    for number in range(60):
        await scene.ask(app, said(1, f"{number}. {TEXT}"), system="The same.")
    (ping,) = await scene.wait(app, 300)
    assert ping.json["messages"] == said(1, f"59. {TEXT}"), "the one that the client has not left"


async def test_a_body_that_changes_under_the_same_id(scene: Scene) -> None:
    app = await scene.start()
    for number in range(9):
        named = {"x-narrows-conversation": "mine"}
        await scene.ask(app, said(1, f"{number}. {TEXT}"), system=f"Number {number}.", headers=named)
        scene.clock.now += 20
    (ping,) = await scene.wait(app, 280)
    assert ping.json["messages"] == said(1, f"8. {TEXT}"), "no former one"


async def test_what_waits_is_bounded_in_number_and_the_oldest_go(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.addons.warm.addon._MOST", 3)
    app = await scene.start()
    for number in range(5):
        await scene.ask(app, said(1, f"{number}. {TEXT}"), system=f"Number {number}.")
    assert [b"Number 2" in each.body for each in warm_of(app).waiting.values()] == [True, False, False]
    assert outcomes(app) == {"skipped:crowded": 2}
    assert {each.json["system"] for each in await scene.wait(app, 300)} == {"Number 2.", "Number 3.", "Number 4."}
    assert outcomes(app) == {"skipped:crowded": 2, "read": 3}, "one that was sent makes room for itself"


async def test_what_waits_is_bounded_in_bytes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    app = await scene.start()
    await scene.ask(app, system="Number 0.")
    (prompt,) = warm_of(app).waiting.values()
    monkeypatch.setattr("proxy.addons.warm.addon._MOST_BYTES", 2 * len(prompt.body) + 50)
    app = await scene.start(store="sqlite://")
    for number in (0, 1):
        await scene.ask(app, said(1, f"{number}. {TEXT}"), system=f"Number {number}.")
    assert len(warm_of(app).waiting) == 2
    await scene.ask(app, said(2, f"1. {TEXT}"), system="Number 1.")
    assert [b"Number 1" in each.body for each in warm_of(app).waiting.values()] == [True]
    assert outcomes(app) == {"skipped:crowded": 1}
    assert _weight(prompt) == len(prompt.body)


async def test_where_another_replica_has_served_the_next_request(scene: Scene) -> None:
    one, other = await scene.start(), await scene.start()
    await scene.ask(one)
    scene.clock.now += 100
    await scene.ask(other, said(2))
    await other.close(0)
    assert not await scene.wait(one, 1_000)
    assert outcomes(one) == {"skipped:moved": 1}


async def test_two_narrows_on_one_redis_ping_once(scene: Scene, redis_url: str) -> None:
    store = f"{redis_url}?prefix={uuid4().hex}"
    one, other = await scene.start(store=store), await scene.start(store=store)
    for app in (one, other):
        await scene.ask(app)  # a client that has missed its reply asks again
    due = warm_of(one).next_due()
    assert due == warm_of(other).next_due()
    assert due is not None
    scene.clock.now = due
    await asyncio.gather(*(warm_of(app).run_due(due) for app in (one, other)))
    assert len([each for each in scene.stage.provider.requests if is_ping(each)]) == 1
    assert outcomes(one) | outcomes(other) == {"read": 1, "skipped:lease": 1}


async def test_while_another_holds_the_lease(scene: Scene) -> None:
    app = await scene.start()
    await scene.ask(app)
    (prompt,) = warm_of(app).waiting.values()
    assert await store_of(app).lease(prompt.key, "warm", 60) is not None
    await never(scene, app, "lease")


async def test_while_the_store_is_away(scene: Scene, servers: Park) -> None:
    server = servers.server()
    app = await scene.start(store=server.url)
    await scene.ask(app)
    server.kill()
    await never(scene, app, "store")


async def test_beyond_the_budget_of_a_tenant_and_day(scene: Scene) -> None:
    app = await scene.start(keep_warm_budget=0.0125)
    await scene.ask(app)
    assert len(await scene.wait(app, 900)) == 1
    assert outcomes(app) == {"read": 1, "skipped:budget": 1}
    assert app.telemetry.metrics.billed.ping_cost == pytest.approx(1_510 * 0.05 * 4 / 1e6)
    day = time.strftime("%Y-%m-%d", time.gmtime(scene.clock.now))
    assert await store_of(app).take(Purse("local", day=day), 1.0, 1.0), "summaries have a budget of their own"
    await scene.wait(app, 86_400)
    await scene.ask(app)
    assert len(await scene.wait(app, 300)) == 1, "on another day"


async def test_once_the_cache_has_expired(scene: Scene) -> None:
    app = await scene.start()
    await scene.ask(app)
    scene.clock.now += 301
    await never(scene, app, "late")


async def test_the_first_that_is_written_ends_them_for_its_model(
    scene: Scene, capfd: pytest.CaptureFixture[str]
) -> None:
    """The provider keeps the prompt for five minutes, where Narrows is to believe in ten."""
    app = await scene.start(cold_seconds=600, log_level="warning", log_format="json")
    await scene.ask(app)
    (ping,) = await scene.wait(app, 590)
    assert ping.usage is not None
    assert (ping.usage.cached, ping.usage.written) == (0, 1_510)
    await scene.ask(app)
    await never_again(scene, app)
    assert outcomes(app) == {"written": 1, "skipped:ended": 1}
    await scene.ask(app, model="claude-fable-5-2")
    assert len(await scene.wait(app, 590)) == 1, "of another model"
    assert app.telemetry.metrics.billed.ping_cost > 1_510 * 1.25 * 4 / 1e6
    await app.reload(app.settings.model_copy(update={"keep_warm_budget": 4.0}))
    await scene.ask(app)
    assert not await scene.wait(app, 590), "a reload is no new start"
    await app.close(0)
    lines = [line for line in capfd.readouterr().err.splitlines() if "keep_warm_ended" in line]
    assert len(lines) == 2
    assert f'"model":"{MODEL}"' in lines[0].replace(": ", ":")
    again = await scene.start()
    await scene.ask(again)
    assert len(await scene.wait(again, 300)) == 1, "after a new start"


async def never_again(scene: Scene, app: App) -> None:
    before = len([each for each in scene.stage.provider.requests if is_ping(each)])
    await scene.wait(app, 1_000)
    assert len([each for each in scene.stage.provider.requests if is_ping(each)]) == before


# --- what is held is let go of ---


async def leave_by_closing(scene: Scene, app: App) -> None:
    await app.close(0)


async def leave_by_sigterm(scene: Scene, app: App) -> None:
    await app.drain(0)


async def leave_by_reload(scene: Scene, app: App) -> None:
    await app.reload(app.settings.model_copy(update={"keep_warm_budget": 4.0}))


@pytest.mark.parametrize("leave", [leave_by_closing, leave_by_sigterm, leave_by_reload])
async def test_key_and_body_are_forgotten(scene: Scene, leave: Callable[[Scene, App], Any]) -> None:
    app = await scene.start()
    await scene.ask(app)
    warm = warm_of(app)
    assert list(warm.waiting)
    await leave(scene, app)
    assert not list(warm.waiting)
    assert warm.next_due() is None
    scene.clock.now += 280
    await warm.run_due(scene.clock.now)
    assert not [each for each in scene.stage.provider.requests if is_ping(each)]


async def test_what_ends_after_a_reload_is_not_kept_by_the_one_before(scene: Scene) -> None:
    gate = asyncio.Event()
    scene.stage.provider.answer = lambda _: Say("Hm.", wire=Wire(gate=gate.wait))
    app = await scene.start()
    warm, asking = warm_of(app), asyncio.create_task(scene.ask(app))
    async with asyncio.timeout(5):
        while not scene.stage.provider.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await leave_by_reload(scene, app)
    gate.set()
    await asking
    assert not list(warm.waiting)


# --- what happens while a request, or a ping, is on its way ---


async def test_what_is_deleted_while_its_next_request_is_on_its_way(scene: Scene) -> None:
    app = await scene.start()
    await scene.ask(app)
    gate, arrived = asyncio.Event(), asyncio.Event()

    def answer(received: Received) -> Say:
        arrived.set()
        return Say("Hm.", wire=Wire(gate=gate.wait))

    scene.stage.provider.answer = answer
    asking = asyncio.create_task(scene.ask(app, said(2)))
    await arrived.wait()
    app.services.forgets.forget("local", next(iter(warm_of(app)._running.values())).conversation)
    gate.set()
    await asking
    scene.stage.provider.answer = None
    assert not list(warm_of(app).waiting)
    assert not await scene.wait(app, 1_000)


async def test_whose_client_returns_or_whose_key_is_refused_while_the_store_is_asked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await scene.start()
    await scene.ask(app)
    warm, store = warm_of(app), app.services.store
    assert store is not None
    take = store.take

    async def slow(*arguments: Any) -> bool:
        warm.waiting.clear()
        return await take(*arguments)

    monkeypatch.setattr(warm.pings._store, "take", slow)
    assert not await scene.wait(app, 300)
    assert outcomes(app) == {"skipped:moved": 1}


async def test_a_clock_that_was_set_back(scene: Scene) -> None:
    app = await scene.start()
    await scene.ask(app)
    scene.clock.now -= 100
    await never(scene, app, "clock", 50)


async def test_an_upstream_that_answers_a_ping_at_length(scene: Scene) -> None:
    app = await scene.start()
    await scene.ask(app)
    usage = {"input_tokens": 0, "cache_read_input_tokens": 1_584, "output_tokens": 500}
    body = json.dumps({"type": "message", "role": "assistant", "content": [], "usage": usage}).encode()
    scene.stage.provider.answer = lambda received: Send(200, body) if is_ping(received) else None
    assert len(await scene.wait(app, 1_000)) == 1
    assert outcomes(app) == {"answered": 1}


@pytest.mark.parametrize("item", ["message", "function_call"])
async def test_an_upstream_that_drops_prewarm_is_cut_off_as_its_answer_begins(scene: Scene, item: str) -> None:
    """Its answer would never end."""
    events = [{"type": "response.created"}, {"type": "response.output_item.added", "item": {"type": item}}]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    is_closed, head = asyncio.Event(), {"Authorization": f"Bearer {KEY}"}

    async def endless() -> AsyncIterator[bytes]:
        try:
            yield text
            await asyncio.Event().wait()
        finally:
            is_closed.set()

    def answer(received: Received) -> Answer | None:
        is_prewarm = received.json and "prewarm" in str(received.json)
        return Send(200, endless(), (("Content-Type", "text/event-stream"),)) if is_prewarm else None

    scene.stage.provider.answer = answer
    app = await scene.start(keep_warm="2h")
    body = {"model": "gpt-6.1-sol", "stream": True, "input": [{"role": "user", "content": TEXT}]}
    await scene.post(app, "responses", body, head)
    async with asyncio.timeout(20):  # well before a ping that hangs is given up
        assert len(await scene.wait(app, 30 * 60)) == 1
        await is_closed.wait()
    assert outcomes(app) == {"answered": 1}
    sums = app.telemetry.metrics.billed
    assert (sums.pings, sums.estimated, sums.ping_cost > 0) == (1, 1, True)
    await scene.post(app, "responses", body, head)
    assert not await scene.wait(app, 30 * 60)
    assert outcomes(app) == {"answered": 1, "skipped:ended": 1}


async def test_pings_that_are_sent_at_once_do_not_pass_the_budget_where_each_is_written(scene: Scene) -> None:
    budget = 0.03
    app = await scene.start(keep_warm_budget=budget, cold_seconds=600)
    for number in range(8):
        await scene.ask(app, said(1, f"{number}. {TEXT}"), system=f"Number {number}.")
    pings = await scene.wait(app, 590)  # the provider has kept none for so long
    assert 0 < len(pings) < 8
    assert all(each.usage and each.usage.written for each in pings)
    assert 0 < app.telemetry.metrics.billed.ping_cost <= budget


async def test_conversations_that_a_client_takes_up_again_one_after_the_other(scene: Scene) -> None:
    app = await scene.start()
    for number in range(3):
        await scene.ask(app, [*said(2)[:-1], {"role": "user", "content": f"{number} {TEXT}"}])
    assert len(list(warm_of(app).waiting)) == 1

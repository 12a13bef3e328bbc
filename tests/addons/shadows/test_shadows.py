"""Live agreement: sampled requests are asked again with the configured key, counted, paid within a budget, and end with
their conversation."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.tools import RECALL
from proxy.addons.shadows.addon import Shadows
from proxy.app import App
from proxy.config import ConfigurationError
from proxy.console.serve import greeting
from proxy.lab.provider import Answer, Received, Say, Send
from proxy.memory import open_store
from tests.kit.apis import APIS
from tests.kit.recalling import recall
from tests.kit.settings import settings_with
from tests.kit.stage import Exchange, Stage, ends, staged, working

SECRET = "sk-shadow"
SESSION = working(12)
FIRST, *_, LAST = ENDS = ends(SESSION)[::3]
HELD_OUT = "secret"
"""With this tenant_secret the session is in the holdout."""


def bash(command: str) -> Say:
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return Say(calls=[{"id": "c1", "type": "function", "function": function}])


def is_shadow(received: Received) -> bool:
    return received.credential == SECRET


@asynccontextmanager
async def sampling(
    path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Received], Answer | None] | None, **settings: Any
) -> AsyncIterator[tuple[Stage, App]]:
    monkeypatch.setenv("SHADOW_KEY", SECRET)
    async with staged(path, answer=answer) as stage:
        chosen = {"agree_share": 1.0, "agree_key_env": "SHADOW_KEY", **settings}
        yield stage, await stage.start(**chosen)


async def settled(app: App) -> None:
    """Once nothing is asked in the background any more."""
    shadows = app.services.opened["shadows"]
    assert isinstance(shadows, Shadows)
    while shadows.running:  # noqa: ASYNC110 - a request whose reply is here may still be recorded
        await asyncio.sleep(0.005)


async def grow(stage: Stage, app: App, **fields: Any) -> list[Exchange]:
    """Every third request of the session, each with its shadows before the next one."""
    exchanges = []
    for end in ENDS:
        client = len(stage.provider.requests)
        exchange = await stage.ask(app, SESSION[:end], **fields)
        await settled(app)
        exchanges.append(replace(exchange, sent=stage.provider.requests[client].body))
    return exchanges


def counts(app: App, name: str) -> dict[tuple[str, ...], float]:
    families = {family.name: family for family in app.telemetry.metrics.collect()}
    samples = families[f"narrows_{name}"].samples
    return {tuple(each.labels.values()): each.value for each in samples if each.value}


async def test_what_narrows_hides_and_the_model_needs_is_counted_and_nobody_sees_the_shadows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(received: Received) -> Say:
        """Does what it does by whether it still sees the first output."""
        return bash("pytest") if "src/file_0_39.py" in json.dumps(received.json) else bash("ls")

    async with sampling(tmp_path / "db", monkeypatch, answer) as (stage, app):
        exchanges = await grow(stage, app, stream=True, stream_options={"include_usage": True})
        received = list(stage.provider.requests)
        clients = [each for each in received if not is_shadow(each)]
        shadows = [each for each in received if is_shadow(each)]
        assert len(clients) == len(exchanges)
        assert shadows
        given = [exchange.given for exchange in exchanges if exchange.mode == "compacted"]
        assert [each.body for each in shadows] == [body for body in given for _ in range(2)]
        assert not any("x-narrows" in name.lower() or name == "Cookie" for each in shadows for name in each.headers)
        assert counts(app, "shadows") == {("compared",): len(given)}
        agreements = counts(app, "agreements")
        assert agreements["itself", "same"] == len(given)
        assert agreements["narrows", "different"] > 0
        billed = sum(stage_price(each) for each in shadows)
        assert counts(app, "shadow_cost_usd")[()] == pytest.approx(billed)
        await stage.stack.aclose()
    store = open_store(f"sqlite:///{tmp_path / 'db'}", patience=5.0)
    await store.open()
    events = [event for _, event in await store.events(None, None, 1_000) if event.name == "agreement"]
    await store.close()
    assert len(events) == len(given)
    assert {event.details["noise"] for event in events} == {"same"}
    assert "pytest" not in json.dumps([event.details for event in events])


def stage_price(received: Received) -> float:
    from policies.money.catalog import prices_for
    from tests.kit.stage import MODELS

    assert received.usage is not None
    return prices_for("m", MODELS).cost(received.usage).total


@pytest.mark.parametrize("settings", [{"mode": "observe"}, {"holdout": 0.5, "tenant_secret": HELD_OUT}])
async def test_a_request_that_is_only_observed_is_asked_again_as_it_would_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    async with sampling(tmp_path / "db", monkeypatch, None, **settings) as (stage, app):
        exchanges = await grow(stage, app)
        shadows = [each for each in stage.provider.requests if is_shadow(each)]
        assert all(exchange.sent == exchange.given for exchange in exchanges if exchange.mode == "observed")
        assert len(shadows) == 2 * counts(app, "shadows")["compared",] > 0
        edited, plain = shadows[::2], shadows[1::2]
        assert all(len(one.body) < len(other.body) for one, other in zip(edited, plain, strict=True))
        assert all(each.violation is None for each in shadows)
        assert counts(app, "agreements").keys() == {("narrows", "same"), ("itself", "same")}


async def test_a_request_with_mode_off_or_nothing_left_out_is_not_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sampling(tmp_path / "db", monkeypatch, None) as (stage, app):
        await stage.ask(app, SESSION[:LAST], ("x-narrows", "off"))
        await stage.ask(app, SESSION[:FIRST])
        await settled(app)
        assert counts(app, "shadows") == {}
        assert not any(map(is_shadow, stage.provider.requests))


async def test_the_budget_of_the_day_holds_and_failures_end_sampling_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sampling(tmp_path / "db", monkeypatch, None, agree_budget=0.02) as (stage, app):
        await grow(stage, app)
        assert 0 < counts(app, "shadow_cost_usd").get((), 0) <= 0.02
        assert counts(app, "shadows")["budget",] > 0

    def refusing(received: Received) -> Answer | None:
        return Send(401, b'{"error": {"message": "no"}}') if is_shadow(received) else None

    async with sampling(tmp_path / "other", monkeypatch, refusing) as (stage, app):
        assert all(exchange.status == 200 for exchange in await grow(stage, app))
        outcomes = counts(app, "shadows")
        assert outcomes["failed",] >= 3
        assert sum(map(is_shadow, stage.provider.requests)) == outcomes["failed",]
        assert counts(app, "shadow_cost_usd") == {}


async def test_shadows_of_a_conversation_that_is_deleted_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()

    def slow(received: Received) -> Say:
        from proxy.lab.provider import Wire

        return Say("Understood.", wire=Wire(gate=gate.wait) if is_shadow(received) else Wire())

    async with sampling(tmp_path / "db", monkeypatch, slow) as (stage, app):
        last = (await stage.grow(app, SESSION))[-1]
        assert app.services.opened["shadows"] is not None
        assert app.services.opened["shadows"].running
        url = f"{app.base_url.removesuffix('/v1')}/narrows/conversations"
        async with stage.client.delete(url, params={"id": last.headers["x-narrows-conversation"]}) as reply:
            assert reply.status == 204
        await settled(app)
        gate.set()
        assert counts(app, "agreements") == {}


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--agree-share", "0.01"], "agree_key_env"),
        (["--agree-share", "0.01", "--agree-key-env", "NO_SUCH_KEY"], "agree_key_env"),
        (["--agree-share", "2"], "agree_share"),
        (["--agree-anthropic-key-env", "PATH"], "agree_anthropic_key_env"),
    ],
)
def test_shadows_that_nobody_pays_for_are_refused_at_start(words: Sequence[str], field: str) -> None:
    paid = ["--upstream", "http://127.0.0.1:9/v1", "--agree-share", "0.01", "--agree-key-env", "PATH"]
    words_of_it = "agreement: 1.0% of shortened requests are asked again with the key in PATH, for at most $5 a day"
    assert words_of_it in " ".join(greeting(settings_with(paid), "").split())
    with pytest.raises(ConfigurationError, match=field):
        settings_with(["--upstream", "http://127.0.0.1:9/v1", *words])


async def test_each_upstream_gets_its_own_key_and_of_the_clients_headers_only_those_of_the_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_KEY", "sk-claude")
    api = APIS["anthropic_messages"]
    async with staged(tmp_path / "db") as stage:
        keys = {"agree_key_env": "", "agree_anthropic_key_env": "CLAUDE_KEY", "anthropic_upstream": stage.upstream}
        app = await stage.start(agree_share=1.0, **keys)
        head = {"x-api-key": "sk-client", "anthropic-version": "2023-06-01", "Cookie": "canary=1", "user-agent": "u"}
        head |= {"anthropic-beta": "oauth-2025-04-20,context-management-2025-06-27"}
        for end in ENDS:
            url = f"{app.base_url}/messages?key=sk-client&beta=true&api-key=sk-client"
            async with stage.client.post(url, json=api.body(SESSION[:end]), headers=head) as reply:
                assert reply.status == 200, await reply.text()
            await settled(app)
            await stage.ask(app, SESSION[:end])  # of another upstream, for which there is no key
            await settled(app)
        shadows = [each for each in stage.provider.requests if each.credential == "sk-claude"]
        assert len(shadows) == 2 * counts(app, "shadows")["compared",] > 0
        for each in shadows:
            assert each.dialect == "anthropic_messages"
            assert each.headers["anthropic-beta"] == "context-management-2025-06-27"
            assert each.target.endswith("/messages?beta=true")
            assert not {"canary=1", "sk-client", "u"} & set(each.headers.values())


async def test_a_reply_with_recalls_is_compared_as_its_client_receives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(received: Received) -> Say:
        """Recalls what is hidden, and then does as it would have done."""
        text = json.dumps(received.json["messages"])
        ref = re.search(r"\bref (\d{6,})", text)
        return bash("ls") if is_shadow(received) or ref is None or RECALL in text else Say(calls=[recall(ref[1])])

    async with sampling(tmp_path / "db", monkeypatch, answer) as (stage, app):
        await stage.ask(app, SESSION[:FIRST])  # from now on the credential counts as accepted
        await stage.ask(app, SESSION[:LAST], stream=True)
        await settled(app)
        assert len(stage.provider.requests) == 5, "one before, two rounds, two shadows"
        assert counts(app, "agreements") == {("narrows", "same"): 2, ("itself", "same"): 1}

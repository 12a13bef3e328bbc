"""No addon is needed: without the line of any one of them, and without its folder, the program starts, serves, and each
of the others does what it is there for."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

import proxy.addons
from policies.presets import PRESETS, Preset
from proxy import generation
from proxy.addons.access.keys import digest_of, new_key
from proxy.app import App
from proxy.lab.provider import Answer, Received, Say
from proxy.memory import MESSAGES, Key
from tests.kit.counted import counted
from tests.kit.recalling import KEEPING, REPORT, Client, fetched, hiding, plays, runs, wants
from tests.kit.running import compaction_of
from tests.kit.stage import Stage

LINES = ("PAGES", "DOOR", "INNER")
ADDONS = tuple(name for line in LINES for name in getattr(generation, line))
KEY, LIMITED, SHADOW = new_key(), new_key(), "sk-shadow"
ROWS = [{"name": "alice", "sha256": digest_of(KEY)}, {"name": "bob", "sha256": digest_of(LIMITED), "rpm": 1}]
SETTINGS = {
    "auth": "both",
    "keys": ROWS,
    "preset": "keeping",
    "history": True,
    "compress_api": True,
    "agree_share": 1.0,
    "agree_key_env": "SHADOW_KEY",
    "keep_warm": "15m",
    "tools": "defer",
}
EPHEMERAL = {"type": "ephemeral"}
Check = Callable[[Stage, App, Client], Awaitable[None]]


class Missing:
    """No module of this addon can be imported."""

    def __init__(self, name: str) -> None:
        self._package = f"proxy.addons.{name}"

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if f"{name}.".startswith(f"{self._package}."):
            raise ModuleNotFoundError(name)
        return None


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All addons are imported anew, and forgotten again."""
    before = {name: module for name, module in sys.modules.items() if name.startswith("proxy.addons.")}
    packages = {name: getattr(proxy.addons, name) for name in ADDONS if hasattr(proxy.addons, name)}
    for name in before:
        del sys.modules[name]
    yield
    for name in [name for name in sys.modules if name.startswith("proxy.addons.")]:
        del sys.modules[name]
    sys.modules.update(before)
    for name, package in packages.items():
        setattr(proxy.addons, name, package)


# --- one thing that each is there for ---


async def ask_as(app: App, stage: Stage, key: str) -> int:
    headers = {"x-narrows-key": key, "Authorization": "Bearer k"}
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
    async with stage.client.post(f"{app.base_url}/chat/completions", json=body, headers=headers) as reply:
        return reply.status


async def knows_keys(stage: Stage, app: App, client: Client) -> None:
    assert [await ask_as(app, stage, key) for key in (KEY, new_key())] == [200, 401]


async def limits_a_key(stage: Stage, app: App, client: Client) -> None:
    assert [await ask_as(app, stage, LIMITED) for _ in range(2)] == [200, 429]


async def bills(stage: Stage, app: App, client: Client) -> None:
    before = app.telemetry.metrics.billed.requests
    await client.ask(hiding())
    assert app.telemetry.metrics.billed.requests == before + 1


async def stores_messages(stage: Stage, app: App, client: Client) -> None:
    key = Key("local", (await client.ask(hiding())).headers["x-narrows-conversation"])
    async with asyncio.timeout(5):
        while not await compaction_of(app).access.store.list_texts(key, MESSAGES):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def reports(stage: Stage, app: App, client: Client) -> None:
    before = counted(app.telemetry, "requests_total", status="2xx")
    await client.ask(hiding())
    assert counted(app.telemetry, "requests_total", status="2xx") == before + 1


async def has_pages(stage: Stage, app: App, client: Client) -> None:
    root = app.base_url.removesuffix("/v1")
    for path in ("/healthz", "/narrows/conversations", "/narrows/usage", "/metrics"):
        async with stage.client.get(root + path) as reply:
            assert reply.status == 200, path


async def compares(stage: Stage, app: App, client: Client) -> None:
    await client.ask(hiding())
    assert counted(app.telemetry, "shadows_total") or app.services.opened["shadows"].running


async def compresses(stage: Stage, app: App, client: Client) -> None:
    body = {"model": "m", "messages": hiding()}
    async with stage.client.post(f"{app.base_url}/compress", json=body) as reply:
        assert (reply.status, "tokens_before" in await reply.json()) == (200, True)


async def keeps_warm(stage: Stage, app: App, client: Client) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "Hm. " * 800, "cache_control": EPHEMERAL}]}
    body = {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [message]}
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    async with stage.client.post(f"{app.base_url}/messages", json=body, headers=headers) as reply:
        assert reply.status == 200
    await app.gateway.finished()
    await (warm := app.services.opened["warm"]).run_due(warm.next_due())
    assert [each.json["max_tokens"] for each in stage.provider.requests if each.dialect == "anthropic_messages"] == [
        9,
        0,
    ]


async def counts_calls(stage: Stage, app: App, client: Client) -> None:
    said = [{"role": "user", "content": "Look."}, *runs("ls", "a.py")]
    tools = [
        {"type": "function", "function": {"name": name, "description": "It is one of many. " * 90}}
        for name in ("bash", "look", "send", "stop", "read", "sort", "move", "wait", "plan", "draw", "name")
    ]
    await client.ask(said, tools=tools)
    deferral = compaction_of(app).compactor.deferral
    assert deferral is not None
    async with asyncio.timeout(5):
        while not any(deferral.called._lists.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await client.ask([{"role": "user", "content": "Another."}], tools=tools)
    assert "bash" in [tool["function"]["name"] for tool in stage.provider.requests[-1].json["tools"]]


CHECKS: Mapping[str, Check] = {
    "access": knows_keys,
    "limits": limits_a_key,
    "billing": bills,
    "archive": stores_messages,
    "telemetry": reports,
    "pages": has_pages,
    "shadows": compares,
    "compress": compresses,
    "warm": keeps_warm,
    "tools": counts_calls,
}
NEEDS = {"limits": "access", "warm": "billing"}
"""Whose are the limits, where nobody knows keys? And a ping that nobody bills is not sent."""


@pytest.fixture(params=ADDONS)
def missing(request: pytest.FixtureRequest, fresh: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """The addon whose line and folder are taken away."""
    name: str = request.param
    monkeypatch.setattr(sys, "meta_path", [Missing(name), *sys.meta_path])
    for line in LINES:
        monkeypatch.setattr(generation, line, tuple(each for each in getattr(generation, line) if each != name))
    return name


@pytest.fixture
async def app(missing: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setitem(PRESETS, "keeping", Preset(KEEPING))
    monkeypatch.setenv("SHADOW_KEY", SHADOW)
    return await stage.start(**SETTINGS)


def test_every_addon_has_a_check_and_a_folder() -> None:
    folders = {path.parent.name for path in Path(proxy.addons.__path__[0]).glob("*/addon.py")}
    assert CHECKS.keys() == set(ADDONS) == folders


async def test_without_any_one_addon_the_program_serves_and_the_others_do_their_work(
    missing: str, stage: Stage, app: App, client: Client
) -> None:
    assert missing not in app.services.opened
    assert (await client.ask(hiding())).text
    assert (await client.ask(hiding(), stream=True)).text
    script = plays(wants("Let me look. "), Say("Seen."))

    def answer(received: Received) -> Answer | None:
        return Say("Same.") if received.credential == SHADOW else script(received)

    stage.provider.answer = answer
    assert (await client.ask(hiding(), stream=True)).text == "Let me look. Seen."
    assert [REPORT] in [fetched(each) for each in stage.provider.requests]
    stage.provider.answer = None
    for name, check in CHECKS.items():
        if missing not in (name, NEEDS.get(name)):
            await check(stage, app, client)

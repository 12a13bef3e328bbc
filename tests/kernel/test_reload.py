"""Settings that are read anew while Narrows serves: what runs goes on, what comes is served as they say now."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import anthropic
import openai
import pytest

from proxy.app import App
from proxy.config import ConfigurationError, Settings, UpstreamRow
from proxy.memory import StoreTrouble
from tests.kit.paths import ROOT
from tests.kit.running import Start
from tests.kit.stage import Stage, ends, moved, working
from tests.kit.upstream import CHAT, REQUEST, Asked, chunk, stream_head

WORDS: Any = [{"role": "user", "content": "Hello."}]
GOOD = UpstreamRow(name="good", url="http://127.0.0.1:9/v1", models=("m",))
BAD = UpstreamRow(name="bad", url="https://127.0.0.1:9/v1", models=("n",), ca=Path(__file__))


def changed(settings: Settings, **values: Any) -> Settings:
    return settings.model_copy(update=values)


def build(app: App) -> list[str]:
    """The lines that say which settings count."""
    return [
        line for line in app.telemetry.metrics.page().decode().splitlines() if line.startswith("narrows_build_info{")
    ]


async def settled(app: App) -> None:
    """Generations that nothing runs in any more are gone."""
    async with asyncio.timeout(10):
        while app._leaving:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)


async def test_a_stream_ends_as_it_began_while_others_are_served_anew(narrows: Start) -> None:
    go_on = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(b"data: 1\n\n"))
        if json.loads(asked.body).get("wait"):
            await go_on.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    setup = await narrows(script, real=True)
    (before,) = build(setup.app)
    async with setup.client.post(setup.url + CHAT, json={**REQUEST, "wait": True}) as old:
        assert old.headers["x-narrows-mode"] == "untouched"
        await setup.app.reload(changed(setup.app.settings, mode="off"))
        (now,) = build(setup.app)
        assert now != before
        async with setup.client.post(setup.url + CHAT, json=REQUEST) as new:
            assert new.headers["x-narrows-mode"] == "bypassed"
        assert len(setup.app._leaving) == 1
        assert b"narrows_running 1.0" in setup.app.telemetry.metrics.page()
        go_on.set()
        assert (await old.read()).endswith(b"data: [DONE]\n\n")
    await settled(setup.app)


async def test_what_was_read_of_a_connections_head_counts_for_the_settings_it_was_read_under(narrows: Start) -> None:
    setup = await narrows()
    headers = {"x-narrows-preset": "eager"}
    for allowed, status in (((), 400), (("eager",), 200), ((), 400)):
        await setup.app.reload(changed(setup.app.settings, request_presets=allowed))
        async with setup.client.post(setup.url + CHAT, json=REQUEST, headers=headers) as reply:
            assert reply.status == status


async def test_limits_of_requests_and_bodies_change_with_the_settings(narrows: Start) -> None:
    setup = await narrows()
    body = json.dumps({**REQUEST, "padding": "x" * 2_000}).encode()
    for limit, status in ((1_000, 413), (10_000, 200)):
        await setup.app.reload(changed(setup.app.settings, body_limit=limit))
        async with setup.client.post(setup.url + CHAT, data=body) as reply:
            assert reply.status == status
    assert setup.app.services.admission.bytes.size == 80_000


async def test_reloads_leave_nothing_behind(narrows: Start) -> None:
    setup = await narrows(real=True)

    async def reloads(count: int) -> tuple[int, int]:
        for at in range(count):
            await setup.app.reload(changed(setup.app.settings, summary_tokens=1_000 + at))
            async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
                assert reply.status == 200
        await settled(setup.app)
        await asyncio.sleep(0.1)
        return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))

    tasks, files = await reloads(3)
    after = await reloads(12)
    assert after[0] <= tasks
    assert after[1] <= files + 2  # connections of this very test


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"port": 1}, "port: port cannot change in a reload; restart Narrows"),
        ({"host": "localhost", "log_level": "debug"}, "host: host and log_level cannot change"),
        ({"models": {"m": {"nonsense": 1}}}, "models: "),
        ({"ca_bundle": Path(__file__)}, "ca_bundle: "),
        ({"upstreams": (GOOD, BAD)}, "ca of the upstream bad: "),
        ({"record": Path("/proc/nowhere")}, "record: "),
        ({"store": "redis://localhost:70000"}, "store: "),
    ],
)
async def test_settings_that_cannot_work_change_nothing(narrows: Start, values: dict[str, Any], words: str) -> None:
    setup = await narrows(real=True)
    before, tasks, declared = setup.app.gateway, len(asyncio.all_tasks()), build(setup.app)
    upstreams = setup.app.telemetry.metrics.upstreams()
    with pytest.raises(ConfigurationError, match=f"^{words}"):
        await setup.app.reload(changed(setup.app.settings, **values))
    assert (setup.app.gateway, build(setup.app)) == (before, declared)
    assert setup.app.telemetry.metrics.upstreams() == upstreams
    await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) == tasks
    async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
        assert reply.status == 200


async def test_a_store_in_memory_is_not_emptied(narrows: Start) -> None:
    setup = await narrows(real=True, store="sqlite://")
    with pytest.raises(ConfigurationError, match="store: it is in memory"):
        await setup.app.reload(changed(setup.app.settings, mode="off"))


async def test_s1_a_reload_without_the_store_leaves_tenants_their_names(
    narrows: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> bytes:
        raise StoreTrouble("away")

    setup = await narrows(real=True)
    before = setup.app.services.secret
    monkeypatch.setattr("proxy.memory.sqlite.store.SqliteStore.secret", away)
    await setup.app.reload(changed(setup.app.settings, mode="observe"))
    assert setup.app.services.secret == before


@pytest.mark.usefixtures("patient")
async def test_s1_a_conversation_goes_on_over_reloads(stage: Stage) -> None:
    session = working()
    alone = await stage.grow(await stage.start(), session, ("Authorization", "Bearer other"))
    app, grown = await stage.start(tenant="reloaded"), []
    for at, end in enumerate(ends(session)):
        grown.append(await stage.ask(app, session[:end]))
        await app.reload(changed(app.settings, body_timeout=30 + at))
        await settled(app)  # what it still had to write is written
    assert [each.sent for each in grown] == [each.sent for each in alone]
    assert moved(grown) == []


class Served:
    """`narrows serve` in a process of its own, with a file of settings."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.file = folder / "narrows.toml"
        self.log = folder / "log"
        self._upstream = upstream
        self.process: asyncio.subprocess.Process
        self.url = ""

    def configure(self, *lines: str) -> None:
        self.file.write_text("\n".join((f'upstream = "{self._upstream}"', *lines)))

    async def logs(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(20):
            while self.log.read_text().count(text) < times:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)

    async def start(self, stdin: int = subprocess.DEVNULL) -> None:
        self.configure()
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy.console.cli", "serve", "--port", "0", "--config", str(self.file)),
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "NARROWS_STORE": f"sqlite:///{self.file.parent}/narrows.db",
                },
            )
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            self.url = (await self.process.stdout.readline()).decode().split()[-1]

    async def reload(self, **headers: str) -> tuple[int, Any]:
        """Ask for a reload: the status and what the reply says."""
        url = self.url.replace("/v1", "/narrows/reload")
        async with aiohttp.ClientSession(headers=headers) as client, client.post(url) as reply:
            return reply.status, await reply.json()


@pytest.fixture
async def served(tmp_path: Path, stage: Stage) -> AsyncIterator[Served]:
    """Before a strict provider."""
    served = Served(tmp_path, stage.upstream)
    await served.start()
    yield served
    if served.process.returncode is None:
        served.process.kill()
    await served.process.communicate()


async def test_a_signal_or_a_request_has_the_file_read_anew_and_a_fault_changes_nothing(served: Served) -> None:
    assert served.process.returncode is None
    served.configure('mode = "sometimes"', "grace = -1")
    served.process.send_signal(signal.SIGHUP)
    await served.logs("not_reloaded", 2)  # a line for each fault
    status, told = await served.reload()
    assert (status, told["error"]["code"]) == (400, "bad_configuration")
    assert [line.partition(":")[0] for line in told["error"]["message"].splitlines()] == ["mode", "grace"]
    assert "line 2" in told["error"]["message"]

    served.configure('mode = "observe"')
    status, told = await served.reload()
    assert (status, told["status"]) == (200, "reloaded")
    async with aiohttp.ClientSession() as client:
        async with client.get(served.url.replace("/v1", "/metrics")) as reply:
            assert f'settings="{told["settings"]}"' in await reply.text()
        for method, headers, refusal in (
            ("GET", {}, 405),
            ("POST", {"Authorization": "Bearer k"}, 403),
            ("POST", {"X-Forwarded-For": "192.0.2.1"}, 403),
            ("POST", {"Origin": "https://example.com"}, 403),
        ):
            address = served.url.replace("/v1", "/narrows/reload")
            async with client.request(method, address, headers=headers) as reply:
                assert reply.status == refusal
    for _ in range(50):
        served.process.send_signal(signal.SIGHUP)
    await served.logs('"reloaded"', 2)
    served.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        assert await served.process.wait() == 0


async def test_a_narrows_whose_terminal_is_closed_ends(tmp_path: Path, stage: Stage) -> None:
    served = Served(tmp_path, stage.upstream)
    ours, theirs = pty.openpty()
    await served.start(stdin=theirs)
    os.close(theirs)
    os.close(ours)
    served.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(20):
        assert await served.process.wait() == 0


async def test_no_request_of_the_official_clients_fails_by_a_reload(served: Served) -> None:
    done, failures, over = 0, list[Exception](), asyncio.Event()

    async def hammer(ask: Any) -> None:
        nonlocal done
        while not over.is_set():
            try:
                await ask()
                done += 1
            except Exception as error:
                failures.append(error)
                return

    async with (
        openai.AsyncOpenAI(base_url=served.url, api_key="k", max_retries=0) as chats,
        anthropic.AsyncAnthropic(base_url=served.url.removesuffix("/v1"), api_key="k", max_retries=0) as messages,
    ):
        asks = (
            lambda: chats.chat.completions.create(model="m", messages=WORDS),
            lambda: messages.messages.create(model="m", max_tokens=8, messages=WORDS),
        )
        running = [asyncio.create_task(hammer(ask)) for ask in asks * 2]
        for at in range(10):
            served.configure(f"summary_tokens = {1_000 + at}")
            assert (await served.reload())[0] == 200
        over.set()
        await asyncio.gather(*running)
    assert (failures, done > 20) == ([], True)


async def test_every_reply_has_its_requests_id(narrows: Start) -> None:
    setup, ids = await narrows(real=True), list[str]()
    base = setup.url.removesuffix("/v1")
    for path in ("/v1/models", "/healthz", "/nothing", "/v1/chat/completions"):
        async with setup.client.get(f"{base}{path}", headers={"x-request-id": "not-trusted"}) as reply:
            ids.append(reply.headers["x-narrows-request-id"])
    assert len({UUID(each).version for each in ids}) == 1
    assert len(set(ids)) == len(ids) == 4
    assert b"x-narrows-request-id: " in await setup.raw(b"this is no HTTP\r\n\r\n")


async def test_x6_what_is_deleted_is_forgotten_by_those_that_still_serve_old_streams(narrows: Start) -> None:
    go_on, forgotten = asyncio.Event(), list[tuple[str, str | None]]()

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(b"data: 1\n\n"))
        await go_on.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    setup = await narrows(script, real=True)
    setup.app.services.forgets.register(lambda tenant, conversation: forgotten.append((tenant, conversation)))
    async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
        await setup.app.reload(changed(setup.app.settings, mode="observe"))
        await setup.app.services.forgets.forget_everywhere("local", "c1")
        go_on.set()
        await reply.read()
    assert forgotten == [("local", "c1")]

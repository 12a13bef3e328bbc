"""`narrows serve --workers 2`: the real processes, on one port and one store."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.addons.access.keys import digest_of, new_key
from proxy.config import ConfigurationError, Settings
from proxy.console.serve import serve
from proxy.identity.states import CredentialStates
from proxy.kernel.admission import Admission
from proxy.kernel.wire.listener import Listener
from proxy.lab.provider import Send
from proxy.lab.sessions import load
from proxy.memory.forgetting import ForgetRegistry
from proxy.telemetry import Telemetry
from proxy.workers.team import Team
from proxy.workers.worker import Worker, owner
from tests.kit.paths import ROOT
from tests.kit.stage import Stage, body_of, ends, staged

CONFIG = """
preset = "eager"
floor = 0
mode = "{mode}"
log_level = "info"
auth = "both"
[models.m]
input = 1
output = 1
read = 0.5
write = 1.0
window = 100000
[[keys]]
name = "alice"
sha256 = "{digest}"
tenant = "local"
"""
KEY = new_key()
"""It goes with the requests that are passed on, and is looked at again where they are served."""
SESSION = load("long_day")["messages"]


class Serving:
    """A `narrows serve --workers 2` with its own configuration file."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.client = stage.client
        self.provider = stage.provider
        self.config = folder / "narrows.toml"
        self.configure("on")
        self.log = folder / "log"
        words = ["serve", "--config", self.config, "--port", "0", "--workers", "2", "--upstream", stage.upstream]
        words += ["--store", f"sqlite:///{folder / 'workers.db'}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "proxy.console.cli", *map(str, words)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.url = ""

    async def up(self) -> None:
        assert self.process.stdout is not None
        self.url = (await asyncio.to_thread(self.process.stdout.readline)).split()[-1]

    def configure(self, mode: str) -> None:
        self.config.write_text(CONFIG.format(mode=mode, digest=digest_of(KEY)))

    def workers(self) -> list[int]:
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    async def ask_twice_at_once(self, first: bytes, second: bytes) -> bytes:
        """Send two requests, the second before the first is answered; both replies."""
        host, port = self.url.removeprefix("http://").removesuffix("/v1").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(first) + first)
        writer.write(head + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n" % len(second) + second + b"\r\n0\r\n\r\n")
        try:
            return await reader.read()
        finally:
            writer.close()

    async def logs(self, event: str, times: int = 1) -> None:
        await until(lambda: self.log.read_text().count(event) == times)

    async def ask(self, body: bytes) -> tuple[bytes, str]:
        """Send a request; what the upstream received for it, and its mode."""
        headers = await self.headers_of(body)
        return self.provider.requests[-1].body, headers["x-narrows-mode"]

    async def headers_of(self, body: bytes) -> Mapping[str, str]:
        """Send a request; the headers of its reply."""
        for attempt in (1, 2):  # a worker that was killed takes the client's idle connection with it
            try:
                place, head = f"{self.url}/chat/completions", {"x-narrows-key": KEY}
                async with self.client.post(place, data=body, headers=head) as reply:
                    await reply.read()
                    assert reply.status == 200
                    return reply.headers
            except aiohttp.ClientConnectionError:
                assert attempt == 1
        raise AssertionError

    async def metric(self, name: str) -> float:
        async with self.client.get(self.url.replace("/v1", "/metrics")) as reply:
            (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", await reply.text(), re.MULTILINE)
            return float(value)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.02)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path / "one.db") as stage:
        yield stage


@pytest.fixture
async def serving(stage: Stage, tmp_path: Path) -> AsyncIterator[Serving]:
    serving = Serving(stage, tmp_path)
    try:
        await serving.up()
        yield serving
    finally:
        serving.process.kill()
        serving.process.wait()
        assert serving.process.stdout is not None
        serving.process.stdout.close()


def conversations() -> list[list[bytes]]:
    """The requests of two conversations, of which each worker serves one."""
    tasks: dict[int | None, list[bytes]] = {}
    for task in "abcdefgh":
        first = {"role": "user", "content": f"Task {task}: go on."}
        session: list[Any] = [SESSION[0], first, *(each for each in SESSION[1:] if each["role"] != "system")]
        bodies = [body_of(session[:end]) for end in ends(session) if end > 30][:6]
        tasks.setdefault(owner("local", None, bodies[0], 2), bodies)
    return [tasks[0], tasks[1]]


async def test_a_killed_worker_is_replaced_and_its_conversations_go_on_with_the_same_bytes(
    stage: Stage, serving: Serving
) -> None:
    alone, talks = await stage.start(), conversations()
    expected = [[(await stage.post(alone, body)).sent for body in talk] for talk in talks]
    assert expected[0] != talks[0]  # something is compacted
    for turn in range(6):
        if turn == 3:
            victim = serving.workers()[0]
            os.kill(victim, signal.SIGKILL)
        for talk, sent in zip(talks, expected, strict=True):  # on one connection, from worker to worker
            assert await serving.ask(talk[turn]) == (sent[turn], "compacted")
    await serving.logs("worker_died")
    await until(lambda: len(serving.workers()) == 2)
    assert victim not in serving.workers()


async def test_x6_what_one_worker_deletes_no_worker_remembers(serving: Serving) -> None:
    talks, names = conversations(), list[str]()
    for talk in talks:
        first, second = [await serving.headers_of(body) for body in talk[:2]]
        assert first["x-narrows-conversation"] == second["x-narrows-conversation"]
        assert second["x-narrows-prefix"] in ("extended", "tail-cut")
        names.append(first["x-narrows-conversation"])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as one_worker:
        for name in names:
            async with one_worker.delete(serving.url.replace("/v1", f"/narrows/conversations/{name}")) as reply:
                assert reply.status == 204
    for talk in talks:
        assert (await serving.headers_of(talk[2]))["x-narrows-prefix"] == "checkpoint:replayed"


async def test_one_page_has_the_metrics_of_all_workers_and_all_finish_what_runs(stage: Stage, serving: Serving) -> None:
    sent = {talk[0]: (await serving.ask(talk[0]))[0] for talk in conversations() * 2}
    assert await serving.metric('narrows_requests_total{mode="compacted",status="2xx"}') == 4
    assert await serving.metric("narrows_workers") == 2
    assert await serving.metric("narrows_passed_on_total") >= 2
    assert await serving.metric('process_resident_memory_bytes{worker="1"}') > 0

    both = [talk[0] for talk in conversations()]
    for bodies in (both, both[::-1]):
        replies = await serving.ask_twice_at_once(*bodies)
        assert replies.count(b"HTTP/1.1 200 OK") == 2
        assert [request.body for request in list(serving.provider.requests)[-2:]] == [sent[body] for body in bodies]

    gate = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'
        await gate.wait()
        yield b"data: [DONE]\n\n"

    stage.provider.answer = lambda _: Send(body=pieces(), headers=(("Content-Type", "text/event-stream"),))
    streams = [
        await serving.client.post(f"{serving.url}/chat/completions", data=body_of(json.loads(talk[1])["messages"]))
        for talk in conversations()
    ]
    for reply in streams:
        assert b"one" in await reply.content.readany()
    serving.process.send_signal(signal.SIGTERM)
    await serving.logs("stopping", 2)
    gate.set()
    for reply in streams:
        assert (await reply.content.read()).endswith(b"data: [DONE]\n\n")
        reply.close()
    assert await asyncio.to_thread(serving.process.wait) == 0


async def test_sighup_starts_workers_with_the_settings_as_they_are_now(serving: Serving) -> None:
    (body, *_), _ = conversations()
    before = serving.workers()
    serving.configure("sometimes")
    serving.process.send_signal(signal.SIGHUP)
    await serving.logs("not_reloaded")
    assert await serving.ask(body) == (serving.provider.requests[-1].body, "compacted")
    assert serving.workers() == before

    serving.configure("on")
    serving.process.send_signal(signal.SIGHUP)
    await until(lambda: len(serving.workers()) == 4)
    serving.configure("off")
    serving.process.send_signal(signal.SIGHUP)  # counts once the new ones listen
    await serving.logs("reloaded", 3)  # once in `not_reloaded`
    await until(lambda: len(serving.workers()) == 2 and not set(before) & set(serving.workers()))
    assert await serving.ask(body) == (body, "bypassed")
    serving.process.kill()  # the parent is gone, so its workers end
    workers = serving.workers()
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"store": "sqlite://"},
            "store: sqlite:// is in the memory of one process; name a file",
        ),
        ({"host": "192.0.2.1"}, "host: 192.0.2.1 is no address of this machine; give 127.0.0.1"),
    ],
)
def test_what_several_workers_cannot_have_is_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    chosen = {"port": 0, "workers": 2, "upstream": "http://127.0.0.1:9/v1", "store": f"sqlite:///{tmp_path}/x.db"}
    several = Settings(**{**chosen, **settings})
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        serve(several, lambda: several)


def test_several_workers_need_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    several = Settings(port=0, workers=2, upstream="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigurationError, match="workers: several need Linux"):
        serve(several, lambda: several)


def test_a_worker_that_stands_still_serves_but_is_not_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(2, [], b"")
    team.set_serving(0, True)
    assert [(team.serves(number), team.is_awake(number)) for number in range(2)] == [(True, True), (False, False)]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 5)
    assert (team.serves(0), team.is_awake(0)) == (True, False)
    team.set_serving(0, True)
    assert team.is_awake(0)
    team.close()


def test_a_message_whose_files_have_no_room_comes_without_them() -> None:
    team = Team(1, [], b"")
    team.set_serving(0, True)
    assert team.send(0, b"r", [0, 1])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, limits[1]))
    try:
        received = team.receive(0)
        os.close(os.dup(0))  # none of them is left open
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert received == (b"r", [])
    team.close()


async def test_what_is_forgotten_is_forgotten_by_all_workers() -> None:
    team, settings = Team(3, [], b""), Settings(upstream="http://127.0.0.1:9/v1")
    forgotten: list[tuple[int, str, str | None]] = []
    registries, controls = [], []

    def noting(number: int) -> Callable[[str, str | None], None]:
        return lambda tenant, conversation: forgotten.append((number, tenant, conversation))

    for number in range(3):
        ours, theirs = socket.socketpair()
        controls += [ours, theirs]
        worker = Worker(team, number, theirs)
        registries.append(ForgetRegistry(worker.forget))
        registries[-1].register(noting(number))
        telemetry = Telemetry()
        admission = Admission(settings, telemetry, CredentialStates())
        listener = Listener(lambda _: asyncio.sleep(0), settings, admission)  # type: ignore[arg-type]
        worker.join(listener, telemetry, registries[-1])
    await registries[1].forget_everywhere("t", "c")
    assert sorted(forgotten) == [(number, "t", "c") for number in range(3)]
    for number in range(3):
        asyncio.get_running_loop().remove_reader(team.channel(number))
    team.close()
    for control in controls:
        control.close()

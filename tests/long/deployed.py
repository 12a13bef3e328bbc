"""`make deploy-test`: docker-compose reads the services, HAProxy its configuration, and a real one stands before two
replicas on one Redis. Needs docker-compose and haproxy from the distribution, which the default tests cannot ask for.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from proxy.lab.provider import Send
from tests.kit.paths import ROOT
from tests.kit.redis_servers import Park, free_ports, servers_of_a_test  # noqa: F401 - a fixture
from tests.kit.stage import Stage, staged

DEPLOY = ROOT / "deploy"
BALANCER = (DEPLOY / "haproxy.cfg").read_text()
CHAT = "/v1/chat/completions"


def program(name: str) -> str:
    """Where it is."""
    program = shutil.which(name)
    assert program, f"{name} is not installed: apt-get install --no-install-recommends docker-compose haproxy"
    return program


def composed(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """What docker-compose makes of the files, where a person has copied the example."""
    shutil.copytree(DEPLOY, folder, dirs_exist_ok=True)
    shutil.copy(folder / "example.env", folder / ".env")
    words = [program("docker-compose"), "--project-directory", folder, "--file", folder / "compose.yaml", "config"]
    return subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True)


def test_docker_compose_reads_the_services(tmp_path: Path) -> None:
    done = composed(tmp_path, NARROWS_TENANT_SECRET="s3cret", NARROWS_LISTEN="127.0.0.1:9999")
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert services["narrows"]["scale"] == 2
    assert services["narrows"]["environment"]["NARROWS_TENANT_SECRET"] == "s3cret"
    assert services["balancer"]["ports"] == ["127.0.0.1:9999:8787/tcp"]


def test_without_a_secret_docker_compose_says_what_to_do(tmp_path: Path) -> None:
    done = composed(tmp_path)
    assert done.returncode != 0
    assert "set it in deploy/.env" in done.stderr


def test_haproxy_takes_its_configuration() -> None:
    done = subprocess.run([program("haproxy"), "-c", "-f", DEPLOY / "haproxy.cfg"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Replica:
    """One `narrows serve`, as a container runs it."""

    def __init__(self, port: int, upstream: str, store: str) -> None:
        settings = {"HOST": "127.0.0.1", "PORT": port, "UPSTREAM": upstream, "STORE": store, "TENANT_SECRET": "s"}
        self.port = port
        self.process = subprocess.Popen(
            [sys.executable, "-m", "proxy.cli", "serve"],
            env={**os.environ, "PYTHONPATH": str(ROOT), **{f"NARROWS_{k}": str(v) for k, v in settings.items()}},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """At once; when this returns its port is closed."""
        self.process.kill()
        self.process.wait()


@contextmanager
def balanced(folder: Path, replicas: Sequence[Replica]) -> Iterator[str]:
    """HAProxy as it is configured, but for the addresses: here are no names to resolve."""
    (port,) = free_ports(1)
    servers = "\n".join(f"    server narrows{each.port} 127.0.0.1:{each.port}" for each in replicas)
    text = re.sub(r"^ *server-template .*$", servers, BALANCER, flags=re.MULTILINE)
    (folder / "haproxy.cfg").write_text(text.replace("bind :8787", f"bind 127.0.0.1:{port}"))
    words = [program("haproxy"), "-db", "-f", folder / "haproxy.cfg"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


class Team:
    """Clients of one address."""

    def __init__(self, stage: Stage, url: str, replicas: Sequence[Replica]) -> None:
        self.stage = stage
        self.url = url
        self.replicas = replicas
        self.messages = [{"role": "user", "content": "What is the capital of Norway?"}]

    async def asks(self) -> str:
        """The next request of the conversation; what became of the prompt's prefix."""
        body = {"model": "m", "messages": self.messages}
        async with self.stage.client.post(self.url + CHAT, json=body, headers={"Authorization": "Bearer k"}) as reply:
            assert reply.status == 200, await reply.text()
            self.messages.append(json.loads(await reply.read())["choices"][0]["message"])
            self.messages.append({"role": "user", "content": "And the next one?"})
            return reply.headers["x-narrows-prefix"]

    async def up(self) -> None:
        """Wait until every replica is ready, and the balancer knows one."""
        async with asyncio.timeout(60):
            for url in [*(f"http://127.0.0.1:{each.port}" for each in self.replicas), self.url]:
                while not await self._ready(url):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)

    async def _ready(self, url: str) -> bool:
        try:
            async with self.stage.client.get(f"{url}/readyz") as reply:
                return reply.status == 200
        except aiohttp.ClientConnectionError:
            return False


@pytest.fixture
async def team(servers: Park, tmp_path: Path) -> AsyncIterator[Team]:
    """Two replicas on one Redis behind the balancer."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(staged(tmp_path / "unused.db"))
        store = servers.server().url
        replicas = [Replica(port, stage.upstream, store) for port in free_ports(2)]
        for replica in replicas:
            stack.callback(replica.kill)
        team = Team(stage, stack.enter_context(balanced(tmp_path, replicas)), replicas)
        await team.up()
        yield team


async def test_s1_a_conversation_goes_on_when_a_replica_dies(team: Team) -> None:
    assert [await team.asks() for _ in range(4)] == ["first", *["extended"] * 3]
    team.replicas[0].kill()
    assert [await team.asks() for _ in range(4)] == ["extended"] * 4


async def test_the_bytes_of_a_stream_go_on_as_they_come_and_a_stopped_replica_finishes_it(team: Team) -> None:
    gate = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'
        await gate.wait()
        yield b"data: [DONE]\n\n"

    team.stage.provider.answer = lambda _: Send(body=pieces(), headers=(("Content-Type", "text/event-stream"),))
    body = {"model": "m", "messages": team.messages, "stream": True}
    async with team.stage.client.post(team.url + CHAT, json=body) as reply, asyncio.timeout(60):
        assert b"one" in await reply.content.readany()
        for replica in team.replicas:
            replica.process.send_signal(signal.SIGTERM)
        gate.set()
        assert (await reply.content.read()).endswith(b"data: [DONE]\n\n")
        assert [await asyncio.to_thread(each.process.wait) for each in team.replicas] == [0, 0]


async def test_metrics_are_not_for_those_behind_the_balancer(team: Team) -> None:
    async with team.stage.client.get(f"{team.url}/metrics") as reply:
        assert reply.status == 403

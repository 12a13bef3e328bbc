"""`make deploy-test`: docker-compose reads the services, HAProxy its configuration, and a real one stands before two
replicas on one Redis; promtool tries the alerts, and a real Prometheus answers what the dashboard asks. Needs
docker-compose, haproxy and prometheus from the distribution, which the default tests cannot ask for.
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
from typing import Any

import aiohttp
import openai
import pytest
import yaml

from policies.model.summary_record import short_digest
from proxy.lab.provider import Received, Say, Send
from tests.kit.paths import ROOT
from tests.kit.redis_servers import Park, Server, free_ports, soon
from tests.kit.rolling import Scribe, summary_header
from tests.kit.stage import Exchange, Stage, moved, staged
from tests.kit.talk import conversation_of

DEPLOY = ROOT / "deploy"
BALANCER = (DEPLOY / "haproxy.cfg").read_text()
CHAT = "/v1/chat/completions"
MODEL = "gpt-5.4"
SUMMARIES = "narrows:v2:*:summaries"
"""The keys of summaries, as deploy/README.md looks for them."""
MARK = '["summary",'
"""What each record of a summary begins with."""


def program(name: str) -> str:
    """Where it is."""
    program = shutil.which(name)
    packages = "caddy docker-compose haproxy kubernetes-client nginx-light prometheus systemd"
    assert program, f"{name} is not installed: apt-get install --no-install-recommends {packages}"
    return program


def composed(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """What docker-compose makes of the files, where a person has copied the example."""
    shutil.copytree(DEPLOY, folder, dirs_exist_ok=True)
    shutil.copy(folder / "example.env", folder / ".env")
    words = [program("docker-compose"), "--project-directory", folder, "--file", folder / "compose.yaml", "config"]
    return subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True)


def test_docker_compose_reads_the_services(tmp_path: Path) -> None:
    secrets = {"NARROWS_TENANT_SECRET": "s3cret", "NARROWS_METRICS_TOKEN": "t0ken", "GRAFANA_PASSWORD": "pa55"}
    done = composed(tmp_path, **secrets, NARROWS_LISTEN="127.0.0.1:9999")
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert services["narrows"]["scale"] == 2
    assert services["narrows"]["environment"]["NARROWS_TENANT_SECRET"] == "s3cret"
    assert services["prometheus"]["environment"]["METRICS_TOKEN"] == "t0ken"
    assert services["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"] == "pa55"
    assert services["balancer"]["ports"] == ["127.0.0.1:9999:8787/tcp"]


def test_without_a_secret_docker_compose_says_what_to_do(tmp_path: Path) -> None:
    done = composed(tmp_path)
    assert done.returncode != 0
    assert "set it in deploy/.env" in done.stderr


def test_haproxy_takes_its_configuration() -> None:
    done = subprocess.run([program("haproxy"), "-c", "-f", DEPLOY / "haproxy.cfg"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Replica:
    """One `narrows serve`, as a container runs it: with the settings of deploy/narrows.toml."""

    def __init__(
        self,
        port: int,
        upstream: str,
        store: str,
        config: Path = DEPLOY / "narrows.toml",
        log: Path = Path(os.devnull),
        **environment: str,
    ) -> None:
        """`upstream`: "" where the configuration names some."""
        settings = {"HOST": "127.0.0.1", "PORT": port, "STORE": store, "TENANT_SECRET": "s", "CONFIG": config}
        settings |= {"UPSTREAM": upstream} if upstream else {}
        environment |= {"PYTHONPATH": str(ROOT), **{f"NARROWS_{name}": str(each) for name, each in settings.items()}}
        self.port = port
        with open(log, "wb") as file:
            words = [sys.executable, "-m", "proxy.console.cli", "serve"]
            self.process = subprocess.Popen(words, env={**os.environ, **environment}, stdout=file, stderr=file)

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

    def __init__(self, stage: Stage, url: str, replicas: Sequence[Replica], redis: Server) -> None:
        self.stage = stage
        self.url = url
        self.replicas = replicas
        self.redis = redis
        self.messages = [{"role": "user", "content": "What is the capital of Norway?"}]

    async def asks(self, name: str = "") -> str:
        """The next request of the conversation; what became of the prompt's prefix."""
        body = {"model": "m", "messages": self.messages}
        headers = {"Authorization": "Bearer k", **({"x-narrows-conversation": name} if name else {})}
        async with self.stage.client.post(self.url + CHAT, json=body, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            self.messages.append(json.loads(await reply.read())["choices"][0]["message"])
            self.messages.append({"role": "user", "content": "And the next one?"})
            return reply.headers["x-narrows-prefix"]

    async def requests(self, replica: Replica) -> int:
        """The chat requests that a replica has answered."""
        page = await self._get(f"http://127.0.0.1:{replica.port}/metrics")
        return sum(int(float(count)) for count in re.findall(r'narrows_requests_total{mode="untouched".*} (\S+)', page))

    async def writer(self) -> Replica:
        """The only replica that has had a summary written, as its metrics say on its own port."""
        made = 'narrows_summaries_total{outcome="made"}'
        texts = {each: await self._get(f"http://127.0.0.1:{each.port}/metrics") for each in self.replicas}
        (writer,) = (replica for replica, text in texts.items() if made in text)
        assert f"{made} 1.0" in texts[writer]
        return writer

    async def standing(self, conversation: str) -> str:
        """The id of the summary that stands in the newest request, by the page behind the balancer."""
        page = json.loads(await self._get(f"{self.url}/narrows/conversations/{conversation}"))
        (id_,) = (each["id"] for each in page["summaries"] if each["state"] == "stands")
        return str(id_)

    async def _get(self, url: str) -> str:
        async with self.stage.client.get(url, headers={"Authorization": f"Bearer {Chat.key}"}) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.text()

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


class Chat:
    """A plain chat over the official SDK, with a plain API key; its answers are long, and summaries are written."""

    key = "sk-of-a-team"

    def __init__(self, team: Team) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "You are careful."}]
        self.scribe = Scribe(agent=self._answer)
        self._team = team
        self._sdk = openai.AsyncOpenAI(base_url=f"{team.url}/v1", api_key=self.key, max_retries=0)
        team.stage.provider.models = (MODEL, "gpt-5.4-mini")
        team.stage.provider.answer = self.scribe

    async def asks(self) -> Exchange:
        """The next question: what the upstream received, and what came back."""
        self.messages.append({"role": "user", "content": f"What comes after step {len(self.messages)}?"})
        messages: Any = self.messages
        raw = await self._sdk.chat.completions.with_raw_response.create(model=MODEL, messages=messages)
        sent = [each for each in self._team.stage.provider.requests if each.model == MODEL][-1]
        given = json.dumps({"messages": self.messages}).encode()
        self.messages.append({"role": "assistant", "content": raw.parse().choices[0].message.content})
        return Exchange(given, sent.body, raw.status_code, dict(raw.headers), raw.content)

    async def until_adopted(self) -> Exchange:
        """Turns until a summary is asked for; once Redis has it, the turn that adopts it."""
        there = len(self.stored())
        while summary_header(await self.asks()) != "pending":
            assert len(self.messages) < 160, "no summary was asked for"
        await soon(lambda: len(self.stored()) > there)
        return await self.asks()

    def stored(self) -> list[dict[str, Any]]:
        """The summaries in Redis, oldest first: as HGETALL shows them."""
        records = []
        for key in self._team.redis.do("KEYS", SUMMARIES):
            for row in self._team.redis.do("HGETALL", key).values():
                _, *texts = row.decode("utf-8", "replace").split(MARK)
                records += [json.JSONDecoder().raw_decode(text)[0] for text in texts]
        return records

    def fingerprints(self, sent: Exchange) -> list[str]:
        """Each message that is not in what was sent: its index and its digest."""
        digests = map(short_digest, conversation_of(*self.messages).messages)
        pairs = enumerate(zip(self.messages, digests, strict=True))
        given = len(json.loads(sent.given)["messages"])
        return [f"{at}:{digest}" for at, (message, digest) in pairs if at < given and message not in sent.messages]

    def _answer(self, received: Received) -> Say | None:
        answer = f"After step {len(self.messages)} comes the next one. " * 150
        return Say(answer) if received.model == MODEL else None

    async def close(self) -> None:
        await self._sdk.close()


@pytest.fixture
async def team(servers: Park, tmp_path: Path) -> AsyncIterator[Team]:
    """Two replicas on one Redis behind the balancer."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(staged(tmp_path / "unused.db"))
        redis = servers.server()
        replicas = [Replica(port, stage.upstream, redis.url) for port in free_ports(2)]
        for replica in replicas:
            stack.callback(replica.kill)
        team = Team(stage, stack.enter_context(balanced(tmp_path, replicas)), replicas, redis)
        await team.up()
        yield team


@pytest.fixture
async def chat(team: Team) -> AsyncIterator[Chat]:
    """Through the balancer of the team."""
    chat = Chat(team)
    yield chat
    await chat.close()


async def test_s1_a_conversation_goes_on_when_a_replica_dies(team: Team) -> None:
    assert [await team.asks() for _ in range(4)] == ["first", *["extended"] * 3]
    await asyncio.sleep(0.5)  # what was sent is stored behind the requests
    team.replicas[0].kill()
    assert [await team.asks() for _ in range(4)] == ["extended"] * 4


async def test_m1_redis_shows_of_which_messages_a_summary_is_and_the_other_replica_uses_it(
    team: Team, chat: Chat
) -> None:
    assert f"--scan --pattern '{SUMMARIES}'" in (DEPLOY / "README.md").read_text()
    adopted = await chat.until_adopted()
    assert (summary_header(adopted), adopted.prefix) == ("adopted", "checkpoint:summary")
    (record,) = chat.stored()
    assert record["content"] in adopted.text
    assert record["conversation"] == (conversation := adopted.headers["x-narrows-conversation"])
    assert record["sources"] == chat.fingerprints(adopted) != []
    assert record["policy"].startswith("adaptive:")
    assert (record["prompt"], record["model"]) == ("compaction-2", "gpt-5.4-mini")
    assert await team.standing(conversation) == record["id"]

    (await team.writer()).kill()
    grown = [adopted, await chat.asks(), await chat.asks()]
    assert [(summary_header(each), each.prefix) for each in grown[1:]] == [("adopted", "extended")] * 2
    assert moved(grown) == []
    assert await team.standing(conversation) == record["id"]
    assert (chat.scribe.calls, chat.stored()) == (1, [record])


async def test_m2_after_an_edit_the_turns_themselves_are_sent_until_there_is_a_new_summary(
    team: Team, chat: Chat
) -> None:
    await chat.until_adopted()
    (old,) = chat.stored()
    chat.messages[3]["content"] += " No, after the one before."
    edited = await chat.asks()
    assert (summary_header(edited), edited.prefix) == ("stale:source", "client-changed")
    assert edited.messages == chat.messages[:-1]
    await soon(lambda: len(chat.stored()) == 2)
    anew = await chat.asks()
    assert (summary_header(anew), anew.prefix) == ("adopted", "checkpoint:summary")
    new = next(each for each in chat.stored() if each["id"] != old["id"])
    assert new["sources"] == chat.fingerprints(anew)
    assert [at for at in old["sources"] if at not in new["sources"]] == [old["sources"][1]]
    assert await team.standing(new["conversation"]) == new["id"]
    assert chat.scribe.calls == 2


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


async def test_a_named_conversation_stays_with_one_replica(team: Team) -> None:
    for name in "abcd":
        team.messages = [{"role": "user", "content": "Go on."}]
        assert [await team.asks(name) for _ in range(4)] == ["first", *["extended"] * 3]
    served = [await team.requests(replica) for replica in team.replicas]
    assert sum(served) == 16
    assert all(count % 4 == 0 for count in served)


async def test_metrics_are_not_for_those_behind_the_balancer(team: Team) -> None:
    async with team.stage.client.get(f"{team.url}/metrics") as reply:
        assert reply.status == 403


def observed(folder: Path, replica: str) -> Path:
    """Prometheus' configuration as it is deployed, but for addresses, times and the place of the token."""
    shutil.copytree(DEPLOY / "prometheus", folder, dirs_exist_ok=True)
    (folder / "metrics_token").write_text("for-metrics")
    config = yaml.safe_load((folder / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    del job["dns_sd_configs"]
    job["authorization"]["credentials_file"] = str(folder / "metrics_token")
    job["static_configs"] = [{"targets": [replica]}]
    path = folder / "observed.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_promtool_takes_configuration_and_alerts_and_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    config, alerts = observed(tmp_path, "narrows:8787"), ROOT / "tests" / "long" / "alerts.yml"
    for words in (["check", "config", config], ["test", "rules", alerts]):
        done = subprocess.run([program("promtool"), *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "rules found" in done.stdout or "SUCCESS" in done.stdout


SILENT = {
    *("Error of the baseline", "New edits, by policy", "Refused, not planned, failed", "Summaries, by outcome"),
    *("Saved by marks", "Share of the prompt read from the cache", "Tokens written again, by reason"),
    "Pauses, dollars an hour",
}
"""Panels with nothing to draw where nothing of their kind has happened."""


async def test_prometheus_has_an_answer_to_all_that_the_dashboard_asks(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url, panels = f"http://127.0.0.1:{port}", json.loads((DEPLOY / "grafana" / "narrows.json").read_text())["panels"]
    async with staged(tmp_path / "unused.db") as stage:
        app = await stage.start(preset="adaptive", models=None, metrics_token="for-metrics")
        config = observed(tmp_path / "prometheus", app.base_url.removeprefix("http://").removesuffix("/v1"))
        words = [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
        words.append(f"--web.listen-address=127.0.0.1:{port}")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = await asyncio.create_subprocess_exec(*words, **quiet)
        try:
            messages = [{"role": "user", "content": "Go on."}]
            async with asyncio.timeout(60):
                while not await answers(
                    stage, url, 'count_over_time(narrows_prefix_total{outcome="extended"}[1m]) > 3'
                ):
                    exchange = await stage.ask(app, messages, model=MODEL)
                    messages += [
                        json.loads(exchange.reply)["choices"][0]["message"],
                        {"role": "user", "content": "And?"},
                    ]
                    await asyncio.sleep(0.5)
            empty = set()
            for panel in panels:
                for target in panel.get("targets", ()):
                    query = re.sub(r'=~"\$\w+"', '=~".*"', target["expr"])
                    query = query.replace("$__range", "1h").replace("$__rate_interval", "1m")
                    if not await answers(stage, url, query):
                        empty.add(panel["title"])
            assert empty <= SILENT
            assert await answers(stage, url, 'up{job="narrows"} == 1')
        finally:
            process.terminate()
            await process.wait()


async def answers(stage: Stage, url: str, query: str) -> list[Any]:
    """What Prometheus knows; nothing where it is not up yet."""
    try:
        async with stage.client.get(f"{url}/api/v1/query", params={"query": query}) as reply:
            said = await reply.json()
            assert reply.status in (200, 503), (query, said)
            return list(said.get("data", {}).get("result", []))
    except (aiohttp.ClientConnectionError, aiohttp.ContentTypeError):
        return []

"""A team's first hour, part of `make deploy-test`: what compose starts, as processes. Two Narrows with one file of
settings, a Redis, and HAProxy, before a strict provider that takes the gateway's key and no other; three people have
keys.
"""

import asyncio
import json
import re
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anthropic
import openai
import pytest

from proxy.identity.credential import owner_of
from proxy.lab.provider import Answer, Received, Send
from proxy.memory import Key
from tests.addons.archive.test_originals import references
from tests.addons.pages.test_conversations import RECORD, opened
from tests.kit.histories import Json
from tests.kit.paths import ROOT
from tests.kit.redis_servers import Park, Server, free_ports, soon
from tests.kit.stage import Exchange, ends, moved, staged, working
from tests.long.deployed import CHAT, Replica, Team, balanced

UPSTREAM_KEY = "sk-canary-0d9f2c71b6"
TEXT = "canary-words-5f1e77"
"""Stands in a message that is never hidden, so that nobody needs it beside the client and the upstream."""
HELLO: Any = [{"role": "user", "content": "hi"}]
CAROLS = 10
"""Requests a minute of carol."""
CONFIG = """\
auth = "keys"
preset = "eager"
floor = 0
planning_timeout = 60
originals = true
log_level = "debug"
log_format = "json"
models = {{ m = {{ input = 1, output = 1, read = 0.5, write = 1.0, window = 100000 }} }}

[[upstreams]]
name = "provider"
url = "{upstream}"
auth = "bearer"
key_env = "PROVIDER_KEY"

{row}
"""


async def narrows(*words: str, **environment: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "proxy.console.cli", *words]
    process = await asyncio.create_subprocess_exec(
        *command, env={"PYTHONPATH": str(ROOT), **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    assert words[0] == "load" or process.returncode == 0, err.decode()
    return out.decode()


@dataclass
class Hour:
    """The team, its keys, and all that was read of pages and replies."""

    team: Team
    config: Path
    logs: Sequence[Path]
    keys: dict[str, str]
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Until it is set, streams of the model `slow` do not end."""
    pages: list[bytes] = field(default_factory=list)
    exchanges: dict[str, list[Exchange]] = field(default_factory=dict)

    def answer(self, received: Received) -> Answer | None:
        """Of the provider: it knows one key."""
        if received.credential != UPSTREAM_KEY:
            return Send(401, b'{"error": {"message": "Incorrect API key provided.", "code": "invalid_api_key"}}')
        if received.model != "slow":
            return None
        return Send(body=self._pieces(), headers=(("Content-Type", "text/event-stream"),))

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'
        await self.gate.wait()
        yield b'data: {"choices":[{"index":0,"delta":{"content":"two"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

    async def grow(self, name: str, begin: int, end: int) -> None:
        """These requests of the session of one person."""
        session = session_of(name)
        headers = (("Authorization", f"Bearer {self.keys[name]}"), ("x-narrows-conversation", f"of {name}"))
        app: Any = SimpleNamespace(base_url=f"{self.team.url}/v1")
        grown = self.exchanges.setdefault(name, [])
        for at in ends(session)[begin:end]:
            grown.append(await self.team.stage.ask(app, session[:at], *headers))
            assert grown[-1].status == 200, grown[-1].reply
            self.pages.append(grown[-1].reply)

    async def page(self, name: str, place: str) -> tuple[int, bytes]:
        """A page behind the balancer, as this person sees it."""
        headers = {"Authorization": f"Bearer {self.keys[name]}"}
        async with self.team.stage.client.get(f"{self.team.url}/narrows/{place}", headers=headers) as reply:
            self.pages.append(await reply.read())
            return reply.status, self.pages[-1]

    async def until_there(self, name: str, place: str, words: bytes = b"") -> bytes:
        """Such a page, once it is there and has these words: it is written behind the request."""
        for _ in range(300):
            status, body = await self.page(name, place)
            if status == 200 and words in body:
                return body
            await asyncio.sleep(0.1)
        raise AssertionError((name, place, body))

    async def status(self, key: str, url: str) -> int:
        """Of a request with this key at this address."""
        headers = {"Authorization": f"Bearer {key}"}
        async with self.team.stage.client.post(
            url + CHAT, json={"model": "m", "messages": HELLO}, headers=headers
        ) as r:
            self.pages.append(await r.read())
            return r.status

    @asynccontextmanager
    async def streaming(self, name: str) -> AsyncIterator[None]:
        """While a stream of this person runs; it ends whole."""
        body = {"model": "slow", "messages": HELLO, "stream": True}
        headers = {"Authorization": f"Bearer {self.keys[name]}"}
        self.gate.clear()
        async with self.team.stage.client.post(self.team.url + CHAT, json=body, headers=headers) as reply:
            first = await reply.content.readany()
            assert b"one" in first
            yield
            self.gate.set()
            rest = first + await reply.content.read()
            assert b"two" in rest
            assert rest.endswith(b"data: [DONE]\n\n")

    async def metrics(self, replica: Replica) -> str:
        async with self.team.stage.client.get(f"http://127.0.0.1:{replica.port}/metrics") as reply:
            self.pages.append(await reply.read())
            return self.pages[-1].decode()

    async def settings(self) -> set[str]:
        """The digests of the settings that the replicas serve under."""
        pages = [await self.metrics(each) for each in self.team.replicas]
        return {found for page in pages for found in re.findall(r'narrows_build_info{settings="(\w+)"', page)}

    def logged(self, *words: str) -> bool:
        """Whether a line of each replica's log has all of these words."""
        texts = [log.read_text().splitlines() for log in self.logs]
        return all(any(all(word in line for word in words) for line in lines) for lines in texts)

    async def reload(self, text: str) -> None:
        self.config.write_text(text)
        for replica in self.team.replicas:
            replica.process.send_signal(signal.SIGHUP)


def session_of(name: str) -> list[Json]:
    """A session in the words of one person."""
    text = json.dumps(working(4, 60)).replace("The parser", f"The parser of {name}").replace("parse", f"line_of_{name}")
    text = text.replace("dev dev", f"line_of_{name} dev")
    session: list[Json] = json.loads(text)
    session[1]["content"] += f" {TEXT}"
    return session


@pytest.fixture
async def hour(servers: Park, tmp_path: Path) -> AsyncIterator[Hour]:
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(staged(tmp_path / "unused.db", keep=100_000))
        redis, config, logs = servers.server(), tmp_path / "narrows.toml", [tmp_path / f"log{at}" for at in range(2)]
        alice, row = (await narrows("keys", "new", "alice")).split("\n", 1)
        config.write_text(CONFIG.format(upstream=stage.upstream, row=row[row.index("[[keys]]") :].strip()))
        added = {"bob": (), "carol": ("--rpm", str(CAROLS))}
        keys = {"alice": alice}
        for name, limits in added.items():
            words = ("keys", "add", name, *limits, "--store", redis.url, "--config", str(config), "--json")
            keys[name] = json.loads(await narrows(*words))["key"]
        replicas = [
            Replica(port, "", redis.url, config, log, PROVIDER_KEY=UPSTREAM_KEY)
            for port, log in zip(free_ports(2), logs, strict=True)
        ]
        for replica in replicas:
            stack.callback(replica.kill)
        team = Team(stage, stack.enter_context(balanced(tmp_path, replicas)), replicas, redis)
        await team.up()
        hour = Hour(team, config, logs, keys)
        stage.provider.answer = hour.answer
        yield hour


async def test_x5_a_teams_first_hour(hour: Hour) -> None:
    for name in hour.keys:
        await hour.grow(name, 0, 3)
    await nobody_sees_what_is_anothers(hour)
    waiting = asyncio.create_task(a_limit_is_waited_out(hour))
    await a_key_is_revoked_while_its_stream_runs(hour)
    await settings_are_reloaded_or_not(hour)
    await waiting
    await a_replica_dies_under_load(hour)
    secrets_are_nowhere(hour)


async def nobody_sees_what_is_anothers(hour: Hour) -> None:
    refs = {
        name: next(ref for each in reversed(grown) for ref in references(each.text) if "+" not in ref)
        for name, grown in hour.exchanges.items()
    }
    places = {name: (f"originals/{refs[name]}", f"conversations/of%20{name}") for name in hour.keys}
    async with opened(hour.team.redis.url) as store:
        for name in hour.keys:
            record = replace(RECORD, conversation=f"of {name}", content=f"of_{name}", owner=owner_of(b"s", f"\0{name}"))
            await store.put_summary(Key(name, f"of {name}"), record)
    for name in hour.keys:
        original = await hour.until_there(name, places[name][0])
        assert f"line_of_{name}".encode() in original
        usage = await hour.until_there(name, "usage", b'"requests": 3')
        await hour.until_there(name, f"{places[name][1]}/summaries", RECORD.id.encode())
        _, listed = await hour.page(name, "conversations")
        mine = [usage, listed, (await hour.page(name, ""))[1]]
        assert not [1 for other in hour.keys.keys() - {name} for body in mine if f"of {other}".encode() in body]
        assert json.loads(usage)["total"]["requests"] == 3
        assert [each["conversation"] for each in json.loads(listed)["conversations"]] == [f"of {name}"]
        for other in hour.keys.keys() - {name}:
            beside = (*places[other], f"conversations/of%20{other}/summaries", f"conversations/of%20{other}/history")
            answers = [await hour.page(name, place) for place in (*beside, f"{places[other][1]}?tenant={other}")]
            assert {status for status, _ in answers} == {404}
            assert not [1 for _, body in answers if f"of_{other}".encode() in body]
    assert {await hour.status(key, hour.team.url) for key in ("sk-somebody", UPSTREAM_KEY, "nrw_x")} == {401}


async def a_limit_is_waited_out(hour: Hour) -> None:
    """Carol uses up her minute, and then asks by both SDKs, which wait as long as they are told."""
    key, statuses = hour.keys["carol"], list[int]()
    while 429 not in statuses and len(statuses) <= CAROLS:
        statuses.append(await hour.status(key, hour.team.url))
    assert statuses[-1] == 429
    async with (
        openai.AsyncOpenAI(base_url=f"{hour.team.url}/v1", api_key=key, max_retries=9) as one,
        anthropic.AsyncAnthropic(base_url=hour.team.url, api_key=key, max_retries=9) as other,
    ):
        chat, message = await asyncio.gather(
            one.chat.completions.create(model="m", messages=HELLO),
            other.messages.create(model="m", messages=HELLO, max_tokens=9),
        )
    assert chat.choices[0].message.content
    assert message.content
    pages = [await hour.metrics(each) for each in hour.team.replicas]
    assert sum(map(float, re.findall(r'narrows_refused_total{limit="rpm".*} (\S+)', "\n".join(pages)))) >= 3


async def a_key_is_revoked_while_its_stream_runs(hour: Hour) -> None:
    urls = [hour.team.url, *(f"http://127.0.0.1:{each.port}" for each in hour.team.replicas)]
    assert {await hour.status(hour.keys["bob"], url) for url in urls} == {200}
    async with hour.streaming("bob"):
        await narrows("keys", "revoke", "bob", "--store", hour.team.redis.url)
        for _ in range(100):
            statuses = {await hour.status(hour.keys["bob"], url) for url in urls}
            if statuses == {401}:
                break
            await asyncio.sleep(0.2)
        assert statuses == {401}


async def settings_are_reloaded_or_not(hour: Hour) -> None:
    text, (before,) = hour.config.read_text(), await hour.settings()
    async with hour.streaming("alice"):
        await hour.reload(text.replace('"eager"', '"eagre"'))
        await soon(lambda: hour.logged("not_reloaded", "eagre", "line 2"))
        assert await hour.settings() == {before}
        assert await hour.status(hour.keys["alice"], hour.team.url) == 200
        await hour.reload(f"request_aim = true\n{text}")
        await soon(lambda: hour.logged('"reloaded"'))
    (after,) = await hour.settings()
    assert after != before
    assert {await hour.status(key, hour.team.url) for key in hour.keys.values()} <= {200, 401, 429}
    assert await hour.status(hour.keys["bob"], hour.team.url) == 401


async def a_replica_dies_under_load(hour: Hour) -> None:
    """What it was doing is lost to its clients; every later request of every conversation is answered."""
    flags = ("--concurrency", "4", "--duration", "12", "--named", "--model", "m", "--credential-env", "KEY", "--json")
    sessions = [str(ROOT / "proxy/lab/sessions" / f"{name}.json") for name in ("write_once", "follow_up")]
    load = narrows("load", f"{hour.team.url}/v1", *sessions, *flags, KEY=hour.keys["alice"])
    running = asyncio.create_task(load)
    await asyncio.sleep(6)
    for replica in hour.team.replicas:
        await hour.metrics(replica)
    hour.team.replicas[0].kill()
    report = json.loads(await running)
    assert report["is_whole"]
    assert report["answered"] > 20
    assert sum(report["errors"].values()) <= 4, report["errors"]
    assert set(report["errors"]) <= {"cut", "status 502"}
    for name in ("alice", "carol"):
        await hour.grow(name, 3, 5)
        assert moved(hour.exchanges[name]) == []
    assert not [each.violation for each in hour.team.stage.provider.requests if each.violation is not None]
    await hour.metrics(hour.team.replicas[1])


def secrets_are_nowhere(hour: Hour) -> None:
    requests = hour.team.stage.provider.requests
    assert {each.credential for each in requests} == {UPSTREAM_KEY}
    assert not [each for each in requests if "nrw_" in str(each.headers) or b"nrw_" in each.body]
    texts = [*hour.pages, *(log.read_bytes() for log in hour.logs), *dumped(hour.team.redis)]
    everything = b"\n".join(texts)
    assert all(
        words in everything for words in (b"alice", b"narrows_requests_total", b"narrows:v2:", b'"not_reloaded"')
    )
    assert any(TEXT.encode() in each.body for each in requests)
    for secret in (UPSTREAM_KEY, *hour.keys.values(), TEXT):
        raw = secret.encode()
        for form in (raw, b64encode(raw).rstrip(b"="), raw.hex().encode(), raw[4:20]):
            assert form not in everything, secret[:6]


def dumped(redis: Server) -> Iterator[bytes]:
    """All that the store has."""
    ways: dict[bytes, Sequence[str]] = {
        b"string": ("GET",),
        b"hash": ("HGETALL",),
        b"set": ("SMEMBERS",),
        b"list": ("LRANGE", "0", "-1"),
        b"zset": ("ZRANGE", "0", "-1"),
    }
    for key in redis.do("KEYS", "*"):
        command, *rest = ways[redis.do("TYPE", key)]
        yield key + b" " + repr(redis.do(command, key, *rest)).encode()

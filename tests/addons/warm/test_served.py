"""An attacker's list against `narrows serve`: nothing that he has begun is sent again; what another client waits for
is."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from policies.money.catalog import prices_for
from proxy.addons.access.keys import digest_of, new_key
from proxy.config import KeyRow
from proxy.lab.provider import Answer, Received, Send
from proxy.memory import open_store
from tests.addons.warm.scene import MODEL, TEXT, is_ping, said
from tests.kit.histories import Json
from tests.kit.paths import ROOT
from tests.kit.serving import PROGRAM, until
from tests.kit.stage import Stage, staged

BUDGET = 0.03
CONFIG = f"""
auth = "both"
keep_warm = "10m"
keep_warm_budget = {BUDGET}
cold_seconds = 6
log_level = "error"
"""
REFUSED = "Refuse this."
MANY = 1_000
"""Conversations of one client."""


@dataclass(frozen=True, slots=True)
class Program:
    """A process, and for each client a key of the gateway and a credential."""

    stage: Stage
    store: str
    keys: dict[str, str]
    url: str

    async def ask(self, who: str, text: str, status: int = 200, name: str = "", system: str = "The same.") -> None:
        headers = {**self.head(who), "anthropic-version": "2023-06-01", "Content-Type": "application/json"}
        if name:
            headers["x-narrows-conversation"] = name
        messages = said(1, f"{who}: {text} {TEXT}")
        body: Json = {"model": MODEL, "max_tokens": 9_000, "messages": messages, "system": system}
        async with self.stage.client.post(f"{self.url}/messages", data=json.dumps(body), headers=headers) as reply:
            text = await reply.text()  # who leaves before the end of a reply waits for nothing
            assert reply.status == status, text

    def head(self, who: str) -> dict[str, str]:
        return {"x-narrows-key": self.keys[who], "x-api-key": f"sk-ant-api03-of-{who}"}

    async def until_refused(self, who: str, is_refused: bool) -> None:
        async with asyncio.timeout(60):
            while is_refused is not (await self._status(who) == 401):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)

    async def _status(self, who: str) -> int:
        async with self.stage.client.get(f"{self.url}/models", headers=self.head(who)) as reply:
            return reply.status

    def pings(self, who: str, since: int = 0) -> list[Received]:
        """Those of a client, but for so many requests at first."""
        received = list(self.stage.provider.requests)[since:]
        return [each for each in received if is_ping(each) and each.credential == self.head(who)["x-api-key"]]

    @property
    def now(self) -> int:
        """How many requests the provider has received."""
        return len(self.stage.provider.requests)


def answer(received: Received) -> Answer | None:
    is_refused = received.json and REFUSED in str(received.json)
    return Send(401, b'{"error":{"message":"no"}}') if is_refused else None


@pytest.fixture
async def program(tmp_path: Path) -> AsyncIterator[Program]:
    names = ("honest", "thousand", "revoked", "spent", "refused", "deleted", "changing", "hoard")
    keys, store = {name: new_key() for name in names}, f"sqlite:///{tmp_path}/narrows.db"
    limits = {"spent": "usd_per_day = 0.009\n"}
    config = tmp_path / "narrows.toml"
    rows = (
        f'[[keys]]\nname = "{name}"\nsha256 = "{digest_of(key)}"\n{limits.get(name, "")}'
        for name, key in keys.items()
        if name != "revoked"
    )
    config.write_text(CONFIG + "".join(rows))
    async with staged(tmp_path / "unused.db", answer=answer, keep=10**5) as stage:
        words = ("-c", PROGRAM, "serve", "--port", "0", "--config", config, "--store", store)
        to = ("--upstream", stage.upstream, "--anthropic-upstream", stage.upstream)
        command = (sys.executable, *map(str, (*words, *to)))
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE)
        try:
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode()
            yield Program(stage, store, keys, line.split()[-1])
        finally:
            process.terminate()
            await process.wait()


async def thousand(program: Program) -> None:
    for number in range(MANY):
        await program.ask("thousand", f"Number {number}.")


async def revoked(program: Program) -> None:
    store = open_store(program.store)
    await store.open()
    await store.add_key(KeyRow(name="revoked", sha256=digest_of(program.keys["revoked"])))
    await program.until_refused("revoked", False)
    await program.ask("revoked", "One.")
    await store.delete_key("revoked")
    await store.close()
    await program.until_refused("revoked", True)


async def spent(program: Program) -> None:
    """More than 80 % of its dollars with one request."""
    await program.ask("spent", "One.")


async def refused(program: Program) -> None:
    await program.ask("refused", "One.")
    await program.ask("refused", REFUSED, 401, system="Else.")


async def deleted(program: Program) -> None:
    await program.ask("deleted", "One.")
    url = f"{program.url.removesuffix('/v1')}/narrows/conversations"
    async with program.stage.client.delete(url, headers=program.head("deleted")) as reply:
        assert reply.status in (200, 204)


async def changing(program: Program) -> None:
    for number in range(20):
        await program.ask("changing", f"Number {number}.", name="mine", system=f"Number {number}.")


async def hoard(program: Program) -> None:
    """As many as the budget has no dollars for, which nothing else ends."""
    for number in range(100):
        await program.ask("hoard", f"Number {number}.", system=f"Number {number}.")


async def test_what_an_attacker_has_begun_is_not_sent_again(program: Program) -> None:
    since = dict[str, int]()
    await program.ask("honest", "One.")
    for attack in (thousand, revoked, spent, refused, deleted, changing, hoard):
        await attack(program)
        since[attack.__name__] = program.now
    end = program.now
    await until(lambda: len(program.pings("honest", end)) > 2)
    sent = {name: program.pings(name, at) for name, at in since.items()}
    bodies = {name: {each.body for each in pings} for name, pings in sent.items()}
    assert all(f"Number {MANY - 1}." in each.decode() for each in bodies.pop("thousand")), "the one that is left open"
    assert len({each.body for each in program.pings("thousand")}) < 5, "others only where this machine stood still"
    assert all("Number 19." in each.decode() for each in bodies.pop("changing")), "no former one"
    prices = prices_for(MODEL, {})
    cost = sum(prices.cost(ping.usage).total for ping in program.pings("hoard") if ping.usage is not None)
    assert 0 < cost <= BUDGET
    assert len(bodies.pop("hoard")) < 100
    assert bodies == {name: set() for name in ("revoked", "spent", "refused", "deleted")}

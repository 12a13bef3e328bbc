"""E4: a store that answers late is no unknown past: the outcome follows from what this process has sent."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from policies.model.memory import Memory
from proxy.app import App
from proxy.lab.provider import Say
from proxy.memory import Key
from proxy.memory.conversation import Conversations
from proxy.memory.sqlite.store import SqliteStore
from tests.kit.apis import Api
from tests.kit.prefixes import ask, grow, moved
from tests.kit.recalling import REPORT, Client, answered, client_of, extends, fetched, hiding, plays, wants
from tests.kit.stage import Stage, ends, working

SESSION = working(12, lines=16)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A switch: from then on no question of a request is answered in time."""
    switched: list[bool] = []
    real = SqliteStore.memory

    async def memory(self: SqliteStore, key: Key, anchors: Sequence[str]) -> Memory:
        await asyncio.sleep(0.2 if switched else 0)
        return await real(self, key, anchors)

    monkeypatch.setattr(SqliteStore, "memory", memory)
    return switched


async def test_e4_a_client_that_alters_replies_meets_a_slow_store(stage: Stage, api: Api, late: list[bool]) -> None:
    late.append(True)  # the replies in the session are not those that were given: each is looked up
    grown = await grow(stage, await stage.start(), api, SESSION)
    assert moved(api, grown) == []
    assert "checkpoint:replayed" not in {exchange.prefix for exchange in grown}
    assert {"extended", "tail-cut"} <= {exchange.prefix for exchange in grown}


async def test_e4_what_was_sent_outlives_the_plan_states(
    stage: Stage, api: Api, late: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a machine has many conversations, those that rest are packed."""
    monkeypatch.setattr(Conversations.__init__, "__defaults__", (2**40, 1))
    app, other = await stage.start(), working(12, lines=15)
    late.append(True)
    ours = []
    for one, two in zip(ends(SESSION)[:6], ends(other)[:6], strict=True):
        ours.append(await ask(stage, app, api, SESSION[:one]))
        for number in range(4):
            await ask(stage, app, api, other[:two], ("x-narrows-conversation", f"{number}"))
    assert moved(api, ours) == []
    assert "checkpoint:replayed" not in {exchange.prefix for exchange in ours}


async def test_e4_what_another_replica_sent_is_not_guessed(stage: Stage, api: Api, late: list[bool]) -> None:
    replicas = [await stage.start(), await stage.start()]
    late.append(True)
    shared = [await ask(stage, replicas[i % 2], api, SESSION[:end]) for i, end in enumerate(ends(SESSION))]
    assert moved(api, shared) == []
    assert {exchange.prefix for exchange in shared[1:]} <= {"checkpoint:replayed", "checkpoint:paid", "tail-cut"}


async def test_e4_an_exchange_that_another_replica_had_meanwhile_is_not_overlooked(
    stage: Stage, app: App, client: Client, late: list[bool]
) -> None:
    said = hiding()
    other = await stage.start(preset="keeping")
    async with client_of(other.base_url) as there:
        stage.provider.answer = plays(Say("Nothing yet."))
        await there.ask(said)
        stage.provider.answer = plays(wants("Look. "), Say("Seen."))
        reply = (await client.ask(said)).message()
        before = stage.provider.requests[-1]
        late.append(True)
        heard = await there.ask([*said, *answered(reply)])
    assert heard.headers["x-narrows-prefix"] in ("checkpoint:recall", "checkpoint:replayed")
    assert not extends(before, stage.provider.requests[-1])


async def test_e4_what_was_recalled_stays_though_the_client_alters_the_newest_reply(
    stage: Stage, client: Client, late: list[bool]
) -> None:
    stage.provider.answer = plays(wants("Look. "), Say("Seen."), Say("A."), Say("B."))
    said = hiding()
    said += answered((await client.ask(said)).message())
    said += answered((await client.ask(said)).message())
    late.append(True)
    altered: list[Any] = [*said[:-2], {"role": "assistant", "content": "Something else."}, said[-1]]
    heard = await client.ask(altered)
    assert heard.headers["x-narrows-prefix"] == "extended"
    assert extends(*list(stage.provider.requests)[-2:])
    assert fetched(stage.provider.requests[-1]) == [REPORT]

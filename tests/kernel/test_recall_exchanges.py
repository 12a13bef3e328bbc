"""R2, R4 where a client or a store is odd: whether what was recalled comes back in its place on later requests."""

import gzip
import json
from typing import Any

import pytest

from proxy.app import App
from proxy.lab.provider import Answer, Received, Say
from proxy.memory import StoreTrouble
from proxy.memory.cached import CachedStore
from tests.kit.recalling import (
    BOTH,
    REPORT,
    TOOLS,
    Client,
    answered,
    call,
    client_of,
    extends,
    fetched,
    hiding,
    plays,
    recall,
    refs,
    wants,
)
from tests.kit.stage import Stage

pytestmark = pytest.mark.usefixtures("patient")


@BOTH
async def test_r4_stripping_what_an_earlier_round_said_is_a_change_of_the_clients(
    stage: Stage, client: Client, stream: bool
) -> None:
    stage.provider.answer = plays(wants("Let me look.\n"), Say(None, [call("a", "bash", command="date")]))
    said = hiding()
    reply = (await client.ask(said, stream)).message()
    heard = await client.ask([*said, *answered({**reply, "content": "Let me look."}, "noon")], stream)
    last = stage.provider.requests[-1]
    assert heard.headers["x-narrows-prefix"] == "client-changed"
    assert (last.violation, fetched(last)) == (None, [REPORT])


async def test_r4_a_client_that_keeps_text_in_a_part(stage: Stage, client: Client) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."))
    said = hiding()
    reply = (await client.ask(said)).message()
    part = {"type": "text", "text": reply["content"]}
    heard = await client.ask([*said, *answered({**reply, "content": [part]})])
    assert heard.headers["x-narrows-prefix"] == "extended"
    assert stage.provider.requests[-1].json["messages"][-2]["content"] == [{"type": "text", "text": "Seen."}]


async def test_r4_a_client_that_encodes_its_requests(stage: Stage, app: App) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."))
    body = gzip.compress(json.dumps({"model": "m", "messages": hiding(), "tools": TOOLS}).encode())
    exchange = await stage.post(app, body, ("Content-Encoding", "gzip"))
    assert json.loads(exchange.reply)["choices"][0]["message"]["content"] == "Let me look. Seen."
    assert [request.violation for request in stage.provider.requests] == [None, None]


async def test_r4_a_reply_that_comes_back_in_other_parts_has_no_exchange(stage: Stage, client: Client) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."))
    said = hiding()
    reply = (await client.ask(said)).message()
    parts = [{"type": "text", "text": text} for text in ("Let me look. ", "Seen.")]
    said += [{**reply, "content": parts}, {"role": "user", "content": "Go on."}]
    heard = await client.ask(said)
    last = stage.provider.requests[-1]
    assert heard.headers["x-narrows-prefix"] == "checkpoint:recall"
    assert (last.violation, fetched(last)) == (None, [])
    assert last.json["messages"][len(hiding()) :] == said[len(hiding()) :]


async def test_r4_a_reply_without_a_recall_is_no_lost_exchange(stage: Stage, client: Client) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."), Say("No."))
    said = hiding()
    await client.ask(said)
    heard = await client.ask([*said, *answered((await client.ask(said)).message())])
    assert extends(*list(stage.provider.requests)[-2:])
    assert heard.headers["x-narrows-prefix"] == "extended"


# --- replicas, and a store in trouble ---


@BOTH
async def test_r2_a_store_that_fails_between_two_rounds_takes_no_exchange_away(
    stage: Stage, app: App, client: Client, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.provider.answer = plays(wants("Look. "), Say("Seen."))
    said = hiding()
    said += answered((await client.ask(said, stream)).message())
    other = await stage.start(preset="keeping")

    def failing(*_: Any, **__: Any) -> Any:
        raise StoreTrouble("planted")

    def then_fails(received: Received) -> Answer:
        monkeypatch.setattr(CachedStore, "ask", failing)
        return Say("Hm. ", [recall(refs(received)[0], "lines 1", "r2")])

    stage.provider.answer = plays(then_fails, Say("Aha."))
    async with client_of(other.base_url) as elsewhere:
        heard = await elsewhere.ask(said, stream)
    before, after = list(stage.provider.requests)[-2:]
    assert (heard.headers["x-narrows-prefix"], len(fetched(before))) == ("extended", 1)
    assert extends(before, after)


async def test_r2_an_exchange_that_the_store_cannot_give_is_declared(
    stage: Stage, app: App, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = hiding()
    other = await stage.start(preset="keeping")
    stage.provider.answer = plays(Say("Nothing yet."))
    async with client_of(other.base_url) as elsewhere:
        await elsewhere.ask(said)
    stage.provider.answer = plays(wants("Look. "), Say("Seen."))
    said += answered((await client.ask(said)).message())

    def failing(*_: Any, **__: Any) -> Any:
        raise StoreTrouble("planted")

    monkeypatch.setattr(CachedStore, "ask", failing)
    async with client_of(other.base_url) as elsewhere:
        heard = await elsewhere.ask(said)
    assert not extends(*list(stage.provider.requests)[-2:])
    assert heard.headers["x-narrows-prefix"] in ("checkpoint:recall", "checkpoint:replayed")

"""R4, R5: what was recalled comes back in its place on later requests, and what becomes of it there."""

import gzip
import json
from itertools import pairwise
from typing import Any

import pytest

from policies.tools import RECALL
from proxy.app import App
from proxy.histories import Histories
from proxy.provider import Say
from proxy.provider.answers import Answer
from proxy.provider.server import Received
from proxy.store import StoreTrouble
from tests.proxy.recalling import (
    BOTH,
    REPORT,
    SECOND,
    TOOLS,
    Client,
    Turn,
    answered,
    call,
    client_of,
    extends,
    fetched,
    hiding,
    mixed,
    plays,
    recall,
    refs,
    runs,
    wants,
)
from tests.proxy.stage import Stage

pytestmark = pytest.mark.usefixtures("patient")


# --- R4: the exchange is put back ---


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "last"])
@BOTH
async def test_r4_beside_calls_of_the_clients_own(stage: Stage, client: Client, stream: bool, place: int) -> None:
    stage.provider.answer = plays(mixed(place))
    said = hiding()
    heard = await client.ask(said, stream)
    assert (heard.text, heard.calls, heard.finish) == ("Both. ", ["bash", "look"], "tool_calls")
    again = await client.ask(said + answered(heard.message(), "noon", "nothing"), stream)
    first, second = stage.provider.requests
    assert again.headers["x-narrows-prefix"] == "extended"
    assert extends(first, second)
    assert second.violation is None
    message, *results = second.json["messages"][len(said) :]
    names = [c["function"]["name"] for c in message["tool_calls"]]
    assert (message["content"], names.index(RECALL), len(names)) == ("Both. ", place, 3)
    assert {m["tool_call_id"]: m["content"] for m in results} == {"recall_1": REPORT, "a": "noon", "b": "nothing"}


PLAYS: dict[str, tuple[int, list[Turn]]] = {
    "alone": (1, [wants()]),
    "text before": (1, [wants("Let me look. ")]),
    "text around": (1, [wants("Let me look. "), Say("Seen.")]),
    "two rounds": (2, [wants("One. "), wants("Two. ", "lines 1-2"), Say("Seen.")]),
    "two rounds, silent between": (2, [wants("One. "), wants(None, "find case 7:"), Say("Seen.")]),
    "parallel": (
        2,
        [lambda r: Say("Both. ", [recall(refs(r)[0], f"lines {n}", f"r{n}") for n in (1, 2)]), Say("Seen.")],
    ),
    "refused": (1, [Say("Hm. ", [recall("000000")]), Say("Seen.")]),
    "nothing said": (1, [wants("Let me look."), Say("")]),
    "null said": (1, [wants("Let me look."), Say(None)]),
    "then calls": (1, [wants("Let me look. "), Say("So I act. ", [call("a", "bash", command="date")])]),
    "then both": (2, [wants("Let me look. "), mixed(1)]),
}


@pytest.mark.parametrize("name", PLAYS)
@BOTH
async def test_r4_the_next_request_extends_what_the_model_saw(
    stage: Stage, client: Client, stream: bool, name: str
) -> None:
    count, turns = PLAYS[name]
    stage.provider.answer = plays(*turns, wants("Again. ", "lines 9"))
    said = hiding()
    for _ in range(2):  # the second reply recalls, too
        heard = await client.ask(said, stream)
        said += answered(heard.message(), "noon", "nothing")
    heard = await client.ask(said, stream)
    requests = list(stage.provider.requests)
    assert [request.violation for request in requests] == [None] * len(requests)
    assert [extends(*pair) for pair in pairwise(requests)] == [True] * (len(requests) - 1)
    assert heard.headers["x-narrows-prefix"] == "extended"
    assert len(fetched(requests[-1])) == count + 1
    for old, new in pairwise(requests):  # what the provider says of its cache
        assert old.usage is not None
        assert new.usage is not None
        assert new.usage.cached >= old.usage.prompt // 128 * 128 > 0


@BOTH
async def test_r4_a_client_that_strips_what_was_said(stage: Stage, client: Client, stream: bool) -> None:
    stage.provider.answer = plays(wants("Let me look.\n"), Say("Seen. \n\n"))
    said = hiding()
    reply = (await client.ask(said, stream)).message()
    assert reply["content"] == "Let me look.\nSeen. \n\n"
    heard = await client.ask([*said, *answered({**reply, "content": reply["content"].strip()})], stream)
    assert heard.headers["x-narrows-prefix"] == "extended"
    assert fetched(stage.provider.requests[-1]) == [REPORT]
    assert stage.provider.requests[-1].json["messages"][-2]["content"] == "Seen."


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


CHANGES: dict[str, Any] = {
    "edited": lambda reply: [{**reply, "content": "I never looked."}],
    "edited at the end": lambda reply: [{**reply, "content": reply["content"] + " Really!"}],
    "with a call more": lambda reply: runs("date", "noon", "z", content=reply["content"]),
    "in parts": lambda reply: [{**reply, "content": [{"type": "text", "text": t} for t in ("Let me look. ", "Seen.")]}],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_r4_a_reply_that_comes_back_as_another_has_no_exchange(stage: Stage, client: Client, change: str) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."))
    said = hiding()
    reply = (await client.ask(said)).message()
    said += [*CHANGES[change](reply), {"role": "user", "content": "Go on."}]
    heard = await client.ask(said)
    last = stage.provider.requests[-1]
    assert heard.headers["x-narrows-prefix"] == "checkpoint:recall"
    assert (last.violation, fetched(last)) == (None, [])
    assert last.json["messages"][len(hiding()) :] == said[len(hiding()) :]


async def test_r4_a_client_that_drops_the_reply_or_asks_again(stage: Stage, client: Client) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."), wants("Hm. "), Say("Aha."), Say("No."))
    said = hiding()
    replies = [(await client.ask(said)).message() for _ in range(3)]
    assert [reply["content"] for reply in replies] == ["Let me look. Seen.", "Hm. Aha.", "No."]
    first, _, third, _, fifth = stage.provider.requests
    assert first.body == third.body == fifth.body
    for reply, count in zip(replies, (1, 1, 0), strict=True):
        await client.ask([*said, *answered(reply)])
        assert len(fetched(stage.provider.requests[-1])) == count
    heard = await client.ask([*said, {"role": "user", "content": "Forget it."}])
    assert fetched(stage.provider.requests[-1]) == []
    assert heard.headers["x-narrows-prefix"] == "client-changed"


async def test_r4_a_reply_without_a_recall_is_no_lost_exchange(stage: Stage, client: Client) -> None:
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."), Say("No."))
    said = hiding()
    await client.ask(said)
    heard = await client.ask([*said, *answered((await client.ask(said)).message())])
    assert extends(*list(stage.provider.requests)[-2:])
    assert heard.headers["x-narrows-prefix"] == "extended"


# --- R5: what becomes of it ---


async def test_r5_whole_in_the_keep_window_and_the_same_pointer_later(stage: Stage, client: Client) -> None:
    text = REPORT + SECOND
    stage.provider.answer = plays(wants("Let me look. ", at=1), Say("Seen."))
    said = hiding(REPORT * 3, text, SECOND * 3)
    for turn in range(4):
        said += runs(f"before {turn}", f"a word {turn}")
    said += answered((await client.ask(said)).message())
    ref = refs(stage.provider.requests[0])[1]
    held: list[tuple[str, str]] = []
    for turn in range(10):
        heard = await client.ask(said)
        (shown,) = fetched(stage.provider.requests[-1])
        held.append((shown, heard.headers["x-narrows-prefix"]))
        said += runs(f"step {turn}", f"a short word {turn}")
    whole = [shown for shown, _ in held if shown == text]
    assert 2 <= len(whole) < len(held)  # and the round in which it was fetched
    assert [shown for shown, _ in held[len(whole) :]] == [f"[narrows: output: ref {ref}]"] * (len(held) - len(whole))
    assert [prefix for _, prefix in held].count("extended") == len(held) - 1
    assert held[len(whole)][1] == "checkpoint:paid"
    stage.provider.answer = plays(wants(at=-1))
    await client.ask(said)
    assert fetched(stage.provider.requests[-1])[-1] == text


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
        monkeypatch.setattr(Histories, "_asked", failing)
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

    monkeypatch.setattr(Histories, "_asked", failing)
    async with client_of(other.base_url) as elsewhere:
        heard = await elsewhere.ask(said)
    assert not extends(*list(stage.provider.requests)[-2:])
    assert heard.headers["x-narrows-prefix"] in ("checkpoint:recall", "checkpoint:replayed")

"""Other proxies beside presets: what they send is billed and judged as what a preset sends."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from policies.model.conversation import Conversation, converse
from policies.model.edits import Replace
from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from proxy.lab.demo import recorded
from proxy.lab.provider import Provider, start
from proxy.lab.replay.recorded import read
from tests.kit.running import Start
from tests.long.bench_stage import Server
from tests.long.figures import peers
from tests.long.figures.runs import Job, Run, run_job

SESSION, MODEL = recorded("write_once"), "gpt-5.4"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "a.txt"}'}}
HISTORY: Sequence[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look at a.txt."},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "kestrel 4711"},
    {"role": "assistant", "content": "There is a bird."},
    {"role": "user", "content": "And now?"},
]


def history(messages: Sequence[dict[str, Any]]) -> Conversation:
    return converse([read("openai_chat", message) for message in messages])


def edited(messages: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """By its text, each block that was changed, and to what."""
    own = history(HISTORY)
    those: list[Replace] = [*peers.edits(own, history(messages))]
    return [(own.blocks[own.index[each.at]].text, each.text) for each in those]


def test_what_was_sent_as_it_came_is_no_edit() -> None:
    assert edited(HISTORY) == []


def test_a_text_that_was_changed_is_an_edit_of_its_own_block() -> None:
    result, call = {**HISTORY[3], "content": "a bird"}, {**CALL, "function": {"name": "look", "arguments": "{}"}}
    assert edited([*HISTORY[:2], {**HISTORY[2], "tool_calls": [call]}, result, *HISTORY[4:]]) == [
        ('{"at": "a.txt"}', "{}"),
        ("kestrel 4711", "a bird"),
    ]


def test_what_was_left_out_is_out_of_sight() -> None:
    left_out = dict(edited([*HISTORY[:2], *HISTORY[4:]]))
    assert (left_out['{"at": "a.txt"}'], left_out["kestrel 4711"]) == ("", "")
    assert "There is a bird." in left_out.values()  # in whichever of two texts of the model


def test_what_was_put_in_is_in_sight() -> None:
    added = {"role": "system", "content": "A summary: kestrel 4711."}
    assert ("There is a bird.", "There is a bird.\nA summary: kestrel 4711.") in edited(
        [*HISTORY[:5], added, HISTORY[5]]
    )


async def through(url: str, replies: peers.Replies) -> Run:
    async with aiohttp.ClientSession() as http:
        return await peers.through(http, Server("a peer", url, os.getpid()), replies, SESSION, MODEL)


def provider(replies: peers.Replies) -> Provider:
    return Provider(prices_for, Counter(encoding_for(MODEL)), answer=replies)


@pytest.mark.parametrize("preset", ["coding-agent", "lossless"])
async def test_a_narrows_measured_as_a_peer_has_the_figures_of_its_preset(narrows: Start, preset: str) -> None:
    replies = peers.Replies()
    async with await start(provider(replies)) as upstream:
        running = await narrows(real=True, upstream=upstream.url, preset=preset, summaries=False)
        measured = asdict(await through(running.url, replies))
    (simulated,) = map(asdict, run_job(Job(SESSION, MODEL, (preset,))))
    assert {**measured, "preset": preset} == simulated
    assert measured["whole_bill"] < 1


async def test_a_peer_that_the_provider_refuses_did_not_get_through() -> None:
    replies = peers.Replies()

    async def spoil(request: web.BaseRequest) -> web.Response:
        body = {**json.loads(await request.read()), "temperature": "warm"}
        async with aiohttp.ClientSession() as http, http.post(upstream.url + "/chat/completions", json=body) as reply:
            return web.json_response(await reply.json(), status=reply.status)

    async with await start(provider(replies)) as upstream:
        runner = web.ServerRunner(web.Server(spoil))
        await runner.setup()
        await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
        with pytest.raises(peers.PeerError, match=r"request 1 was refused: .*temperature"):
            await through(f"http://127.0.0.1:{site.port}/v1", replies)
        await runner.cleanup()


async def test_a_peer_that_answers_by_itself_did_not_get_through() -> None:
    replies = peers.Replies()

    async def silent(_: web.BaseRequest) -> web.Response:
        return web.json_response({"choices": []})

    runner = web.ServerRunner(web.Server(silent))
    await runner.setup()
    await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
    with pytest.raises(peers.PeerError, match="0 were sent"):
        await through(f"http://127.0.0.1:{site.port}/v1", replies)
    await runner.cleanup()


async def test_a_peer_that_takes_too_long_for_a_request_did_not_get_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LONGEST", -1)
    replies = peers.Replies()
    async with await start(provider(replies)) as upstream:
        with pytest.raises(peers.PeerError, match=r"request 1 took \d+ s"):
            await through(upstream.url, replies)


def test_a_kind_says_how_many_did_not_get_through() -> None:
    (run,) = run_job(Job(SESSION, MODEL, ("lossless",)))
    other, peer = replace(run, session="other"), replace(run, preset="a peer")
    names = {"lossless": "`lossless`", "a peer": "a peer 1.0", "gone": "gone 2"}
    lines = peers.drawn([run, other, peer], names).split("\n")
    bill = f"{run.whole_bill:.3f} ({run.whole_bill:.3f})"
    assert [line.split(" | ")[1:3] for line in lines[2:]] == [
        ["`lossless`", bill],
        ["a peer 1.0", f"{bill}, 1 of 2"],
        ["gone 2", "failed"],
    ]

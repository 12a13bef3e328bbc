"""Requests of keys that have limits: what is counted and charged, what clients read, and what the official SDKs do."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import anthropic
import openai
import pytest

from policies.model.summary_record import SummaryCost
from policies.money.catalog import prices_for
from policies.money.prices import Usage
from policies.presets import PRESETS, Preset
from proxy.addons.access.keys import digest_of, new_key
from proxy.addons.limits.addon import charge_of, summary_dollars
from proxy.addons.limits.limits import Limits
from proxy.identity.who import Identity
from proxy.lab.provider import Say
from proxy.requests import ClientRequest, ReplyRound, RequestOptions, UpstreamRequest
from tests.kit.recalling import KEEPING, hiding, plays, wants
from tests.kit.running import Running, Start
from tests.kit.stage import Stage
from tests.kit.upstream import REQUEST, Asked, Script, chunk, completion, delta, event, json_answer, says, stream_head

KEY = new_key()
OURS = {"Authorization": f"Bearer {KEY}"}
DEAR = {"gpt-4o": {"input": 1_000.0, "output": 1_000.0}}
PRICES_OF = partial(prices_for, overrides=DEAR)
THEIRS = ("x-ratelimit-limit-requests: 9999", "x-ratelimit-limit-project-tokens: 1", "anthropic-ratelimit-x: 1")
MESSAGE = {
    "id": "m1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-5",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "output_tokens": 1},
}


def limited(**limits: float) -> dict[str, Any]:
    row = {"name": "alice", "sha256": digest_of(KEY), **limits}
    return {"auth": "keys", "keys": [row], "models": DEAR}


def limits_of(setup: Running) -> Limits:
    limits = setup.app.services.opened["limits"].limits
    assert limits is not None
    return limits


def used(setup: Running) -> tuple[int, int]:
    """Requests and tokens that count now."""
    (key,) = setup.app.settings.keys
    use = limits_of(setup).counts.windows.admit(key.name, key.rpm, key.tpm, is_wanted=False)
    return use.requests, use.tokens


async def ask(setup: Running, path: str = "/chat/completions", **headers: str) -> tuple[int, dict[str, str], Any]:
    async with setup.client.post(setup.url + path, json=REQUEST, headers={**OURS, **headers}) as reply:
        body = await reply.read()
        return reply.status, dict(reply.headers), json.loads(body) if body[:1] == b"{" else body


async def both_apis(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(json_answer(MESSAGE if "messages" in asked.line else completion()))


async def by_openai(client: openai.AsyncOpenAI) -> object:
    return await client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])


async def by_anthropic(client: anthropic.AsyncAnthropic) -> object:
    return await client.messages.create(
        model="claude-sonnet-5", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
    )


SDKS: dict[str, tuple[Callable[[str], Any], Callable[[Any], Any]]] = {
    "openai": (lambda url: openai.AsyncOpenAI(base_url=url, api_key=KEY), by_openai),
    "anthropic": (lambda url: anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key=KEY), by_anthropic),
}


@pytest.mark.parametrize("sdk", SDKS)
async def test_sdks_wait_out_a_limit_of_requests(narrows: Start, monkeypatch: pytest.MonkeyPatch, sdk: str) -> None:
    monkeypatch.setattr("proxy.addons.limits.windows.MINUTE", 0.7)
    setup = await narrows(both_apis, **limited(rpm=1))
    make, send = SDKS[sdk]
    async with make(setup.url) as client:
        await asyncio.gather(send(client), send(client))
    assert len(setup.upstream.seen) == 2
    assert b'narrows_refused_total{limit="rpm",whose="key:alice"} 1.0' in setup.app.telemetry.metrics.page()


@pytest.mark.parametrize("sdk", SDKS)
async def test_sdks_do_not_ask_again_where_the_dollars_of_the_day_are_used_up(narrows: Start, sdk: str) -> None:
    setup = await narrows(both_apis, **limited(usd_per_day=0.000_001))
    make, send = SDKS[sdk]
    async with make(setup.url) as client:
        await send(client)
        with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)) as caught:
            await send(client)
    body = caught.value.body
    assert isinstance(body, dict)
    if sdk == "openai":
        assert (body["code"], body["type"]) == ("insufficient_quota", "insufficient_quota")
    else:
        assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")
    assert caught.value.response.headers["x-should-retry"] == "false"
    page = setup.app.telemetry.metrics.page()
    assert b'narrows_refused_total{limit="usd_per_day",whose="key:alice"} 1.0' in page


async def test_a_request_counts_once_and_its_tokens_once_its_reply_is_over(narrows: Start) -> None:
    """Chats with their tokens, counts and relays as requests alone; without tokens where the upstream refuses."""
    setup = await narrows(**limited(rpm=9, tpm=1_000, usd_per_day=5), mode="off")
    assert (await ask(setup))[0] == 200
    assert used(setup) == (1, 10)
    assert (await ask(setup, "/responses/input_tokens"))[0] == 200
    assert (await ask(setup, "/embeddings"))[0] == 200
    assert used(setup) == (3, 10)
    setup.upstream.script = says(json_answer({"error": {"message": "no"}}, status="400 Bad Request"))
    status, headers, _ = await ask(setup)
    assert status == 400
    assert (headers["x-ratelimit-remaining-requests"], headers["x-ratelimit-remaining-tokens"]) == ("5", "990")
    assert used(setup) == (4, 10)
    assert limits_of(setup).counts.spent["alice"][1] == pytest.approx(0.01)
    assert limits_of(setup).counts.running == {}


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("mode", ["on", "off"])
async def test_x10_an_answer_costs_also_where_nobody_says_how_long_it_is(
    narrows: Start, leaves: bool, mode: str
) -> None:
    """Its client asks for no usage, or takes the text and leaves before the usage comes."""

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(event(delta(" word" * 50)) * 40))
        await writer.drain()
        if leaves:
            await asyncio.sleep(9)
        writer.write(chunk(event(delta(finish_reason="stop"))) + chunk(b"data: [DONE]\n\n") + chunk(b""))

    setup = await narrows(script, real=True, **limited(tpm=10**6, usd_per_day=5), mode=mode)
    async with setup.client.post(
        setup.url + "/chat/completions", json={**REQUEST, "stream": True}, headers=OURS
    ) as reply:
        await (reply.content.readexactly(10_000) if leaves else reply.read())
    async with asyncio.timeout(5):
        await setup.app.gateway.finished()
    tokens = used(setup)[1]
    assert 2_000 <= tokens <= 3_600, "as we count the text, or a third of its bytes where the request was not read"
    assert limits_of(setup).counts.spent["alice"][1] == pytest.approx(tokens / 1_000, rel=0.1)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings"])
async def test_what_remains_stands_in_the_place_of_what_the_upstream_says(
    narrows: Start, streams: bool, path: str
) -> None:
    parts = (stream_head(*THEIRS), chunk(event(delta("hello"))), chunk(b"data: [DONE]\n\n"), chunk(b""))
    answer = b"".join(parts) if streams else json_answer(completion(), *THEIRS)
    setup = await narrows(answer, **limited(rpm=9), real=True)
    _, headers, _ = await ask(setup, path)
    about = {name.lower(): value for name, value in headers.items() if "ratelimit" in name.lower()}
    assert about == {
        "x-ratelimit-limit-requests": "9",
        "x-ratelimit-remaining-requests": "8",
        "x-ratelimit-reset-requests": "1m0s",
    }
    free = await narrows(answer, **limited(concurrency=1))
    _, headers, _ = await ask(free, path)
    assert headers["x-ratelimit-limit-requests"] == "9999"


async def test_so_many_in_flight_until_their_replies_are_over(narrows: Start) -> None:
    go_on, at_once = asyncio.Event(), says(json_answer(completion()))

    async def waits(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await at_once(asked, writer)

    setup = await narrows(waits, **limited(concurrency=2))
    running = [asyncio.create_task(ask(setup)) for _ in range(5)]
    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 3:
        done, _ = await asyncio.wait(running, timeout=0.01)
    go_on.set()
    statuses = [(await each)[0] for each in running]
    assert sorted(statuses) == [200, 200, 429, 429, 429]
    assert (await ask(setup))[0] == 200


@pytest.mark.usefixtures("patient")
async def test_two_servers_let_through_what_one_would(narrows: Start, redis_url: str) -> None:
    store = f"{redis_url}?prefix=t{uuid4().hex}"
    pair = [await narrows(store=store, **limited(rpm=6, tpm=10_000)) for _ in range(2)]
    replies = await asyncio.gather(*(ask(each) for each in pair * 10))
    assert sorted(status for status, _, _ in replies) == [200] * 6 + [429] * 14
    errors = {(body["error"]["code"], body["error"]["type"]) for status, _, body in replies if status == 429}
    assert errors == {("rate_limit_exceeded", "requests")}


def round_of(usage: Usage | None, status: int = 200) -> ReplyRound:
    sent = ClientRequest("openai_chat", b"x" * 400, Identity("", "t", "owner"), None, RequestOptions("off"))
    return ReplyRound(UpstreamRequest(sent, sent.body, {}), status, usage)


def test_all_rounds_are_charged_and_what_nobody_counted_is_estimated() -> None:
    once = round_of(Usage(900, 0, 0, 100))
    assert charge_of([once, once], None, "gpt-4o", PRICES_OF) == (2_000, pytest.approx(2.0))
    assert charge_of([once, round_of(Usage(9, 0, 0, 9), 500)], None, "gpt-4o", PRICES_OF) == (1_000, pytest.approx(1.0))
    assert charge_of([round_of(None)], None, "gpt-4o", PRICES_OF) == (100, pytest.approx(0.1))
    assert charge_of([round_of(None, 0)], None, "gpt-4o", PRICES_OF) == (0, 0.0)
    for model in ("", "nobody-lists-it"):
        tokens, dollars = charge_of([round_of(Usage(500_000, 0, 0, 500_000))], None, model, PRICES_OF)
        assert (tokens, dollars) == (1_000_000, pytest.approx(2.5))
    assert summary_dollars(SummaryCost(1, 1_000_000, 0, 0, 1_000_000)) == pytest.approx(5.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("streams", [False, True])
async def test_rounds_that_answer_recalls_are_charged_and_are_no_requests(
    stage: Stage, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the provider itself counted of all rounds."""
    monkeypatch.setitem(PRESETS, "keeping", Preset(KEEPING))
    row = {"name": "alice", "sha256": digest_of(KEY), "rpm": 9, "tpm": 10**9}
    app = await stage.start(preset="keeping", auth="keys", keys=[row])
    stage.provider.answer = plays(wants(), Say("So it is."))
    extra = {"stream_options": {"include_usage": True}} if streams else {}
    await stage.ask(app, hiding(), ("Authorization", f"Bearer {KEY}"), stream=streams, **extra)
    assert len(stage.provider.requests) == 2
    limits = app.services.opened["limits"].limits
    assert limits is not None
    (key,) = app.settings.keys
    use = limits.counts.windows.admit(key.name, key.rpm, key.tpm, is_wanted=False)
    billed = app.telemetry.metrics.billed
    assert (use.requests, use.tokens) == (1, billed.prompt + billed.output)
    assert billed.rounds == 1
    assert billed.prompt > billed.sent > 1_000


async def test_x10_all_modes_are_charged_alike(narrows: Start) -> None:
    """A request cannot go by its limits because Narrows is to leave it alone."""
    script: Script = says(json_answer(completion()))
    setup = await narrows(script, real=True, **limited(tpm=1_000, usd_per_day=5))
    for number, mode in enumerate(("on", "observe", "off"), start=1):
        assert (await ask(setup, **{"x-narrows": mode}))[0] == 200
        assert used(setup) == (0, 10 * number)
        assert limits_of(setup).counts.spent["alice"][1] == pytest.approx(0.01 * number)

"""Budgets of keys and replies that do not say what they cost, or not where they are asked for: streams without usage,
replies that go on without their client, histories that the provider makes shorter."""

import asyncio
import json
import time
from typing import Any
from uuid import uuid4

import openai
import pytest

from proxy.addons.access.keys import digest_of, new_key
from tests.addons.limits.test_limited_requests import DEAR, KEY, OURS, limited, limits_of, used
from tests.kit.running import Running, Start
from tests.kit.upstream import (
    REQUEST,
    Asked,
    chunk,
    completion,
    delta,
    event,
    json_answer,
    stream_head,
)

BOB = new_key()
STREAM = {**REQUEST, "stream": True}
USAGE = {"prompt_tokens": 9, "completion_tokens": 500, "total_tokens": 509}
PLAIN = [event({**delta(text), "system_fingerprint": None}) for text in ("Hel", "lo", ' "usage" ')] + [
    event(delta(finish_reason="stop"))
]
DONE = b"data: [DONE]\n\n"


def with_null(plain: bytes) -> bytes:
    return plain.replace(b"}\n\n", b',"usage":null}\n\n')


def as_openai(asked: Asked) -> bytes:
    """What OpenAI streams, with and without the option."""
    if not json.loads(asked.body).get("stream_options"):
        return b"".join(PLAIN) + DONE
    last = event({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
    return b"".join(map(with_null, PLAIN)) + last + DONE


def in_the_last_chunk(asked: Asked) -> bytes:
    last = PLAIN[-1].replace(b"}\n\n", b',"usage":' + json.dumps(USAGE).encode() + b"}\n\n")
    return b"".join(PLAIN[:-1]) + (last if b"include_usage" in asked.body else PLAIN[-1]) + DONE


async def spent(setup: Running, name: str = "alice") -> float:
    async with asyncio.timeout(5):
        await setup.app.gateway.finished()
    return limits_of(setup).counts.spent.get(name, ("", 0.0))[1]


@pytest.mark.parametrize("provider", [as_openai, in_the_last_chunk])
@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("step", [7, 4096])
async def test_x10_a_stream_is_charged_what_it_used_and_its_client_sees_none_of_that(
    narrows: Start, provider: Any, mode: str, step: int
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        stream = provider(asked)
        writer.write(stream_head())
        for start in range(0, len(stream), step):
            writer.write(chunk(stream[start : start + step]))
            await asyncio.sleep(0)
        writer.write(chunk(b""))

    setup = await narrows(script, real=True, mode=mode, **limited(usd_per_day=5))
    bodies = []
    for _ in range(2):
        async with setup.client.post(setup.url + "/chat/completions", json=STREAM, headers=OURS) as reply:
            assert await reply.read() == b"".join(PLAIN) + DONE
        bodies.append(setup.upstream.seen[-1].body)
    assert await spent(setup) == pytest.approx(2 * 0.509)
    assert bodies[0] == bodies[1] != json.dumps(STREAM).encode()
    asking = {**STREAM, "stream_options": {"include_usage": True}}
    async with setup.client.post(setup.url + "/chat/completions", json=asking, headers=OURS) as reply:
        assert b'"completion_tokens": 500' in await reply.read()
    assert await spent(setup) == pytest.approx(3 * 0.509)


async def test_the_official_sdk_sees_a_stream_as_without(narrows: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(as_openai(asked)) + chunk(b""))

    setup = await narrows(script, real=True, **limited(usd_per_day=5))
    async with openai.AsyncOpenAI(base_url=setup.url, api_key=KEY) as client:
        stream = await client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        chunks = [each async for each in stream]
    assert all(each.choices and "usage" not in each.model_fields_set for each in chunks)
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == 'Hello "usage" '


@pytest.mark.parametrize("limits", [{"rpm": 9}, {"concurrency": 2}])
async def test_law_1_without_a_budget_nothing_is_asked_for(narrows: Start, limits: dict[str, float]) -> None:
    setup = await narrows(stream_head() + chunk(DONE) + chunk(b""), real=True, **limited(**limits))
    body = json.dumps(STREAM).encode()
    async with setup.client.post(setup.url + "/chat/completions", data=body, headers=OURS) as reply:
        await reply.read()
    assert setup.upstream.seen[-1].body == body


@pytest.mark.parametrize("status", ["400 Bad Request", "422 Unprocessable Entity"])
async def test_x10_an_upstream_that_does_not_know_the_option_is_asked_without_and_its_text_is_counted(
    narrows: Start, status: str
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if b"stream_options" in asked.body:
            writer.write(json_answer({"error": {"message": "stream_options: not permitted"}}, status=status))
        else:
            writer.write(stream_head() + chunk(event(delta(" word" * 300)) + DONE) + chunk(b""))

    setup = await narrows(script, real=True, **limited(tpm=10**6))
    for number in (1, 2):
        async with setup.client.post(setup.url + "/chat/completions", json=STREAM, headers=OURS) as reply:
            assert reply.status == 200
            await reply.read()
        assert len(setup.upstream.seen) == 1 + number, "it is asked for usage once"
    await spent(setup)
    assert 600 <= used(setup)[1] <= 660


async def test_usage_that_an_upstream_reports_without_being_asked_stays(narrows: Start) -> None:
    """It refuses the option: what it says of its own accord is the client's."""
    own = event({**delta("hi"), "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}) + DONE

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if b"stream_options" in asked.body:
            error = {"error": {"message": "stream_options: not permitted"}}
            writer.write(json_answer(error, status="400 Bad Request"))
        else:
            writer.write(stream_head() + chunk(own) + chunk(b""))

    setup = await narrows(script, real=True, **limited(tpm=10**6))
    for _ in range(2):
        async with setup.client.post(setup.url + "/chat/completions", json=STREAM, headers=OURS) as reply:
            assert await reply.read() == own


class Background:
    """An upstream that answers in the background, as Responses has it."""

    def __init__(self, **fields: Any) -> None:
        self.status, self.usage = "in_progress", dict[str, Any]()
        self._fields, self._id = fields, f"resp_{uuid4().hex}"

    def finish(self, tokens: int, status: str = "completed") -> None:
        usage = {"input_tokens": 10, "output_tokens": tokens - 10, "total_tokens": tokens}
        self.status, self.usage = status, usage

    @property
    def response(self) -> dict[str, Any]:
        usage, same = self.usage or None, {"id": self._id, "object": "response", "background": True}
        return {**same, "status": self.status, "model": "gpt-4o", "output": [], "usage": usage, **self._fields}

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "POST" in asked.line and "cancel" not in asked.line and "stream" not in json.loads(asked.body):
            writer.write(json_answer({**self.response, "status": "queued", "usage": None}))
        elif "stream" in asked.line or b'"stream"' in asked.body:
            kind = "response.completed" if self.usage else "response.created"
            content = {"type": kind, "sequence_number": 0, "response": self.response}
            writer.write(stream_head() + chunk(event(content)) + chunk(b""))
        else:
            writer.write(json_answer(self.response))


BACKGROUND = {"model": "gpt-4o", "input": "hi", "background": True}


async def begin(setup: Running, **fields: Any) -> tuple[int, str]:
    async with setup.client.post(f"{setup.url}/responses", json={**BACKGROUND, **fields}, headers=OURS) as reply:
        content = await reply.text()
        return reply.status, json.loads(content)["id"] if content.startswith('{"id"') else ""


async def fetch(setup: Running, path: str, headers: dict[str, str] = OURS, method: str = "GET") -> int:
    async with setup.client.request(method, f"{setup.url}/responses/{path}", headers=headers) as reply:
        await reply.read()
    async with asyncio.timeout(5):
        await setup.app.gateway.finished()
    return reply.status


async def settle(setup: Running) -> None:
    charges = limits_of(setup).charges
    await charges.reservations.close()
    if charges.writing is not None:
        await charges.writing


@pytest.mark.parametrize("streams", [False, True])
async def test_x10_what_is_never_fetched_costs_as_much_as_it_may_come_to(narrows: Start, streams: bool) -> None:
    setup = await narrows(Background(), real=True, **limited(usd_per_day=1))
    fields = {"stream": True} if streams else {}
    statuses = [(await begin(setup, **fields))[0] for _ in range(60)]
    assert statuses == [200] + [429] * 59
    assert 128 < await spent(setup) < 129


async def test_x10_what_is_never_fetched_costs_no_more_than_the_limit_of_its_answer(narrows: Start) -> None:
    setup = await narrows(Background(max_output_tokens=400), real=True, **limited(usd_per_day=1))
    assert [(await begin(setup))[0] for _ in range(4)] == [200] * 3 + [429]


async def test_x10_a_client_that_leaves_before_the_head_has_begun_what_goes_on(narrows: Start) -> None:
    came = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        came.set()
        await asyncio.sleep(30)

    setup = await narrows(script, real=True, **limited(usd_per_day=1))
    task = asyncio.create_task(begin(setup))
    await came.wait()
    task.cancel()
    await asyncio.wait([task])
    assert 128 < await spent(setup) < 129


async def test_x10_who_stops_waiting_for_reservations_does_not_stop_their_writing(narrows: Start) -> None:
    setup = await narrows(Background(), real=True, **limited(usd_per_day=1))
    reservations, may_end, written = limits_of(setup).charges.reservations, asyncio.Event(), []

    async def write() -> None:
        await may_end.wait()
        written.append(True)

    writing = asyncio.create_task(write())
    reservations._writing.add(writing)
    waiting = asyncio.create_task(reservations.take("resp_1", 0.0))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    may_end.set()
    await asyncio.wait([writing])
    reservations._writing.clear()
    assert written == [True]


HOW = {
    "GET": ("", "GET", OURS),
    "another key": ("", "GET", {"Authorization": f"Bearer {BOB}"}),
    "nobody": ("", "GET", {"Authorization": "Bearer sk-1"}),
    "events": ("?stream=true&starting_after=3", "GET", OURS),
    "cancel": ("/cancel", "POST", OURS),
}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("store", ["sqlite", "redis"])
@pytest.mark.parametrize("how", HOW)
async def test_x10_what_is_fetched_is_charged_once_to_the_key_that_asked_for_it(
    narrows: Start, how: str, store: str, request: pytest.FixtureRequest
) -> None:
    """Over two replicas, of which the other one fetches."""
    rows = [
        {"name": "alice", "sha256": digest_of(KEY), "usd_per_day": 1.0},
        {"name": "bob", "sha256": digest_of(BOB), "usd_per_day": 1.0},
    ]
    settings: dict[str, Any] = {"auth": "both", "keys": rows, "models": DEAR}
    if store == "redis":
        settings["store"] = f"{request.getfixturevalue('redis_url')}?prefix=t{uuid4().hex}"
    script = Background()
    one = await narrows(script, real=True, **settings)
    other = await narrows(script, real=True, **settings) if store == "redis" else one
    status, name = await begin(one)
    await settle(one)
    assert (status, (await begin(one))[0]) == (200, 429)
    path, method, headers = HOW[how]
    assert await fetch(other, name) == 200, "a key that has used all may fetch what it has paid for"
    script.finish(200)
    for _ in range(3):
        assert await fetch(other, name + path, headers, method) == 200
    await settle(other)
    limits_of(one).charges.clock = lambda: time.time() + 6  # the other one is asked again after some seconds
    assert (await begin(one))[0] == 200, "what it did not use is given back"
    assert await spent(other, "bob") == 0.0


async def test_x10_a_history_that_the_provider_makes_shorter_costs_what_it_used(narrows: Start) -> None:
    usage = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
    compacted = {"id": "cmp_1", "object": "response.compaction", "output": [], "usage": usage}
    setup = await narrows(json_answer(compacted), real=True, **limited(rpm=9, tpm=1_000, usd_per_day=1))
    async with setup.client.post(f"{setup.url}/responses/compact", json=BACKGROUND, headers=OURS) as reply:
        assert await reply.json() == compacted
    assert await spent(setup) == pytest.approx(0.12)
    assert used(setup) == (1, 120)


@pytest.mark.parametrize("leaves", [False, True])
async def test_x10_a_shorter_history_whose_usage_nobody_reports_costs_what_its_text_is_about(
    narrows: Start, leaves: bool
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(event({"type": "response.created"})))
        if leaves:
            await asyncio.sleep(30)
        writer.write(chunk(b""))

    setup = await narrows(script, real=True, **limited(usd_per_day=1))
    asked = {**BACKGROUND, "input": "hi " * 300}
    async with setup.client.post(f"{setup.url}/responses/compact", json=asked, headers=OURS) as reply:
        if not leaves:
            await reply.read()
        else:
            await reply.content.readany()
            reply.close()
    assert 0.3 < await spent(setup) < 0.4


async def test_relays_of_other_paths_cost_nothing(narrows: Start) -> None:
    setup = await narrows(json_answer(completion()), real=True, **limited(tpm=1_000))
    async with setup.client.post(f"{setup.url}/embeddings", json=REQUEST, headers=OURS) as reply:
        await reply.read()
    assert used(setup)[1] == 0


async def test_summaries_are_charged_to_a_key_that_has_fetched_a_reply(narrows: Start) -> None:
    setup = await narrows(Background(), real=True, **limited(rpm=99, tpm=10**6))
    _, name = await begin(setup)
    assert await fetch(setup, name) == 200
    limits, before = limits_of(setup), used(setup)[1]
    (owner,) = limits._owners
    limits.charge_owner(owner, 500, 0.0)
    assert used(setup)[1] == before + 500

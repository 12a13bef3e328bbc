"""The limits of a key hold over all workers: they count together in their parent."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from proxy.lab.provider import Send
from tests.kit.serving import KEY, WORKERS, Serving, until
from tests.kit.stage import Stage, body_of

BODY = body_of([{"role": "user", "content": "hi"}])


def ask(serving: Serving, times: int) -> list[int]:
    """Send so many requests to each worker in turn; the statuses of their replies."""
    connections = [serving.connection(pid.__eq__)[1] for pid in serving.workers()]
    statuses = []
    for connection in connections * times:
        connection.request("POST", "/v1/chat/completions", BODY, {"x-narrows-key": KEY})
        reply = connection.getresponse()
        reply.read()
        statuses.append(reply.status)
    for connection in connections:
        connection.close()
    return statuses


async def test_requests_a_minute_hold_over_all_workers_and_outlive_them(serving: Serving) -> None:
    serving.configure("on", rpm=10)
    await serving.reload()
    assert Counter(await asyncio.to_thread(ask, serving, 10)) == {200: 10, 429: 20}
    before = serving.workers()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: len(serving.workers()) == WORKERS and not set(before) & set(serving.workers()))
    await serving.reload()
    assert Counter(await asyncio.to_thread(ask, serving, 1)) == {429: 3}


@pytest.mark.parametrize("limits", [{"tpm": 1}, {"usd_per_day": 0.000_001}], ids=str)
async def test_tokens_and_dollars_hold_over_all_workers_once_a_reply_is_charged(
    serving: Serving, limits: dict[str, float]
) -> None:
    serving.configure("on", **limits)
    await serving.reload()
    first, *others = await asyncio.to_thread(ask, serving, 1)
    assert first == 200
    while {200} & set(others):  # the reply is charged behind it
        others = await asyncio.to_thread(ask, serving, 1)
    assert others.count(429) >= 2


async def test_so_many_in_flight_over_all_workers_and_what_a_dead_one_had_is_free(
    stage: Stage, serving: Serving
) -> None:
    serving.configure("on", concurrency=2)
    await serving.reload()
    gate = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'
        await gate.wait()
        yield b"data: [DONE]\n\n"

    stage.provider.answer = lambda _: Send(body=pieces(), headers=(("Content-Type", "text/event-stream"),))
    first, second, third = serving.workers()

    def begin(pid: int) -> tuple[HTTPConnection, HTTPResponse]:
        """A request to this worker, whose reply has begun."""
        _, connection = serving.connection(pid.__eq__)
        connection.request("POST", "/v1/chat/completions", BODY, {"x-narrows-key": KEY})
        return connection, connection.getresponse()

    begun = [await asyncio.to_thread(begin, pid) for pid in (first, second, third)]
    assert [reply.status for _, reply in begun] == [200, 200, 429]
    os.kill(first, signal.SIGKILL)
    await serving.logs("worker_died")
    begun += [await asyncio.to_thread(begin, third) for _ in range(2)]
    assert [reply.status for _, reply in begun[3:]] == [200, 429]
    gate.set()
    for _, reply in begun[1:]:
        await asyncio.to_thread(reply.read)
    while begun[-1][1].status == 429:  # what is over is told behind the reply
        begun.append(await asyncio.to_thread(begin, second))
    for connection, reply in begun:
        reply.close()
        connection.close()


async def test_x10_where_the_parent_does_not_answer_each_worker_lets_in_its_share(
    serving: Serving,
) -> None:
    serving.configure("on", rpm=6, concurrency=9)
    await serving.reload()
    connections = [serving.connection(pid.__eq__)[1] for pid in serving.workers()]
    statuses = list[int]()
    os.kill(serving.process.pid, signal.SIGSTOP)
    try:
        for connection in connections * 4:
            connection.request("POST", "/v1/chat/completions", BODY, {"x-narrows-key": KEY})
            reply = await asyncio.to_thread(connection.getresponse)
            reply.read()
            statuses.append(reply.status)
    finally:
        os.kill(serving.process.pid, signal.SIGCONT)
    for connection in connections:
        connection.close()
    assert Counter(statuses) == {200: 6, 429: 6}

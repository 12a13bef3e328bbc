"""Several workers: whichever serves a request, the same bytes are sent; none takes another with it."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.config import ConfigurationError, Settings
from proxy.console.serve import serve
from proxy.lab.provider import Send
from proxy.lab.sessions import load
from tests.kit.serving import KEY, WORKERS, Serving, until
from tests.kit.stage import Stage, body_of, ends

SESSION = load("long_day")["messages"]


def conversation(task: str, **fields: Any) -> list[bytes]:
    """The requests of a conversation that begins with this task."""
    first = {"role": "user", "content": f"Task {task}: go on."}
    session: list[Any] = [SESSION[0], first, *(each for each in SESSION[1:] if each["role"] != "system")]
    return [body_of(session[:end], **fields) for end in ends(session)]


@pytest.mark.parametrize("streams", [False, True])
async def test_s1_a_conversation_whose_every_request_meets_another_worker_reads_its_own_decisions(
    stage: Stage, serving: Serving, streams: bool
) -> None:
    """The next request comes as soon as the last event of the reply is read."""
    alone, pid, prefixes = await stage.start(), 0, list[str]()
    for body in conversation("a", stream=streams):
        expected = await stage.post(alone, body)
        pid, headers = await asyncio.to_thread(serving.ask_another, body, pid, streams)
        assert serving.provider.requests[-1].body == expected.sent
        assert (headers["x-narrows-mode"], headers["x-narrows-prefix"]) == (expected.mode, expected.prefix)
        prefixes.append(expected.prefix)
    assert {"first", "extended", "tail-cut"} <= set(prefixes)
    assert "checkpoint:replayed" not in prefixes


async def test_a_killed_worker_is_replaced_and_its_conversations_go_on_with_the_same_bytes(
    stage: Stage, serving: Serving
) -> None:
    alone, talks = await stage.start(), [conversation(task)[15:21] for task in "ab"]
    expected = [[(await stage.post(alone, body)).sent for body in talk] for talk in talks]
    assert expected[0] != talks[0]  # something is compacted
    for turn in range(6):
        if turn == 3:
            victim = serving.workers()[0]
            os.kill(victim, signal.SIGKILL)
        for talk, sent in zip(talks, expected, strict=True):
            assert await serving.ask(talk[turn]) == (sent[turn], "compacted")
    await serving.logs("worker_died")
    await until(lambda: len(serving.workers()) == WORKERS)
    assert victim not in serving.workers()


async def test_what_waits_for_workers_that_die_is_served_by_those_that_take_their_place(serving: Serving) -> None:
    for pid in serving.workers():
        os.kill(pid, signal.SIGSTOP)
    connections = [await asyncio.open_connection("127.0.0.1", serving.port) for _ in range(12)]
    for _, writer in connections:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    for pid in serving.workers():
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        for reader, writer in connections:
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
            writer.close()


async def test_x6_what_one_worker_deletes_no_worker_remembers(serving: Serving) -> None:
    first, second, third, *_ = conversation("a")[15:]

    def ask_all(*bodies: bytes) -> list[Mapping[str, str]]:
        """Send these to each worker in turn; the headers of the last reply of each."""
        headers = list[Mapping[str, str]]()
        for pid in serving.workers():
            _, connection = serving.connection(pid.__eq__)
            for body in bodies:
                connection.request("POST", "/v1/chat/completions", body, {"x-narrows-key": KEY})
                reply = connection.getresponse()
                reply.read()
            connection.close()
            headers.append(dict(reply.getheaders()))
        return headers

    before = await asyncio.to_thread(ask_all, first, second)
    assert {reply["x-narrows-prefix"] for reply in before} <= {"extended", "tail-cut"}
    name = before[0]["x-narrows-conversation"]
    async with serving.client.delete(serving.url.replace("/v1", f"/narrows/conversations/{name}")) as deleted:
        assert deleted.status == 204
    after = await asyncio.to_thread(ask_all, third)
    assert {reply["x-narrows-prefix"] for reply in after} == {"checkpoint:replayed"}


async def test_one_page_has_the_metrics_of_all_workers_and_all_finish_what_runs(stage: Stage, serving: Serving) -> None:
    bodies = [conversation(task)[15] for task in "abcd"]
    for body in bodies:
        await serving.ask(body)
    for pid in serving.workers():
        _, connection = await asyncio.to_thread(serving.connection, pid.__eq__)
        connection.request("GET", "/metrics")
        page = (await asyncio.to_thread(connection.getresponse)).read().decode()
        connection.close()
        assert 'narrows_requests_total{mode="compacted",status="2xx"} 4.0' in page
        assert f"narrows_workers {WORKERS}.0" in page
        for number in range(WORKERS):
            assert f'process_resident_memory_bytes{{worker="{number}"}}' in page

    gate = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'
        await gate.wait()
        yield b"data: [DONE]\n\n"

    stage.provider.answer = lambda _: Send(body=pieces(), headers=(("Content-Type", "text/event-stream"),))
    streams = [
        await serving.client.post(f"{serving.url}/chat/completions", data=body_of(json.loads(body)["messages"]))
        for body in bodies
    ]
    for reply in streams:
        assert b"one" in await reply.content.readany()
    serving.process.send_signal(signal.SIGTERM)
    await serving.logs("stopping", WORKERS)
    gate.set()
    for reply in streams:
        assert (await reply.content.read()).endswith(b"data: [DONE]\n\n")
        reply.close()
    assert await asyncio.to_thread(serving.process.wait) == 0


async def test_sighup_starts_workers_with_the_settings_as_they_are_now(serving: Serving) -> None:
    body, before = conversation("a")[15], serving.workers()
    serving.configure("sometimes")
    serving.process.send_signal(signal.SIGHUP)
    await serving.logs("not_reloaded")
    assert await serving.ask(body) == (serving.provider.requests[-1].body, "compacted")
    assert serving.workers() == before

    answers = list[int]()

    async def connect() -> None:
        """Again and again, with new connections: none is refused."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as client:
            while True:
                async with client.get(serving.url.replace("/v1", "/healthz")) as reply:
                    answers.append(reply.status)

    connecting = [asyncio.create_task(connect()) for _ in range(4)]
    serving.configure("on")
    serving.process.send_signal(signal.SIGHUP)
    await until(lambda: len(serving.workers()) == 2 * WORKERS)
    serving.configure("off")
    serving.process.send_signal(signal.SIGHUP)  # counts once the new ones listen
    await serving.logs("reloaded", 3)  # once in `not_reloaded`
    await until(lambda: len(serving.workers()) == WORKERS and not set(before) & set(serving.workers()))
    assert not any(task.done() for task in connecting)
    for task in connecting:
        task.cancel()
    await asyncio.gather(*connecting, return_exceptions=True)
    assert set(answers) == {200}
    assert await serving.ask(body) == (body, "bypassed")
    serving.process.kill()  # the parent is gone, so its workers end
    workers = serving.workers()
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"store": "sqlite://"},
            "store: sqlite:// is in the memory of one process; name a file",
        ),
        ({"host": "192.0.2.1"}, "host: 192.0.2.1 is no address of this machine; give 127.0.0.1"),
    ],
)
def test_what_several_workers_cannot_have_is_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    chosen = {"port": 0, "workers": 2, "upstream": "http://127.0.0.1:9/v1", "store": f"sqlite:///{tmp_path}/x.db"}
    several = Settings(**{**chosen, **settings})
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        serve(several, lambda: several)


def test_several_workers_need_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    several = Settings(port=0, workers=2, upstream="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigurationError, match="workers: several need Linux"):
        serve(several, lambda: several)

"""The life of `narrows serve` from its start to SIGTERM, and the official client through it."""

import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from proxy.app import App
from proxy.config import ConfigurationError, Settings
from proxy.upstreams.connections import trouble
from tests.kit.paths import ROOT
from tests.kit.redis_servers import free_ports
from tests.kit.running import Running, Start
from tests.kit.upstream import (
    CHAT,
    REQUEST,
    Asked,
    ScriptedUpstream,
    chunk,
    completion,
    delta,
    event,
    json_answer,
    says,
    stream_head,
)

WORDS: Any = [{"role": "user", "content": "weather in Oslo?"}]
PARAMETERS = {"type": "object", "properties": {}}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"at": "Oslo"}'}}
STREAM = [delta("Hel"), delta("lo"), delta(finish_reason="stop")]


async def answer_as_openai(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A completion, a stream, or a call, as the request asks."""
    body = json.loads(asked.body)
    if body.get("stream"):
        writer.write(stream_head("x-request-id: r1"))
        for part in STREAM:
            writer.write(chunk(event(part)))
        writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))
    elif "tools" in body:
        writer.write(json_answer(completion("", tool_calls=[CALL])))
    else:
        writer.write(json_answer(completion(), "x-request-id: r1"))


async def test_the_official_async_client_works_as_it_does_directly(narrows: Start) -> None:
    setup = await narrows(answer_as_openai)
    direct: list[object] = []
    through: list[object] = []
    for url, heard in ((setup.upstream.url, direct), (setup.url, through)):
        async with openai.AsyncOpenAI(base_url=url, api_key="sk-1", max_retries=0) as client:
            create: Any = client.chat.completions.create
            heard.append((await create(model="m", messages=WORDS)).model_dump())
            heard.append((await create(model="m", messages=WORDS, tools=[TOOL])).model_dump())
            parts = await create(model="m", messages=WORDS, stream=True)
            heard.append([part.model_dump() async for part in parts])
            raw = await client.chat.completions.with_raw_response.create(model="m", messages=WORDS)
            heard.append((raw.status_code, raw.headers["x-request-id"], raw.parse().model_dump()))
    assert direct == through
    assert raw.headers["x-narrows-mode"] == "untouched"


async def test_the_official_sync_client_works_as_it_does_directly(narrows: Start) -> None:
    setup = await narrows(answer_as_openai)

    def talk(url: str) -> list[object]:
        with openai.OpenAI(base_url=url, api_key="sk-1", max_retries=0) as client:
            create: Any = client.chat.completions.create
            whole = create(model="m", messages=WORDS).model_dump()
            parts = [part.model_dump() for part in create(model="m", messages=WORDS, stream=True)]
            return [whole, parts]

    assert await asyncio.to_thread(talk, setup.url) == await asyncio.to_thread(talk, setup.upstream.url)


async def test_t3_the_official_client_hears_of_a_broken_stream(narrows: Start) -> None:
    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(event(delta("one"))))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    setup = await narrows(script)
    async with openai.AsyncOpenAI(base_url=setup.url, api_key="sk-1", max_retries=0) as client:
        create: Any = client.chat.completions.create
        parts = aiter(await create(model="m", messages=WORDS, stream=True))
        assert (await anext(parts)).choices[0].delta.content == "one"
        with pytest.raises(openai.APIError, match="broke off its reply"):
            await anext(parts)


async def test_errors_of_ours_are_errors_of_the_official_client(narrows: Start, free_port: int) -> None:
    setup = await narrows(upstream=f"http://127.0.0.1:{free_port}/v1")
    async with openai.AsyncOpenAI(base_url=setup.url, api_key="sk-1", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as refusal:
            await client.chat.completions.create(model="m", messages=WORDS)
    assert (refusal.value.status_code, refusal.value.code) == (502, "upstream_unreachable")


@asynccontextmanager
async def served(*words: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`narrows serve` in a process of its own, and the base_url it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy.console.cli", "serve", "--port", "0", "--mode", "off", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            line = (await process.stdout.readline()).decode()
        yield process, line.split()[-1] if line else ""
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_t7_sigterm_is_not_ready_at_once_and_streams_finish() -> None:
    go_on = asyncio.Event()

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(b"data: 1\n\n"))
        await go_on.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    async with (
        ScriptedUpstream(script) as upstream,
        served("--upstream", upstream.url) as (process, url),
        aiohttp.ClientSession() as client,
        client.post(url + CHAT, json=REQUEST) as reply,
    ):
        await reply.content.readuntil(b"\n\n")
        async with client.get(url.replace("/v1", "/readyz")) as ready:
            assert ready.status == 200
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            while ready.status == 200:
                async with client.get(url.replace("/v1", "/readyz")) as ready:
                    assert ready.status in (200, 503)
            async with client.get(url.replace("/v1", "/healthz")) as alive:
                assert alive.status == 200
            assert process.returncode is None
            go_on.set()
            assert await reply.read() == b"data: [DONE]\n\n"
            assert await process.wait() == 0


@pytest.mark.parametrize("hurried", [False, True], ids=["after the grace time", "at a second signal"])
async def test_t7_what_does_not_finish_is_told_so_in_band(hurried: bool) -> None:
    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(stream_head() + chunk(b"data: 1\n\n"))
        await asyncio.sleep(60)

    grace = "60" if hurried else "0.1"
    async with (
        ScriptedUpstream(script) as upstream,
        served("--upstream", upstream.url, "--grace", grace) as (process, url),
        aiohttp.ClientSession() as client,
        client.post(url + CHAT, json=REQUEST) as reply,
    ):
        await reply.content.readuntil(b"\n\n")
        process.send_signal(signal.SIGTERM)
        if hurried:
            async with client.get(url.replace("/v1", "/readyz")):
                process.send_signal(signal.SIGINT)
        async with asyncio.timeout(10):
            last = await reply.content.readuntil(b"\n\n")
            with pytest.raises(aiohttp.ClientPayloadError):
                await reply.read()
            assert await process.wait() == 0
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "shutting_down"


async def test_serve_says_where_it_listens_and_which_upstream_it_asks() -> None:
    async with (
        ScriptedUpstream(says(json_answer({"data": []}))) as upstream,
        served("--upstream", upstream.url) as (process, url),
        aiohttp.ClientSession() as client,
    ):
        assert process.stdout is not None
        while "upstream:" not in (line := (await process.stdout.readline()).decode()):
            assert line
        assert line.split() == ["upstream:", upstream.url]
        async with client.get(url + "/models") as reply:
            assert await reply.json() == {"data": []}


@pytest.mark.parametrize("out", [">&- 2>&-", ">/dev/full 2>&1", ">/dev/null"])
async def test_t7_whoever_cannot_read_what_serve_prints_is_served_all_the_same(out: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    words = [
        "serve",
        "--port",
        str(port),
        "--upstream",
        "http://127.0.0.1:1/v1",
        "--store",
        f"sqlite:///{tmp_path}/\u00e4",
    ]
    python = [sys.executable, "-m", "proxy.console.cli", *words]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = await asyncio.create_subprocess_exec("sh", "-c", f'exec "$@" {out}', "sh", *python, cwd=ROOT, env=env)
    try:
        async with asyncio.timeout(30), aiohttp.ClientSession() as client:
            while True:
                with suppress(aiohttp.ClientConnectionError):
                    async with client.get(f"http://127.0.0.1:{port}/metrics") as reply:
                        assert reply.status == 200
                        break
                assert process.returncode is None
                await asyncio.sleep(0.05)
            process.terminate()
            assert await process.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize("words", [(), ("--upstream", "http://127.0.0.1:1/v1", "--low", "7")])
async def test_c6_serve_refuses_with_a_sentence(words: tuple[str, ...]) -> None:
    async with served(*words) as (process, _):
        said, complaint = await process.communicate()
    assert (process.returncode, said) == (2, b"")
    assert complaint.startswith(b"narrows: low:" if words else b"narrows: upstream:")
    assert b"Traceback" not in complaint


async def test_c6_a_taken_port_and_bad_certificates_are_refused(narrows: Start, tmp_path: Path) -> None:
    setup = await narrows()
    with pytest.raises(ConfigurationError, match=r"^port: "):
        await App.start(Settings(upstream=setup.upstream.url, port=setup.port, mode="off"))
    nothing = tmp_path / "empty.pem"
    nothing.write_text("nothing")
    with pytest.raises(ConfigurationError, match=r"^ca_bundle: "):
        await App.start(Settings(upstream=setup.upstream.url, port=0, mode="off", ca_bundle=nothing))
    with pytest.raises(ConfigurationError, match=r"^store: "):
        await App.start(Settings(upstream=setup.upstream.url, port=0, store="redis://h:70000"))


async def test_c6_overrides_that_cannot_be_are_refused(narrows: Start) -> None:
    with pytest.raises(ConfigurationError, match=r"^models: .*gpt-4o.*"):
        await narrows(models={"gpt-4o": {"input": -1}})


async def test_f_a_store_that_cannot_be_opened_does_not_stop_requests(
    narrows: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    setup = await narrows(store="sqlite:////proc/no/such/narrows.db", log_level="warning", log_format="json")
    async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
        assert reply.status == 200
    async with setup.client.get(setup.url.replace("/v1", "/metrics")) as page:
        assert 'narrows_store_trouble_total{operation="open"} 1.0' in await page.text()
    assert json.loads(capfd.readouterr().err.splitlines()[0])["event"] == "store_unavailable"


async def relayed_by_proxy(setup: Running) -> str:
    async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
        return f"{reply.status} {await reply.text()}"


async def test_the_environments_proxy_is_used_and_told_its_credential(
    narrows: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login someone password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with ScriptedUpstream(says(json_answer("by proxy"))) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:pass@127.0.0.1:{proxy.port}")
        setup = await narrows(upstream="http://api.example/v1")
        assert await relayed_by_proxy(setup) == '200 "by proxy"'
        (asked,) = proxy.seen
        assert asked.line == "POST http://api.example/v1/chat/completions HTTP/1.1"
        assert asked.one("proxy-authorization") == "Basic bWU6cGFzcw=="
        assert asked.all("authorization") == []
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert (await relayed_by_proxy(await narrows())).startswith("200 {")
        assert len(proxy.seen) == 1


def test_every_trouble_has_an_answer_that_says_what_to_check() -> None:
    key = aiohttp.client_reqrep.ConnectionKey("api.example", 443, True, True, None, None, None)
    cases: list[tuple[Exception, int, str]] = [
        (aiohttp.ConnectionTimeoutError(), 504, "upstream_timeout"),
        (aiohttp.SocketTimeoutError(), 504, "upstream_timeout"),
        (aiohttp.ClientConnectorDNSError(key, OSError(-2, "sk-secret")), 502, "upstream_unknown"),
        (aiohttp.ClientProxyConnectionError(key, OSError(1, "x")), 502, "proxy_unreachable"),
        (
            aiohttp.ClientConnectorCertificateError(key, ssl.CertificateError("x")),
            502,
            "upstream_certificate",
        ),
        (aiohttp.ServerDisconnectedError(), 502, "upstream_cut"),
        (ConnectionResetError(), 502, "upstream_cut"),
    ]
    for error, status, code in cases:
        shaped = trouble(error, "api.example")
        assert (shaped.status, shaped.code) == (status, code)
        assert "api.example" in shaped.message
        assert "secret" not in shaped.message

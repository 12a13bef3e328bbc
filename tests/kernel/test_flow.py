"""The flow of a request between aiohttp's test client and server: what is sent, what comes back, what is recorded."""

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpClient, AiohttpRawServer, AiohttpServer
from yarl import URL

from proxy.addons.telemetry.addon import fields_of
from proxy.config import Settings
from proxy.identity.credential import CredentialStates
from proxy.kernel.addons import Addon, Addons, Exchange
from proxy.kernel.admission import Admission
from proxy.kernel.gateway import Gateway
from proxy.kernel.services import KernelParts
from proxy.requests import ClientRequest, UpstreamRequest
from proxy.telemetry import Telemetry
from proxy.upstreams.table import Upstreams
from tests.kit.upstream import completion

BODY = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}


async def longer(client_request: ClientRequest, waiting: Any = None, /) -> UpstreamRequest:
    """Adds a space to each body, as a compaction that changes something."""
    return UpstreamRequest(client_request, client_request.body + b" ", {"x-narrows-mode": "compacted"})


class Records(Addon):
    """The record of each request, once it is over."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    async def finished(self, exchange: Exchange) -> None:
        self.records.append(fields_of(exchange))


class Provider:
    """An upstream that notes what it receives, and replies as its test says."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, bytes, dict[str, str]]] = []
        self.status = 200

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.received.append((request.method, request.path_qs, body, dict(request.headers)))
        if request.path.endswith("/models"):
            return web.Response(body=b"\x00\xff raw", content_type="application/octet-stream")
        if b'"stream"' in body:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for piece in (b"data: {}\n\n", b"data: [DONE]\n\n"):
                await response.write(piece)
            return response
        return web.json_response(completion(), status=self.status)


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def addon() -> Records:
    return Records()


@pytest.fixture
def records(addon: Records) -> list[dict[str, Any]]:
    return addon.records


@pytest.fixture
async def client(
    provider: Provider,
    addon: Records,
    aiohttp_server: AiohttpServer,
    aiohttp_raw_server: AiohttpRawServer,
    aiohttp_client: AiohttpClient,
) -> AsyncIterator[Any]:
    """A client of a gateway before that provider."""
    upstream_app = web.Application()
    upstream_app.router.add_route("*", "/{path:.*}", provider.answer)
    server = await aiohttp_server(upstream_app)
    settings = Settings(upstream=str(server.make_url("/v1")), port=0)
    upstreams = await Upstreams.open(settings, Telemetry(stream=io.StringIO()))
    parts = KernelParts(
        settings=settings,
        upstreams=upstreams,
        prepare=longer,
        follow_up=None,
        telemetry=Telemetry(stream=io.StringIO()),
        secret=b"s",
        admission=Admission(settings, Telemetry(stream=io.StringIO()), CredentialStates()),
        addons=Addons((), (), (addon,), Telemetry(stream=io.StringIO())),
    )
    yield await aiohttp_client(await aiohttp_raw_server(Gateway(parts)))
    await upstreams.close()


async def test_t1_a_chat_request_is_prepared_and_forwarded(
    client: Any, provider: Provider, records: list[dict[str, Any]]
) -> None:
    reply = await client.post("/v1/chat/completions?a=%20b", json=BODY, headers={"x-own": "1", "x-narrows": "on"})
    assert (reply.status, reply.headers["x-narrows-mode"]) == (200, "compacted")
    assert await reply.json() == completion()
    ((method, target, body, headers),) = provider.received
    assert (method, target, body) == ("POST", "/v1/chat/completions?a=%20b", json.dumps(BODY).encode() + b" ")
    assert headers["x-own"] == "1"
    assert not any(name.lower().startswith("x-narrows") for name in headers)
    (record,) = records
    assert (record["route"], record["status"], record["mode"], record["received"]) == (
        "chat",
        200,
        "compacted",
        len(body) - 1,
    )


async def test_t2_a_stream_is_passed_on_event_by_event(client: Any, records: list[dict[str, Any]]) -> None:
    reply = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
    assert await reply.read() == b"data: {}\n\ndata: [DONE]\n\n"
    assert records[0]["replied"] == len(b"data: {}\n\ndata: [DONE]\n\n")


async def test_t1_what_is_no_chat_is_relayed_both_ways_unchanged(
    client: Any, provider: Provider, records: list[dict[str, Any]]
) -> None:
    reply = await client.put("/v1/models", data=b"\x01\x02")
    assert await reply.read() == b"\x00\xff raw"
    assert provider.received[0][:3] == ("PUT", "/v1/models", b"\x01\x02")
    assert reply.headers["x-narrows-mode"] == "relayed"
    assert records[0]["route"] == "relay"


@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
async def test_t4_an_error_of_the_upstream_reaches_the_client_as_it_is(
    client: Any, provider: Provider, status: int
) -> None:
    provider.status = status
    reply = await client.post("/v1/chat/completions", json=BODY)
    assert (reply.status, await reply.json()) == (status, completion())


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [("/nothing", 404, "not_found"), ("/v1/%2e%2e/x", 400, "bad_target")],
)
async def test_x1_what_is_refused_reaches_no_upstream(
    client: Any, provider: Provider, records: list[dict[str, Any]], target: str, status: int, code: str
) -> None:
    reply = await client.get(URL(target, encoded=True))
    assert (reply.status, (await reply.json())["error"]["code"]) == (status, code)
    assert provider.received == []
    assert records[0]["trouble"] == code

"""The provider on a port, by aiohttp."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Self

from aiohttp import web
from multidict import CIMultiDict

from proxy.lab.provider.answers import Abort
from proxy.lab.provider.server import Provider, Received

LARGE_HEAD = 1 << 20


class Running:
    """A provider that listens; stop it, or use it as an asynchronous context."""

    def __init__(self, runner: web.ServerRunner, host: str) -> None:
        self._runner = runner
        self.host = host
        self.port = int(runner.addresses[0][1])

    @property
    def url(self) -> str:
        """The `base_url` for a client."""
        return f"http://{self.host}:{self.port}/v1"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


async def start(provider: Provider, host: str = "127.0.0.1", port: int = 0) -> Running:
    """Serve the provider; port 0 takes a free one."""
    server = web.Server(
        partial(_answer, provider),
        handler_cancellation=True,  # so that a client that leaves is seen at once
        auto_decompress=False,  # what is recorded are the bytes on the wire
        access_log=None,
        max_line_size=LARGE_HEAD,
        max_field_size=LARGE_HEAD,
        max_headers=10_000,
    )
    runner = web.ServerRunner(server, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return Running(runner, host)


async def _answer(provider: Provider, request: web.BaseRequest) -> web.StreamResponse:
    received = Received(request.method, request.raw_path, request.headers, await request.content.read())
    try:
        reply = provider.reply(received)
        if reply.wire.delay:
            await asyncio.sleep(reply.wire.delay)
        if reply.wire.gate is not None:
            await reply.wire.gate()
        if isinstance(reply, Abort):
            return await _cut_off(request, received)
        response = web.StreamResponse(status=reply.status, headers=CIMultiDict(reply.headers))
        await response.prepare(request)
        await _write(response, reply.body, received)
        if reply.wire.die_at is not None:
            return await _cut_off(request, received, response)
        await response.write_eof()
    except (asyncio.CancelledError, ConnectionError):
        if received.outcome == "open":
            received.outcome = "cancelled"
        raise
    received.outcome = "finished"
    return response


async def _write(
    response: web.StreamResponse, body: Sequence[bytes] | AsyncIterable[bytes], received: Received
) -> None:
    parts = body if isinstance(body, AsyncIterable) else _each(body)
    async with AsyncExitStack() as stack:
        if isinstance(parts, AsyncGenerator):
            stack.push_async_callback(parts.aclose)
        async for part in parts:
            if part:
                await response.write(part)
                received.sent += len(part)
                await asyncio.sleep(0)  # so that what is read together was not always written together


async def _each(parts: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
    for part in parts:
        yield part


async def _cut_off(
    request: web.BaseRequest, received: Received, response: web.StreamResponse | None = None
) -> web.StreamResponse:
    """Cut the connection once what was written has left."""
    received.outcome = "aborted"
    transport = request.transport
    # asyncio has no event for an empty write buffer
    while transport is not None and transport.get_write_buffer_size():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    if transport is not None:
        transport.abort()
    return response or web.Response()

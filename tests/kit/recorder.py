"""What the official SDKs send and hear, byte for byte."""

from collections.abc import AsyncIterator

import httpx2


class Ear(httpx2.AsyncBaseTransport):
    """A transport that keeps what was sent and what came last."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self.given = b""
        self.heard = bytearray()
        self.headers = httpx2.Headers()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.given = await request.aread()
        response = await self._inner.handle_async_request(request)
        self.heard, self.headers = bytearray(), response.headers
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Tapped(response.stream, self.heard)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Tapped(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, heard: bytearray) -> None:
        self._inner = inner
        self._heard = heard

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._heard += piece
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()

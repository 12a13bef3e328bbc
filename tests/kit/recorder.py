"""What the official SDKs send and receive, byte for byte."""

from collections.abc import AsyncIterator

import httpx2


class RecordingTransport(httpx2.AsyncBaseTransport):
    """A transport that keeps the newest request and its reply."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self.request_body = b""
        self.reply_body = bytearray()
        self.reply_headers = httpx2.Headers()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.request_body = await request.aread()
        response = await self._inner.handle_async_request(request)
        self.reply_body, self.reply_headers = bytearray(), response.headers
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _RecordedStream(response.stream, self.reply_body)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _RecordedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, record: bytearray) -> None:
        self._inner = inner
        self._record = record

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._record += piece
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()

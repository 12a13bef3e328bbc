"""An upstream that says exactly the bytes it is told to, and keeps exactly the bytes it was sent."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import brotli  # type: ignore[import-untyped]  # it ships no types
import zstandard

CHAT = "/chat/completions"
REQUEST = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}
Script = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Asked:
    """One request as it arrived."""

    head: bytes
    body: bytes = b""

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n")[0].decode("latin-1")

    @property
    def headers(self) -> list[tuple[str, str]]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines if line)]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def one(self, name: str) -> str:
        (value,) = self.all(name)
        return value


class ScriptedUpstream:
    """Answers each request by running `script`, which may write what it likes and close when it likes."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Asked] = []
        self.open = 0
        self.port = 0
        self.wanted_port = 0
        """Where it listens; 0: wherever there is room."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.wanted_port, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def until_idle(self, seconds: float = 5) -> None:
        """Wait until no connection is open; raises TimeoutError where one stays."""
        async with asyncio.timeout(seconds):
            while self.open:  # noqa: ASYNC110 - a test waits for all sorts of ends
                await asyncio.sleep(0.005)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        try:
            while not writer.is_closing():
                await self._exchange(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side left, or the test is over
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = Asked((await reader.readuntil(b"\r\n\r\n"))[:-2])
        self.seen.append(request)
        if request.all("transfer-encoding"):
            await self._chunked(reader, request)
        elif length := request.all("content-length"):
            request.body = await reader.readexactly(int(length[0]))
        script = asyncio.ensure_future(self.script(request, writer))
        gone = asyncio.ensure_future(_gone(reader))
        await asyncio.wait({script, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        if not script.done():
            script.cancel()
            await asyncio.gather(script, return_exceptions=True)
            raise ConnectionResetError
        await script

    async def _chunked(self, reader: asyncio.StreamReader, request: Asked) -> None:
        while size := int((await reader.readline()).split(b";")[0], 16):
            request.body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)


async def _gone(reader: asyncio.StreamReader) -> None:
    """Until the other side closes. No test pipelines, so nothing else comes while an answer is made."""
    while not reader.at_eof():  # noqa: ASYNC110 - reading would take from the next request
        await asyncio.sleep(0.002)


def json_answer(value: Any, *extra: str, status: str = "200 OK") -> bytes:
    """A whole JSON reply, with its length."""
    body = json.dumps(value).encode()
    return whole(body, "Content-Type: application/json", *extra, status=status)


def whole(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole reply, with its length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def stream_head(*headers: str) -> bytes:
    """The head of a chunked reply of events."""
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunk(content: bytes) -> bytes:
    """One chunk; the empty one is the end."""
    return b"%x\r\n%s\r\n" % (len(content), content)


def says(answer: bytes) -> Script:
    """Always the same bytes."""

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    return script


def delta(text: str = "", **more: Any) -> dict[str, Any]:
    """A chunk of a streamed chat completion."""
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": None, **more}
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-4o",
        "choices": [choice],
    }


def event(value: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def completion(text: str = "hello", **more: Any) -> dict[str, Any]:
    """A whole chat completion."""
    message = {"role": "assistant", "content": text, **more}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    head = {"id": "c1", "object": "chat.completion", "created": 1, "model": "gpt-4o"}
    return {**head, "choices": [choice], "usage": usage}


def post(body: bytes, *headers: str, target: str = "/v1/chat/completions") -> bytes:
    """A raw request that asks for the connection to be closed after it."""
    lines = [f"POST {target} HTTP/1.1", "Host: narrows", "Connection: close", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def error_of(reply: bytes) -> dict[str, str | None]:
    """The error of a raw reply, in OpenAI's shape."""
    error: dict[str, str | None] = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error

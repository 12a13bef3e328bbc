"""What many tests need: a scripted upstream, Narrows before it, and raw sockets to talk to it with."""

import asyncio
import math
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from policies.dialects import DIALECTS, Reply
from policies.dialects.openai_chat.reply import ChatReply
from proxy.addons.archive.replies import ReplyAround
from proxy.app import App
from proxy.config import Settings
from proxy.kernel.outgoing import Bypass
from proxy.requests import ClientRequest, UpstreamRequest
from proxy.summaries.background import Waiting
from proxy.telemetry import LogWriter
from tests.kit.upstream import Script, ScriptedUpstream, completion, json_answer, says

_NUMBERS = count()


@pytest.fixture(scope="session")
def _empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: most write no file, and to make a folder for each takes longer than they do."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, _empty_folder: Path) -> None:
    """No setting, proxy or file of the machine that runs the tests has a say, nor how busy it is: what is planned comes
    out the same."""
    for name in list(os.environ):
        if name.startswith(("NARROWS_", "OTEL_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(_empty_folder.parent / f"state-{next(_NUMBERS)}"))
    monkeypatch.setenv("NARROWS_PLANNING_TIMEOUT", "600")
    monkeypatch.setattr("proxy.kernel.admission._LATE", math.inf)
    # nothing here has a certificate that a machine trusts, and to read all that it does takes each client long
    monkeypatch.setenv("SSL_CERT_FILE", "")
    monkeypatch.setenv("SSL_CERT_DIR", str(_empty_folder))
    # a line stands in the log before the reply has come: that a thread writes it is tested by itself
    monkeypatch.setattr(LogWriter, "start", lambda _: None)


@dataclass(slots=True)
class Noted:
    """A request that went on, and what came back for it."""

    upstream_request: UpstreamRequest
    events: list[bytes] = field(default_factory=list)
    status: int | None = None

    @property
    def client_request(self) -> ClientRequest:
        return self.upstream_request.client_request


class Heard(ChatReply):
    """Notes every event, and tells the end of a stream in the words of its API."""

    def __init__(self, noted: Noted) -> None:
        super().__init__()
        self.noted = noted
        self._reader = DIALECTS[noted.client_request.dialect].reply()

    def feed_all(self, events: bytes) -> None:
        """Every event is noted by itself."""

    def feed(self, event: bytes) -> list[bytes]:
        self.noted.events.append(event)
        return self._reader.feed(event)

    def last_event(self, failure: bytes) -> bytes:
        return self._reader.last_event(failure)


@dataclass(slots=True)
class PassThrough(Bypass):
    """The smallest compaction: changes what `change` changes, and keeps what it saw."""

    change: Callable[[bytes], bytes] = field(default=lambda body: body)
    seen: list[Noted] = field(default_factory=list)
    named: str = "c1"

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        headers = {
            "x-narrows-mode": "untouched",
            "x-narrows-prefix": "first",
            "x-narrows-conversation": self.named,
        }
        upstream_request = UpstreamRequest(client_request, self.change(client_request.body), headers)
        self.seen.append(Noted(upstream_request))
        return upstream_request

    def reply(self, upstream_request: UpstreamRequest, around: Callable[[Reply], Reply], /) -> Reply:
        return around(Heard(next(noted for noted in self.seen if noted.upstream_request is upstream_request)))

    async def record(self, upstream_request: UpstreamRequest, reply: Reply, status: int, /) -> None:
        reply = reply._reply if isinstance(reply, ReplyAround) else reply
        assert isinstance(reply, Heard)
        assert reply.noted.upstream_request is upstream_request
        reply.noted.status = status


@dataclass(slots=True)
class Running:
    """Narrows between a test and a scripted upstream."""

    app: App
    upstream: ScriptedUpstream
    compaction: PassThrough
    client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return self.app.base_url

    @property
    def port(self) -> int:
        port = URL(self.url).port
        assert port is not None
        return port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, *pieces: bytes, seconds: float = 5) -> bytes:
        """Send bytes, and read until Narrows closes."""
        reader, writer = await self.connect()
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            async with asyncio.timeout(seconds):
                return await reader.read()
        finally:
            writer.close()


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def narrows(tmp_path: Path) -> AsyncIterator[Start]:
    """Start Narrows before a scripted upstream, passing through or with the `real` compaction."""
    async with AsyncExitStack() as stack:

        async def start(
            script: Script | bytes | None = None,
            compaction: PassThrough | None = None,
            real: bool = False,
            **settings: Any,
        ) -> Running:
            answer = json_answer(completion()) if script is None else script
            upstream = ScriptedUpstream(says(answer) if isinstance(answer, bytes) else answer)
            await stack.enter_async_context(upstream)
            chosen = {
                "upstream": upstream.url,
                "port": 0,
                "store": f"sqlite:///{tmp_path / 'narrows.db'}",
                "log_level": "error",
                **settings,
            }
            through = compaction or PassThrough()
            started = await App.start(Settings(**chosen), None if real else lambda _: through)
            app = await stack.enter_async_context(started)
            connector = aiohttp.TCPConnector(limit=0)
            client = aiohttp.ClientSession(connector=connector, auto_decompress=False)
            await stack.enter_async_context(client)
            return Running(app, upstream, through, client)

        yield start


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port on which nothing listens: it is held for the whole test, so that no other one is given it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])

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

from proxy.app import App
from proxy.config import Settings
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.prepare import relayed
from proxy.kernel.services import CompactionServices
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


@dataclass(slots=True, eq=False)
class PassThrough(Addon):
    """The smallest compaction: changes what `change` changes, and keeps what it saw."""

    change: Callable[[bytes], bytes] = field(default=lambda body: body)
    seen: list[Noted] = field(default_factory=list)
    named: str = "c1"

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        if client_request.counting is not None:
            return await relayed(client_request)
        headers = {
            "x-narrows-mode": "untouched",
            "x-narrows-prefix": "first",
            "x-narrows-conversation": self.named,
        }
        body = self.change(client_request.body)
        upstream_request = UpstreamRequest(client_request, body, headers, model=None)
        self.seen.append(Noted(upstream_request))
        return upstream_request

    async def planned(self, exchange: Exchange) -> None:
        noted = self._noted(exchange)
        if noted is not None and exchange.listener is None:
            exchange.listener = noted.events.append

    async def finished(self, exchange: Exchange) -> None:
        noted = self._noted(exchange)
        if noted is not None and exchange.rounds:
            noted.status = exchange.rounds[-1].status

    def _noted(self, exchange: Exchange) -> Noted | None:
        return next((noted for noted in self.seen if noted.client_request is exchange.client_request), None)


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


def compaction_of(app: App) -> CompactionServices:
    """What compacts in a running Narrows."""
    assert app.services.compaction is not None
    return app.services.compaction


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
            watch = None if real else (lambda _: through.prepare)
            started = await App.start(Settings(**chosen), watch, beside=() if real else (through,))
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

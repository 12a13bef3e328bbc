"""The clients of the attack: one that sends a body and measures what it costs, and a crowd of one address."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256

import aiohttp
from yarl import URL

from tests.long.attack_bodies import Attack
from tests.long.attack_sink import HOLD, MADE_UP, RECEIVED

ADDRESS = "127.0.0.2"
"""Where the attackers are: another address of this machine than that of healthy clients."""
PATIENCE = 120.0
AS_IT_CAME = ("bypassed", "failed-open", "observed")
_PIECE = bytes(2**20)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request."""

    status: int
    """0 where there was no reply."""
    words: str
    is_wrong: bool = False
    """Whether the upstream received other bytes than it should have, or Narrows failed."""


def session(address: str = ADDRESS) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, local_addr=(address, 0), force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=PATIENCE))


async def sent(http: aiohttp.ClientSession, url: str, attack: Attack, key: str) -> Outcome:
    """Send a body, and read the reply."""
    try:
        async with http.post(url + attack.path, data=attack.body, headers=attack.headers(key)) as reply:
            await reply.read()
            return _judged(reply, attack.decoded)
    except TimeoutError:
        return Outcome(0, f"no reply in {PATIENCE:.0f} s")
    except aiohttp.ClientError as error:
        return Outcome(0, type(error).__name__)


def _judged(reply: aiohttp.ClientResponse, body: bytes) -> Outcome:
    received, mode = reply.headers.get(RECEIVED), reply.headers.get("x-narrows-mode", "")
    is_own = mode in AS_IT_CAME or "too-many" in reply.headers.get("x-narrows-warning", "")
    is_changed = is_own and received is not None and received != sha256(body).hexdigest()
    failed = reply.status in (500, 502, 504) or (reply.status == 503 and "Retry-After" not in reply.headers)
    words = f"{reply.status} {mode} {reply.headers.get('x-narrows-warning', '')}".strip()
    return Outcome(reply.status, words + (" (other bytes)" if is_changed else ""), is_changed or failed)


@dataclass
class Crowd:
    """All of them at once, from one address, until it is left."""

    url: str
    attacks: Sequence[Attack]
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    open: Counter[str] = field(default_factory=Counter)
    """Connections by kind that are open now."""

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator["Crowd"]:
        async with session() as http:
            workers: list[tuple[int, Callable[[], Awaitable[None]]]] = [
                (8, lambda: self._hostile(http)),
                (40, lambda: self._trickled(60 * 2**20)),
                (260, lambda: self._trickled(1_000)),
                (500, self._silent),
                (100, lambda: self._held(http)),
            ]
            tasks = [asyncio.create_task(_again(work)) for number, work in workers for _ in range(number)]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _hostile(self, http: aiohttp.ClientSession) -> None:
        """A hostile body with a key that nobody has; every second client leaves at once."""
        attack = random.choice(self.attacks)
        key = f"{MADE_UP}-{random.randrange(10**9)}"
        if random.random() < 0.5:
            with suppress(TimeoutError):
                await asyncio.wait_for(sent(http, self.url, attack, key), 0.3)
            self.outcomes["hostile: left"] += 1
            return
        self._count("hostile", await sent(http, self.url, attack, key))

    async def _held(self, http: aiohttp.ClientSession) -> None:
        """A small request whose reply takes long."""
        body = b'{"model":"gpt-5.4","messages":[{"role":"user","content":"%d"}]}' % random.randrange(10**9)
        headers = {"Authorization": "Bearer sk-crowd", "Content-Type": "application/json", HOLD: "10"}
        async with http.post(f"{self.url}/chat/completions", data=body, headers=headers) as reply:
            await reply.read()
            self._count("in flight", _judged(reply, body))
            await asyncio.sleep(1 if reply.status in (429, 503) else 0)

    def _count(self, what: str, outcome: Outcome) -> None:
        self.outcomes[f"{what}: {outcome.words}"] += 1
        if outcome.is_wrong:
            self.wrong[f"{what}: {outcome.words}"] += 1

    async def _trickled(self, size: int) -> None:
        """A body of which all but a little is sent fast, and the rest byte by byte."""
        head = (
            f"POST {URL(self.url).path}/chat/completions HTTP/1.1\r\nHost: narrows\r\n"
            f"Authorization: Bearer {MADE_UP}\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
        )
        async with self._connection("trickled") as (reader, writer):
            writer.write(head.encode())
            for _ in range((size - 1) // len(_PIECE)):
                writer.write(_PIECE)
                await writer.drain()
            while not writer.is_closing() and not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                with suppress(TimeoutError):
                    reply = await asyncio.wait_for(reader.readline(), 1)
                    self.outcomes[f"trickled: {reply.decode().strip() or 'closed'}"] += 1
                    return

    async def _silent(self) -> None:
        async with self._connection("silent") as (reader, _):
            reply = await reader.readline()
            self.outcomes[f"silent: {reply.decode().strip() or 'closed'}"] += 1

    @asynccontextmanager
    async def _connection(self, kind: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        url = URL(self.url)
        reader, writer = await asyncio.open_connection(url.host, url.port, local_addr=(ADDRESS, 0))
        self.open[kind] += 1
        try:
            yield reader, writer
        finally:
            self.open[kind] -= 1
            writer.close()


async def _again(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        with suppress(OSError, aiohttp.ClientError, TimeoutError):
            await work()
        await asyncio.sleep(0.1)

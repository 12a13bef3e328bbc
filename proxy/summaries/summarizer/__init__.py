"""Who writes summaries: a chain of APIs, asked through their official SDKs; the next is asked where one fails.

Laws
  Hosts and keys come from the configuration. A client's own credential goes where its requests go, in the API that they
  speak, and with one request: nothing here keeps it. No variable of the SDKs in the environment has a say, and no
  redirect is followed.
  Whatever goes wrong is a SummarizerError, within `summary_timeout` once the SDK is there, and holds neither texts nor
  credentials.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx2
from cachetools import LRUCache

from policies.model.summary_record import SummaryCost
from policies.money.catalog import prices_for
from policies.money.prices import Prices
from policies.presets import AS_SET, Writing
from policies.text.summary_checks import End
from proxy.config import ConfigurationError, Settings, SummarizerSettings
from proxy.summaries.summarizer.clients import CLIENTS, SPOKEN, Asking, Client, Kind, Reply
from proxy.summaries.summarizer.transport import PROOF, http_client

__all__ = ["SPOKEN", "Asking", "Summarizer", "SummarizerError", "Written"]


@dataclass(frozen=True, slots=True)
class Written:
    """An answer, who gave it, and what it cost with all that failed before it."""

    text: str
    model: str
    end: End
    spent: SummaryCost


class SummarizerError(Exception):
    """There is no answer, and why in one word. Of the last in the chain: timeout, limited, server, refused, unreachable
    or garbled. Of who asks: busy, paused or stopped."""

    def __init__(self, reason: str, spent: SummaryCost | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.spent = spent or SummaryCost()


class Summarizer:
    """The chain. What it costs to make the clients is paid when one is first asked."""

    def __init__(self, settings: Settings) -> None:
        for name in ("openai", "anthropic"):  # at their debug level the SDKs log what they send
            logging.getLogger(name).setLevel(logging.WARNING)
        self._timeout = settings.summary_timeout
        self._overrides = settings.overrides
        self._prices: LRUCache[str, Prices] = LRUCache(64)
        ways = _Ways(settings)
        self._ways = ways
        self._chains = {
            dialect: tuple(
                _Entry(entry, way, entry.provider or SPOKEN[dialect].provider)
                for entry in settings.summarizers
                if (way := ways.of(entry, dialect))
            )
            for dialect in SPOKEN
        }

    def models(self, dialect: str, model: str, writing: Writing = AS_SET) -> tuple[str, ...]:
        """Everybody who may be asked, in order, for a conversation in this API with `model`; empty where nobody may."""
        return tuple(entry.model(model, writing) for entry in self._chains[dialect])

    def prices(self, model: str) -> Prices:
        """What one costs."""
        if model not in self._prices:
            self._prices[model] = prices_for(model, self._overrides)
        return self._prices[model]

    async def write(self, asking: Asking) -> Written:
        """The answer of the first in the chain that gives one. Raises SummarizerError."""
        now = asyncio.get_running_loop().time
        end, spent, reason = now() + self._timeout, SummaryCost(), "refused"
        chain = self._chains[asking.dialect]
        for at, entry in enumerate(chain):
            model = entry.model(asking.model, asking.writing)
            try:
                reply = await entry.ask(asking, model, (end - now()) / (len(chain) - at))
            except _FaultError as fault:
                reason, spent = fault.reason, spent + self._spent(model, fault.reply)
            else:
                return Written(reply.text, model, reply.end, spent + self._spent(model, reply))
        raise SummarizerError(reason, spent)

    async def close(self) -> None:
        """Close every connection."""
        await self._ways.close()

    def _spent(self, model: str, reply: Reply | None) -> SummaryCost:
        """The bill of a reply; where it says nothing, all that is known is that there was one."""
        if reply is None or reply.usage is None:
            return SummaryCost(calls=int(reply is not None))
        usage, prices = reply.usage, self.prices(model)
        dollars = prices.cost(usage).total if prices.listed else 0.0
        return SummaryCost(1, usage.prompt, usage.cached, usage.written, usage.completion, dollars)


class _FaultError(Exception):
    """One of the chain gave no answer; `reply` is what was billed nevertheless."""

    def __init__(self, reason: str, reply: Reply | None = None) -> None:
        super().__init__(reason)
        self.reason, self.reply = reason, reply


class _Ways:
    """Everybody's way to everybody: one for each place that is asked in one API."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[tuple[str, Kind], _Way] = {}

    def of(self, entry: SummarizerSettings, dialect: str) -> "_Way | None":
        """How this one is asked for a conversation in this API; None where it is not. Without a key of its own it goes
        the way of the conversation, with the client's, and so can only speak what is spoken there."""
        spoken = SPOKEN[dialect]
        if entry.key_env:
            dialect, kind = CLIENTS[entry.provider or "openai"]
            return self._way(entry.base_url or self._settings.upstream_of(dialect), kind)
        if entry.provider not in (None, spoken.provider):
            return None
        return self._way(self._settings.upstream_of(dialect), spoken.kind)

    def _way(self, base: str | None, kind: Kind) -> "_Way":
        if base is None:
            raise ConfigurationError("upstream: say where requests go; `summarizers` asks there")
        if (base, kind) not in self._made:
            self._made[base, kind] = _Way(base, kind, self._settings)
        return self._made[base, kind]

    async def close(self) -> None:
        """Close every connection."""
        for way in self._made.values():
            await way.close()


class _Way:
    """Where is asked, and in which API."""

    def __init__(self, base: str, kind: Kind, settings: Settings) -> None:
        self.kind = kind
        self._base = base
        self._http = http_client(base, settings)
        self._client: Client | None = None

    async def client(self) -> Client:
        """The SDK; made in a thread, because importing it takes long."""
        if self._client is not None:
            return self._client
        kind: Callable[[str, httpx2.AsyncClient], Client] = self.kind
        self._client = made = await asyncio.to_thread(kind, self._base, self._http)
        return made

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()


class _Entry:
    """One of a chain."""

    def __init__(self, entry: SummarizerSettings, way: _Way, provider: str) -> None:
        self._model = entry.model
        self._provider = provider
        self._key = os.environ[entry.key_env] if entry.key_env else ""
        self._way = way

    def model(self, model: str, writing: Writing) -> str:
        """Who is asked for a conversation with `model`."""
        return self._model or writing.model(self._provider) or model

    async def ask(self, asking: Asking, model: str, seconds: float) -> Reply:
        """The answer, within so many seconds. Raises _FaultError."""
        client = await self._way.client()  # before the clock runs: the first time takes long, and is nobody's fault
        try:
            async with asyncio.timeout(seconds):
                reply = await self._asked(client, asking, model)
        except TimeoutError:
            reason = "timeout"
        else:
            if not isinstance(reply, str):
                return reply
            reason = reply
        # not where the other error was caught: that one holds the request, and with it the credential
        raise _FaultError(reason)

    async def _asked(self, client: Client, asking: Asking, model: str) -> Reply | str:
        """The answer, or why there is none."""
        try:
            body = await client.ask(asking, model, self._proof(asking))
        except client.faults as error:
            return _reason(error)
        return _read(client, body)

    def _proof(self, asking: Asking) -> Mapping[str, str]:
        proof = self._way.kind.proof(self._key) if self._key else asking.auth
        return {PROOF + name: value for name, value in proof.items()}


def _read(client: Client, body: bytes) -> Reply:
    try:
        reply = client.read(body)
    except (ValueError, RecursionError):
        raise _FaultError("garbled") from None
    if not reply.readable:
        raise _FaultError("garbled", reply if reply.usage else None)
    return reply


def _reason(error: Exception) -> str:
    """What went wrong, in a word. SDKs keep the error below theirs as its cause."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return "limited" if status == 429 else "server" if status >= 500 else "refused"
    cause = error.__cause__ or error
    if isinstance(cause, httpx2.TimeoutException | TimeoutError):
        return "timeout"
    return "unreachable" if isinstance(cause, httpx2.HTTPError | OSError) else "garbled"

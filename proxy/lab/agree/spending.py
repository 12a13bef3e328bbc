"""The one way to the model: everything that costs money goes through here, and is counted.

Laws
  A request goes upstream only where the most that it may cost still fits the budget; what was refused so is not asked.
  What counts is what the provider's usage says, at the prices of the model that was asked.
  The key is put in here: what stands before this never has it.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from policies.dialects import DIALECTS
from policies.dialects.dialect import usage_in
from policies.model.tokens import Counter, encoding_for
from policies.money.budget import RESERVE
from policies.money.catalog import prices_for
from policies.money.prices import Prices, Usage
from proxy.config.routes import BETAS, VERSIONS, spoken
from proxy.lab.provider import TURN_HEADER

SPENT = 402
"""The status of what is not asked any more."""
_OTHER_VOCABULARY = 1.5
"""How many tokens a provider may count for each one counted here."""
_LIMITS = dict.fromkeys(field for api in DIALECTS.values() for field in api.fields.reserve)
_AGAIN = (429, 500, 502, 503, 504, 529)
_UNREACHABLE = 599
_TRIES = 5
_LONGEST_PAUSE = 60.0
_PASSED_ON = ("content-type", *VERSIONS, *BETAS, "accept")
_PATHS = {api.http.path: name for name, api in DIALECTS.items()}


@dataclass(slots=True)
class Spending:
    """What was asked and paid, and what may still be."""

    model: str
    budget: float | None
    """Dollars; None where the prices are not known."""
    most_requests: int | None
    requests: int = 0
    dollars: float = 0.0
    reserved: float = 0.0
    """Dollars that requests on their way may cost."""
    is_spent: bool = False
    """Whether anything was refused because it might have cost too much."""
    tables: dict[str, Prices] = field(default_factory=dict)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    def prices(self, model: str) -> Prices:
        """Those of a model; of one whose prices are not known, those of the model that is compared."""
        if model not in self.tables:
            listed = prices_for(model)
            self.tables[model] = listed if listed.listed or model == self.model else self.prices(self.model)
        return self.tables[model]

    def most(self, model: str, tokens: int, answer: int) -> float:
        """The most that a request may cost: nothing of it cached, all of it written to the cache."""
        prompt = int(tokens * _OTHER_VOCABULARY)
        return self.prices(model).cost(Usage(prompt, 0, prompt, answer)).total

    async def reserve(self, dollars: float) -> bool:
        """Take the most that a request may cost, once those on their way leave so much; false where nothing can."""
        while not self.is_spent:
            budget = math.inf if self.budget is None else self.budget
            is_last = self.most_requests is not None and self.requests >= self.most_requests
            if is_last or self.dollars + dollars > budget:
                self.is_spent = True
            elif self.dollars + self.reserved + dollars <= budget:
                self.requests += 1
                self.reserved += dollars
                return True
            else:
                self._settled.clear()
                await self._settled.wait()
        return False

    def settle(self, reserved: float, model: str, usage: Usage | None, is_answered: bool) -> None:
        """What it did cost; where an answer does not say, the most that it may have cost."""
        self.reserved -= reserved
        self._settled.set()
        if is_answered:
            self.dollars += self.prices(model).cost(usage).total if usage is not None else reserved


class _CountingUpstream:
    """Passes requests on: those of recorded turns to the provider that plays sessions back, others to the model."""

    def __init__(self, upstream: str, playing: str, key: str, spending: Spending, http: aiohttp.ClientSession) -> None:
        self._upstream = upstream.rstrip("/")
        self._playing = playing
        self._key = key
        self._spending = spending
        self._http = http
        self._counters: dict[str, Counter] = {}

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        path = request.raw_path.removeprefix("/v1")
        if TURN_HEADER in request.headers:
            headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
            _, response = await self._send(request.method, f"{self._playing}{path}", headers, body)
            return response
        dialect = _PATHS.get(path.partition("?")[0], "")
        passed = {name: value for name, value in request.headers.items() if name.lower() in _PASSED_ON}
        api = DIALECTS[dialect or spoken(request.headers)[0]]
        headers = {**(api.http.auth(self._key) if self._key else {}), **passed}
        if not dialect:
            _, response = await self._send(request.method, f"{self._upstream}{path}", headers, body or None)
            return response
        return await self._ask(dialect, f"{self._upstream}{path}", headers, body)

    async def _ask(self, dialect: str, url: str, headers: Mapping[str, str], body: bytes) -> web.Response:
        fields: dict[str, Any] = msgspec.json.decode(body)
        model = str(fields.get("model"))
        count = self._counters.setdefault(model, Counter(encoding_for(model)))
        tokens = await asyncio.to_thread(count, body.decode("utf-8", "replace"))
        most = self._spending.most(model, tokens, next((fields[n] for n in _LIMITS if fields.get(n)), RESERVE))
        if not await self._spending.reserve(most):
            fault = {"error": {"message": "The budget of this comparison is used up.", "type": "budget"}}
            return web.json_response(fault, status=SPENT)
        usage, status = None, 0
        try:
            status, response = await self._patiently(url, headers, body)
            if status == 200:
                assert isinstance(response.body, bytes)
                usage = usage_in(DIALECTS[dialect], response.body)
        finally:
            self._spending.settle(most, model, usage, status == 200)
        return response

    async def _patiently(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, web.Response]:
        """The reply; asked again after a while where the provider is busy, which costs nothing."""
        for tried in range(_TRIES):
            status, response = await self._send("POST", url, headers, body)
            if status not in _AGAIN or tried == _TRIES - 1:
                break
            after = response.headers.get("Retry-After", "")
            await asyncio.sleep(
                min(_LONGEST_PAUSE, float(after) if after.replace(".", "", 1).isdigit() else 2.0**tried)
            )
        return status, response

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, web.Response]:
        try:
            async with self._http.request(method, url, headers=headers, data=body) as reply:
                head = {n: v for n in ("Content-Type", "Retry-After") if (v := reply.headers.get(n))}
                content = await reply.read()
                return reply.status, web.Response(status=reply.status, body=content, headers=head)
        except aiohttp.ClientError as error:
            message = f"{url} cannot be asked: {error or type(error).__name__}"
            return _UNREACHABLE, web.json_response({"error": {"message": message, "type": "upstream"}}, status=502)


@asynccontextmanager
async def counting_upstream(upstream: str, playing: str, key: str, spending: Spending) -> AsyncIterator[str]:
    """The base URL behind which the model is asked, and every request counted. `playing`: the base URL of the provider
    that plays recorded turns back."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=600)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as http:
        server = web.Server(_CountingUpstream(upstream, playing, key, spending, http), access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.2)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()

"""A model asked at sampled turns of recorded sessions: twice with what the client wrote, and once with each preset.

Laws
  Only turns of which Narrows shortens something are sampled: in all others the model reads what the client wrote.
  The sample is drawn from the turns in the order of session and distance, at even steps from a seeded start: each
  session and each distance has its share, and the same seed draws the same turns.
  A request goes upstream only where the most that it may cost still fits the budget; what was refused so is not asked.
  What counts is what the provider's usage says, at the prices of the model that was asked. The key is put in behind the
  proxies: what stands before has never seen it.
  Each preset has a Narrows of its own, and each session runs through it from its first turn: what is not sampled is
  answered as it was recorded, for nothing. Summaries and digests are written by the model that production would ask.
  A recall is answered as in production, before the reply counts; the recorded answer follows, so that the conversation
  goes on as it did.
  A sample is whole or left out: all of its answers are there, or none counts.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from policies.agreement import Action, action_in
from policies.dialects import DIALECTS
from policies.dialects.dialect import is_completion_limited, usage_in
from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from policies.money.prices import RESERVE, Prices, Usage
from proxy.config.routes import BETAS, VERSIONS, spoken
from proxy.lab.provider import TURN_HEADER, Provider, start
from proxy.lab.replay.environment import Options, ReplayEnvironment, environment_for
from proxy.lab.replay.recorded import Json, Session, requests
from proxy.lab.replay.runs import RawReply, send

DISTANCES = ("at a checkpoint", "1 to 4 requests", "5 to 19 requests", "20 or more", "none before")
"""How far the last checkpoint of a conversation is behind a request, in bands."""
_ENDS = (0, 4, 19)


@dataclass(frozen=True, slots=True)
class Turn:
    session: int
    number: int
    before: int
    after: int
    is_shortened: bool
    distance: str


class Distance:
    """How far the last checkpoint is behind each request of a conversation, by what its replies declare."""

    def __init__(self) -> None:
        self._since: int | None = None

    def after(self, prefix: str) -> str:
        if prefix.startswith("checkpoint:"):
            self._since = 0
        elif self._since is not None:
            self._since += 1
        if self._since is None:
            return DISTANCES[-1]
        return DISTANCES[sum(self._since > end for end in _ENDS)]


def bodies(session: Session, model: str, marks: bool) -> Iterator[Json]:
    """The requests of a session's client, to be answered at once: not streamed, and with a limit to each answer."""
    for body in requests(session, model, marks):
        whole = {name: value for name, value in body.items() if not name.startswith("stream")}
        limits = DIALECTS[session.dialect].fields.reserve
        yield {**whole, limits[0 if is_completion_limited(model) else -1]: RESERVE}


async def post(
    http: aiohttp.ClientSession, url: str, session: Session, run: str, body: Json, turn: int | None = None
) -> RawReply:
    """Send one request of a run. `turn`: which recorded answer it is to have; None for the model's own."""
    headers = {"x-narrows-conversation": run} | ({TURN_HEADER: str(turn)} if turn is not None else {})
    return await send(http, url, run, body, headers, session.dialect)


async def post_recorded(
    http: aiohttp.ClientSession, environment: ReplayEnvironment, session: Session, run: str, body: Json, turn: int
) -> RawReply:
    """The turn as it was recorded, and what is written in the background before the next one."""
    reply = await post(http, environment.base_url, session, run, body, turn)
    if environment.summaries is not None:
        await environment.summaries.maker.settled()
    return reply


async def forecast_turns(
    sessions: Sequence[Session], model: str, options: Options, advance: Callable[[], None]
) -> tuple[list[Turn], float]:
    """Every turn as this preset would have it sent, found out with the built-in provider: nothing is paid. And what the
    summaries and digests would cost that it has written meanwhile, in dollars."""
    turns: list[Turn] = []
    dollars = 0.0
    async with environment_for(model, options) as environment, aiohttp.ClientSession() as http:
        for at, session in enumerate(sessions):
            async for turn in _forecast_session(environment, http, at, session):
                turns.append(turn)
                advance()
            if (observer := environment.summaries) and (request := environment.observer.newest.get(run_of(at))):
                _, costs = await observer.results(request.context.key)
                usage = Usage(costs.prompt, costs.cached, costs.written, costs.completion)
                dollars += observer.prices(session.dialect).cost(usage).total
            environment.forget(run_of(at))
    return turns, dollars


async def _forecast_session(
    environment: ReplayEnvironment, http: aiohttp.ClientSession, at: int, session: Session
) -> AsyncIterator[Turn]:
    run, distance = run_of(at), Distance()
    environment.play(session, run)
    for number, body in enumerate(bodies(session, environment.model, environment.marks)):
        headers = (await post_recorded(http, environment, session, run, body, number)).headers
        before, after = (int(headers.get(f"x-narrows-tokens-{name}", 0)) for name in ("before", "after"))
        band = distance.after(headers.get("x-narrows-prefix", ""))
        yield Turn(at, number, before, after, is_shortened(headers), band)


def is_shortened(headers: Mapping[str, str]) -> bool:
    return headers.get("x-narrows-mode") == "compacted"


def run_of(session: int) -> str:
    """The name of the conversation that a session is played in."""
    return f"session-{session}"


def sample_of(turns: Sequence[Sequence[Turn]], number: int, seed: int) -> list[Turn]:
    """So many turns that any preset shortens, or all that there are, as the first preset has them; `turns` holds those
    of each preset, in the same order."""
    random = Random(seed)  # noqa: S311 - no secret
    shortened = [row[0] for row in zip(*turns, strict=True) if any(turn.is_shortened for turn in row)]
    keyed = [(turn.session, DISTANCES.index(turn.distance), random.random(), turn) for turn in shortened]
    order = [turn for *_, turn in sorted(keyed, key=lambda row: row[:3])]
    if number >= len(order):
        return order
    start, step = random.random(), len(order) / number
    return [order[int((at + start) * step)] for at in range(number)]


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
    model: str
    budget: float | None
    """Dollars; None where the prices are not known."""
    most_requests: int | None
    requests: int = 0
    dollars: float = 0.0
    reserved: float = 0.0
    """Dollars that requests on their way may cost."""
    is_spent: bool = False
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
        """Enter the true cost; where an answer does not say, the most that it may have cost."""
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
            pause = float(after) if after.replace(".", "", 1).isdigit() else 2.0**tried
            await asyncio.sleep(min(_LONGEST_PAUSE, pause))
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


_HOPELESS = 5
"""After so many turns without any answer nothing more is asked."""


@dataclass(frozen=True, slots=True)
class WithNarrows:
    """The model's action at one turn with what a preset sends."""

    action: Action
    distance: str
    recalls: int
    is_shortened: bool


@dataclass(frozen=True, slots=True)
class ComparedTurn:
    session: int
    number: int
    without: tuple[Action, Action]
    with_: Sequence[WithNarrows]


@dataclass(slots=True)
class Answers:
    samples: list[ComparedTurn] = field(default_factory=list)
    failed: int = 0
    """Turns that are left out because an answer did not come."""
    first_failure: str = ""
    is_stopped: bool = False

    @property
    def is_hopeless(self) -> bool:
        return not self.samples and self.failed >= _HOPELESS


class Asking:
    def __init__(
        self,
        sessions: Sequence[Session],
        sample: Sequence[Turn],
        options: Sequence[Options],
        spending: Spending,
        *,
        concurrency: int,
        advance: Callable[[], None],
    ) -> None:
        self._sessions = sessions
        self._chosen = {at: {turn.number for turn in sample if turn.session == at} for at in range(len(sessions))}
        self._options = options
        self._spending = spending
        self._concurrency = concurrency
        self._advance = advance
        self._upstream = ""
        self._http: aiohttp.ClientSession | None = None
        self.answers = Answers()

    async def run(self, upstream: str, key: str, stop: asyncio.Event) -> Answers:
        """Ask until all is asked, the budget is spent, or somebody stops it."""
        async with (
            self._environments(upstream, key) as environments,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as self._http,
        ):
            gate = asyncio.Semaphore(self._concurrency)
            sessions = (self._session(at, environments, gate) for at, chosen in self._chosen.items() if chosen)
            running = asyncio.ensure_future(asyncio.gather(*sessions))
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            self.answers.is_stopped = not running.done()
            for each in (running, stopping):
                each.cancel()
            with suppress(asyncio.CancelledError):
                await running
        return self.answers

    @asynccontextmanager
    async def _environments(self, upstream: str, key: str) -> AsyncIterator[list[ReplayEnvironment]]:
        model = self._spending.model
        playing = Provider(prices_for, Counter(encoding_for(model)), keep=1)
        async with AsyncExitStack() as parts:
            recorded = await parts.enter_async_context(await start(playing))
            for at, session in enumerate(self._sessions):
                playing.play(run_of(at), session.messages, session.dialect)
            self._upstream = await parts.enter_async_context(
                counting_upstream(upstream, recorded.url, key, self._spending)
            )
            yield [
                await parts.enter_async_context(environment_for(model, replace(options, upstream=self._upstream)))
                for options in self._options
            ]

    async def _session(self, at: int, environments: Sequence[ReplayEnvironment], gate: asyncio.Semaphore) -> None:
        session, chosen, last = self._sessions[at], self._chosen[at], max(self._chosen[at])
        distances = [Distance() for _ in environments]
        async with gate:
            assert self._http is not None
            marks = environments[0].marks
            for number, body in enumerate(bodies(session, self._spending.model, marks)):
                if number > last or self._spending.is_spent or self.answers.is_hopeless:
                    break
                answered = await self._sample(at, body, environments) if number in chosen else None
                again = [post_recorded(self._http, each, session, run_of(at), body, number) for each in environments]
                prefixes = [reply.headers.get("x-narrows-prefix", "") for reply in await asyncio.gather(*again)]
                if answered is not None:  # the first reply of a request declares what becomes of the prefix
                    prefixes = [reply.headers.get("x-narrows-prefix", "") for reply, _ in answered[1]]
                bands = [distance.after(prefix) for distance, prefix in zip(distances, prefixes, strict=True)]
                if answered is not None:
                    self._enter(at, number, *answered, bands)
                    self._advance()

    async def _sample(
        self, at: int, body: Json, environments: Sequence[ReplayEnvironment]
    ) -> tuple[list[RawReply], list[tuple[RawReply, int]]]:
        """The answers of one turn: without Narrows, one after the other as the second finds a warm cache, and by each
        preset with the recalls that were answered."""
        assert self._http is not None
        http, session, run = self._http, self._sessions[at], run_of(at)

        async def without() -> list[RawReply]:
            return [await post(http, self._upstream, session, run, body) for _ in range(2)]

        async def through(environment: ReplayEnvironment) -> tuple[RawReply, int]:
            reply = await post(http, environment.base_url, session, run, body)
            rounds = environment.observer.rounds.get(run)
            return reply, rounds.answered if rounds else 0

        plain, narrowed = await asyncio.gather(without(), asyncio.gather(*map(through, environments)))
        return plain, narrowed

    def _enter(
        self,
        at: int,
        number: int,
        plain: Sequence[RawReply],
        narrowed: Sequence[tuple[RawReply, int]],
        bands: Sequence[str],
    ) -> None:
        """A sample, where all of its answers are there."""
        replies = [*plain, *(reply for reply, _ in narrowed)]
        if any(reply.status == SPENT for reply in replies):
            return
        dialect = self._sessions[at].dialect
        actions = [action_in(dialect, reply.body) if reply.status == 200 else None for reply in replies]
        whole = [action for action in actions if action is not None]
        if len(whole) < len(actions):
            self.answers.failed += 1
            refused = next((reply for reply in replies if reply.status != 200), None)
            refusal = refused.refusal if refused else "an answer that cannot be read"
            self.answers.first_failure = self.answers.first_failure or refusal
            return
        first, second, *others = whole
        with_ = [
            WithNarrows(action, band, recalls, is_shortened(reply.headers))
            for action, band, (reply, recalls) in zip(others, bands, narrowed, strict=True)
        ]
        self.answers.samples.append(ComparedTurn(at, number, (first, second), with_))

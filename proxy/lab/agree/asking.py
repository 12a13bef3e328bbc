"""The model asked at each sampled turn: twice with what the client wrote, and once with what each preset makes of it.

Laws
  Each preset has a Narrows of its own, and each session runs through it from its first turn: what is not sampled is
  answered as it was recorded, for nothing. Summaries and digests are written by the model that production would ask.
  A recall is answered as in production, before the reply counts; the recorded answer follows, so that the conversation
  goes on as it did.
  A sample is whole or left out: all of its answers are there, or none counts.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import aiohttp

from policies.agreement import Action, action_in
from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from proxy.lab.agree.spending import SPENT, Spending, counting_upstream
from proxy.lab.agree.turns import Distance, RawReply, Turn, bodies, is_shortened, post, run_of
from proxy.lab.provider import Provider, start
from proxy.lab.replay.environment import Options, ReplayEnvironment, environment_for
from proxy.lab.replay.recorded import Json, Session

_HOPELESS = 5
"""After so many turns without any answer nothing more is asked."""


@dataclass(frozen=True, slots=True)
class WithNarrows:
    """What the model did at one turn with what a preset sends."""

    action: Action
    distance: str
    recalls: int
    is_shortened: bool


@dataclass(frozen=True, slots=True)
class ComparedTurn:
    """One turn: what the model did without Narrows, twice, and by each preset."""

    session: int
    number: int
    without: tuple[Action, Action]
    with_: Sequence[WithNarrows]


@dataclass(slots=True)
class Answers:
    """What was asked so far."""

    samples: list[ComparedTurn] = field(default_factory=list)
    failed: int = 0
    """Turns that are left out because an answer did not come."""
    first_failure: str = ""
    is_stopped: bool = False
    """Whether somebody stopped it."""

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing but failures came so far, and enough of them."""
        return not self.samples and self.failed >= _HOPELESS


class Asking:
    """Asks at the sampled turns of all sessions."""

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
        """A Narrows for each preset, before one counted upstream."""
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
                await parts.enter_async_context(environment_for(model, self._with_upstream(options)))
                for options in self._options
            ]

    def _with_upstream(self, options: Options) -> Options:
        return replace(options, upstream=self._upstream)

    async def _session(self, at: int, environments: Sequence[ReplayEnvironment], gate: asyncio.Semaphore) -> None:
        """One session up to its last sampled turn."""
        session, chosen, last = self._sessions[at], self._chosen[at], max(self._chosen[at])
        distances = [Distance() for _ in environments]
        async with gate:
            marks = environments[0].marks
            for number, body in enumerate(bodies(session, self._spending.model, marks)):
                if number > last or self._spending.is_spent or self.answers.is_hopeless:
                    break
                answered = await self._sample(at, body, environments) if number in chosen else None
                again = [self._recorded(at, number, body, environment) for environment in environments]
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

    async def _recorded(self, at: int, number: int, body: Json, environment: ReplayEnvironment) -> RawReply:
        """The turn as it was recorded, and what is written in the background before the next one."""
        assert self._http is not None
        reply = await post(self._http, environment.base_url, self._sessions[at], run_of(at), body, number)
        if environment.summaries is not None:
            await environment.summaries.maker.settled()
        return reply

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

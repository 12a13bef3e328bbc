"""The turns of sessions: what is sent for each, how far the last checkpoint is behind it, and which are sampled.

Laws
  Only turns of which Narrows shortens something are sampled: in all others the model reads what the client wrote.
  The sample is drawn from the turns in the order of session and distance, at even steps from a seeded start: each
  session and each distance has its share, and the same seed draws the same turns.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import aiohttp
import orjson

from policies.dialects import DIALECTS
from policies.dialects.dialect import is_completion_limited
from policies.money.prices import RESERVE, Usage
from proxy.lab.provider import TURN_HEADER
from proxy.lab.replay.environment import Options, ReplayEnvironment, environment_for
from proxy.lab.replay.recorded import Json, Session, requests

DISTANCES = ("at a checkpoint", "1 to 4 requests", "5 to 19 requests", "20 or more", "none before")
"""How far the last checkpoint of a conversation is behind a request, in bands."""
_ENDS = (0, 4, 19)


@dataclass(frozen=True, slots=True)
class RawReply:
    """What came back for a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def refusal(self) -> str:
        try:
            return str(orjson.loads(self.body)["error"]["message"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return f"status {self.status}" if self.status else "no answer"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session as a preset would have it sent."""

    session: int
    number: int
    before: int
    after: int
    is_shortened: bool
    distance: str


@dataclass(frozen=True, slots=True)
class SummaryCalls:
    """Summaries and digests that a preset would have written while the sessions run."""

    calls: int
    dollars: float


class Distance:
    """How far the last checkpoint is behind each request of a conversation, by what its replies declare."""

    def __init__(self) -> None:
        self._since: int | None = None

    def after(self, prefix: str) -> str:
        """The band of the next request, whose reply says this of its prefix."""
        if prefix.startswith("checkpoint:"):
            self._since = 0
        elif self._since is not None:
            self._since += 1
        if self._since is None:
            return DISTANCES[-1]
        return DISTANCES[sum(self._since > end for end in _ENDS)]


def bodies(session: Session, model: str, marks: bool) -> Iterator[Json]:
    """What the client of a session sends, to be answered at once: not streamed, and with a limit to each answer."""
    for body in requests(session, model, marks):
        whole = {name: value for name, value in body.items() if not name.startswith("stream")}
        limits = DIALECTS[session.dialect].fields.reserve
        yield {**whole, limits[0 if is_completion_limited(model) else -1]: RESERVE}


async def post(
    http: aiohttp.ClientSession, url: str, session: Session, run: str, body: Json, turn: int | None = None
) -> RawReply:
    """Send one request of a run. `turn`: which recorded answer it is to have; None for the model's own."""
    api = DIALECTS[session.dialect]
    headers = {**api.http.auth(run), "Content-Type": "application/json", "x-narrows-conversation": run}
    headers |= {TURN_HEADER: str(turn)} if turn is not None else {}
    try:
        async with http.post(f"{url}{api.http.path}", data=orjson.dumps(body), headers=headers) as reply:
            return RawReply(reply.status, reply.headers, await reply.read())
    except aiohttp.ClientError as error:
        return RawReply(0, {}, orjson.dumps({"error": {"message": str(error) or type(error).__name__}}))


async def forecast_turns(
    sessions: Sequence[Session], model: str, options: Options, advance: Callable[[], None]
) -> tuple[list[Turn], SummaryCalls]:
    """Every turn as this preset would have it sent, found out with the built-in provider: nothing is paid."""
    turns: list[Turn] = []
    calls, dollars = 0, 0.0
    async with environment_for(model, options) as environment, aiohttp.ClientSession() as http:
        for at, session in enumerate(sessions):
            async for turn in _forecast_session(environment, http, at, session):
                turns.append(turn)
                advance()
            if (observer := environment.summaries) and (planned := environment.observer.newest.get(run_of(at))):
                _, spent = await observer.written(planned.context.key)
                calls += spent.calls
                usage = Usage(spent.prompt, spent.cached, spent.written, spent.completion)
                dollars += observer.prices(session.dialect).cost(usage).total
            environment.forget(run_of(at))
    return turns, SummaryCalls(calls, dollars)


async def _forecast_session(
    environment: ReplayEnvironment, http: aiohttp.ClientSession, at: int, session: Session
) -> AsyncIterator[Turn]:
    run, distance = run_of(at), Distance()
    environment.play(session, run)
    for number, body in enumerate(bodies(session, environment.model, environment.marks)):
        reply = await post(http, environment.base_url, session, run, body, number)
        if environment.summaries is not None:
            await environment.summaries.maker.settled()
        headers = reply.headers
        before, after = (int(headers.get(f"x-narrows-tokens-{name}", 0)) for name in ("before", "after"))
        yield Turn(
            at, number, before, after, is_shortened(headers), distance.after(headers.get("x-narrows-prefix", ""))
        )


def is_shortened(headers: Mapping[str, str]) -> bool:
    """Whether a request was sent shortened, by the headers of its reply."""
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

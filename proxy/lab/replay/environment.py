"""Where sessions are replayed: the built-in provider (or a real upstream), a Narrows in front of it, what observes
both, and the model of a replay, which answers what was recorded and recalls what it needs.

Laws
  Everything is on loopback, on free ports, with a store of its own that is deleted afterwards; no setting of the
  machine counts.
  What the model recalls follows from the turn and the text alone, so that a replay comes out the same every time; it
  recalls only references that the request names; of each run only the newest turn is stored.
"""

import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import orjson
from multidict import CIMultiDict
from pydantic import ValidationError
from pydantic_settings import PydanticBaseSettingsSource

from policies.context import Aim
from policies.dialects import DIALECTS
from policies.keep import Patterns
from policies.model.conversation import Part
from policies.model.summary_record import SummaryCost, SummaryRecord
from policies.model.tokens import Counter, encoding_for
from policies.money.bills import Labels
from policies.money.caches import MarkLifetime
from policies.money.catalog import prices_for
from policies.money.prices import Prices, Usage
from policies.presets import PRESETS, Preset
from policies.rules.summarize import Summarize
from policies.text.stubs import refs_named
from policies.tools import RECALL, SEARCH
from policies.tools.deferral import ToolLists
from proxy.addons.warm.addon import KeepWarm
from proxy.app import App
from proxy.config import ConfigurationError, Settings
from proxy.config.groups.compaction import SAME
from proxy.config.presets import CustomPreset
from proxy.kernel.addons import Addon, Exchange
from proxy.lab.provider import TURN_HEADER, Provider, Received, Say, rule_for, start
from proxy.lab.provider.extractive import extract_digest, extract_summary
from proxy.lab.quality import needed
from proxy.lab.replay.recorded import Session, read
from proxy.lab.replay.times import SimulatedClock
from proxy.memory import Key, Store, open_store
from proxy.requests import PlannedRequest
from proxy.summaries.jobs import DIGEST_PROMPTS, PROMPTS
from proxy.summaries.maker import SummaryMaker
from proxy.summaries.models import siblings


@dataclass(slots=True)
class RecallRounds:
    """The rounds of one request before its last: the usage of the others, and the recalls answered."""

    usage: list[Usage] = field(default_factory=list)
    answered: int = 0
    refused: int = 0


class PlanObserver(Addon):
    """Remembers the newest plan of each conversation, until it is forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.newest: dict[str, PlannedRequest | None] = {}
        """Of the first round; None where the request went as the client sent it."""
        self.pings: dict[str, list[tuple[float, Usage]]] = {}
        """The pings since the newest request, each with its time."""
        self.rounds: dict[str, RecallRounds] = {}

    async def planned(self, exchange: Exchange) -> None:
        if exchange.kind == "chat" and exchange.upstream_request is not None:
            run = exchange.upstream_request.client_request.conversation or ""
            self.newest[run], self.rounds[run] = exchange.upstream_request.planned, RecallRounds()

    async def answered(self, exchange: Exchange, status: int, headers: CIMultiDict[str]) -> None:
        """Count the usage of the round before, and the recalls that were answered for this one."""
        request = exchange.upstream_request
        rounds = self.rounds.get(request.client_request.conversation or "") if request is not None else None
        if request is None or rounds is None or len(exchange.rounds) <= len(rounds.usage):
            return
        rounds.usage.append(exchange.rounds[-1].usage or Usage(0, 0, 0, 0))
        answers = request.planned.context.answers if request.planned is not None else ()
        rounds.answered += sum(answer.succeeded for answer in answers)
        rounds.refused += sum(not answer.succeeded for answer in answers)

    def pinged(self, key: Key, _: Labels, usage: Usage, __: Prices, ___: bool) -> None:
        self.pings.setdefault(key.conversation, []).append((self._clock(), usage))

    def forget(self, run: str) -> None:
        self.newest.pop(run, None)
        self.pings.pop(run, None)
        self.rounds.pop(run, None)


class Player:
    """The model of the built-in provider: answers what was recorded, but may recall first what it is about to use.

    Of the uses of hidden text it recalls a share that follows from the turn and the reference alone: the whole text, or
    where it has recalled that before and did not see enough, the lines that it needs. A turn whose recalls are answered
    is played as recorded, whatever is still out of sight. Tools whose definitions are deferred it looks for before it
    calls them, once.
    """

    MOST = 4
    """Recalls of one turn, all in one message."""

    def __init__(self, observer: PlanObserver, refetch: float, count: Counter) -> None:
        self._observer = observer
        self._refetch = refetch
        self._count = count
        self._plays: dict[str, tuple[str, Sequence[Sequence[Part]]]] = {}
        self._in_sight: dict[str, set[str]] = {}
        """By credential: the tools that searches have found."""
        self.received: dict[str, list[Received]] = {}
        """By credential: the requests of the newest turn."""

    def play(self, credential: str, run: str, session: Session) -> None:
        self._in_sight[credential] = set()
        if self._refetch or session.tools:
            self._plays[credential] = (run, session.replies(self._count))

    def __call__(self, received: Received) -> Say | None:
        """A summary or a digest where one is asked for, else the recalls of a turn; None for what was recorded, and for
        the list of models, which is no request of a turn."""
        if received.method == "GET":
            return None
        is_valid = bool(received.dialect) and received.violation is None
        if is_valid and (text := _summary_for(received, self._count)) is not None:
            return Say(text)
        credential, turn = received.credential, received.headers.get(TURN_HEADER, "")
        before = self.received.get(credential, [])
        is_round = bool(before) and before[-1].headers.get(TURN_HEADER) == turn
        self.received[credential] = [*(before if is_round else ()), received]
        if received.violation is not None or credential not in self._plays or not turn.isdecimal():
            return None
        run, answers = self._plays[credential]
        if arguments := self._search(credential, run, answers[int(turn)]):
            function = {"name": SEARCH, "arguments": arguments}
            return Say(calls=[{"id": f"find_{turn}", "type": "function", "function": function}])
        if not self._refetch:
            return None
        calls = self._calls(received, int(turn), run, answers[int(turn)])
        is_answered = calls and any(p.kind == "result" and p.call_id == calls[0]["id"] for p in _parts(received))
        return Say(calls=calls) if calls and not is_answered else None

    def _search(self, credential: str, run: str, answer: Sequence[Part]) -> str:
        """The arguments of a search for the tools that a turn calls and that are not in sight; "" without any."""
        request = self._observer.newest[run]
        tools = request.context.tools.tools if request is not None else None
        if request is None or tools is None:
            return ""
        in_sight = self._in_sight[credential] | {each.name for each in tools.found_in(request.context.conversation)}
        names = {part.tool for part in answer if part.kind == "call"} & tools.names - in_sight
        arguments = orjson.dumps({"query": " ".join(sorted(names))}).decode()
        self._in_sight[credential] |= names | {each.name for each in tools.answer(arguments, last=False).tools}
        return arguments if names else ""

    def _calls(self, received: Received, turn: int, run: str, answer: Sequence[Part]) -> list[dict[str, Any]]:
        """The recalls of a turn, before it is answered as recorded."""
        request = self._observer.newest[run]
        if request is None:
            return []
        refs = refs_named(received.body.decode("utf-8", "replace"))  # what the model can know
        recalls = [part.text for part in _parts(received) if part.kind == "call" and part.tool == RECALL]
        calls: list[dict[str, Any]] = []
        for need in needed(request.context.conversation, request.plan.edits, answer):
            digest = sha256(f"{turn} {need.ref}".encode()).digest()
            is_due = int.from_bytes(digest[:8], "big") < self._refetch * 2**64
            if is_due and need.ref in refs and len(calls) < self.MOST:
                arguments = {"ref": need.ref}
                if any(need.ref in text for text in recalls):
                    # the lines in which the first items begin; of a long pattern only the start counts
                    starts = (item.strip().split("\n")[0][:60] for item in need.items[:2])
                    arguments["part"] = f"find {'|'.join(map(re.escape, starts))}"
                function = {"name": RECALL, "arguments": orjson.dumps(arguments).decode()}
                calls.append({"id": f"recall_{turn}_{len(calls)}", "type": "function", "function": function})
        return calls

    def forget(self, credential: str) -> None:
        self._plays.pop(credential, None)
        self._in_sight.pop(credential, None)
        self.received.pop(credential, None)


def _summary_for(received: Received, count: Counter) -> str | None:
    """The summary or the digest that a request asks for; None where it asks for none."""
    lead = received.json.get(DIALECTS[received.dialect].fields.lead)
    instructions = lead if isinstance(lead, str) else next((part.text for part in _parts(received)), "")
    words = PROMPTS["compaction"].limit_in(instructions)
    characters = max(prompt.limit_in(instructions) for prompt in DIGEST_PROMPTS.values())
    if not (words or characters):
        return None
    *_, source = (instructions, *(part.text for part in _parts(received)))
    return extract_summary(source, words, count) if words else extract_digest(source, characters, count)


def _parts(received: Received) -> Iterator[Part]:
    history = received.json.get(DIALECTS[received.dialect].fields.history)
    entries = [{"role": "user", "content": history}] if isinstance(history, str) else history or ()
    return (part for entry in entries for part in read(received.dialect, entry).parts)


# --- a Narrows with options ---

_PATIENCE, _PLANNING_TIMEOUT = 30.0, 600.0
"""Seconds that the store and planning may take: a replay has the time, and comes out the same on any machine."""
_SETTINGS = (
    *("preset", "aim", "context_tokens", "keep", "window", "text_protocol"),
    *("mark_lifetime", "keep_warm", "tools"),
)
"""Options that are settings of Narrows."""
CACHES: Mapping[str, Mapping[str, Any]] = {
    "prefix": {"breakpoints": False, "write": 1.0},
    "breakpoint": {"breakpoints": True},
    "none": {"breakpoints": False, "read": 1.0, "write": 1.0},
}
"""Kinds of a provider's cache: matching any prefix, or only at marks, or worth nothing."""


@dataclass(frozen=True, slots=True)
class Options:
    prices: tuple[str, ...] = ()
    """Price tables, by model; each session's own where there is none."""
    cache: str = ""
    """One of `CACHES`; by model where empty."""
    preset: str = Settings.model_fields["preset"].default
    aim: Aim | None = None
    context_tokens: int | None = None
    keep: Patterns = ()
    """As the setting `keep`."""
    window: int | None = None
    """A cap on the window of the model, as the setting `window`."""
    upstream: str = ""
    credential: str = ""
    text_protocol: bool = False
    refetch: float = 0.0
    """The share of the uses of hidden text at which the built-in provider's model recalls it first."""
    own: Mapping[str, CustomPreset] = field(default_factory=dict)
    summary_model: str = ""
    """The model that writes the summaries that the preset wants; empty for the small sibling of the session's."""
    no_marks: bool = False
    mark_lifetime: MarkLifetime = "own"
    keep_warm: float = 0.0
    tools: ToolLists | None = None
    """As the setting `tools`."""
    store: str = ""
    """The URL of a store that stays; one of its own, which is deleted, where empty."""

    @property
    def chosen(self) -> Preset:
        return self.own[self.preset].preset if self.preset in self.own else PRESETS[self.preset]

    def tables(self, sessions: Sequence[Session]) -> Mapping[str, Sequence[Session]]:
        if self.prices:
            return dict.fromkeys(self.prices, sessions)
        return {session.model: [s for s in sessions if s.model == session.model] for session in sessions}

    def requests(self, sessions: Sequence[Session]) -> int:
        return sum(len(each.turns) for members in self.tables(sessions).values() for each in members)


@dataclass(frozen=True, slots=True)
class SummaryObserver:
    """Reads what summaries and digests were written, through a second connection to the store."""

    maker: SummaryMaker
    store: Store
    prices: Callable[[str], Prices]
    """Those of the model that writes them for conversations in an API."""
    batch: int
    """So many tokens have to go for each summary; 0 where only digests are wanted."""

    async def results(self, key: Key) -> tuple[Sequence[SummaryRecord], SummaryCost]:
        """A conversation's summaries and digests, those rejected too, once all are written, and what they have cost."""
        await self.maker.settled()
        by_kind = await self.store.spent(key)
        costs = (by_kind.get(kind, SummaryCost()) for kind in ("compaction", "digest"))
        return await self.store.summaries(key), sum(costs, SummaryCost())


@dataclass(frozen=True, slots=True)
class ReplayEnvironment:
    base_url: str
    observer: PlanObserver
    provider: Provider | None
    """The built-in one; None where the upstream is a real one."""
    player: Player | None
    summaries: SummaryObserver | None
    prices: Prices
    model: str
    count: Counter
    options: Options
    clock: SimulatedClock
    warm: KeepWarm | None = None

    @property
    def marks(self) -> bool:
        """True where the client of a session sets cache marks: where the cache knows no others."""
        rule = rule_for(self.prices.model, self.prices)
        return bool(rule.mark) and not rule.endings and not self.options.no_marks

    async def wait_until(self, now: float) -> None:
        """Let time pass: prompts that wait for a person are kept warm meanwhile."""
        while self.warm is not None and (due := self.warm.next_due()) is not None and due <= now:
            self.clock.now = due
            await self.warm.run_due(due)
        self.clock.now = now

    def key(self, run: str) -> str:
        """The credential of a run: that for a real upstream, or one of its own."""
        return self.options.credential or run

    def play(self, session: Session, run: str) -> None:
        """Have the built-in provider answer this run as the session was answered."""
        if self.provider is not None and self.player is not None:
            self.provider.play(self.key(run), session.messages, session.dialect)
            self.player.play(self.key(run), run, session)

    def received(self, run: str) -> Sequence[Received]:
        """The requests of a run's newest turn, as the built-in provider received them."""
        return self.player.received.get(self.key(run), ()) if self.player is not None else ()

    def forget(self, run: str) -> None:
        self.observer.forget(run)
        if self.player is not None:
            self.player.forget(self.key(run))


class _OwnSettings(Settings):
    """Settings that do not read the environment or any file: a replay comes out the same everywhere."""

    @classmethod
    def around(cls, *_: PydanticBaseSettingsSource) -> tuple[PydanticBaseSettingsSource, ...]:
        return ()


@contextmanager
def _without_proxies() -> Iterator[None]:
    """While Narrows starts, which is when it looks: no proxy of the environment stands before the built-in provider."""
    before = os.environ.get("no_proxy")
    os.environ["no_proxy"] = "*"
    try:
        yield
    finally:
        if before is None:
            del os.environ["no_proxy"]
        else:
            os.environ["no_proxy"] = before


@asynccontextmanager
async def environment_for(model: str, options: Options) -> AsyncIterator[ReplayEnvironment]:
    """A provider (or a real upstream) and a Narrows in front of it, on free ports, with a store of its own.

    Raises ConfigurationError where the options do not make settings that can work.
    """
    overrides = {model: CACHES[options.cache]} if options.cache else {}
    count = Counter(encoding_for(model))
    async with AsyncExitStack() as parts:
        folder, clock = parts.enter_context(TemporaryDirectory(prefix="narrows-")), SimulatedClock(time.time())
        provider = None
        upstream = options.upstream
        if not upstream:
            provider = Provider(lambda name: prices_for(name, overrides), count, clock=clock, keep=1)
            upstream = (await parts.enter_async_context(await start(provider))).url
        values: dict[str, Any] = {
            # the provider here stands for one elsewhere
            "upstreams": ({"name": "default", "url": upstream, "local": None if options.upstream else False},),
            "store": options.store or f"sqlite:///{folder}/replay.db",
            **{name: getattr(options, name) for name in _SETTINGS},
            "presets": options.own,
            "models": overrides,
            "summarizers": ({"model": options.summary_model},),
            "planning_timeout": _PLANNING_TIMEOUT,
            "cold_process": False,  # it decides the same, and is for others who wait, of whom there are none
        }
        try:
            settings = _OwnSettings(port=0, log_level="error", **values)
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
            raise ConfigurationError("; ".join(faults)) from error
        with _without_proxies() if urlsplit(upstream).hostname == "127.0.0.1" else nullcontext():
            beside = (observer := PlanObserver(clock),)
            starting = App.start(settings, patience=_PATIENCE, beside=beside, clock=clock if provider else time.time)
            app = await parts.enter_async_context(await starting)
        app.services.pinged.append(observer.pinged)
        player = None
        if provider is not None:
            provider.answer = player = Player(observer, options.refetch, count)

        def prices_of_summaries(dialect: str) -> Prices:
            writer = options.summary_model or options.chosen.writing.model(DIALECTS[dialect].provider)
            if not writer:
                writer = next(iter(siblings(model, lambda name: prices_for(name, overrides))), SAME)
            return prices_for(model if writer == SAME else writer, overrides)

        yield ReplayEnvironment(
            base_url=app.base_url,
            observer=observer,
            provider=provider,
            player=player,
            summaries=await _summary_observer(app, options.chosen, prices_of_summaries, parts),
            prices=prices_for(model, overrides),
            model=model,
            count=count,
            options=options,
            clock=clock,
            warm=app.services.opened.get("warm"),
        )


async def _summary_observer(
    app: App, preset: Preset, prices: Callable[[str], Prices], parts: AsyncExitStack
) -> SummaryObserver | None:
    batch = next((policy.batch for policy in preset.policies if isinstance(policy, Summarize)), 0)
    if app.services.compaction is None or not (batch or preset.digests):
        return None
    store = open_store(app.settings.store, patience=_PATIENCE, keyring=app.settings.keyring)
    parts.push_async_callback(store.close)
    await store.open()
    return SummaryObserver(app.services.compaction.maker, store, prices, batch)

"""Where sessions are replayed: the built-in provider (or a real upstream), a Narrows in front of it, and what observes
both.

Laws: everything is on loopback, on free ports, with a store of its own that is deleted afterwards; no setting of the
machine counts.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic_settings import PydanticBaseSettingsSource

from policies.context import Aim
from policies.dialects import DIALECTS
from policies.keep import Patterns
from policies.model.summary_record import SummaryCost, SummaryRecord
from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from policies.money.prices import Prices
from policies.presets import PRESETS, Preset
from policies.rules.summarize import Summarize
from proxy.app import App
from proxy.config import ConfigurationError, Settings
from proxy.config.groups.compaction import SAME
from proxy.config.presets import CustomPreset
from proxy.lab.provider import Provider, Received, rule_for, start
from proxy.lab.replay.player import PlanObserver, Player
from proxy.lab.replay.recorded import Session
from proxy.memory import Key, Store, open_store
from proxy.summaries.maker import SummaryMaker
from proxy.summaries.models import siblings

_PATIENCE, _PLANNING_TIMEOUT = 30.0, 600.0
"""Seconds that the store and planning may take: a replay has the time, and comes out the same on any machine."""
CACHES: Mapping[str, Mapping[str, Any]] = {
    "prefix": {"breakpoints": False, "write": 1.0},
    "breakpoint": {"breakpoints": True},
    "none": {"breakpoints": False, "read": 1.0, "write": 1.0},
}
"""What a provider's cache can be like: matching any prefix, or only at marks, or worth nothing."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `narrows replay`."""

    prices: tuple[str, ...] = ()
    """Price tables, by model; each session's own where there is none."""
    cache: str = ""
    """One of `CACHES`; by model where empty."""
    preset: str = Settings.model_fields["preset"].default
    aim: Aim | None = None
    """None for that of the preset."""
    context_tokens: int | None = None
    """The size that prompts are kept below."""
    keep: Patterns = ()
    """What is never edited, as the setting `keep`."""
    window: int | None = None
    """A cap on the window of the model, as the setting `window`."""
    concurrency: int = 1
    repeat: int = 1
    upstream: str = ""
    credential: str = ""
    text_protocol: bool = False
    refetch: float = 0.0
    """The share of the uses of hidden text at which the built-in provider's model recalls it first."""
    own: Mapping[str, CustomPreset] = field(default_factory=dict)
    """Presets of one's own, by name."""
    summary_model: str = ""
    """The model that writes the summaries that the preset wants; empty for the small sibling of the session's."""
    no_marks: bool = False
    """Whether no client sets cache marks."""
    store: str = ""
    """The URL of a store that stays; one of its own, which is deleted, where empty."""

    @property
    def chosen(self) -> Preset:
        return self.own[self.preset].preset if self.preset in self.own else PRESETS[self.preset]

    def tables(self, sessions: Sequence[Session]) -> Mapping[str, Sequence[Session]]:
        """The sessions that are replayed under each price table."""
        if self.prices:
            return dict.fromkeys(self.prices, sessions)
        return {session.model: [s for s in sessions if s.model == session.model] for session in sessions}

    def requests(self, sessions: Sequence[Session]) -> int:
        """How many requests the replays of these sessions make."""
        return self.repeat * sum(len(each.turns) for members in self.tables(sessions).values() for each in members)


@dataclass(frozen=True, slots=True)
class SummaryObserver:
    """Reads what summaries and digests were written, through a second connection to the store."""

    maker: SummaryMaker
    store: Store
    prices: Callable[[str], Prices]
    """Those of the model that writes them for conversations in an API."""
    batch: int
    """So many tokens have to go for each summary; 0 where only digests are wanted."""

    async def written(self, key: Key) -> tuple[Sequence[SummaryRecord], SummaryCost]:
        """The summaries and digests of a conversation, those rejected too, once nothing is being written any more, and
        what all have cost."""
        await self.maker.settled()
        spent = await self.store.spent(key)
        costs = (spent.get(kind, SummaryCost()) for kind in ("compaction", "digest"))
        return await self.store.summaries(key), sum(costs, SummaryCost())


@dataclass(frozen=True, slots=True)
class ReplayEnvironment:
    """A running Narrows, what observes it, and how its model bills."""

    base_url: str
    observer: PlanObserver
    provider: Provider | None
    """The built-in one; None where the upstream is a real one."""
    player: Player | None
    """What answers for the built-in provider."""
    summaries: SummaryObserver | None
    """None where the preset wants no summaries."""
    prices: Prices
    model: str
    count: Counter
    options: Options

    @property
    def marks(self) -> bool:
        """Whether the client of a session sets cache marks: where the cache knows no others."""
        rule = rule_for(self.prices.model, self.prices)
        return bool(rule.mark) and not rule.endings and not self.options.no_marks

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
        folder = parts.enter_context(TemporaryDirectory(prefix="narrows-"))
        provider = None
        upstream = options.upstream
        if not upstream:
            provider = Provider(lambda name: prices_for(name, overrides), count, keep=1)
            upstream = (await parts.enter_async_context(await start(provider))).url
        chosen: dict[str, Any] = {
            # the provider here stands for one elsewhere
            "upstreams": ({"name": "default", "url": upstream, "local": None if options.upstream else False},),
            "store": options.store or f"sqlite:///{folder}/replay.db",
            "preset": options.preset,
            "presets": options.own,
            "aim": options.aim,
            "context_tokens": options.context_tokens,
            "keep": options.keep,
            "window": options.window,
            "models": overrides,
            "text_protocol": options.text_protocol,
            "summarizers": ({"model": options.summary_model},),
            "planning_timeout": _PLANNING_TIMEOUT,
            "cold_process": False,  # it decides the same, and is for others who wait, of whom there are none
        }
        try:
            settings = _OwnSettings(port=0, log_level="error", **chosen)
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
            raise ConfigurationError("; ".join(faults)) from error
        with _without_proxies() if urlsplit(upstream).hostname == "127.0.0.1" else nullcontext():
            starting = App.start(settings, patience=_PATIENCE, beside=(observer := PlanObserver(),))
            app = await parts.enter_async_context(await starting)
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

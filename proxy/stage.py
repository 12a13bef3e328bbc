"""Where sessions are replayed: the built-in provider (or a real upstream), a Narrows before it, and what watches both.

Laws: everything is on loopback, on free ports, with a store of its own that is gone afterwards; no setting of the
machine has a say; of each run only the newest request is kept, and that until it is forgotten.
"""

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from policies.context import Prices
from policies.prices import prices_for
from policies.tokens import Counter, encoding_for
from proxy.app import App
from proxy.compaction import Compactor, Incoming, Prepared
from proxy.config import ConfigurationError, Settings
from proxy.provider import ANTHROPIC, Provider, Received, rule_for, start
from proxy.recorded import Session


@dataclass(frozen=True, slots=True)
class Options:
    """What `narrows replay` was asked for."""

    prices: tuple[str, ...] = ()
    """Price tables, by model; each session's own where there is none."""
    cache: str = ""
    """prefix or breakpoint; by model where empty."""
    preset: str = Settings.model_fields["preset"].default
    concurrency: int = 1
    repeat: int = 1
    upstream: str = ""
    credential: str = ""
    text_protocol: bool = False

    def tables(self, sessions: Sequence[Session]) -> Mapping[str, Sequence[Session]]:
        """The sessions that are replayed under each price table."""
        if self.prices:
            return dict.fromkeys(self.prices, sessions)
        return {session.model: [s for s in sessions if s.model == session.model] for session in sessions}


class Watching:
    """A Compactor that can be looked at: the newest request of each conversation, until it is forgotten."""

    def __init__(self, compactor: Compactor) -> None:
        self._compactor = compactor
        self.reply = compactor.reply
        self.record = compactor.record
        self.newest: dict[str, Prepared] = {}

    async def prepare(self, incoming: Incoming) -> Prepared:
        """As the compactor does, and what it made is kept."""
        prepared = await self._compactor.prepare(incoming)
        self.newest[incoming.conversation or ""] = prepared
        return prepared


class Arrivals:
    """What the built-in provider received last from each credential, until it is forgotten."""

    def __init__(self) -> None:
        self.newest: dict[str, Received] = {}

    def __call__(self, received: Received) -> None:
        """A script that notes the request and leaves the answer to the provider."""
        self.newest[received.credential] = received


@dataclass(frozen=True, slots=True)
class Stage:
    """Where sessions are replayed: a Narrows, what watches it, and how its model bills."""

    base_url: str
    watching: Watching
    provider: Provider | None
    """The built-in one; None where the upstream is a real one."""
    arrivals: Arrivals
    prices: Prices
    model: str
    count: Counter
    credential: str = ""
    """For a real upstream; else each run has its own."""

    @property
    def marks(self) -> bool:
        """Whether the client of a session sets cache marks: where the cache knows no others."""
        return self.prices.breakpoints and rule_for(self.prices.model, self.prices) is ANTHROPIC

    def key(self, run: str) -> str:
        """The credential of a run."""
        return self.credential or run

    def forget(self, run: str) -> None:
        """Let go of what was kept of a run."""
        self.watching.newest.pop(run, None)
        self.arrivals.newest.pop(run, None)


class _OwnSettings(Settings):
    """Settings that no environment and no file have a say in: a replay comes out the same everywhere."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What the replay says, alone."""
        return (init_settings,)


def _settings(**chosen: Any) -> Settings:
    try:
        return _OwnSettings(port=0, log_level="error", **chosen)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigurationError("; ".join(faults)) from error


@contextmanager
def _directly() -> Iterator[None]:
    """While Narrows starts, which is when it looks: no proxy of the environment stands before the built-in provider."""
    kept = os.environ.get("no_proxy")
    os.environ["no_proxy"] = "*"
    try:
        yield
    finally:
        if kept is None:
            del os.environ["no_proxy"]
        else:
            os.environ["no_proxy"] = kept


@asynccontextmanager
async def staged(model: str, options: Options) -> AsyncIterator[Stage]:
    """A provider (or a real upstream) and a Narrows in front of it, on free ports, with a store of its own."""
    overrides = {model: {"breakpoints": options.cache == "breakpoint"}} if options.cache else {}
    prices = prices_for(model, overrides)
    count = Counter(encoding_for(model))
    arrivals = Arrivals()
    async with AsyncExitStack() as parts:
        folder = parts.enter_context(TemporaryDirectory(prefix="narrows-"))
        provider = None
        upstream = options.upstream
        if not upstream:
            provider = Provider(lambda name: prices_for(name, overrides), count, answer=arrivals, keep=1)
            upstream = (await parts.enter_async_context(await start(provider))).url
        settings = _settings(
            upstream=upstream,
            store=f"sqlite:///{folder}/replay.db",
            preset=options.preset,
            models=overrides,
            text_protocol=options.text_protocol,
        )
        with _directly() if provider is not None else nullcontext():
            app = await parts.enter_async_context(await App.start(settings, watch=Watching))
        watching = app.compaction
        assert isinstance(watching, Watching)
        yield Stage(app.base_url, watching, provider, arrivals, prices, model, count, options.credential)

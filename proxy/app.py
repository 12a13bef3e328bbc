"""Where objects are made, and nowhere else: a running Narrows, from settings to listening socket and back."""

import asyncio
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Self

from aiohttp import web

from policies.dialects import DIALECTS
from policies.money.catalog import check_overrides
from policies.presets import WritingOptions
from proxy.admin.conversations import ConversationPages
from proxy.admin.pages import AdminPages
from proxy.archive.archive import Archive
from proxy.archive.message_log import MessageLog
from proxy.archive.texts import ArchiveServices, Artifacts, Originals
from proxy.compaction.bypass import Bypass
from proxy.compaction.prepare import ByMode, Compactor
from proxy.compaction.request_parser import RequestParser
from proxy.config import ConfigurationError, Settings, SummarizerSettings
from proxy.config.summarizers import SAME
from proxy.gateway.downstream import Listener
from proxy.gateway.flow import FlowParts
from proxy.gateway.handlers import Gateway
from proxy.gateway.recall_loop import Compaction
from proxy.gateway.upstream import Upstream
from proxy.identity import CredentialStates
from proxy.store import Store, StoreTrouble, open_store
from proxy.store.audit_log import AuditLog
from proxy.store.cached import CachedStore
from proxy.store.forgetting import ForgetRegistry
from proxy.summaries.background import BackgroundWriters, OutputDigests, RollingSummaries
from proxy.summaries.maker import SummaryMaker
from proxy.summaries.payments import Payments, is_public
from proxy.summaries.services import SummaryServices
from proxy.summaries.summarizer import Summarizer
from proxy.telemetry import Telemetry
from proxy.warmup import warm_up

_CLOSING_SECONDS = 1.0
_LOOK = 0.005
_STOP = 0.001
"""Seconds between two looks at the event loop, and by how much one is late when the loop has stood still."""
_UNHURRIED = 5.0
"""Seconds that the store has where no request waits for it."""


class App:
    """One Narrows that listens. Leaving it as a context ends it at once; `close` gives what runs its time."""

    def __init__(
        self,
        settings: Settings,
        gateway: Gateway,
        telemetry: Telemetry,
        compaction: Compaction,
        summaries: SummaryMaker | None = None,
    ) -> None:
        self.settings = settings
        self.gateway = gateway
        self.telemetry = telemetry
        self.compaction = compaction
        self.summaries = summaries
        self.base_url = ""
        """What a client sets as its base_url, once it listens."""
        self._parts = AsyncExitStack()
        self._runner = web.ServerRunner(Listener(gateway, settings), shutdown_timeout=_CLOSING_SECONDS)

    @classmethod
    async def start(
        cls, settings: Settings, watch: Callable[[Compaction], Compaction] | None = None, patience: float | None = None
    ) -> Self:
        """Make everything and listen; `watch` may stand in front of the compactor. `patience`: seconds that requests
        wait for the store, where nobody is in a hurry.

        Raises ConfigurationError where it cannot be.
        """
        async with AsyncExitStack() as parts:
            telemetry = Telemetry(settings.log_level, settings.log_format)
            parts.callback(telemetry.close)  # the last of all
            telemetry.start()
            bases = {dialect: settings.upstream_of(dialect) for dialect in DIALECTS}
            upstreams = {base: Upstream(settings, base) for base in dict.fromkeys(bases.values())}
            for upstream in upstreams.values():
                parts.push_async_callback(upstream.close)
            opener = partial(open_store, patience=patience) if patience else open_store
            store = await _open_store(opener, settings, telemetry, parts) if not settings.only_relays else None
            secret = await _tenant_secret(settings, store, telemetry)
            compaction: Compaction = Bypass()
            pages, summaries = AdminPages(settings, telemetry, secret), None
            if store is not None:
                compacting = _open_compaction(settings, telemetry, store, secret, parts, patience)
                compaction, pages, summaries = await compacting
                compaction = watch(compaction) if watch else compaction
            upstream_of = {dialect: upstreams[base] for dialect, base in bases.items()}
            gateway = Gateway(FlowParts(settings, upstream_of, compaction, telemetry, secret), pages)
            app = cls(settings, gateway, telemetry, compaction, summaries)
            watching = asyncio.create_task(_watch_loop(telemetry))
            parts.callback(watching.cancel)
            app._parts = parts.pop_all()
            await app._listen()
            return app

    async def close(self, grace: float | None = None) -> None:
        """Let what runs finish within the grace time, then let go of everything."""
        await self.gateway.drain(self.settings.grace if grace is None else grace)
        await self._runner.cleanup()
        await self._parts.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(0)

    async def _listen(self) -> None:
        host, port = self.settings.host, self.settings.port
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await self.close(0)
            message = f"port: cannot listen on {host}:{port} ({error.strerror}); choose another, or 0"
            raise ConfigurationError(message) from error
        self.base_url = f"http://{f'[{host}]' if ':' in host else host}:{site.port}/v1"


async def _open_compaction(
    settings: Settings, telemetry: Telemetry, store: Store, secret: bytes, parts: AsyncExitStack, patience: float | None
) -> tuple[ByMode, AdminPages, SummaryMaker]:
    """What compacts, the pages of what is stored, and what writes summaries."""
    try:
        check_overrides(settings.models)
    except ValueError as error:
        raise ConfigurationError(f"models: {error}") from error
    # what no request waits for has a connection of its own, so that long texts stand in nobody's way
    unhurried = store
    if store.shared:
        unhurried = await _open_store(partial(open_store, patience=_UNHURRIED), settings, None, parts)
    forgets = ForgetRegistry()
    stored = ArchiveServices(unhurried, telemetry, secret, time.time, forgets)
    archive = Archive(
        secret,
        Originals(stored) if settings.originals else None,
        Artifacts(stored, settings.artifacts_limit) if settings.artifacts else None,
        MessageLog(stored, settings.history_limit) if settings.history else None,
    )
    audit_log = AuditLog(unhurried, telemetry)
    payments = Payments(settings, CredentialStates(), secret)
    summarizer = Summarizer(settings, payments.states)
    summaries = SummaryMaker(settings, summarizer, unhurried, audit_log, telemetry, forgets)
    request_parser, cached_store = RequestParser(), CachedStore(store, telemetry, forgets, patience)
    services = SummaryServices(
        settings=settings,
        summarizer=summarizer,
        maker=summaries,
        cached_store=cached_store,
        audit_log=audit_log,
        telemetry=telemetry,
        payments=payments,
        clock=time.time,
    )
    # outputs are shortened before turns are summarized: what a digest makes short may need no summary
    writers = BackgroundWriters(services, (OutputDigests(services), RollingSummaries(services)))
    compactor = Compactor(settings, request_parser, cached_store, telemetry, writers, time.time, archive=archive)
    conversations = ConversationPages(
        settings=settings,
        store=unhurried,
        telemetry=telemetry,
        secret=secret,
        maker=summaries,
        audit_log=audit_log,
        request_parser=request_parser,
        payments=payments,
        forgets=forgets,
        archive=archive,
        clock=time.time,
    )
    for part in (archive, audit_log, summarizer, summaries, compactor):
        parts.push_async_callback(part.close)
    pages = AdminPages(settings, telemetry, secret, archive.originals, conversations)
    return ByMode(compactor), pages, summaries


async def _watch_loop(telemetry: Telemetry) -> None:
    """Measure the stops of the event loop, by how late this wakes."""
    while True:
        due = time.perf_counter() + _LOOK  # the loop's own clock has milliseconds
        await asyncio.sleep(_LOOK)
        if (late := time.perf_counter() - due) > _STOP:
            telemetry.metrics.loop_stops.observe(late)


async def _open_store(
    opener: Callable[..., Store], settings: Settings, telemetry: Telemetry | None, parts: AsyncExitStack
) -> Store:
    """The store that the settings name. `telemetry`: None where another connection to it has logged its troubles."""

    def announce(what: str) -> None:
        if telemetry is not None:
            telemetry.log.warning("store_set_aside", what=what)

    try:
        store = opener(settings.store, keyring=settings.keyring, announce=announce)
    except ValueError as error:
        raise ConfigurationError(f"store: {error}") from error
    parts.push_async_callback(store.close)
    try:
        await store.open()
    except StoreTrouble as error:  # requests are served all the same
        if telemetry is not None:
            telemetry.metrics.store_trouble("open")
            telemetry.log.warning("store", trouble=str(error))
    return store


async def _tenant_secret(settings: Settings, store: Store | None, telemetry: Telemetry) -> bytes:
    """The key of the hash that names tenants: configured, or stored, or, with a store in trouble, made for this
    process."""
    if settings.tenant_secret is not None:
        return settings.tenant_secret.get_secret_value().encode()
    if store is not None:
        try:
            return await store.secret("tenant")
        except StoreTrouble as error:
            telemetry.metrics.store_trouble("secret")
            telemetry.log.warning("store", trouble=str(error))
    return secrets.token_bytes(32)


def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT; a second one does not wait for what runs."""
    if sys.platform == "win32":
        asyncio.run(_serve(settings))
        return
    import uvloop

    uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    app = await App.start(settings)
    print(_greeting(app), flush=True)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # on Windows Ctrl-C ends it at once
            loop.add_signal_handler(number, signalled)
    warming = asyncio.create_task(warm_up())
    await stop.wait()
    warming.cancel()
    app.telemetry.log.info("stopping", grace=settings.grace)
    waits = [asyncio.ensure_future(app.gateway.drain(settings.grace)), asyncio.ensure_future(hurry.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await app.close(0)


def _greeting(app: App) -> str:
    settings = app.settings
    store = re.sub(r"//.*@", "//", settings.store.partition("?")[0])  # a store may have passwords
    upstreams = " and ".join(dict.fromkeys(filter(None, map(settings.upstream_of, DIALECTS))))
    return (
        f"Narrows is up: set base_url to {app.base_url}\n"
        f"  it asks {upstreams}, with preset {settings.preset} and store {store}\n"
        f"  {_summaries_greeting(settings)}"
    )


def _summaries_greeting(settings: Settings) -> str:
    """Which models would be asked for summaries, and who pays."""
    if not settings.summaries or "on" not in (settings.mode, *(rule.mode for rule in settings.rules)):
        return "summaries: no model is asked"
    presets, ruled = settings.all_presets(), (rule.preset for rule in settings.rules if rule.preset)
    names = list(dict.fromkeys((settings.preset, *ruled, *settings.request_presets)))
    wanting = [each for each in map(presets.__getitem__, names) if each.summarizes or each.digests is not None]
    if not wanting:
        return f"summaries: no model is asked, as preset {' or '.join(names)} wants none"
    writers = (_writer(each, preset.writing, settings) for preset in wanting for each in settings.summarizers)
    return f"summaries: asked of {', then '.join(dict.fromkeys(writers))}; --no-summaries turns them off"


def _writer(entry: SummarizerSettings, writing: WritingOptions, settings: Settings) -> str:
    """The model of an entry of `summarizers`, where it is asked and with whose key."""
    names = dict.fromkeys((entry.model,) if entry.model else [name for _, name in writing.models])
    named = ["the model of each conversation" if name == SAME else name for name in names]
    model = " or ".join(named) or "the small sibling of each conversation's model (gpt-5.4 -> gpt-5.4-mini)"
    where = f" at {entry.base_url}" if entry.base_url else ""
    if not entry.key_env:
        kind = "API key" if settings.summary_credential == "client-key" else "credential"
        return f"{model}{where}, with the client's own {kind}"
    is_spent = settings.summary_allow or not is_public(settings.host)
    return f"{model}{where}, with the key in {entry.key_env}{'' if is_spent else ' for nobody (see summary_allow)'}"

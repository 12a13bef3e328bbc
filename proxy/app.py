"""Where objects are made, and nowhere else: a running Narrows, from settings to listening socket and back."""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl

from aiohttp import web

from policies.money.catalog import check_overrides
from proxy.access.gate import Gate
from proxy.access.limits import Counts, Limits, open_limits
from proxy.access.registry import KeyRegistry
from proxy.admin.answers import PageParts
from proxy.admin.artifacts import ArtifactPages
from proxy.admin.conversations import ConversationPages
from proxy.admin.deletion import Deletion
from proxy.admin.live import LivePages
from proxy.admin.log_pages import LogPages
from proxy.admin.login import Login
from proxy.admin.pages import AdminPages
from proxy.admin.summaries import SummaryPages
from proxy.archive.archive import Archive
from proxy.archive.message_log import MessageLog
from proxy.archive.recorder import Recorder, RecorderOptions
from proxy.archive.recordings import Recordings
from proxy.archive.redaction import Redaction
from proxy.archive.texts import ArchiveServices, Artifacts, Originals
from proxy.billing.billing import Billing
from proxy.billing.holdout import Holdout
from proxy.compaction.acceptance import Acceptance
from proxy.compaction.bypass import Bypass
from proxy.compaction.cold import ColdProcess
from proxy.compaction.prepare import Compactor
from proxy.compaction.request_parser import RequestParser
from proxy.config import ConfigurationError, Settings
from proxy.event_loop import lateness
from proxy.gateway.admission import Admission, Pressure, open_files
from proxy.gateway.flow import FlowParts
from proxy.gateway.handlers import Gateway
from proxy.gateway.listener import Listener
from proxy.gateway.recall_loop import Compaction
from proxy.gateway.shadows import ShadowParts, Shadows
from proxy.gateway.upstreams import Upstreams
from proxy.identity import CredentialStates
from proxy.store import Store, StoreTrouble, open_store, ttl
from proxy.store.audit_log import AuditLog
from proxy.store.breaker import GuardedStore
from proxy.store.cached import CachedStore
from proxy.store.forgetting import ForgetRegistry
from proxy.store.trimming import keep_within
from proxy.summaries.background import BackgroundWriters, OutputDigests, RollingSummaries
from proxy.summaries.maker import SummaryMaker
from proxy.summaries.payments import Payments
from proxy.summaries.services import SummaryServices
from proxy.summaries.summarizer import Summarizer
from proxy.telemetry import Telemetry
from proxy.workers.listening import BACKLOG, cannot_listen
from proxy.workers.worker import Worker

_CLOSING_SECONDS = 1.0
_FILE_LIMIT = 16 * 2**30
"""Bytes of a store in a file, where `store_limit` does not say."""
_LOOK = 0.005
"""Seconds between two looks at the event loop."""
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
        self._listener = Listener(gateway, settings, gateway.admission)
        self._runner = web.ServerRunner(self._listener, shutdown_timeout=_CLOSING_SECONDS)

    @classmethod
    async def start(
        cls,
        settings: Settings,
        watch: Callable[[Compaction], Compaction] | None = None,
        patience: float | None = None,
        worker: Worker | None = None,
        counts: Counts | None = None,
    ) -> Self:
        """Make everything and listen; `watch` may stand in front of the compactor. `patience`: seconds that requests
        wait for the store, where nobody is in a hurry: a loop that is late is no reason to plan less then. `worker`:
        this process's part of a team that shares a port. `counts`: what keys have used, after a reload.

        Raises ConfigurationError where it cannot be.
        """
        async with AsyncExitStack() as parts:
            telemetry = Telemetry(settings.log_level, settings.log_format)
            parts.callback(telemetry.close)  # the last of all
            telemetry.start()
            telemetry.metrics.build.labels(version("narrows"), settings.digest).set(1)
            upstreams = Upstreams(settings, telemetry)
            parts.push_async_callback(upstreams.close)
            opener = partial(open_store, patience=patience) if patience else open_store
            store = await _open_store(opener, settings, telemetry, parts) if not settings.only_relays else None
            secret = worker.team.secret if worker else await _tenant_secret(settings, store, telemetry)
            forgets = ForgetRegistry(worker.forget if worker else None)
            limits = await open_limits(settings, telemetry, store, worker.number if worker else None, counts, parts)
            compaction: Compaction = Bypass()
            payments = Payments(settings, CredentialStates(), secret)
            pages, summaries = AdminPages(settings, telemetry, secret), None
            if store is not None:
                work = _open_compaction(settings, telemetry, store, secret, parts, forgets, payments, patience, limits)
                compaction, pages, summaries = await work
                compaction = watch(compaction) if watch else compaction
            admission = Admission(settings, telemetry, payments.states, open_files(settings.requests_limit))
            registry = await _key_registry(settings, store, telemetry, parts)
            flow_parts = FlowParts(
                settings=settings,
                upstreams=upstreams,
                compaction=compaction,
                telemetry=telemetry,
                secret=secret,
                admission=admission,
                gate=Gate(settings, registry, secret),
                pass_on=worker.pass_on if worker else None,
                shadows=_shadows(settings, upstreams, store, telemetry, forgets, admission.pressure, parts),
                limits=limits,
            )
            gateway = Gateway(flow_parts, pages)
            app = cls(settings, gateway, telemetry, compaction, summaries)
            if patience is None:
                watching = asyncio.create_task(_watch_loop(telemetry, gateway.admission.pressure))
                parts.callback(watching.cancel)
            app._parts = parts.pop_all()
            if worker is None:
                await app._listen()
            else:
                pages.scrape = worker.scrape
                await app._listen_as(worker)
                worker.join(app._listener, telemetry, forgets)
            return app

    async def stop_listening(self) -> None:
        """Accept no connection any more, and end those on which nothing runs."""
        for site in list(self._runner.sites):
            await site.stop()
        self._listener.pre_shutdown()

    async def close(self, grace: float | None = None) -> None:
        """Let what runs finish within the grace time, then let go of everything."""
        await self.gateway.drain(self.settings.grace if grace is None else grace)
        await self._runner.cleanup()
        await self._parts.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(0)

    async def _listen_as(self, worker: Worker) -> None:
        """Listen where all workers do."""
        await self._runner.setup()
        for listening in worker.team.listening:
            await web.SockSite(self._runner, listening, backlog=BACKLOG).start()

    async def _listen(self) -> None:
        host, port = self.settings.host, self.settings.port
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=BACKLOG)
        try:
            await site.start()
        except OSError as error:
            await self.close(0)
            raise cannot_listen(host, port, error) from error
        self.base_url = base_url(host, site.port)


def base_url(host: str, port: int) -> str:
    """What a client sets as its base_url."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


async def _open_compaction(
    settings: Settings,
    telemetry: Telemetry,
    store: Store,
    secret: bytes,
    parts: AsyncExitStack,
    forgets: ForgetRegistry,
    payments: Payments,
    patience: float | None,
    limits: Limits | None,
) -> tuple[Compactor, AdminPages, SummaryMaker]:
    """What compacts, the pages of what is stored, and what writes summaries."""
    try:
        check_overrides(settings.models)
    except ValueError as error:
        raise ConfigurationError(f"models: {error}") from error
    # what no request waits for has a connection of its own, so that long texts stand in nobody's way
    unhurried = store
    if store.shared:
        unhurried = await _open_store(partial(open_store, patience=_UNHURRIED), settings, None, parts)
    stored = ArchiveServices(unhurried, telemetry, secret, time.time, forgets)
    archive = _archive(settings, stored)
    audit_log = AuditLog(unhurried, telemetry)
    summarizer = Summarizer(settings, payments.states)
    holdout, charge = Holdout(settings.holdout, secret), limits.charge_owner if limits else lambda *_: None
    billing = Billing(unhurried, telemetry, forgets, holdout, settings.preset, charge=charge)
    summaries = SummaryMaker(settings, summarizer, unhurried, audit_log, telemetry, forgets, billing=billing)
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
    cold = ColdProcess(telemetry.metrics.count, settings.cold_process, settings.planning_timeout)
    acceptance = Acceptance(settings, cached_store, payments.states, writers, archive, telemetry)
    compactor = Compactor(
        settings, request_parser, cached_store, telemetry, writers, cold=cold, acceptance=acceptance, billing=billing
    )
    forgets.register(compactor.forget)
    page_parts = PageParts(settings, unhurried, telemetry, secret, time.time)
    conversations = ConversationPages(
        page_parts,
        Deletion(unhurried, cached_store, forgets, audit_log, summaries, archive.recorder),
        SummaryPages(page_parts, cached_store, summaries, request_parser, payments),
        ArtifactPages(page_parts, archive),
        LivePages(page_parts, Login(settings, secret), archive.originals, version("narrows")),
        LogPages(page_parts, archive),
    )
    _keep_within(settings, unhurried, telemetry, parts)
    for part in (archive, audit_log, billing, summarizer, summaries, compactor):
        parts.push_async_callback(part.close)
    pages = AdminPages(settings, telemetry, secret, archive.originals, conversations)
    return compactor, pages, summaries


async def _key_registry(
    settings: Settings, store: Store | None, telemetry: Telemetry, parts: AsyncExitStack
) -> KeyRegistry:
    """The keys of the settings and, where any count, those of the store."""
    if settings.auth == "passthrough":
        return KeyRegistry(settings, None)
    store = store or await _open_store(open_store, settings, telemetry, parts)
    registry = KeyRegistry(settings, GuardedStore(store, telemetry, "keys_store"))
    parts.push_async_callback(registry.close)
    await registry.open()
    return registry


def _shadows(
    settings: Settings,
    upstreams: Upstreams,
    store: Store | None,
    telemetry: Telemetry,
    forgets: ForgetRegistry,
    pressure: Pressure,
    parts: AsyncExitStack,
) -> Shadows | None:
    """What asks again at sampled requests; None where none is sampled."""
    if store is None or not settings.agree_share:
        return None
    audit_log = AuditLog(store, telemetry)
    shadows = Shadows(
        ShadowParts(
            settings=settings,
            upstreams=upstreams,
            store=store,
            audit_log=audit_log,
            telemetry=telemetry,
            forgets=forgets,
            pressure=pressure,
        )
    )
    parts.push_async_callback(audit_log.close)
    parts.push_async_callback(shadows.close)
    return shadows


def _archive(settings: Settings, stored: ArchiveServices) -> Archive:
    """What is stored for people, as far as it is to be. Raises ConfigurationError."""
    return Archive(
        Originals(stored) if settings.originals else None,
        Artifacts(stored, settings.artifacts_limit) if settings.artifacts else None,
        MessageLog(stored, settings.history_limit) if settings.history else None,
        _recorder(settings, settings.record, stored) if settings.record is not None else None,
    )


def _recorder(settings: Settings, folder: Path, stored: ArchiveServices) -> Recorder:
    """What records conversations in files. Raises ConfigurationError."""
    recordings = Recordings(folder, settings.keyring)
    lifetime = ttl(dict(parse_qsl(settings.store.partition("?")[2])))
    options = RecorderOptions(settings.record_share, settings.record_limit, lifetime, stored.secret)
    try:
        recordings.open()
    except ValueError as error:
        raise ConfigurationError(f"record: {error}") from error
    try:
        redaction = Redaction(settings.record_redact)
    except ValueError as error:
        raise ConfigurationError(f"record_redact: {error}") from error
    recorder = Recorder(recordings, redaction, options, stored.telemetry)
    stored.forgets.register(recorder.forget)
    return recorder


def _keep_within(settings: Settings, store: Store, telemetry: Telemetry, parts: AsyncExitStack) -> None:
    """Trim the store now and then; one in Redis only where the settings say how much it may hold."""
    limit = settings.store_limit or (_FILE_LIMIT if settings.store.startswith("sqlite:") else None)
    if limit is not None:
        parts.callback(asyncio.create_task(keep_within(limit, store, telemetry)).cancel)


async def _watch_loop(telemetry: Telemetry, pressure: Pressure) -> None:
    """Measure the stops of the event loop, by how late this wakes."""
    async for late in lateness(_LOOK):
        pressure.note_late(late, _LOOK)
        telemetry.metrics.observe("event_loop_lag_seconds", max(0.0, late))


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


async def shared_secret(settings: Settings, telemetry: Telemetry) -> bytes:
    """The key of the hash that names tenants, for all workers. Raises ConfigurationError where they cannot share the
    store."""
    async with AsyncExitStack() as parts:
        store = await _open_store(open_store, settings, telemetry, parts) if not settings.only_relays else None
        if store is not None and not store.shared:
            message = f"store: {settings.store} is in the memory of one process; name a file, or set `workers` to 1"
            raise ConfigurationError(message)
        return await _tenant_secret(settings, store, telemetry)


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

"""What follows from the settings: everything that serves requests is made here, used, and let go of as one.

Law: what cannot work raises ConfigurationError, and leaves nothing behind.
"""

import asyncio
import io
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Self

from policies.money.catalog import check_overrides
from proxy.addons.access.gate import Gate
from proxy.addons.access.registry import KeyRegistry
from proxy.addons.archive.archive import Archive
from proxy.addons.archive.message_log import MessageLog
from proxy.addons.archive.recorder import Recorder, RecorderOptions
from proxy.addons.archive.recordings import Recordings
from proxy.addons.archive.redaction import Redaction
from proxy.addons.archive.texts import ArchiveServices, Artifacts, Originals
from proxy.addons.billing.billing import Billing
from proxy.addons.compress.compress import CompressApi
from proxy.addons.limits.limits import Limits, open_limits
from proxy.addons.limits.team_counts import TeamCounts
from proxy.addons.pages.answers import PageParts
from proxy.addons.pages.artifacts import ArtifactPages
from proxy.addons.pages.conversations import ConversationPages
from proxy.addons.pages.deletion import Deletion
from proxy.addons.pages.live import LivePages
from proxy.addons.pages.log_pages import LogPages
from proxy.addons.pages.login import Login
from proxy.addons.pages.pages import AdminPages
from proxy.addons.pages.summaries import SummaryPages
from proxy.addons.shadows.shadows import ShadowParts, Shadows
from proxy.catalog.price_book import PriceBook
from proxy.config import ConfigurationError, Settings
from proxy.identity.states import CredentialStates
from proxy.kernel.acceptance import Acceptance
from proxy.kernel.admission import Admission, Pressure
from proxy.kernel.cold import ColdProcess
from proxy.kernel.handlers import Gateway
from proxy.kernel.holdout import Holdout
from proxy.kernel.model_lookup import ModelLookup
from proxy.kernel.outgoing import Bypass
from proxy.kernel.parts import FlowParts
from proxy.kernel.prepare import Compactor
from proxy.kernel.recall_loop import Compaction
from proxy.kernel.request_parser import RequestParser
from proxy.kernel.upstreams import Upstreams
from proxy.memory import Store, open_store, ttl_of
from proxy.memory.audit_log import AuditLog
from proxy.memory.breaker import GuardedStore
from proxy.memory.cached import CachedStore
from proxy.memory.forgetting import ForgetRegistry, follow
from proxy.memory.opening import start_store, tenant_secret
from proxy.memory.trimming import keep_within
from proxy.summaries.background import BackgroundWriters, OutputDigests, RollingSummaries
from proxy.summaries.maker import SummaryMaker
from proxy.summaries.payments import Payments
from proxy.summaries.services import SummaryServices
from proxy.summaries.summarizer import Summarizer
from proxy.telemetry import Telemetry
from proxy.workers.worker import Worker

_FILE_LIMIT = 16 * 2**30
"""Bytes of a store in a file, where `store_limit` does not say."""
_UNHURRIED = 5.0
"""Seconds that the store has where no request waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """What stays while settings come and go."""

    telemetry: Telemetry
    admission: Admission
    worker: Worker | None = None
    """This process's part of a team that shares a port."""
    watch: Callable[[Compaction], Compaction] | None = None
    """May stand in front of the compactor."""
    patience: float | None = None
    """Seconds that requests wait for the store, where nobody is in a hurry: a loop that is late is no reason to plan
    less then."""
    leaving: "dict[Generation, asyncio.Task[None]]" = field(default_factory=dict)
    """Generations whose last requests still run, and what lets go of each then."""

    async def forget_elsewhere(self, tenant: str, conversation: str | None) -> None:
        """Have everybody else on this machine forget a conversation, or all of a tenant."""
        for generation in self.leaving:
            generation.forgets.forget(tenant, conversation)
        if self.worker is not None:
            await self.worker.forget(tenant, conversation)


class Generation:
    """All that serves requests under the same settings."""

    def __init__(
        self, settings: Settings, gateway: Gateway, pages: AdminPages, forgets: ForgetRegistry, secret: bytes
    ) -> None:
        self.settings = settings
        self.secret = secret
        """The key of the hash that names tenants."""
        self.gateway = gateway
        self.pages = pages
        self.forgets = forgets
        self.is_volatile = False
        """Whether its store is in memory, and ends with it."""
        self.compaction: Compaction = Bypass()
        self.summaries: SummaryMaker | None = None
        self._parts = AsyncExitStack()

    @classmethod
    async def open(cls, settings: Settings, lasting: Lasting, before: "Generation | None" = None) -> Self:
        """Make everything. `before`: what serves until then, where there is something. Raises ConfigurationError."""
        telemetry, worker, admission = lasting.telemetry, lasting.worker, lasting.admission
        limits_before = before.gateway.limits if before is not None else None
        counts = limits_before.counts if limits_before is not None else None
        async with AsyncExitStack() as parts:
            is_first = worker is None or worker.number == 0
            upstreams = await Upstreams.open(settings, telemetry, looks=is_first)  # one warning is enough
            parts.push_async_callback(upstreams.close)
            price_book = PriceBook(settings, before.gateway.price_book if before is not None else None)
            patience = lasting.patience
            store = None if settings.only_relays else await start_store(settings, telemetry, parts, patience)
            secret_before = before.secret if before is not None else None
            secret = worker.team.secret if worker else await tenant_secret(settings, store, telemetry, secret_before)
            forgets = ForgetRegistry(lasting.forget_elsewhere)
            team = TeamCounts(worker.ask_parent, worker.tell_parent, settings.workers) if worker else None
            limits = await open_limits(settings, telemetry, store, team, counts, parts)
            compaction: Compaction = Bypass()
            payments = Payments(settings, admission.states, secret)
            pages, summaries, compress_api = AdminPages(settings, telemetry, secret), None, None
            if store is not None:
                compaction, pages, summaries, compress_api = await _open_compaction(
                    settings,
                    telemetry,
                    store,
                    secret=secret,
                    parts=parts,
                    forgets=forgets,
                    payments=payments,
                    patience=patience,
                    limits=limits,
                    price_book=price_book,
                )
                compaction = lasting.watch(compaction) if lasting.watch else compaction
            registry = await _key_registry(settings, store, telemetry, parts, is_reload=counts is not None)
            lookup = ModelLookup(upstreams, price_book, telemetry)
            parts.push_async_callback(lookup.close)
            await lookup.open()
            flow_parts = FlowParts(
                settings=settings,
                upstreams=upstreams,
                compaction=compaction,
                telemetry=telemetry,
                secret=secret,
                admission=admission,
                gate=Gate(settings, registry, secret),
                price_book=price_book,
                compress_api=compress_api,
                shadows=_shadows(settings, upstreams, price_book, store, telemetry, forgets, admission.pressure, parts),
                limits=limits,
            )
            generation = cls(settings, Gateway(flow_parts, pages), pages, forgets, secret)
            generation.compaction, generation.summaries = compaction, summaries
            generation.is_volatile = store is not None and not store.shared
            generation._parts = parts.pop_all()
            return generation

    async def close(self) -> None:
        """Let go of everything; nothing runs any more."""
        await self._parts.aclose()


def check_fixed(before: Settings, after: Settings, names: Sequence[str]) -> None:
    """Raises ConfigurationError where one of these settings is to change, which takes a new start."""
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    if changed:
        names = " and ".join(changed)
        raise ConfigurationError(f"{changed[0]}: {names} cannot change in a reload; restart Narrows")


async def check_settings(settings: Settings) -> None:
    """Raises ConfigurationError where a Narrows with these settings could not start. Nobody is asked, and nothing is
    written."""
    telemetry = Telemetry("critical", "json", io.StringIO())
    await (await Upstreams.open(settings, telemetry)).close()
    await Summarizer(settings, CredentialStates()).close()
    _check_prices(settings)
    _redaction(settings)
    try:
        open_store(settings.store, keyring=settings.keyring)
    except ValueError as error:
        raise ConfigurationError(f"store: {error}") from error


def _check_prices(settings: Settings) -> None:
    try:
        check_overrides(settings.models)
    except ValueError as error:
        raise ConfigurationError(f"models: {error}") from error


def _redaction(settings: Settings) -> Redaction:
    try:
        return Redaction(settings.record_redact)
    except ValueError as error:
        raise ConfigurationError(f"record_redact: {error}") from error


async def _open_compaction(
    settings: Settings,
    telemetry: Telemetry,
    store: Store,
    *,
    secret: bytes,
    parts: AsyncExitStack,
    forgets: ForgetRegistry,
    payments: Payments,
    patience: float | None,
    limits: Limits | None,
    price_book: PriceBook,
) -> tuple[Compactor, AdminPages, SummaryMaker, CompressApi | None]:
    """What compacts, the pages of what is stored, what writes summaries, and what shortens messages for others."""
    _check_prices(settings)
    # what no request waits for has a connection of its own, so that long texts stand in nobody's way
    unhurried = store
    if store.shared:
        unhurried = await start_store(settings, None, parts, _UNHURRIED)
    stored = ArchiveServices(unhurried, telemetry, secret, time.time, forgets)
    archive, audit_log = _archive(settings, stored), AuditLog(unhurried, telemetry)
    summarizer = Summarizer(settings, payments.states, price_book)
    holdout, charge = Holdout(settings.holdout, secret), limits.charge_owner if limits else lambda *_: None
    billing = Billing(unhurried, telemetry, forgets, holdout, settings.preset, charge=charge)
    summaries = SummaryMaker(settings, summarizer, unhurried, audit_log, telemetry, forgets, billing=billing)
    has_others = settings.workers > 1 or not settings.store.startswith("sqlite:")
    request_parser, cached_store = RequestParser(), CachedStore(store, telemetry, forgets, patience, has_others)
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
    acceptance = Acceptance(cached_store, payments.states, writers, archive, telemetry)
    compacting = partial(Compactor, cold=cold, acceptance=acceptance, billing=billing, price_book=price_book)
    compactor = compacting(settings, request_parser, cached_store, telemetry, writers)
    forgets.register(compactor.forget)
    page_parts = PageParts(settings, unhurried, telemetry, secret, time.time)
    deletion = Deletion(unhurried, cached_store, forgets, audit_log, summaries, archive.recorder)
    conversations = ConversationPages(
        page_parts,
        deletion,
        SummaryPages(page_parts, cached_store, summaries, request_parser, payments, limits),
        ArtifactPages(page_parts, archive),
        LivePages(page_parts, Login(settings, secret), archive.originals, version("narrows")),
        LogPages(page_parts, archive),
    )
    _look_after(unhurried, settings, deletion, telemetry, parts)
    for part in (archive, audit_log, billing, summarizer, summaries, compactor):
        parts.push_async_callback(part.close)
    pages = AdminPages(settings, telemetry, secret, archive.originals, conversations)
    compress_api = CompressApi(settings, stored) if settings.compress_api else None
    return compactor, pages, summaries, compress_api


async def _key_registry(
    settings: Settings, store: Store | None, telemetry: Telemetry, parts: AsyncExitStack, is_reload: bool
) -> KeyRegistry:
    """The keys of the settings and, where any count, those of the store. Raises ConfigurationError where a reload would
    forget these."""
    if settings.auth == "passthrough":
        return KeyRegistry(settings, None)
    store = store or await start_store(settings, telemetry, parts)
    registry = KeyRegistry(settings, GuardedStore(store, telemetry, "keys_store"))
    parts.push_async_callback(registry.close)
    if not await registry.open() and is_reload:
        raise ConfigurationError("store: it does not answer, so its keys would be forgotten; reload again once it does")
    return registry


def _shadows(
    settings: Settings,
    upstreams: Upstreams,
    price_book: PriceBook,
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
            price_book=price_book,
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
    lifetime = ttl_of(settings.store)
    options = RecorderOptions(settings.record_share, settings.record_limit, lifetime, stored.secret)
    try:
        recordings.open()
    except ValueError as error:
        raise ConfigurationError(f"record: {error}") from error
    recorder = Recorder(recordings, _redaction(settings), options, stored.telemetry)
    stored.forgets.register(recorder.forget)
    return recorder


def _look_after(
    store: Store, settings: Settings, deletion: Deletion, telemetry: Telemetry, parts: AsyncExitStack
) -> None:
    """Delete what others who share the store have deleted; trim the store now and then, one in Redis only where the
    settings say how much it may hold."""
    if store.shared:

        def failed(error: Exception) -> None:
            telemetry.log.error("not_repeated", error=type(error).__name__, exc_info=error)

        parts.callback(asyncio.create_task(follow(store, deletion.repeat, deletion.own, failed)).cancel)
    limit = settings.store_limit or (_FILE_LIMIT if settings.store.startswith("sqlite:") else None)
    if limit is not None:
        parts.callback(asyncio.create_task(keep_within(limit, store, telemetry)).cancel)

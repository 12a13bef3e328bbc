"""Everything that follows from the settings: all that serves requests is made here, used, and let go of as one.

Law: what cannot work raises ConfigurationError, and leaves nothing behind.
"""

import asyncio
import io
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from typing import Self

from policies.money.catalog import check_overrides
from proxy.config import ConfigurationError, Settings
from proxy.identity.credential import CredentialStates
from proxy.kernel.addons import Addon, Addons
from proxy.kernel.admission import Admission
from proxy.kernel.client_summaries import ClientSummaries
from proxy.kernel.cold import ColdProcess
from proxy.kernel.deletion import Deletion
from proxy.kernel.follow_up import FollowUp
from proxy.kernel.gateway import Gateway
from proxy.kernel.prepare import Compactor, Holdout, Prepare, by_mode, relayed
from proxy.kernel.services import CompactionServices, Controls, KernelParts, Services
from proxy.kernel.understand import RequestParser
from proxy.memory import Store, open_store
from proxy.memory.audit_log import AuditLog
from proxy.memory.cached import CachedStore
from proxy.memory.conversation import Conversations
from proxy.memory.forgetting import ForgetRegistry, follow
from proxy.memory.opening import StoreAccess, keep_within, start_store, tenant_secret
from proxy.summaries.background import BackgroundWriters, OutputDigests, RollingSummaries, SummaryServices
from proxy.summaries.maker import SummaryMaker, SummaryWriter
from proxy.summaries.payments import Payments
from proxy.summaries.summarizer import Summarizer
from proxy.telemetry import Telemetry
from proxy.upstreams.model_lookup import ModelLookup
from proxy.upstreams.price_book import PriceBook
from proxy.upstreams.table import Upstreams
from proxy.workers.worker import Worker

PAGES, DOOR = ("pages",), ("access",)
INNER = ("billing", "shadows", "archive", "telemetry", "compress", "limits", "warm", "tools")
"""The addons, each a folder in proxy/addons/, in the order in which they are told: who answers where no API is asked,
who looks at the head of a request, and who is told of it then. Limits charge what was billed, and what compresses
counts as a request."""
_FILE_LIMIT = 16 * 2**30
"""Bytes of a store in a file, where `store_limit` does not say."""
_UNHURRIED = 5.0
"""Seconds that the store has where no request waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    telemetry: Telemetry
    admission: Admission
    controls: Controls = field(default_factory=Controls)
    worker: Worker | None = None
    watch: Callable[[Prepare], Prepare] | None = None
    """May stand in front of compaction."""
    beside: Sequence[Addon] = ()
    clock: Callable[[], float] = time.time
    """Seconds since 1970, by which caches of providers expire; a replay has a clock of its own. One that runs by itself
    says in its `speed` how many of its seconds pass in one."""
    patience: float | None = None
    """Seconds that requests wait for the store, where nobody is in a hurry: a late loop is no reason to plan less."""
    leaving: "dict[Generation, asyncio.Task[None]]" = field(default_factory=dict)
    """Generations whose last requests still run, and what lets go of each then."""

    async def forget_elsewhere(self, tenant: str, conversation: str | None) -> None:
        """Have everybody else on this machine forget a conversation, or all of a tenant."""
        for generation in self.leaving:
            generation.services.forgets.forget(tenant, conversation)
        if self.worker is not None:
            await self.worker.forget(tenant, conversation)


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """All that serves requests under the same settings."""

    services: Services
    gateway: Gateway
    parts: AsyncExitStack = field(repr=False)

    @classmethod
    async def open(cls, settings: Settings, lasting: Lasting, before: "Generation | None" = None) -> Self:
        async with AsyncExitStack() as parts:
            services = await _services(settings, lasting, before.services if before is not None else None, parts)
            addons = await _addons(services, lasting.beside)
            compaction = services.compaction
            prepare = _prepare(services, compaction) if compaction is not None else relayed
            lookup = ModelLookup(services.upstreams, services.price_book, services.telemetry)
            parts.push_async_callback(lookup.close)
            await lookup.open()
            kernel_parts = KernelParts(
                settings=settings,
                upstreams=services.upstreams,
                prepare=lasting.watch(prepare) if lasting.watch else prepare,
                follow_up=compaction.follow_up if compaction is not None else None,
                telemetry=services.telemetry,
                secret=services.secret,
                admission=services.admission,
                addons=addons,
            )
            return cls(services, Gateway(kernel_parts), parts.pop_all())

    @property
    def settings(self) -> Settings:
        return self.services.settings

    @property
    def is_volatile(self) -> bool:
        """True where its store is in memory, and ends with it."""
        return self.services.store is not None and not self.services.store.shared

    def leave(self) -> None:
        """New requests are served by others, or by nobody."""
        for leave in self.services.leaving:
            leave()

    async def close(self) -> None:
        await self.parts.aclose()


async def _services(settings: Settings, lasting: Lasting, before: Services | None, parts: AsyncExitStack) -> Services:
    telemetry, worker = lasting.telemetry, lasting.worker
    is_first = worker is None or worker.number == 0
    upstreams = await Upstreams.open(settings, telemetry, looks=is_first)  # one warning is enough
    parts.push_async_callback(upstreams.close)
    price_book = PriceBook(settings, before.price_book if before is not None else None)
    store = None if settings.only_relays else await start_store(settings, telemetry, parts, lasting.patience)
    secret_before = before.secret if before is not None else None
    secret = worker.team.secret if worker else await tenant_secret(settings, store, telemetry, secret_before)
    services = Services(
        settings=settings,
        telemetry=telemetry,
        secret=secret,
        admission=lasting.admission,
        upstreams=upstreams,
        price_book=price_book,
        controls=lasting.controls,
        forgets=ForgetRegistry(lasting.forget_elsewhere),
        clock=lasting.clock,
        store=store,
        worker=worker,
        before=before.opened if before is not None else {},
        parts=parts,
    )
    if store is not None:
        services.compaction = await _compaction(services, store, lasting.patience)
    return services


async def _addons(services: Services, beside: Sequence[Addon]) -> Addons:
    """The addons; pages, which show what others have, are started last. Raises ConfigurationError."""
    opened = services.opened
    for name in (*INNER, *DOOR, *PAGES):
        addon = await import_module(f".addons.{name}.addon", __package__).start(services)
        if addon is not None:
            opened[name] = addon
    pages, door, inner = ([opened[name] for name in names if name in opened] for names in (PAGES, DOOR, INNER))
    return Addons(pages, door, [*inner, *beside], services.telemetry)


async def _compaction(services: Services, store: Store, patience: float | None) -> CompactionServices:
    settings, telemetry, parts = services.settings, services.telemetry, services.parts
    forgets, states, price_book = services.forgets, services.admission.states, services.price_book
    _check_prices(settings)
    # what no request waits for has a connection of its own, so that long texts stand in nobody's way
    unhurried = await start_store(settings, None, parts, _UNHURRIED) if store.shared else store
    audit_log, payments = AuditLog(unhurried, telemetry), Payments(settings, states, services.secret)
    parts.push_async_callback(audit_log.close)
    summarizer, conversations = Summarizer(settings, states, price_book), Conversations()
    forgets.register(conversations.forget)
    writer = SummaryWriter(settings, summarizer, unhurried, audit_log, telemetry, conversations, billed=services.billed)
    maker = SummaryMaker(writer, forgets)
    has_others = settings.workers > 1 or not settings.store.startswith("sqlite:")
    cached_store = CachedStore(store, telemetry, forgets, conversations, patience, has_others)
    parser = RequestParser(conversations, ClientSummaries(cached_store))
    summary_services = SummaryServices(
        settings=settings,
        summarizer=summarizer,
        maker=maker,
        cached_store=cached_store,
        audit_log=audit_log,
        telemetry=telemetry,
        payments=payments,
        clock=time.time,
    )
    # outputs are shortened before turns are summarized: what a digest makes short may need no summary
    writers = BackgroundWriters(summary_services, (OutputDigests(summary_services), RollingSummaries(summary_services)))
    cold = ColdProcess(telemetry.metrics.count, settings.cold_process, settings.planning_timeout)
    compactor = Compactor(
        settings,
        parser,
        cached_store,
        telemetry,
        writers,
        clock=services.clock,
        states=states,
        cold=cold,
        price_book=price_book,
    )
    return CompactionServices(
        access=StoreAccess(unhurried, telemetry, services.secret, time.time, forgets),
        compactor=compactor,
        follow_up=FollowUp(settings, compactor, parser, cached_store, telemetry, writers),
        cached_store=cached_store,
        parser=parser,
        summarizer=summarizer,
        maker=maker,
        payments=payments,
        audit_log=audit_log,
        deletion=Deletion(unhurried, cached_store, forgets, audit_log, maker),
    )


def _prepare(services: Services, compaction: CompactionServices) -> Prepare:
    for part in (compaction.summarizer, compaction.maker, compaction.compactor):
        services.parts.push_async_callback(part.close)
    _look_after(services, compaction)
    holdout = Holdout(services.settings.holdout, services.secret)
    return by_mode(compaction.compactor, holdout, services.telemetry)


def _look_after(services: Services, compaction: CompactionServices) -> None:
    settings, store, deletion = services.settings, compaction.access.store, compaction.deletion
    if store.shared:

        def failed(error: Exception) -> None:
            services.telemetry.log.error("not_repeated", error=type(error).__name__, exc_info=error)

        following = follow(store, deletion.repeat, deletion.own, failed)
        services.parts.callback(asyncio.create_task(following).cancel)
    limit = settings.store_limit or (_FILE_LIMIT if settings.store.startswith("sqlite:") else None)
    if limit is not None:
        services.parts.callback(asyncio.create_task(keep_within(limit, store, services.telemetry)).cancel)


def check_fixed(before: Settings, after: Settings, names: Sequence[str]) -> None:
    """Raises ConfigurationError where one of these settings is to change, which takes a new start."""
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    if changed:
        names = " and ".join(changed)
        raise ConfigurationError(f"{changed[0]}: {names} cannot change in a reload; restart Narrows")


async def check_settings(settings: Settings) -> None:
    """Raises ConfigurationError where no Narrows could start with these settings. Asks nobody, and writes nothing."""
    telemetry = Telemetry("critical", "json", io.StringIO())
    await (await Upstreams.open(settings, telemetry)).close()
    await Summarizer(settings, CredentialStates()).close()
    _check_prices(settings)
    for name in (*PAGES, *DOOR, *INNER):
        if check := getattr(import_module(f".addons.{name}.addon", __package__), "check", None):
            check(settings)
    try:
        open_store(settings.store, keyring=settings.keyring)
    except ValueError as error:
        raise ConfigurationError(f"store: {error}") from error


def _check_prices(settings: Settings) -> None:
    try:
        check_overrides(settings.models)
    except ValueError as error:
        raise ConfigurationError(f"models: {error}") from error

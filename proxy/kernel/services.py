"""The parts of the kernel of one generation: those that addons are opened with, and those that every exchange needs."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from policies.model.summary_record import SummaryCost
from policies.money.bills import Labels
from policies.money.prices import Prices, Usage
from proxy.config import Settings
from proxy.kernel.addons import Addons
from proxy.kernel.admission import Admission
from proxy.kernel.deletion import Deletion
from proxy.kernel.follow_up import FollowUp
from proxy.kernel.prepare import Compactor, Prepare
from proxy.kernel.understand import RequestParser
from proxy.memory import Key, Store
from proxy.memory.audit_log import AuditLog
from proxy.memory.cached import CachedStore
from proxy.memory.forgetting import ForgetRegistry
from proxy.memory.opening import StoreAccess
from proxy.summaries.maker import SummaryMaker
from proxy.summaries.payments import Payments
from proxy.summaries.summarizer import Summarizer
from proxy.telemetry import Telemetry
from proxy.upstreams.price_book import PriceBook
from proxy.upstreams.table import Upstreams


@dataclass(slots=True)
class Controls:
    ready: bool = True
    scrape: Callable[[], Awaitable[bytes]] | None = None
    reload: Callable[[], Awaitable[str]] | None = None
    """Has the settings read anew; the digest of those that count then, or "" where other workers take over. Raises
    ConfigurationError. None where that cannot be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionServices:
    access: StoreAccess
    compactor: Compactor
    follow_up: FollowUp
    cached_store: CachedStore
    parser: RequestParser
    summarizer: Summarizer
    maker: SummaryMaker
    payments: Payments
    audit_log: AuditLog
    deletion: Deletion


class SiblingWorker(Protocol):
    """This process, where it is one of several workers."""

    async def ask_parent(self, question: bytes, /) -> bytes:
        """The answer of the parent of the workers, whenever it comes. Raises OSError where it takes no question."""

    def tell_parent(self, message: bytes, /) -> None:
        """Say something that the parent may miss."""


@dataclass(slots=True, kw_only=True)
class Services:
    settings: Settings
    telemetry: Telemetry
    secret: bytes = field(repr=False)
    admission: Admission
    upstreams: Upstreams
    price_book: PriceBook
    controls: Controls
    forgets: ForgetRegistry
    clock: Callable[[], float]
    """As in `Lasting`."""
    store: Store | None
    """As requests use it; None where nothing is stored."""
    compaction: CompactionServices | None = None
    worker: SiblingWorker | None
    """None where there is one process."""
    before: Mapping[str, Any]
    parts: AsyncExitStack
    """Closes what is opened, the last first."""
    opened: dict[str, Any] = field(default_factory=dict)
    billed: list[Callable[[Key, Labels, SummaryCost], None]] = field(default_factory=list)
    pinged: list[Callable[[Key, Labels, Usage, Prices, bool], None]] = field(default_factory=list)
    """Told what each ping has cost, and whether that is an estimate."""
    leaving: list[Callable[[], None]] = field(default_factory=list)
    """Called once others serve new requests, or nobody does, while what runs here still ends."""


@dataclass(frozen=True, slots=True)
class KernelParts:
    settings: Settings
    upstreams: Upstreams
    prepare: Prepare
    follow_up: FollowUp | None
    telemetry: Telemetry
    secret: bytes
    admission: Admission
    addons: Addons

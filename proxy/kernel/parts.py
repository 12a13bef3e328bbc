"""What every flow needs, made once for all requests under the same settings."""

from dataclasses import dataclass

from proxy.addons.access.gate import Gate
from proxy.addons.compress.compress import CompressApi
from proxy.addons.limits.limits import Limits
from proxy.addons.shadows.shadows import Shadows
from proxy.catalog.price_book import PriceBook
from proxy.config import Settings
from proxy.kernel.admission import Admission
from proxy.kernel.recall_loop import Compaction
from proxy.kernel.upstreams import Upstreams
from proxy.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class FlowParts:
    """What every flow needs."""

    settings: Settings
    upstreams: Upstreams
    compaction: Compaction
    telemetry: Telemetry
    secret: bytes
    admission: Admission
    gate: Gate
    price_book: PriceBook
    shadows: Shadows | None = None
    """None where no request is sampled."""
    limits: Limits | None = None
    compress_api: CompressApi | None = None

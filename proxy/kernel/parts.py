"""What every flow needs, made once for all requests under the same settings."""

from dataclasses import dataclass

from proxy.access.gate import Gate
from proxy.access.limits import Limits
from proxy.billing.price_book import PriceBook
from proxy.config import Settings
from proxy.kernel.admission import Admission
from proxy.kernel.compress import CompressApi
from proxy.kernel.recall_loop import Compaction
from proxy.kernel.shadows import Shadows
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
    """None where no keys are taken."""
    compress_api: CompressApi | None = None

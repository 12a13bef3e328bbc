"""What every exchange needs, made once for all under the same settings."""

from dataclasses import dataclass

from proxy.config import Settings
from proxy.kernel.addons import Addons
from proxy.kernel.admission import Admission
from proxy.kernel.modes import Prepare
from proxy.kernel.reply import Compaction
from proxy.telemetry import Telemetry
from proxy.upstreams.table import Upstreams


@dataclass(frozen=True, slots=True)
class KernelParts:
    settings: Settings
    upstreams: Upstreams
    prepare: Prepare
    compaction: Compaction | None
    """Follows up the requests that were planned; None where none ever is."""
    telemetry: Telemetry
    secret: bytes
    admission: Admission
    addons: Addons

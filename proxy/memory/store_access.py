"""What whoever stores something for people needs beside its store."""

from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.memory import Store
from proxy.memory.forgetting import ForgetRegistry
from proxy.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """A store that no request waits for, the key of the names in it, the time, and where deletions are announced."""

    store: Store
    telemetry: Telemetry
    secret: bytes = field(repr=False)
    clock: Callable[[], float]
    forgets: ForgetRegistry

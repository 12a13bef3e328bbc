"""Parameters: dataclass fields that state their unit, bounds and meaning, one line each.

    over: Large = parameter("tokens", "outputs with more are shortened")

Law: whatever checks, prints or documents a parameter is derived from its field.
"""

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

MOST = 1_000_000_000
"""The largest number that means anything, whatever it counts."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a dataclass. Whole numbers lie between `minimum` and MOST; fractions are shares of a whole, between
    0 and 1, and less than `below` where that is stated."""

    name: str
    type: Any
    default: Any
    """MISSING where there is none."""
    unit: str
    """What a number alone counts; for other values, what they are."""
    meaning: str
    minimum: int = 0
    below: float | None = None
    empty: str = "always"
    """What no trigger at all means."""


def parameter(
    unit: str,
    meaning: str,
    *,
    default: Any = MISSING,
    minimum: int = 0,
    below: float | None = None,
    empty: str = "always",
) -> Any:
    """A field that is a parameter; for the body of a dataclass."""
    metadata = {"unit": unit, "meaning": meaning, "minimum": minimum, "below": below, "empty": empty}
    return field(default=default, metadata=metadata)


def parameters_of(kind: Any) -> tuple[Parameter, ...]:
    """The parameters of a dataclass, or of a value of one."""
    return tuple(Parameter(each.name, each.type, each.default, **each.metadata) for each in fields(kind))

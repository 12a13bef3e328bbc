"""Durations and sizes as people write them, `30d` and `64MiB`, and as help, README and messages show them.

Law: a bare number is in the unit of its setting.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ByteSize, Field

from proxy.config.errors import refused

_MILLISECONDS: Mapping[str, int] = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_BYTES: Mapping[str, int] = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
TIMES = "90s, 25m, 12h or 30d"


def seconds(text: str, unit: str = "s") -> float:
    """A duration such as 90, 90s, 500ms, 25m, 1.5h or 30d; a bare number is in `unit`. Raises ValueError."""
    matched = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)", text.strip())
    if matched is None:
        raise ValueError(f"{text[:64]!r} is no duration; give {TIMES}")
    return float(matched[1]) * _MILLISECONDS[matched[2] or unit] / 1000


def duration(length: float, unit: str = "s") -> str:
    """A duration, in `unit`, as people write it: 2592000 is 30d."""
    milliseconds = round(length * _MILLISECONDS[unit])
    largest = next(name for name, each in _MILLISECONDS.items() if not milliseconds % each)
    return f"{milliseconds // _MILLISECONDS[largest]}{largest}" if milliseconds else "0"


def size(amount: int) -> str:
    """A number of bytes as people write it: 67108864 is 64MiB."""
    unit = next((unit for unit, each in _BYTES.items() if amount and not amount % each), "")
    return f"{amount // _BYTES[unit]}{unit}" if unit else str(amount)


def _read(value: Any, unit: str) -> Any:
    """The number that a duration is in `unit`; what is no text stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return round(seconds(value, unit) * 1000 / _MILLISECONDS[unit], 6)
    except ValueError as error:
        raise refused("duration", f"give a duration such as {TIMES}") from error


IN_SECONDS = BeforeValidator(lambda value: _read(value, "s"))
IN_MILLISECONDS = BeforeValidator(lambda value: _read(value, "ms"))
Seconds = Annotated[float, IN_SECONDS]
Period = Annotated[Seconds, Field(gt=0)]
Size = Annotated[ByteSize, Field(gt=0, le=2**60)]
"""Bytes, fewer than any store has."""
Milliseconds = Annotated[int, IN_MILLISECONDS]

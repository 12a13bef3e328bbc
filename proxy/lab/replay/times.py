"""When the requests of a recorded session were sent, and the clock by which a replay plays them.

A recording holds a row for each of its requests under "times": [sent, began, ended], or the first of these alone, or
null where nobody knows: such a request is played without a pause. Files of rows stand beside recordings without any.
"""

import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

RECORDED, NONE = "recorded", "none"
"""Words in the place of a file: the times that recordings hold, or no pauses at all."""
_LATEST = 1e11
"""Seconds that a time has at most: three thousand years. Seconds since 1970 count, and a clock can be set to each."""
_STEADY = 1.0
"""Seconds from one request to the next where nobody knows the times."""


class RequestTimes(NamedTuple):
    """When a request was sent, and when its reply began and ended, in seconds since its session began; None where that
    was not recorded. A request that was sent before the reply to another had ended overlaps with that."""

    sent: float
    began: float | None = None
    ended: float | None = None


def times_of(rows: object, requests: int) -> tuple[RequestTimes, ...]:
    """The times of so many requests, from the rows of a recording. Raises ValueError, which names the fault alone."""
    if not isinstance(rows, list):
        raise ValueError("times: it is no list; give seconds, or [sent, began, ended], for each request")
    if len(rows) != requests:
        raise ValueError(f"times: it has {len(rows):,} rows for {requests:,} requests; give one for each")
    recorded = [None if row is None else _row(at, row) for at, row in enumerate(rows)]
    first = next(filter(None, recorded), None)
    if first is None:
        return ()
    begin = RequestTimes(first.sent)
    _, *times = accumulate(recorded, lambda before, each: each or RequestTimes(before.sent), initial=begin)
    late = next((at for at, (one, next_) in enumerate(pairwise(times), 1) if next_.sent < one.sent), None)
    if late is not None:
        raise ValueError(f"times.{late}: it was sent before the one before it; give the rows in order")
    return tuple(times)


def _row(at: int, row: object) -> RequestTimes:
    values: list[Any] = row if isinstance(row, list) else [row]
    numbers = values[:1] + [each for each in values[1:] if each is not None]
    is_number = all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers)
    if not (0 < len(values) <= 3 and is_number and all(abs(each) <= _LATEST for each in numbers)):
        raise ValueError(f"times.{at}: it is neither seconds, up to {_LATEST:.0e}, nor [sent, began, ended]")
    if any(later < earlier for earlier, later in pairwise(numbers)):
        raise ValueError(f"times.{at}: a reply begins after its request, and ends after it began")
    return RequestTimes(*values)


def times_in(place: str, session: str, requests: int) -> tuple[RequestTimes, ...]:
    """The times of a session in a file, or in the file of its name in a folder. Raises ValueError."""
    path = Path(place) / f"{session}.json" if Path(place).is_dir() else Path(place)
    try:
        value = json.loads(path.read_bytes())
        return times_of(value.get("times") if isinstance(value, dict) else value, requests)
    except OSError as error:
        wish = "--pauses takes recorded, none, a file, or a folder with NAME.json for each session"
        raise ValueError(f"cannot read {path} ({error.strerror}); {wish}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no times of {session}: {error}") from error


class SimulatedClock:
    """Seconds since 1970 that pass only when somebody says so."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def schedule(times: Sequence[RequestTimes], requests: int) -> list[float]:
    """When each of so many requests is played, in seconds since the first."""
    if not times:
        return [at * _STEADY for at in range(requests)]
    return [each.sent - times[0].sent for each in times]

"""What a target reports of itself on /metrics, where it does, before a load and after it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

_PATIENCE = aiohttp.ClientTimeout(total=10)
_STOPS = "narrows_event_loop_lag_seconds"


@dataclass(frozen=True, slots=True)
class TargetSample:
    """Of all its processes together, where it has several."""

    cpu: float
    """Seconds since it began."""
    rss: float
    """Bytes."""
    stops: Mapping[float, float] = field(default_factory=dict)
    """Stops of its event loop so far that were not longer than so many seconds."""
    starts: frozenset[float] = frozenset()
    """When its processes were started. What was counted by others does not compare."""


@dataclass(frozen=True, slots=True)
class TargetUse:
    """What a load cost the target."""

    JSON = ("cpu_seconds", "cores", "cpu_ms_per_request", "cpu_ms_per_1000_events", "rss_mib_before", "rss_mib_after",
            "conversations_per_gib", "longest_stop_ms")  # fmt: skip

    cpu_seconds: float
    cores: float
    """Processors that it kept busy, in the mean."""
    cpu_ms_per_request: float | None
    cpu_ms_per_1000_events: float | None
    """All of its time by the events that it passed on, so of use where replies are streamed and long."""
    rss_mib_before: float
    rss_mib_after: float
    conversations_per_gib: float | None
    """By what it grew; None where it did not."""
    longest_stop_ms: float | None
    """No stop of its event loop was longer: the next higher of the limits that it counts by. None where it does not
    say, or was longer than any."""


async def sample(url: str) -> TargetSample | None:
    """What the target says now; None where it says nothing. Raises ValueError where nothing answers at all."""
    address = URL(url).origin() / "metrics"
    try:
        async with aiohttp.ClientSession(timeout=_PATIENCE) as http, http.get(address) as reply:
            page = await reply.text(errors="replace") if reply.status == 200 else ""
    except (aiohttp.ClientConnectionError, TimeoutError) as error:
        raise ValueError(f"nothing answers at {url} ({type(error).__name__}); start the target first") from error
    except aiohttp.ClientError:
        return None
    return read(page)


def read(page: str) -> TargetSample | None:
    """What a page of metrics says; None where the use of processors is not on it."""
    cpu, rss, stops, starts = None, 0.0, dict[float, float](), set[float]()
    try:
        for family in text_string_to_metric_families(page):
            for each in family.samples:
                if each.name == "process_cpu_seconds_total":
                    cpu = (cpu or 0.0) + each.value
                elif each.name == "process_resident_memory_bytes":
                    rss += each.value
                elif each.name == "process_start_time_seconds":
                    starts.add(each.value)
                elif each.name == f"{_STOPS}_bucket":
                    limit = float(each.labels["le"])
                    stops[limit] = stops.get(limit, 0.0) + each.value
    except (ValueError, KeyError):
        return None
    return TargetSample(cpu, rss, stops, frozenset(starts)) if cpu is not None else None


def use(before: TargetSample, after: TargetSample, seconds: float, requests: int, events: int, begun: int) -> TargetUse:
    """What lies between two samples: of so many seconds, answered requests, events, and conversations begun."""
    cpu, grown = after.cpu - before.cpu, (after.rss - before.rss) / 2**30
    return TargetUse(
        cpu_seconds=cpu,
        cores=cpu / seconds if seconds else 0.0,
        cpu_ms_per_request=cpu * 1000 / requests if requests else None,
        cpu_ms_per_1000_events=cpu * 1_000_000 / events if events else None,
        rss_mib_before=before.rss / 2**20,
        rss_mib_after=after.rss / 2**20,
        conversations_per_gib=begun / grown if grown > 0 and begun else None,
        longest_stop_ms=_longest_stop(before, after),
    )


def _longest_stop(before: TargetSample, after: TargetSample) -> float | None:
    if not after.stops:
        return None
    new = {limit: count - before.stops.get(limit, 0.0) for limit, count in sorted(after.stops.items())}
    all_ = max(new.values())
    limit = next(limit for limit, count in new.items() if count >= all_)
    return None if limit == float("inf") else limit * 1000 if all_ else 0.0

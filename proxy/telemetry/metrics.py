"""The metrics: what each is called, and the sums that the page for Prometheus shows.

Laws
  Labels are bounded: a value is one of the first few that look like words, or "other"; so are their combinations.
  Names follow Prometheus' conventions: a unit at the end, `_total` behind a counter, and no series `_created`.
"""

import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from policies.money.bills import BillSums, RequestBill

_LABEL_VALUE = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9_.:/\[\]-]{0,63}")
_VALUES = {"tenant": 100, "code": 48}
_FEW_VALUES = 24
_MOST_OWNERS = 300
"""Combinations of tenant, model, preset and API; beyond it new ones are of an "other" tenant, model and preset."""

WHOSE = ("tenant", "model", "preset", "api")
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "requests": ("Requests answered.", "mode", "status"),
    "prompt_tokens_original": ("Prompt tokens as the client wrote them.", *WHOSE),
    "prompt_tokens_sent": ("Prompt tokens sent in their place, as billed.", *WHOSE),
    "billed_tokens": ("Tokens of all rounds, as billed.", "kind", *WHOSE),
    "cost_usd": ("Dollars paid.", "kind", *WHOSE),
    "cost_baseline_usd": ("Estimated dollars for the same requests without Narrows.", *WHOSE),
    "cost_baseline_marked_usd": ("The baseline with the cache marks that Narrows sets.", *WHOSE),
    "cost_checked_usd": ("Dollars paid for unedited requests, by which the baseline is checked.",),
    "cost_checked_error_usd": ("Error of the baseline on these requests, in dollars.",),
    "pause_cost_usd": ("Dollars paid to write again what had expired in the provider's cache after a pause.", *WHOSE),
    "pause_saving_usd": ("Estimated dollars that pings and longer lifetimes saved after pauses.", *WHOSE),
    "cost_unknown": ("Requests and summaries whose cost is an estimate or unknown.", "reason"),
    "edits": ("New edits.", "policy"),
    "prefix": ("What happened to the prompt prefix.", "outcome"),
    "cache": ("Requests by what they found in the provider's cache.", "outcome"),
    "cache_misses": ("Misses of the cache by the provider's reason, where the client asked for it.", "reason"),
    "prefix_rewritten_tokens": ("Tokens written to the provider's cache again.", "reason"),
    "refused": (
        "Requests refused by a limit: too much in flight, or a key has reached a limit of its own.",
        "limit",
        "whose",
    ),
    "thrashing": ("Conversations that need room in each request, because of protected content.",),
    "shed": ("Requests for which nothing new was planned, by reason.", "reason"),
    "shed_tokens": ("Prompt tokens of these requests, as sent.",),
    "connections_closed": (
        "Connections closed because there were too many, or because the client read nothing.",
        "reason",
    ),
    "upstream_requests": ("Requests sent upstream, by outcome.", "upstream", "code"),
    "trouble": ("Requests that failed, by kind.", "kind"),
    "store_trouble": ("Store operations that failed or were slow.", "operation"),
    "trimmed": ("Conversations deleted because of `store_limit`.",),
    "actions": ("Actions of models in edited requests, by whether all that they used was in sight.", "sight"),
    "marker_in_argument": ("New write arguments that contain a reference of Narrows.",),
    "tools_refused": ("Requests sent again with all definitions of their tools.",),
    "marks_refused": ("Requests sent again without the cache marks of Narrows.",),
    "overflows": ("Requests whose prompt was too long for their model, by outcome.", "outcome"),
    "too_many": ("Requests relayed unchanged because they have too many items.", "what"),
    "cold_replays": ("Large histories planned from their first step, by where that was done.", "outcome"),
    "pings": ("Prompts that wait for a person or a tool: sent again to keep their cache, or why not.", "outcome"),
    "recalls": ("Recall calls, by outcome.", "outcome"),
    "recall_rounds": ("Requests made to answer recall calls.",),
    "recall_tokens": ("Tokens of these requests, as billed.", "kind"),
    "summaries": ("Wanted summaries, by outcome.", "outcome"),
    "stale_summaries": ("Requests that met a stale summary, by reason.", "reason"),
    "shadows": ("Requests sampled to be sent again, by outcome.", "outcome"),
    "shadow_cost_usd": ("Dollars paid for shadow requests, with the configured key.",),
    "agreements": (
        "Pairs of replies to a sampled request, by which two and whether they agree.",
        "compared",
        "outcome",
    ),
    "summary_tokens": ("Tokens paid for summaries, as billed.", "kind"),
}
"""The help and the labels of each counter, by its name without `narrows_` and `_total`."""

_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
_STOPS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_REPLIES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...], tuple[str, ...]]] = {
    "overhead_seconds": ("Latency added by compaction.", _FAST, ()),
    "time_to_first_byte_seconds": (
        "Time from sending a request upstream to the head of its reply.",
        _REPLIES,
        ("upstream",),
    ),
    "store_seconds": ("Time that the store took to answer.", _FAST, ("operation",)),
    "event_loop_lag_seconds": ("Lateness of the event loop, measured every 5 ms.", _STOPS, ()),
}
"""The help, the upper limits and the labels of each histogram, by its name without `narrows_`."""


class BoundedLabel:
    """The values of one label: the first few that look like words of Narrows; all others are "other"."""

    def __init__(self, most: int = _FEW_VALUES) -> None:
        self._most = most
        self._values: set[str] = set()

    def __call__(self, value: str) -> str:
        if value not in self._values:
            if len(self._values) >= self._most or not _LABEL_VALUE.fullmatch(value):
                return "other"
            self._values.add(value)
        return value


# --- how each upstream does, as this process sees it: what it has answered lately, and whether it can be reached ---

MINUTES = 5
"""The newest minutes, the current one included, whose answers are counted."""


class BreakerState(Protocol):
    """The part of a breaker, which stands above this, that is read here."""

    @property
    def is_open(self) -> bool: ...

    @property
    def pause_left(self) -> float: ...


class AnswerCounts(NamedTuple):
    """How many requests were answered how."""

    well: int = 0
    client_errors: int = 0
    server_errors: int = 0
    none: int = 0
    """No reply came, or nothing that is one."""


class UpstreamHealth:
    def __init__(
        self, name: str, host: str, breaker: BreakerState, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.host = host
        self._breaker = breaker
        self._clock = clock
        self._minutes: deque[tuple[int, list[int]]] = deque(maxlen=MINUTES)
        """Minutes in which something was asked, each with its answers by the first digit of the status."""

    @property
    def is_up(self) -> bool:
        return not self._breaker.is_open

    @property
    def next_try(self) -> float:
        """Seconds until it is tried again, where its breaker is open."""
        return self._breaker.pause_left

    def note(self, status: int) -> None:
        """Count an answer; 0 where none came."""
        minute = int(self._clock() // 60)
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append((minute, [0] * 6))
        self._minutes[-1][1][min(status // 100, 5)] += 1

    def answers(self) -> AnswerCounts:
        first = int(self._clock() // 60) - MINUTES + 1
        recent = [counts for minute, counts in self._minutes if minute >= first]
        none, *well, client, server = (sum(counts[digit] for counts in recent) for digit in range(6))
        return AnswerCounts(sum(well), client, server, none)


class Metrics:
    """The metrics of one Narrows, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.running = Gauge("narrows_running", "Requests in flight.", registry=self.registry)
        self.connections = Gauge("narrows_connections", "Connections of clients.", registry=self.registry)
        self.bytes_in_flight = Gauge("narrows_bytes_in_flight", "Bytes of bodies in flight.", registry=self.registry)
        self.stored = Gauge(
            "narrows_store_bytes", "Bytes in the store at the last measurement.", registry=self.registry
        )
        self.build = Gauge(
            "narrows_build_info",
            "Version, and a digest of the settings.",
            ["version", "settings"],
            registry=self.registry,
        )
        self._breakers = Gauge("narrows_breakers_open", "Open breakers.", ["name"], registry=self.registry)
        self._open_breakers: dict[str, WeakSet[object]] = {}
        ProcessCollector(registry=self.registry)
        self.registry.register(self)
        self._upstreams: list[UpstreamHealth] = []
        """Those that are in use; while one generation of settings follows another, there may be two of a name."""
        self.billed = BillSums()
        self._values: dict[str, BoundedLabel] = {}
        self._whose: set[tuple[str, ...]] = set()
        self._sums: dict[str, dict[tuple[str, ...], float]] = {
            name: {} if labels else {(): 0.0} for name, (_, *labels) in COUNTERS.items()
        }
        """Of each counter the sums by the values of its labels: an addition costs a tenth of one in the registry."""
        self._observed: dict[str, dict[tuple[str, ...], list[float]]] = {
            name: {} if labels else {(): [0.0] * (len(limits) + 2)} for name, (_, limits, labels) in HISTOGRAMS.items()
        }
        """Of each histogram, by the values of its labels: how many are in each bucket, and their sum."""

    def count(self, name: str, *values: str, by: float = 1) -> None:
        """Add to a counter of `COUNTERS`; the values are those of its labels."""
        sums = self._sums[name]
        if values not in sums:
            values = self._bounded(name, COUNTERS[name][1:], values)
            sums.setdefault(values, 0.0)
        sums[values] += by

    def observe(self, name: str, seconds: float, *values: str) -> None:
        """Add to a histogram of `HISTOGRAMS`; the values are those of its labels."""
        _, limits, labels = HISTOGRAMS[name]
        observed = self._observed[name]
        if values not in observed:
            values = self._bounded(name, labels, values)
            observed.setdefault(values, [0.0] * (len(limits) + 2))
        counts = observed[values]
        counts[bisect_left(limits, seconds)] += 1
        counts[-1] += seconds

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """All of them as they are now, for the registry: in whatever thread, while others count."""
        for name, (help_, *labels) in COUNTERS.items():
            family = CounterMetricFamily(f"narrows_{name}", help_, labels=labels)
            for values, total in list(self._sums[name].items()):
                family.add_metric(values, total)
            yield family
        up = GaugeMetricFamily("narrows_upstream_up", "Whether its breaker is closed.", labels=("upstream",))
        for upstream in self.upstreams():
            up.add_metric((upstream.name,), float(upstream.is_up))
        yield up
        for name, (help_, limits, names) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"narrows_{name}", help_, labels=names)
            texts = [*map(floatToGoString, limits), "+Inf"]
            for values, (*counts, total) in list(self._observed[name].items()):
                histogram.add_metric(values, list(zip(texts, accumulate(counts), strict=True)), total)
            yield histogram

    def bill(self, bill: RequestBill) -> None:
        """Count what a request came to over all its rounds, or what a summary cost: all money but that of shadows."""
        sums, labels = bill.sums, bill.labels
        self.billed += sums
        whose = (labels.tenant, labels.model.lower(), labels.preset, labels.api)
        for kind, dollars in (
            ("request", sums.paid - sums.recalls - sums.ping_cost),
            ("recall", sums.recalls),
            ("ping", sums.ping_cost),
            ("summary", sums.summaries),
        ):
            if dollars > 0:
                self.count("cost_usd", kind, *whose, by=dollars)
        uncached = sums.prompt - sums.cached - sums.written
        for kind, tokens in (
            ("input", uncached),
            ("cached", sums.cached),
            ("written", sums.written),
            ("output", sums.output),
        ):
            if tokens > 0:
                self.count("billed_tokens", kind, *whose, by=tokens)
        for reason, requests in (("no_usage", sums.estimated), ("no_price", sums.unpriced)):
            if requests:
                self.count("cost_unknown", reason, by=requests)
        if not sums.requests:
            return
        self.count("prompt_tokens_original", *whose, by=sums.original)
        self.count("prompt_tokens_sent", *whose, by=sums.sent)
        self.count("cost_baseline_usd", *whose, by=sums.baseline)
        self.count("cost_baseline_marked_usd", *whose, by=sums.baseline_marked)
        self.count("cache", bill.cache_outcome)
        for name, dollars in (("pause_cost_usd", sums.pause_cost), ("pause_saving_usd", sums.pause_saving)):
            if dollars:
                self.count(name, *whose, by=dollars)
        if sums.rewritten:
            self.count("prefix_rewritten_tokens", bill.prefix, by=sums.rewritten)
        if sums.checked:
            self.count("cost_checked_usd", by=sums.checked_paid)
            self.count("cost_checked_error_usd", by=sums.checked_error)

    def breaker_changed(self, name: str, breaker: object, is_open: bool) -> None:
        """A breaker of this name has opened or closed. One that is gone is not open."""
        now_open = self._open_breakers.setdefault(name, WeakSet())
        self._breakers.labels(name).set_function(now_open.__len__)
        (now_open.add if is_open else now_open.discard)(breaker)

    def add_upstream(self, name: str, host: str, breaker: BreakerState) -> UpstreamHealth:
        """Report an upstream from now on; what it answers is noted in the result."""
        self._upstreams.append(UpstreamHealth(name, host, breaker))
        return self._upstreams[-1]

    def remove_upstream(self, health: UpstreamHealth) -> None:
        self._upstreams.remove(health)

    def upstreams(self) -> list[UpstreamHealth]:
        return list({health.name: health for health in list(self._upstreams)}.values())

    def store_trouble(self, operation: str) -> None:
        """The store failed, or was given up on."""
        self.count("store_trouble", operation)

    def page(self) -> bytes:
        """The page for Prometheus. With as many series as there may be it takes tens of milliseconds, in a thread."""
        return generate_latest(self.registry)

    def _bounded(self, name: str, labels: Sequence[str], values: tuple[str, ...]) -> tuple[str, ...]:
        """The values of a new series. Those that say whose it is are the same ones in all metrics."""
        bounded = []
        for label, value in zip(labels, values, strict=True):
            place = label if label in WHOSE else f"{name} {label}"
            bounded.append(self._values.setdefault(place, BoundedLabel(_VALUES.get(label, _FEW_VALUES)))(value))
        if tuple(labels[-len(WHOSE) :]) == WHOSE:
            whose = tuple(bounded[-len(WHOSE) :])
            if whose not in self._whose and len(self._whose) >= _MOST_OWNERS:
                bounded[-len(WHOSE) : -1] = ["other"] * (len(WHOSE) - 1)
            else:
                self._whose.add(whose)
        return tuple(bounded)

"""What Narrows reports about itself: one log line for each request, and metrics.

Laws
  Only the fields named here are logged: never a body, never a header, never a credential, nothing that a client wrote.
  Labels are bounded: whatever comes from outside is one of a few words or "other".
  No request waits for the log (log.py).
"""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import monotonic, time
from typing import TextIO
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily

from policies.model.summary_record import SummaryCost
from policies.money.prices import Prices, Usage
from proxy.telemetry.log import Line, LogWriter, logger

_LABEL_VALUE = re.compile(r"[a-z][a-z0-9_.:/-]{0,47}|[0-9]xx")
QUIET = 60.0
"""Seconds without another of its kind after which a line is logged again that stands for a series."""
_ADDED_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
_STOP_SECONDS = (0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


@dataclass(slots=True)
class RequestRecord:
    """What one request came to, filled in on its way: the fields of the `request` line."""

    method: str
    route: str = "other"
    """chat, count, relay or page; `passed on` to another worker, which reports it."""
    mode: str = "relayed"
    prefix: str = ""
    tenant: str = ""
    conversation: str = ""
    status: int = 0
    before: int = 0
    after: int = 0
    """Tokens before and after compaction, as the reply's headers report them."""
    edits: str = ""
    summary: str = ""
    rounds: int = 0
    """How often the upstream was asked again to answer recalls."""
    received: int = 0
    replied: int = 0
    """Bytes of the bodies, as they were on the wire."""
    added_ms: float = 0.0
    ms: float = 0.0
    trouble: str = ""
    unread: str = ""
    """Why the reply could not be read while it was forwarded."""

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Copy what the x-narrows-* headers of the reply report."""
        self.mode = headers.get("x-narrows-mode", self.mode)
        self.prefix = headers.get("x-narrows-prefix", "")
        self.conversation = headers.get("x-narrows-conversation", "")
        self.before = _number(headers.get("x-narrows-tokens-before", ""))
        self.after = _number(headers.get("x-narrows-tokens-after", ""))
        self.edits = headers.get("x-narrows-edits", "")
        self.summary = headers.get("x-narrows-summary", "")

    def line(self) -> Line:
        """The fields of the log line."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "event": "request"}


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 0


class BoundedLabel:
    """The values of one label: the first few that look like words of Narrows; all others are "other"."""

    def __init__(self, most: int = 24) -> None:
        self._most = most
        self._values: set[str] = set()

    def __call__(self, value: str) -> str:
        if value not in self._values:
            if len(self._values) >= self._most or not _LABEL_VALUE.fullmatch(value):
                return "other"
            self._values.add(value)
        return value


COUNTERS: Mapping[str, tuple[str, ...]] = {
    "requests": ("Requests answered.", "mode", "status"),
    "passed_on": ("Requests passed on to the worker of their conversation.",),
    "tokens": ("Prompt tokens before and after compaction.", "side"),
    "edits": ("New edits.", "policy"),
    "prefix": ("What happened to the prompt prefix.", "outcome"),
    "refused": ("Requests refused because too much is in flight, by limit and by whose.", "limit", "whose"),
    "thrashing": ("Conversations in which room must be made for each request because of what is protected.",),
    "shed": ("Requests for which nothing new was planned, by the reason.", "reason"),
    "shed_tokens": ("Prompt tokens of these requests, as they were sent.",),
    "connections_closed": ("Connections closed because there are too many, or because nothing is read.", "reason"),
    "trouble": ("Requests that did not end well, by kind.", "kind"),
    "store_trouble": ("Store operations that failed or were slow.", "operation"),
    "trimmed": ("Conversations deleted because more was stored than `store_limit`.",),
    "billed_tokens": ("Tokens as billed, by model.", "model", "kind"),
    "billed_dollars": ("The bill, where the prices are known.", "model"),
    "marker_in_argument": ("New write arguments with a reference of ours.",),
    "marks_refused": ("Requests sent again without cache marks of ours.",),
    "overflows": ("Requests whose prompt was too long for their model, by what came of it.", "outcome"),
    "too_many": ("Requests left as they came because they hold too much.", "what"),
    "cold_replays": ("Large histories planned from their first step, by what the process for them did.", "outcome"),
    "recalls": ("Recall calls, by what came of them.", "outcome"),
    "recall_rounds": ("Requests made to answer recall calls.",),
    "recall_tokens": ("Tokens of these requests, as billed.", "kind"),
    "recall_dollars": ("Their bill, where the prices are known.",),
    "summaries": ("Summaries that were wanted, by what came of it.", "outcome"),
    "stale_summaries": ("Requests that met a summary that may no longer be used, by the reason.", "reason"),
    "summary_tokens": ("Tokens paid for summaries, as billed.", "kind"),
    "summary_dollars": ("Their bill, where the prices are known.",),
}
"""The help and the labels of each counter, by its name without `narrows_` and `_total`."""


class Metrics:
    """The metrics of one Narrows, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.running = Gauge("narrows_running", "Requests in flight.", registry=self.registry)
        self.connections = Gauge("narrows_connections", "Connections of clients.", registry=self.registry)
        self.bytes_in_flight = Gauge("narrows_bytes_in_flight", "Bytes of bodies in flight.", registry=self.registry)
        self.stored = Gauge("narrows_store_bytes", "Bytes in the store, when last measured.", registry=self.registry)
        self.added = Histogram(
            "narrows_added_seconds", "Latency added by compaction.", buckets=_ADDED_SECONDS, registry=self.registry
        )
        self.loop_stops = Histogram(
            "narrows_loop_stop_seconds",
            "Stops of the event loop of over a millisecond.",
            buckets=_STOP_SECONDS,
            registry=self.registry,
        )
        self._breakers = Gauge("narrows_breakers_open", "Breakers that are open.", ["name"], registry=self.registry)
        self._open_breakers: dict[str, WeakSet[object]] = {}
        ProcessCollector(registry=self.registry)
        self.registry.register(self)
        self._labels: dict[tuple[str, int], BoundedLabel] = {}
        self._sums: dict[str, dict[tuple[str, ...], float]] = {
            name: {} if labels else {(): 0.0} for name, (_, *labels) in COUNTERS.items()
        }
        """Of each counter the sums by the values of its labels: an addition costs a tenth of one in the registry."""

    def count(self, name: str, *values: str, by: float = 1) -> None:
        """Add to a counter of `COUNTERS`; the values are those of its labels."""
        sums = self._sums[name]
        if values not in sums:
            values = tuple(self._labels.setdefault((name, i), BoundedLabel())(each) for i, each in enumerate(values))
            sums.setdefault(values, 0.0)
        sums[values] += by

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counters as they are now, for the registry."""
        for name, (help_, *labels) in COUNTERS.items():
            family = CounterMetricFamily(f"narrows_{name}", help_, labels=labels)
            for values, total in self._sums[name].items():
                family.add_metric(values, total)
            yield family

    def breaker_changed(self, name: str, breaker: object, is_open: bool) -> None:
        """A breaker of this name has opened or closed. One that is gone is not open."""
        now_open = self._open_breakers.setdefault(name, WeakSet())
        self._breakers.labels(name).set_function(now_open.__len__)
        (now_open.add if is_open else now_open.discard)(breaker)

    def store_trouble(self, operation: str) -> None:
        """The store failed, or was given up on."""
        self.count("store_trouble", operation)

    def summary_spent(self, spent: SummaryCost) -> None:
        """Count what was paid for a summary, also for one that is not used."""
        usage = Usage(prompt=spent.prompt, completion=spent.completion, cached=spent.cached, written=spent.written)
        for kind, tokens in _bill(usage).items():
            self.count("summary_tokens", kind, by=tokens)
        self.count("summary_dollars", by=spent.dollars)

    def page(self) -> bytes:
        return generate_latest(self.registry)


class Telemetry:
    """The log and the metrics of one running Narrows."""

    def __init__(self, level: str = "info", format_: str = "auto", stream: TextIO | None = None) -> None:
        self.metrics = Metrics()
        self._writer = LogWriter(format_, sys.stderr if stream is None else stream)
        self.log = logger(level, self._writer)
        self._last_shed: dict[str, float] = {}
        self._logs_info, self._logs_debug = self.log.is_enabled_for(20), self.log.is_enabled_for(10)

    def start(self) -> None:
        """Write lines in a thread from now on, until `close`."""
        self._writer.start()

    def close(self) -> None:
        """Write what waits."""
        self._writer.close()

    def request(self, record: RequestRecord) -> None:
        """Count and log one request that was answered, or whose client left."""
        count = self.metrics.count
        if record.route == "passed on":
            count("passed_on")
            return
        count("requests", record.mode, f"{record.status // 100}xx")
        if record.trouble:
            count("trouble", record.trouble)
        if record.route == "chat" and record.prefix:
            count("prefix", record.prefix)
            count("tokens", "before", by=record.before)
            count("tokens", "after", by=record.after)
            self.metrics.added.observe(record.added_ms / 1000)
        is_page = record.route not in ("chat", "count", "relay")
        if self._logs_debug if is_page else self._logs_info:
            self._writer.put({"record": record, "level": "debug" if is_page else "info", "timestamp": time()})

    def shed(self, reason: str, **fields: int) -> None:
        """Count a request for which nothing new was planned, and log the first of a series."""
        self.metrics.count("shed", reason)
        now, before = monotonic(), self._last_shed.get(reason, -QUIET)
        self._last_shed[reason] = now
        if now - before >= QUIET:
            effect = "nothing new is planned; what stands is put back"
            self.log.warning("shedding", reason=reason, effect=effect, **fields)

    def recalled(self, answered: int, refused: int, prices: Prices, usage: Usage | None) -> None:
        """Count a round that answered recall calls; what it cost is part of the bill, too."""
        self.metrics.count("recalls", "answered", by=answered)
        self.metrics.count("recalls", "refused", by=refused)
        self.metrics.count("recall_rounds")
        for kind, tokens in _bill(usage).items() if usage else ():
            self.metrics.count("recall_tokens", kind, by=tokens)
        self.metrics.count("recall_dollars", by=prices.cost(usage).total if usage and prices.listed else 0)

    def billed(self, model: str, prices: Prices, usage: Usage | None, sent: int, original: int) -> None:
        """Count what one call cost: as billed, or the `sent` tokens as an estimate where the provider did not say.
        `original` are the tokens that the client sent; what these would have cost is not claimed."""
        label, bill = model.lower(), _bill(usage) if usage else {"estimated": sent}
        for kind, tokens in bill.items():
            self.metrics.count("billed_tokens", label, kind, by=tokens)
        if usage is None:
            return
        dollars = prices.cost(usage).total if prices.listed else None
        if dollars is not None:
            self.metrics.count("billed_dollars", label, by=dollars)
        if self._logs_debug:
            self.log.debug("billed", model=model[:100], dollars=dollars, sent=sent, original=original, **bill)


def _bill(usage: Usage) -> dict[str, int]:
    return {"input": usage.uncached, "cached": usage.cached, "written": usage.written, "output": usage.completion}

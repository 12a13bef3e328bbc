"""What Narrows reports about itself: one log line for each request, and metrics.

Laws
  Only the fields named here are logged: never a body, never a header, never a credential, nothing that a client wrote.
  Labels are bounded: whatever comes from outside is one of a few words or "other".
"""

import re
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from policies.model.summary_record import SummaryCost
from policies.money.prices import Prices, Usage

_LABEL_VALUE = re.compile(r"[a-z][a-z0-9_.:/-]{0,47}")
_ADDED_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)


@dataclass(slots=True)
class RequestRecord:
    """What one request came to, filled in on its way: the fields of the `request` line."""

    method: str
    route: str = "other"
    """chat, count, relay or page."""
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


class Metrics:
    """The counters, in a registry of their own. Every method is one thing that happened."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests answered.", "mode", "status")
        self._tokens = self._counter("tokens", "Prompt tokens before and after compaction.", "side")
        self._edits = self._counter("edits", "New edits.", "policy")
        self._prefixes = self._counter("prefix", "What happened to the prompt prefix.", "outcome")
        self._troubles = self._counter("trouble", "Requests that did not end well, by kind.", "kind")
        self._store = self._counter("store_trouble", "Store operations that failed or were slow.", "operation")
        self._billed = self._counter("billed_tokens", "Tokens as billed, by model.", "model", "kind")
        self._dollars = self._counter("billed_dollars", "The bill, where the prices are known.", "model")
        self._markers = self._counter("marker_in_argument", "New write arguments with a reference of ours.")
        self._too_many = self._counter("too_many", "Requests left as they came because they hold too much.", "what")
        self._recalls = self._counter("recalls", "Recall calls, by what came of them.", "outcome")
        self._rounds = self._counter("recall_rounds", "Requests made to answer recall calls.")
        self._round_tokens = self._counter("recall_tokens", "Tokens of these requests, as billed.", "kind")
        self._round_dollars = self._counter("recall_dollars", "Their bill, where the prices are known.")
        self._summaries = self._counter("summaries", "Summaries that were wanted, by what came of it.", "outcome")
        self._summary_tokens = self._counter("summary_tokens", "Tokens paid for summaries, as billed.", "kind")
        self._summary_dollars = self._counter("summary_dollars", "Their bill, where the prices are known.")
        self.running = Gauge("narrows_running", "Requests in flight.", registry=self.registry)
        self._added = Histogram(
            "narrows_added_seconds", "Latency added by compaction.", buckets=_ADDED_SECONDS, registry=self.registry
        )
        self._labels: dict[str, BoundedLabel] = {}

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(f"narrows_{name}", help_, labels, registry=self.registry)

    def _word(self, label: str, value: str) -> str:
        return self._labels.setdefault(label, BoundedLabel())(value)

    def request(self, record: RequestRecord) -> None:
        """A request was answered, or its client left."""
        self._requests.labels(self._word("mode", record.mode), f"{record.status // 100}xx").inc()
        if record.trouble:
            self._troubles.labels(self._word("kind", record.trouble)).inc()
        if record.route == "chat" and record.prefix:
            self._prefixes.labels(self._word("outcome", record.prefix)).inc()
            self._tokens.labels("before").inc(record.before)
            self._tokens.labels("after").inc(record.after)
            self._added.observe(record.added_ms / 1000)

    def billed(self, model: str, bill: Mapping[str, int], dollars: float | None) -> None:
        """The provider billed a request."""
        word = self._word("model", model.lower())
        for kind, tokens in bill.items():
            self._billed.labels(word, kind).inc(tokens)
        if dollars is not None:
            self._dollars.labels(word).inc(dollars)

    def prefixed(self, outcome: str) -> None:
        """What became of the prefix in a round of a recall, which no reply's header reports."""
        self._prefixes.labels(self._word("outcome", outcome)).inc()

    def edited(self, policy: str, count: int = 1) -> None:
        """A policy made new edits."""
        self._edits.labels(self._word("policy", policy)).inc(count)

    def store_trouble(self, operation: str) -> None:
        """The store failed, or was given up on."""
        self._store.labels(self._word("operation", operation)).inc()

    def recalled(self, answered: int, refused: int, tokens: Mapping[str, int], dollars: float | None) -> None:
        """Recalls were answered, or refused because nothing is stored, in a round of this cost."""
        self._recalls.labels("answered").inc(answered)
        self._recalls.labels("refused").inc(refused)
        self._rounds.inc()
        for kind, count in tokens.items():
            self._round_tokens.labels(kind).inc(count)
        self._round_dollars.inc(dollars or 0)

    def recalled_beside(self, calls: int) -> None:
        """Recalls stood beside calls of the client's own: they are answered with its next request."""
        self._recalls.labels("beside").inc(calls)

    def summarized(self, outcome: str) -> None:
        """A summary was wanted, with this outcome."""
        self._summaries.labels(self._word("summary", outcome)).inc()

    def summary_spent(self, spent: SummaryCost) -> None:
        """What was paid for a summary, whatever came of it."""
        fresh = max(0, spent.prompt - spent.cached - spent.written)
        bill = {"input": fresh, "cached": spent.cached, "written": spent.written, "output": spent.completion}
        for kind, tokens in bill.items():
            self._summary_tokens.labels(kind).inc(tokens)
        self._summary_dollars.inc(spent.dollars)

    def marker_in_argument(self) -> None:
        """A new write or edit argument contains one of our references."""
        self._markers.inc()

    def too_many(self, what: str) -> None:
        """A request was left as it came because it holds more messages, parts, calls or tools than are worked on."""
        self._too_many.labels(what).inc()

    def page(self) -> bytes:
        """All metrics, in the text format of Prometheus."""
        return generate_latest(self.registry)


class Telemetry:
    """The log and the metrics of one running Narrows."""

    def __init__(self, level: str = "info", format_: str = "auto", stream: TextIO | None = None) -> None:
        self.metrics = Metrics()
        self.log = logger(level, format_, sys.stderr if stream is None else stream)

    def request(self, record: RequestRecord) -> None:
        """Count and log one finished request."""
        self.metrics.request(record)
        log = self.log.info if record.route in ("chat", "count", "relay") else self.log.debug
        log("request", **asdict(record))

    def recalled(self, answered: int, refused: int, prices: Prices, usage: Usage | None) -> None:
        """Count a round that answered recall calls; what it cost is part of the bill, too."""
        dollars = prices.cost(usage).total if usage and prices.listed else None
        self.metrics.recalled(answered, refused, _bill(usage) if usage else {}, dollars)

    def billed(self, model: str, prices: Prices, usage: Usage | None, sent: int, original: int) -> None:
        """Count what one call cost: as billed, or the `sent` tokens as an estimate where the provider did not say.
        `original` are the tokens that the client sent; what these would have cost is not claimed."""
        if usage is None:
            self.metrics.billed(model, {"estimated": sent}, None)
            return
        bill, dollars = _bill(usage), prices.cost(usage).total if prices.listed else None
        self.metrics.billed(model, bill, dollars)
        self.log.debug("billed", model=model[:100], dollars=dollars, sent=sent, original=original, **bill)


def _bill(usage: Usage) -> dict[str, int]:
    return {"input": usage.uncached, "cached": usage.cached, "written": usage.written, "output": usage.completion}


class LineLogger(structlog.PrintLogger):
    """Writes lines for as long as somebody reads them: a closed log stops no request."""

    def msg(self, message: str) -> None:
        """One line."""
        with suppress(ValueError, OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def logger(level: str, format_: str, stream: TextIO) -> structlog.typing.FilteringBoundLogger:
    """A structured logger that writes to `stream`."""
    json = format_ == "json" or (format_ == "auto" and not stream.isatty())
    last: Callable[..., Any] = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    bound: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        LineLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _without_text,
            _one_line,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    return bound


def _without_text(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Log the name of an exception and where it was raised, innermost first: its text may quote a body."""
    exc_info = event.pop("exc_info", None)
    error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
    if exc_info and error is not None:
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        event["fault"] = type(error).__name__
        event["at"] = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
    return event


def _one_line(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Leave out empty fields, round times, and let no value start a line or move the cursor of a terminal."""
    for key, value in list(event.items()):
        if value == "" or value is None:
            del event[key]
        elif isinstance(value, float):
            event[key] = round(value, 3)
        elif isinstance(value, str) and not value.isprintable():
            event[key] = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    return event

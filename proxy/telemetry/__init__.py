"""Reports of Narrows about itself: one log line for each request, metrics, and traces.

Laws
  Only named fields are logged: never a body, never a header, never a credential, and of what a client wrote only the
  names of its model and its conversation, both bounded.
  Labels are bounded: whatever comes from outside is one of a few words or "other".
  No request waits for the log (log.py).
  A span has the attributes that spans.py names, and no others. Where nothing asks for traces nothing is imported.
"""

import os
import sys
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, TextIO

import structlog

from policies.model.summary_record import SummaryCost
from policies.money.prices import Usage
from proxy.telemetry.log import LogWriter, logger
from proxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from proxy.telemetry.spans import Tracing

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
QUIET = 60.0
"""Seconds without another of its kind after which a line is logged again that stands for a series."""


class Telemetry:
    """The log, the metrics and the traces of one running Narrows."""

    def __init__(self, level: str = "info", format_: str = "auto", stream: TextIO | None = None) -> None:
        self.metrics = Metrics()
        self.tracing: Tracing | None = None
        self.writer = LogWriter(format_, sys.stderr if stream is None else stream)
        self.log = logger(level, self.writer)
        self._last_shed: dict[str, float] = {}
        self._last_write_trouble = -QUIET

    def start(self) -> None:
        """Write lines in a thread from now on, until `close`, and send traces where these are asked for."""
        self.writer.start()
        self.tracing = open_tracing(os.environ, self.log)

    def close(self) -> None:
        if self.tracing is not None:
            self.tracing.close()
        self.writer.close()

    def shed(self, reason: str, **fields: int) -> None:
        """Count a request for which nothing new was planned, and log the first of a series."""
        self.metrics.count("shed", reason)
        now, before = monotonic(), self._last_shed.get(reason, -QUIET)
        self._last_shed[reason] = now
        if now - before >= QUIET:
            effect = "nothing new is planned; earlier edits stay"
            self.log.warning("shedding", reason=reason, effect=effect, **fields)

    def write_trouble(self, error: str) -> None:
        """Log, at most once a minute, that the store did not take a record again and again."""
        if monotonic() - self._last_write_trouble >= QUIET:
            self._last_write_trouble = monotonic()
            effect = "replies stay right; figures and texts wait to be stored, and some may be lost"
            self.log.warning("write_trouble", error=error, effect=effect)

    def recalled(self, answered: int, refused: int, usage: Usage | None) -> None:
        """Count a round that answered recall calls; what it cost is part of the bill, too."""
        self.metrics.count("recalls", "answered", by=answered)
        self.metrics.count("recalls", "refused", by=refused)
        self.metrics.count("recall_rounds")
        for kind, tokens in _tokens(usage).items() if usage else ():
            self.metrics.count("recall_tokens", kind, by=tokens)

    def summary_spent(self, spent: SummaryCost) -> None:
        """Count the tokens that were paid for a summary, also for one that is not used."""
        usage = Usage(prompt=spent.prompt, completion=spent.completion, cached=spent.cached, written=spent.written)
        for kind, tokens in _tokens(usage).items():
            self.metrics.count("summary_tokens", kind, by=tokens)


def _tokens(usage: Usage) -> dict[str, int]:
    return {"input": usage.uncached, "cached": usage.cached, "written": usage.written, "output": usage.completion}


def open_tracing(environment: Mapping[str, str], log: structlog.typing.FilteringBoundLogger) -> "Tracing | None":
    """The traces that the variables ask for: spans by OTLP over HTTP, or nothing."""
    names = {name: environment.get(name, "").strip() for name in (*_ENDPOINTS, *_PROTOCOLS)}
    exporters = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_disabled or not ("otlp" in exporters.split(",") if exporters else any(names[name] for name in _ENDPOINTS)):
        return None
    protocol = next(filter(None, (names[name] for name in _PROTOCOLS)), "http/protobuf")
    if protocol != "http/protobuf":
        log.warning("tracing_off", protocol=protocol[:40], effect="set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf")
        return None
    try:
        from proxy.telemetry.spans import Tracing

        return Tracing(log)
    except ImportError:
        log.warning("tracing_off", effect='pip install "narrows[otel]", or set OTEL_SDK_DISABLED to true')
    except ValueError:  # its text may quote what a variable holds
        log.warning("tracing_off", effect="OpenTelemetry rejects the value of one of the OTEL_* variables; correct it")
    return None

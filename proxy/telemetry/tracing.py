"""Traces of requests, where the variables of OpenTelemetry ask for them: what a request tells its trace on its way.

Laws
  No content and no credential: a span has the attributes that spans.py names, and no others.
  Where nothing asks for traces nothing is imported, and a request calls what does nothing.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import structlog
from multidict import CIMultiDict, MultiMapping

from policies.money.prices import Usage

_NOTHING = nullcontext()
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class RequestTrace:
    """The trace of one request that goes upstream. This one is of nothing."""

    def plan(self) -> AbstractContextManager[object]:
        """The request is planned within."""
        return _NOTHING

    def recall(self) -> AbstractContextManager[object]:
        """A recall of the model is answered within."""
        return _NOTHING

    def call(self, host: str, api: str, model: str, headers: CIMultiDict[str]) -> None:
        """The upstream is asked, with these headers, which from now on name this call as their parent. `api`: ""
        where the request is relayed or counted."""

    def replied(self, status: int, error: str = "") -> None:
        """The head of the upstream's reply is here, or none came because of an error."""

    def round_over(self, usage: Usage | None) -> None:
        """The upstream's reply is over; what it was billed."""

    def end(self, fields: Mapping[str, Any], usage: Usage | None) -> None:
        """The request is over, and so is the last round."""


class Tracing:
    """Begins the trace of each request. This one begins none."""

    _nothing = RequestTrace()

    def request(self, method: str, route: str, headers: MultiMapping[str]) -> RequestTrace:
        """A request that came with these headers."""
        return self._nothing

    def close(self) -> None:
        """Send what is left, for a moment at most."""


def open_tracing(environment: Mapping[str, str], log: structlog.typing.FilteringBoundLogger) -> Tracing:
    """What the variables ask for: spans by OTLP over HTTP, or nothing."""
    names = {name: environment.get(name, "").strip() for name in (*_ENDPOINTS, *_PROTOCOLS)}
    exporters = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_disabled or not ("otlp" in exporters.split(",") if exporters else any(names[name] for name in _ENDPOINTS)):
        return Tracing()
    protocol = next(filter(None, (names[name] for name in _PROTOCOLS)), "http/protobuf")
    if protocol != "http/protobuf":
        log.warning("tracing_off", protocol=protocol[:40], effect="set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf")
        return Tracing()
    try:
        from proxy.telemetry.spans import OpenTelemetry

        return OpenTelemetry(log)
    except ImportError:
        log.warning("tracing_off", effect='pip install "narrows[otel]", or set OTEL_SDK_DISABLED to true')
    except ValueError:  # its text may quote what a variable holds
        log.warning("tracing_off", effect="OpenTelemetry rejects the value of one of the OTEL_* variables; correct it")
    return Tracing()

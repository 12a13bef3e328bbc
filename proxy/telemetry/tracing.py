"""Traces of requests, where the variables of OpenTelemetry ask for them.

Laws
  No content and no credential: a span has the attributes that spans.py names, and no others.
  Where nothing asks for traces nothing is imported, and a request has none.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from proxy.telemetry.spans import Tracing

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def open_tracing(environment: Mapping[str, str], log: structlog.typing.FilteringBoundLogger) -> "Tracing | None":
    """What the variables ask for: spans by OTLP over HTTP, or nothing."""
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

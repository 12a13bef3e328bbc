"""Spans by OpenTelemetry, sent by OTLP over HTTP. `OTEL_*` variables configure it, and nothing else does.

The names are those of the semantic conventions 1.41.0: of HTTP, and of generative AI (in development there). What these
have no name for begins with `narrows.`.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from threading import Thread
from time import monotonic
from typing import Any

import structlog
from multidict import CIMultiDict, MultiMapping
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from policies.dialects import DIALECTS
from policies.money.prices import Usage
from policies.tools.kinds import RECALL

METHOD, ROUTE, STATUS = "http.request.method", "http.route", "http.response.status_code"
ERROR, SCHEME, SERVER, PORT = "error.type", "url.scheme", "server.address", "server.port"
OPERATION, PROVIDER, MODEL = "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"
INPUT, OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHE_READ, CACHE_WRITTEN = "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_creation.input_tokens"
CONVERSATION, TOOL, TOOL_KIND = "gen_ai.conversation.id", "gen_ai.tool.name", "gen_ai.tool.type"
OWN = {
    "narrows.request.id": "request_id",
    "narrows.mode": "mode",
    "narrows.prefix": "prefix",
    "narrows.tenant": "tenant",
    "narrows.tokens.before": "before",
    "narrows.tokens.after": "after",
    "narrows.edits": "edits",
    "narrows.rounds": "rounds",
    "narrows.cost.usd": "paid",
    "narrows.cost.baseline.usd": "baseline",
    CONVERSATION: "conversation",
}
"""The attributes of the span of a request, by the fields of its line in the log."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_W3C = TraceContextTextMapPropagator()
_PARENTS = ("traceparent", "tracestate")
_LONGEST = 100
_CLOSING_SECONDS = 2.0
_QUIET = 60.0


class Tracing:
    """Spans go out in batches, from a thread; what waits is bounded, and trouble with it is one line a minute."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        library = logging.getLogger("opentelemetry")
        library.propagate = False
        library.handlers = [_Troubles(log)]
        own = {"service.name": "narrows", "service.version": version("narrows")}
        resource = Resource.create({**own, **OTELResourceDetector().detect().attributes})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("narrows", version("narrows"))

    def request(self, method: str, route: str, headers: MultiMapping[str]) -> "RequestSpans":
        return RequestSpans(self._tracer, method if method in _METHODS else "_OTHER", route, headers)

    def close(self) -> None:
        closing = Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        closing.start()
        closing.join(_CLOSING_SECONDS)


class RequestSpans:
    def __init__(self, tracer: Tracer, method: str, route: str, headers: MultiMapping[str]) -> None:
        carrier = {name: ",".join(headers.getall(name)) for name in _PARENTS if name in headers}
        self._tracer = tracer
        self._method = method
        self._server = tracer.start_span(
            f"{'HTTP' if method == '_OTHER' else method} {route}",
            _W3C.extract(carrier, Context()),
            SpanKind.SERVER,
            {METHOD: method, ROUTE: route, SCHEME: "http"},
        )
        self._within = set_span_in_context(self._server, Context())
        self._client: Span | None = None

    def plan(self) -> AbstractContextManager[object]:
        return self._part("narrows.plan", {})

    def recall(self) -> AbstractContextManager[object]:
        """A recall of the model is answered within."""
        return self._part(f"execute_tool {RECALL}", {OPERATION: "execute_tool", TOOL: RECALL, TOOL_KIND: "datastore"})

    @contextmanager
    def _part(self, name: str, attributes: Mapping[str, str]) -> Iterator[None]:
        span = self._tracer.start_span(name, self._within, SpanKind.INTERNAL, attributes)
        try:
            yield
        except BaseException as error:  # its name alone: its text may quote a body
            _note(span, 0, type(error).__name__, True)
            raise
        finally:
            span.end()

    def call(self, host: str, api: str, model: str, headers: CIMultiDict[str]) -> None:
        """The upstream is asked, with these headers, which from now on name this call as their parent. `api`: ""
        where the request is relayed or counted."""
        self.round_over(None)
        address, _, port = host.rpartition(":")
        attributes: dict[str, str | int] = {METHOD: self._method, SERVER: address or host}
        if address and port.isdecimal():
            attributes[PORT] = int(port)
        if api:
            attributes |= {OPERATION: "chat", PROVIDER: DIALECTS[api].provider}
        if model:
            attributes[MODEL] = model[:_LONGEST]
        name = f"chat {model[:_LONGEST]}".rstrip() if api else self._method
        self._client = self._tracer.start_span(name, self._within, SpanKind.CLIENT, attributes)
        for parent in _PARENTS:
            headers.popall(parent, None)
        _W3C.inject(headers, set_span_in_context(self._client, Context()))

    def replied(self, status: int, error: str = "") -> None:
        if self._client is not None:
            _note(self._client, status, error, status >= 400)

    def round_over(self, usage: Usage | None) -> None:
        """The upstream's reply is over, and was billed so."""
        client, self._client = self._client, None
        if client is None:
            return
        if usage is not None:
            client.set_attributes(
                {INPUT: usage.prompt, OUTPUT: usage.completion, CACHE_READ: usage.cached, CACHE_WRITTEN: usage.written}
            )
        client.end()

    def end(self, fields: Mapping[str, Any], usage: Usage | None) -> None:
        self.round_over(usage)
        values = {name: fields[field] for name, field in OWN.items()}
        self._server.set_attributes({name: value for name, value in values.items() if value})
        _note(self._server, fields["status"], fields["trouble"], fields["status"] >= 500)
        self._server.end()


def _note(span: Span, status: int, error: str, failed: bool) -> None:
    """Say how it ended. `failed`: whether this status is a failure for whoever this span is of."""
    if status:
        span.set_attribute(STATUS, status)
    if error or failed:
        span.set_attribute(ERROR, error or str(status))
        span.set_status(StatusCode.ERROR)


class _Troubles(logging.Handler):
    """Logs the library's own troubles: where they are from, and nothing that they quote."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._last = -_QUIET

    def emit(self, record: logging.LogRecord) -> None:
        if monotonic() - self._last >= _QUIET:
            self._last = monotonic()
            self._log.warning("tracing_trouble", at=f"{record.module}:{record.lineno}", effect="spans may be lost")

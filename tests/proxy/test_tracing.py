"""Traces: the spans of a request at a real receiver of OTLP, what goes upstream of them, and what is in none."""

import asyncio
import base64
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import quote

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes, url_attributes

from policies.presets import PRESETS, Preset
from proxy.lab.provider import Say
from proxy.telemetry import Telemetry, open_tracing, spans
from tests.kit.recalling import KEEPING, TOOLS, hiding, plays, recall, wants
from tests.kit.stage import Stage

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FROM_CLIENT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=opaque"}
SECRET, WORDS = "sk-canary-7f3a99", "heard-only-in-the-prompt"


class Collector:
    """Takes in what is exported, on a socket of its own."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing on stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def resource(self) -> Mapping[str, Any]:
        return plain(ExportTraceServiceRequest.FromString(self.bodies[0]).resource_spans[0].resource.attributes)

    def spans(self) -> dict[str, list[Any]]:
        """All spans, by their names, in the order in which they began."""
        parsed = map(ExportTraceServiceRequest.FromString, self.bodies)
        every = [span for each in parsed for of in each.resource_spans for at in of.scope_spans for span in at.spans]
        named: dict[str, list[Any]] = {}
        for span in sorted(every, key=lambda span: span.start_time_unix_nano):
            named.setdefault(span.name, []).append(span)
        return named


def plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A receiver that the variables name."""
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server.server_port}")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


async def asked(stage: Stage, stream: bool = False) -> tuple[str, str]:
    """A request with a recall in its reply, its page of metrics, and what a client can read of it; all is sent."""
    app = await stage.start(preset="keeping", metrics_token="for-metrics")
    stage.provider.answer = plays(wants("Look. "), lambda r: Say("Seen.", [recall("000000", id_="b")]), Say("Done."))
    messages = [*hiding(), {"role": "user", "content": WORDS}]
    body = json.dumps({"model": "m", "messages": messages, "tools": TOOLS, "stream": stream}).encode()
    exchange = await stage.post(app, body, ("Authorization", f"Bearer {SECRET}"), *FROM_CLIENT.items())
    assert exchange.status == 200
    page = app.telemetry.metrics.page().decode()
    await asyncio.sleep(0)  # the request is over once its task has ended
    await asyncio.to_thread(app.telemetry.tracing.close)
    return page, exchange.reply.decode()


@pytest.fixture(autouse=True)
def _keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "keeping", Preset(KEEPING))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_its_plan_its_rounds_and_its_recalls_are_one_trace(
    stage: Stage, collector: Collector, stream: bool
) -> None:
    await asked(stage, stream)
    named = collector.spans()
    rounds = stage.provider.requests
    kinds = {"POST /v1/chat/completions": 1, "narrows.plan": 1, "chat m": 3, "execute_tool narrows_recall": 2}
    assert {name: len(spans) for name, spans in named.items()} == kinds
    (server,) = named["POST /v1/chat/completions"]
    assert (server.trace_id.hex(), server.parent_span_id.hex()) == (TRACE, PARENT)
    assert {span.parent_span_id for name in [*kinds][1:] for span in named[name]} == {server.span_id}
    forwarded = [f"00-{TRACE}-{span.span_id.hex()}-01" for span in named["chat m"]]
    assert [received.headers["traceparent"] for received in rounds] == forwarded
    assert {received.headers["tracestate"] for received in rounds} == {"vendor=opaque"}
    for span, received in zip(named["chat m"], rounds, strict=True):
        says = plain(span.attributes)
        assert (says["gen_ai.operation.name"], says["gen_ai.provider.name"]) == ("chat", "openai")
        assert (says["server.address"], says["http.response.status_code"]) == ("127.0.0.1", 200)
        if not stream:
            assert received.usage is not None
            usage = (received.usage.prompt, received.usage.completion, received.usage.cached)
            names = ("input_tokens", "output_tokens", "cache_read.input_tokens")
            assert tuple(says[f"gen_ai.usage.{name}"] for name in names) == usage
    says = plain(server.attributes)
    assert (says["narrows.mode"], says["narrows.rounds"]) == ("compacted", 2)
    assert {"narrows.request.id", "narrows.cost.usd", "narrows.cost.baseline.usd"} <= says.keys()
    assert collector.resource["service.name"] == "narrows"
    assert collector.resource["deployment.environment.name"] == "test"


async def test_x4_no_credential_is_in_traces_or_metrics_and_no_content_either(
    stage: Stage, collector: Collector
) -> None:
    page, reply = await asked(stage)
    raw = SECRET.encode()
    encoded = [raw, raw.hex().encode(), quote(SECRET, safe="").encode()]
    encoded += [base64.b64encode(b"x" * shift + raw)[4:-4] for shift in range(3)]
    exported = b"".join(collector.bodies)
    assert len(exported) > 500
    for haystack in (exported, page.encode(), reply.encode()):
        assert not [each for each in encoded if each in haystack]
    assert b"for-metrics" not in exported + page.encode()
    assert WORDS.encode() not in exported + page.encode()
    assert not [text for text in ("Seen.", "Look. ", "case 7") if text.encode() in exported]


async def test_an_upstream_that_fails_is_an_error_of_its_span(stage: Stage, collector: Collector) -> None:
    app = await stage.start(upstream="http://127.0.0.1:9/v1")
    url = app.base_url + "/chat/completions"
    async with stage.client.post(url, json={"model": "m", "messages": []}) as reply:
        assert reply.status == 502
    async with stage.client.get(app.base_url + "/files/file-private") as reply:
        assert reply.status == 502
    await asyncio.to_thread(app.telemetry.tracing.close)
    named = collector.spans()
    for name in ("POST /v1/chat/completions", "chat", "GET /v1/*", "GET"):
        (span,) = named[name]
        assert plain(span.attributes)["error.type"] == "upstream_unreachable"
    assert b"file-private" not in b"".join(collector.bodies)


def test_the_names_are_those_of_the_conventions() -> None:
    modules = (gen_ai_attributes, error_attributes, http_attributes, server_attributes, url_attributes)
    known = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    names = {value for name, value in vars(spans).items() if name.isupper() and isinstance(value, str) and "." in value}
    assert len(names) > 15
    assert {name for name in {*names, *spans.OWN} if not name.startswith("narrows.")} <= known


async def test_without_the_variables_nothing_is_loaded_and_the_clients_trace_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "proxy.telemetry.spans", None)  # who imports it fails
    app = await stage.start()
    assert app.telemetry.tracing is None
    await stage.ask(app, [{"role": "user", "content": "x"}], *FROM_CLIENT.items())
    headers = stage.provider.requests[-1].headers
    assert {name: headers[name] for name in FROM_CLIENT} == FROM_CLIENT


@pytest.mark.parametrize(
    ("variables", "hint"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "narrows[otel]"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "narrows[otel]"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, None),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, None),
        ({"OTEL_SERVICE_NAME": "narrows"}, None),
    ],
)
def test_who_asks_for_traces_that_there_cannot_be_is_told_once(
    variables: Mapping[str, str], hint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "proxy.telemetry.spans", None)
    stream = io.StringIO()
    assert open_tracing(variables, Telemetry("info", "json", stream).log) is None
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == (["tracing_off"] if hint else [])
    assert not hint or hint in lines[0]["effect"]


def test_a_variable_that_the_library_does_not_take_is_no_reason_to_serve_nobody(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    stream = io.StringIO()
    assert open_tracing(os.environ, Telemetry("info", "json", stream).log) is None
    assert "OTEL_*" in json.loads(stream.getvalue())["effect"]


async def test_a_collector_in_trouble_is_a_line_in_the_log_and_nobody_waits_for_it(
    stage: Stage, collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    collector.server.shutdown()
    collector.server.server_close()
    app = await stage.start(log_level="warning", log_format="json")
    for _ in range(3):
        exchange = await stage.ask(app, [{"role": "user", "content": "x"}])
        assert exchange.status == 200
    with suppress(RuntimeError):
        await asyncio.to_thread(app.telemetry.tracing.close)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["tracing_trouble"]

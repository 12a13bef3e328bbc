"""What is reported of each request: its line in the log, its metrics, and its trace, where traces are asked for."""

from proxy.config.routes import ROUTES
from proxy.kernel.addons import Addon
from proxy.kernel.exchange import Exchange
from proxy.kernel.services import Services
from proxy.telemetry import Telemetry
from proxy.telemetry.record import RequestRecord


class RequestReports(Addon):
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    async def admit(self, exchange: Exchange) -> None:
        path = f"/v1{exchange.rest.partition('?')[0]}"
        route, request = path if path in ROUTES else "/v1/*", exchange.request
        exchange.trace = self._telemetry.tracing.request(request.method, route, request.headers)

    async def finished(self, exchange: Exchange) -> None:
        record, telemetry = record_of(exchange), self._telemetry
        is_read = exchange.kind == "chat" and exchange.reader is not None
        exchange.trace.end(record, exchange.reader.usage if is_read and exchange.reader else None)
        count = telemetry.metrics.count
        count("requests", record.mode, f"{record.status // 100}xx")
        if record.trouble:
            count("trouble", record.trouble)
        if record.route == "chat" and record.prefix:
            count("prefix", record.prefix)
            telemetry.metrics.observe("overhead_seconds", record.added_ms / 1000)
        telemetry.report(record)


def record_of(exchange: Exchange) -> RequestRecord:
    """The fields of the line of a request."""
    access, bill = exchange.access if exchange.is_api else None, exchange.bill
    record = RequestRecord(
        method=exchange.request.method,
        route=exchange.kind,
        request_id=exchange.id,
        tenant=exchange.tenant,
        key=access.key.name if access is not None and access.key is not None else "",
        upstream=exchange.upstream,
        status=exchange.status,
        rounds=max(0, len(exchange.rounds) - 1),
        received=exchange.received,
        replied=exchange.replied,
        added_ms=exchange.added_ms,
        ms=exchange.ms,
        trouble=exchange.trouble,
        unread=exchange.unread,
    )
    record.read_headers(exchange.headers)
    record.read_bill(bill)
    return record


async def start(services: Services) -> RequestReports:
    return RequestReports(services.telemetry)

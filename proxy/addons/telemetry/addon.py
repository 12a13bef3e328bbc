"""Reports of each request: its line in the log, its metrics, and its trace, where traces are asked for."""

from time import time
from typing import Any

from proxy.config.routes import ROUTES
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.services import Services
from proxy.telemetry import Telemetry

_MISSES = frozenset(f"{each}_changed" for each in ("model", "system", "tools", "messages")) | {
    "previous_message_not_found",
    "unavailable",
}
"""Anthropic, "Cache diagnostics" (beta): why a prompt was not in the cache. No other word becomes a label."""


class RequestReports(Addon):
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._logs_info, self._logs_debug = telemetry.log.is_enabled_for(20), telemetry.log.is_enabled_for(10)

    async def finished(self, exchange: Exchange) -> None:
        line, metrics = fields_of(exchange), self._telemetry.metrics
        usage = exchange.reader.usage if exchange.kind == "chat" and exchange.reader is not None else None
        if exchange.trace is not None:
            exchange.trace.end(line, usage)
        metrics.count("requests", line["mode"], f"{exchange.status // 100}xx")
        if exchange.reader is not None and (reason := exchange.reader.cache_miss):
            metrics.count("cache_misses", reason if reason in _MISSES else "other")
        if exchange.trouble:
            metrics.count("trouble", exchange.trouble)
        if exchange.kind == "chat" and line["prefix"]:
            metrics.count("prefix", line["prefix"])
            metrics.observe("overhead_seconds", exchange.added_ms / 1000)
        is_page = line["route"] not in ("chat", "count", "relay")
        if self._logs_debug if is_page else self._logs_info:
            level = "debug" if is_page else "info"
            self._telemetry.writer.put({**line, "event": "request", "level": level, "timestamp": time()})


class TracedReports(RequestReports):
    """Begins a trace of each request, too."""

    async def admit(self, exchange: Exchange) -> None:
        if (tracing := self._telemetry.tracing) is not None:
            path = f"/v1{exchange.rest.partition('?')[0]}"
            route, request = path if path in ROUTES else "/v1/*", exchange.request
            exchange.trace = tracing.request(request.method, route, request.headers)


def fields_of(exchange: Exchange) -> dict[str, Any]:
    access, says, bill = exchange.access if exchange.is_api else None, exchange.headers, exchange.bill
    sums = bill.sums if bill is not None and not bill.sums.unpriced else None
    return {
        "method": exchange.request.method,
        "route": exchange.kind,
        "request_id": exchange.request_id,
        "mode": says.get("x-narrows-mode", "relayed"),
        "prefix": says.get("x-narrows-prefix", ""),
        "tenant": exchange.tenant,
        "key": access.key.name if access is not None and access.key is not None else "",
        "upstream": exchange.upstream,
        "conversation": says.get("x-narrows-conversation", ""),
        "status": exchange.status,
        "before": int(says.get("x-narrows-tokens-before", 0)),
        "after": int(says.get("x-narrows-tokens-after", 0)),
        "edits": says.get("x-narrows-edits", ""),
        "summary": says.get("x-narrows-summary", ""),
        "rounds": max(0, len(exchange.rounds) - 1),
        "model": bill.labels.model if bill is not None else "",
        "paid": sums.paid if sums is not None else None,
        "baseline": sums.baseline if sums is not None else None,
        "saved": sums.saved if sums is not None else None,
        "received": exchange.received,
        "replied": exchange.replied,
        "added_ms": exchange.added_ms,
        "ms": exchange.ms,
        "trouble": exchange.trouble,
        "unread": exchange.unread,
    }


async def start(services: Services) -> RequestReports:
    reports = RequestReports if services.telemetry.tracing is None else TracedReports
    return reports(services.telemetry)

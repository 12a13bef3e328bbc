"""Narrows' own pages: for supervisors, for Prometheus, and for people who look up what was left out or summarized."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from proxy.addons.pages.answers import (
    CONVERSATIONS,
    READ,
    PageParts,
    allow_only,
    drawn_page,
    json_page,
    text_page,
    wants_page,
)
from proxy.addons.pages.conversations import LIVE_PATHS, ArtifactPages, ConversationPages, LivePages, Login, Page
from proxy.addons.pages.summaries import SummaryPages
from proxy.config import ConfigurationError, Settings
from proxy.config.clients import CLIENTS, DEFAULT_ADDRESS
from proxy.drawing.html import document, element, section
from proxy.errors import ApiError
from proxy.identity.who import has_other_name, who
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.services import CompactionServices, Controls, Services
from proxy.kernel.wire.downstream import ID_HEADER, SERVER, header_safe
from proxy.memory import conversation_id
from proxy.telemetry import Telemetry
from proxy.usage.report import UsageQuery, as_csv, as_json, read_usage

if TYPE_CHECKING:
    from proxy.addons.archive.addon import Archive
    from proxy.addons.archive.texts import Originals

_RELOAD, USAGE = "/narrows/reload", "/narrows/usage"
_ORIGINALS, _ARTIFACTS = "/narrows/originals/", "/narrows/artifacts/"
_FOR_ALL = ("/", "/healthz", "/readyz")
_PATHS = (*_FOR_ALL, "/metrics", _RELOAD, CONVERSATIONS, USAGE, *LIVE_PATHS)
_BELOW = (_ORIGINALS, _ARTIFACTS, CONVERSATIONS + "/")


@dataclass(slots=True)
class AdminPages(Addon):
    """Answers requests to Narrows itself. `recognize` finds out who asks."""

    settings: Settings
    telemetry: Telemetry
    secret: bytes = field(repr=False)
    controls: Controls
    recognize: Callable[[web.BaseRequest], Awaitable[None]] | None = None
    originals: "Originals | None" = None
    conversations: ConversationPages | None = None

    async def admit(self, exchange: Exchange) -> None:
        if exchange.path in _PATHS or exchange.path.startswith(_BELOW):
            exchange.kind, exchange.answer = "page", partial(self._answer, exchange)

    async def _answer(self, exchange: Exchange) -> web.Response:
        """The page, with what every response of ours says. Raises ApiError."""
        if self.recognize is not None and exchange.path not in _FOR_ALL:
            await self.recognize(exchange.request)
        response = await self.page(exchange.request, exchange.path)
        response.headers.update(SERVER)
        response.headers[ID_HEADER] = exchange.id
        exchange.status = response.status
        return response

    async def page(self, request: web.BaseRequest, path: str) -> web.Response:
        """The page at a path. Raises ApiError."""
        if path == "/healthz":
            return web.json_response({"status": "ok"})
        if path == "/readyz":
            state, status = ("ready", 200) if self.controls.ready else ("shutting down", 503)
            return web.json_response({"status": state}, status=status)
        if has_other_name(request, self.settings.host):
            message = "Narrows does not serve this host name: use its address, `localhost`, or the name in `host`."
            raise ApiError(403, message, "forbidden")
        if path == "/":
            return welcome(request)
        if path == "/metrics":
            who(request, self.settings, self.secret).permit("metrics", self.settings)
            scrape, page = self.controls.scrape, self.telemetry.metrics.page
            metrics = await (scrape() if scrape is not None else asyncio.to_thread(page))
            return web.Response(body=metrics, headers={"Content-Type": CONTENT_TYPE_LATEST})
        if path == _RELOAD:
            return await self._reload(request)
        if path.startswith(_ORIGINALS):
            return await self._original(request, path.removeprefix(_ORIGINALS))
        if self.conversations is None:
            raise ApiError(404, "Conversations are not stored, because `mode` is off.", "no_conversations")
        if path.startswith(_ARTIFACTS):
            return await self.conversations.artifacts.text(request, path.removeprefix(_ARTIFACTS))
        try:
            if path == USAGE:
                return await usage_page(self.conversations.parts, request)
            if path in LIVE_PATHS:
                return await self.conversations.live.answer(request, path)
            return await self.conversations.answer(request)
        except ApiError as error:
            if not wants_page(request):
                raise
            return self.conversations.live.refused(request, error)

    async def _reload(self, request: web.BaseRequest) -> web.Response:
        """Have the settings read anew. A cookie is not enough for that."""
        allow_only(request, ("POST",))
        who(request, self.settings, self.secret).permit("reload", self.settings)
        if self.controls.reload is None:
            raise ApiError(404, "Only `narrows serve` can reload settings; restart this program instead.", "not_found")
        try:
            digest = await self.controls.reload()
        except ConfigurationError as error:
            raise ApiError(400, str(error), "bad_configuration") from error
        if not digest:
            return web.json_response({"status": "reloading"}, status=202)
        return web.json_response({"status": "reloaded", "settings": digest})

    async def _original(self, request: web.BaseRequest, ref: str) -> web.Response:
        if self.originals is None:
            message = "Originals are not stored: `originals` is not set, or `mode` is off."
            raise ApiError(404, message, "no_originals")
        if request.method not in READ:
            headers = {"Allow": "GET, HEAD"}
            raise ApiError(405, "Originals can only be read; use GET.", "method_not_allowed", headers=headers)
        identity = who(request, self.settings, self.secret)
        identity.permit("originals", self.settings)
        conversation = conversation_id(request.query.get("conversation", "")) or None
        original = await self.originals.find(identity.tenant, identity.owner, ref, conversation)
        headers = {"x-narrows-conversation": header_safe(original.conversation)}
        return text_page(original.text, "text/plain; charset=utf-8", headers)


async def usage_page(parts: PageParts, request: web.BaseRequest) -> web.Response:
    """The report that `narrows usage` prints, to whoever may see the figures. Raises ApiError."""
    allow_only(request, READ)
    grant = parts.permit(request, "figures")
    try:
        fields = dict(parse_qsl(request.query_string, keep_blank_values=True, max_num_fields=8))
        if unknown := fields.keys() - {"by", "since"}:
            raise ValueError(f"{min(unknown)!r} is not a parameter of this page; it takes by and since")
        query = UsageQuery.read(fields.get("by", ""), fields.get("since", ""), parts.clock())
    except ValueError as error:
        raise ApiError(400, f"{error}.", "bad_parameter") from error
    query = replace(query, tenant=grant.tenant, owner=grant.owner)
    report = await parts.ask("usage", read_usage(parts.store, query))
    if "text/csv" not in request.headers.get("Accept", ""):
        return json_page(await asyncio.to_thread(as_json, report))
    text = await asyncio.to_thread(as_csv, report)
    return text_page(text.encode(), "text/csv; charset=utf-8", {"Vary": "Accept"})


# --- the page at `/`: what answers here, and how a client is pointed at it ---
# Law: it is for everybody, so it says nothing of this Narrows: no version, no upstream, no figure, no setting.

_HOST = re.compile(r"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?")
"""A Host that can stand in a line to paste; no other one is repeated."""
_WHAT = (
    "This is Narrows, a proxy for the APIs of language models. It makes long conversations shorter on their way, and "
    "passes on everything else as it is."
)
_HOW = "Point a client here with one of these lines. Its API key stays the same, unless you were given one for here."
_COLUMNS = 80
_CLIENTS = ("openai", "anthropic", "codex")
_NEXT = {"/narrows/": "what was saved, for those who may see it", "/healthz": "whether it runs"}


def welcome(request: web.BaseRequest) -> web.Response:
    """The page: for a browser as HTML, else as text. Raises ApiError."""
    allow_only(request, READ)
    address = _address(request.headers)
    lines = [(CLIENTS[name].about, line) for name in _CLIENTS for line in CLIENTS[name].lines(address, {})]
    if wants_page(request):
        pasted = [(element("p", f"{about}:"), element("pre", line)) for about, line in lines]
        pages = [element("p", element("a", path, href=path), f": {what}") for path, what in _NEXT.items()]
        clients = section("Point a client here", element("p", _HOW), pasted)
        head = (element("h1", "Narrows"), element("p", _WHAT))
        return drawn_page(document("Narrows", *head, clients, section("Pages", pages)))
    paste = "".join(f"\n# {about}\n{line}\n" for about, line in lines)
    after = "".join(f"{address}{path}  {what}\n" for path, what in _NEXT.items())
    return drawn_page(f"{fill(_WHAT, _COLUMNS)}\n\n{fill(_HOW, _COLUMNS)}\n{paste}\n{after}", kind="text/plain")


def _address(headers: Mapping[str, str]) -> str:
    host = headers.get("Host", "")
    if not _HOST.fullmatch(host):
        return DEFAULT_ADDRESS
    return f"{'https' if headers.get('X-Forwarded-Proto', '').lower() == 'https' else 'http'}://{host}"


# --- the start, with what other addons store ---


async def start(services: Services) -> AdminPages:
    gate, archive = services.opened.get("access"), services.opened.get("archive")
    pages = AdminPages(services.settings, services.telemetry, services.secret, services.controls)
    pages.recognize = partial(gate.enter, is_page=True) if gate is not None else None
    pages.originals = archive.originals if archive is not None else None
    if services.compaction is not None:
        pages.conversations = _conversations(services, services.compaction, archive)
    return pages


def _conversations(services: Services, compaction: CompactionServices, archive: "Archive | None") -> ConversationPages:
    settings, access, key_limits = services.settings, compaction.access, services.opened.get("limits")
    limits = key_limits.limits if key_limits is not None else None
    parts = PageParts(settings, access.store, services.telemetry, services.secret, access.clock)
    cached, maker, parser, payments = compaction.cached_store, compaction.maker, compaction.parser, compaction.payments
    summaries = SummaryPages(parts, cached, maker, parser, payments, limits)
    artifacts = ArtifactPages(parts, archive.artifacts if archive is not None else None)
    live = LivePages(parts, Login(settings, services.secret), archive.originals if archive is not None else None)
    log_pages: Mapping[str, Page] = dict.fromkeys(("history", "requests", "requests/", "session", "changes"), _no_log)
    if archive is not None and archive.message_log is not None:
        from proxy.addons.pages.log_pages import LogPages  # it reads what the archive has written

        log_pages = LogPages(parts).table
    return ConversationPages(parts, compaction.deletion, summaries, artifacts, live, log_pages)


async def _no_log(request: web.BaseRequest, name: str) -> web.Response:
    raise ApiError(404, "No log is stored: `history` is not set, or `mode` is off.", "no_history")

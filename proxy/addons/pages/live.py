"""The pages of figures, for browsers and as JSON: the live page, the list of conversations, and one conversation.

Laws
  Whoever asks sees the figures that are granted to it; what is not there for it is answered like what never was.
  A page is drawn in a thread, so that no request waits for it.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from aiohttp import web

from proxy.addons.pages.answers import PRIVATE, PageParts, json_page, nothing
from proxy.addons.pages.conversation_page import conversation_page
from proxy.addons.pages.conversation_view import ConversationView, Reader, conversation_view, view_json
from proxy.addons.pages.login import HOME, Login
from proxy.addons.pages.overview import imprint_json, list_json, newest, overview, overview_json
from proxy.addons.pages.overview_page import list_page, overview_page
from proxy.addons.pages.targets import READ, allow_only
from proxy.drawing.html import Imprint, policy
from proxy.errors import ApiError
from proxy.identity.who import COOKIE
from proxy.memory import Key

if TYPE_CHECKING:
    from proxy.addons.archive.texts import Originals

LIVE = HOME.rstrip("/")
PATHS = (LIVE, f"{LIVE}/login", f"{LIVE}/logout")
_MOST, _PAGE = 500, 50
"""Conversations in one list, at most, and where `most` does not say."""


@dataclass(frozen=True, slots=True)
class LivePages:
    """Answers requests for figures."""

    parts: PageParts
    login: Login
    originals: "Originals | None"
    version: str

    async def answer(self, request: web.BaseRequest, path: str) -> web.Response:
        """The page at one of `PATHS`. Raises ApiError."""
        if path != LIVE:
            return await self._log_in_or_out(request, path)
        allow_only(request, READ)
        if request.query_string:
            raise ApiError(400, "This page takes no parameters.", "bad_parameter")
        view = await overview(self.parts, self.parts.permit(request, "figures"))
        if prefers_json(request):
            return json_page(await asyncio.to_thread(overview_json, view, self.version))
        return await self._drawn(request, lambda: overview_page(view, self.version, is_logged_in(request)))

    async def listed(self, request: web.BaseRequest) -> web.Response:
        """Conversations, the newest first. Raises ApiError."""
        grant = self.parts.permit(request, "figures")
        before, most = _place(request.query_string)
        rows, following = await newest(self.parts, grant, before, most)
        whose = "all tenants" if grant.tenant is None else "the requests of your credential"
        imprint = Imprint(self.parts.clock(), self.version, f"{len(rows):,} conversations of {whose}, newest first")
        if not wants_page(request):
            head = imprint_json("Narrows: conversations", imprint.at, self.version, imprint.covers)
            return json_page({**head, **list_json(rows, following)})
        return await self._drawn(request, lambda: list_page(rows, following, imprint, is_logged_in(request)))

    async def conversation(self, request: web.BaseRequest, name: str) -> web.Response:
        """One conversation, request by request, as a page. Raises ApiError."""
        view = await self._view(request, name)
        if view is None:
            raise nothing()
        return await self._drawn(request, lambda: conversation_page(view, self.version, is_logged_in(request)))

    async def conversation_json(self, request: web.BaseRequest, name: str) -> dict[str, object]:
        """One conversation, request by request, as JSON; empty where there is nothing. Raises ApiError where the store
        is in trouble."""
        view = await self._view(request, name)
        return await asyncio.to_thread(view_json, view, self.version) if view is not None else {}

    def key(self, request: web.BaseRequest, name: str) -> Key:
        """The conversation: of the tenant that is named, or of the caller's."""
        tenant = request.query.get("tenant")
        if tenant is None:
            self.parts.permit(request, "conversations")
            tenant = self.parts.who(request).tenant
        return Key(tenant, name)

    async def _view(self, request: web.BaseRequest, name: str) -> ConversationView | None:
        return await conversation_view(self.parts, self.originals, self.key(request, name), self.reader(request))

    def reader(self, request: web.BaseRequest) -> Reader:
        """Who asks. Raises ApiError where nothing proves it."""
        identity = self.parts.who(request)
        texts = identity.may("conversations", self.parts.settings)
        return Reader(identity.permit("figures", self.parts.settings), texts, identity.owner)

    def refused(self, request: web.BaseRequest, error: ApiError) -> web.Response:
        """An error, for people: with the form to log in where that would help."""
        imprint = Imprint(self.parts.clock(), self.version, "no figures")
        has_form = self.login.helps(request, error)
        return _page(self.login.page(imprint, error, has_form), has_form, error.status, dict(error.headers))

    async def _drawn(self, request: web.BaseRequest, draw: Callable[[], str]) -> web.Response:
        return _page(await asyncio.to_thread(draw), is_logged_in(request))

    async def _log_in_or_out(self, request: web.BaseRequest, path: str) -> web.Response:
        return await (self.login.log_in(request) if path.endswith("/login") else self.login.log_out(request))


def wants_page(request: web.BaseRequest) -> bool:
    """Whether the answer is for a browser; whoever does not say so gets JSON."""
    return "text/html" in request.headers.get("Accept", "")


def prefers_json(request: web.BaseRequest) -> bool:
    return "application/json" in request.headers.get("Accept", "") and not wants_page(request)


def is_logged_in(request: web.BaseRequest) -> bool:
    """Whether the browser has a cookie that it may give back."""
    return COOKIE in request.cookies


def _place(query: str) -> tuple[float | None, int]:
    """Where a list begins, and how long it is. Raises ApiError."""
    fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=8))
    try:
        before = float(fields.pop("before")) if "before" in fields else None
        most = int(fields.pop("most", _PAGE))
    except ValueError as error:
        raise ApiError(
            400, "`before` must be the `next` of another list, and `most` a number.", "bad_parameter"
        ) from error
    if fields or not 1 <= most <= _MOST or (before is not None and not math.isfinite(before)):
        message = f"This page takes only `before`, and `most` from 1 to {_MOST}."
        raise ApiError(400, message, "bad_parameter")
    return before, most


def _page(text: str, has_forms: bool, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A page for one reader."""
    own = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": f"{policy(has_forms)}; frame-ancestors 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "same-origin" if has_forms else "no-referrer",
        "Vary": "Accept",
        **PRIVATE,
    }
    return web.Response(body=text.encode(), status=status, headers={**own, **(headers or {})})

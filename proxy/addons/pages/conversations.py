"""The pages of figures and of conversations, for browsers and as JSON: the live page, lists, one conversation and what
belongs to it, outputs of tools; and deletion.

Laws
  A caller proves who it is, as the guards in `proxy.identity.who` say, and sees what is granted to it.
  What is missing, empty or owned by somebody else is answered in the same words.
  A page is drawn in a thread, so that no request waits for it.
  The `admin_token` goes in the body of a request, never in an address; a form of another site is refused. Wrong tokens
  cost the same however wrong they are, and few are looked at in a minute.
"""

import asyncio
import hmac
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, parse_qsl

from aiohttp import web
from cachetools import TTLCache

from proxy.addons.pages.answers import (
    CONVERSATIONS,
    PRIVATE,
    READ,
    PageParts,
    allow_only,
    drawn_page,
    json_page,
    message_of,
    moment,
    no_page,
    nothing,
    parse_target,
    text_page,
    wants_page,
)
from proxy.addons.pages.conversation import ConversationView, Reader, conversation_page, conversation_view, view_json
from proxy.addons.pages.overview import (
    HOME,
    imprint_json,
    list_json,
    list_page,
    newest,
    overview,
    overview_json,
    overview_page,
)
from proxy.addons.pages.summaries import SummaryPages
from proxy.config import Settings
from proxy.drawing.html import Imprint, Markup, element, framed
from proxy.errors import ApiError
from proxy.identity.who import COOKIE, COOKIE_SECONDS, admin_cookie, who
from proxy.kernel.deletion import Deletion
from proxy.kernel.wire.downstream import Upload
from proxy.memory import ARTIFACTS, Key, StoredText, conversation_id
from proxy.memory.forgetting import Scope, sent_with

if TYPE_CHECKING:
    from proxy.addons.archive.texts import Artifacts, Originals


Page = Callable[[web.BaseRequest, str], Awaitable[web.Response]]
_FORM_BYTES = 8_192
_WRONG, _SECONDS, _ADDRESSES = 10, 60.0, 4_096
"""Wrong tokens of one address in so many seconds, beyond which none is looked at; and addresses that are counted."""
LIVE = HOME.rstrip("/")
LIVE_PATHS = (LIVE, f"{LIVE}/login", f"{LIVE}/logout")
_MOST, _PAGE = 500, 50
"""Conversations in one list, at most, and where `most` does not say."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


# --- the form in which a browser shows the `admin_token` once, for a cookie ---


@dataclass(frozen=True, slots=True)
class Login:
    settings: Settings
    secret: bytes = field(repr=False)
    wrong: TTLCache[str, int] = field(default_factory=lambda: TTLCache(_ADDRESSES, _SECONDS))

    async def log_in(self, request: web.BaseRequest) -> web.Response:
        """The cookie, to whoever shows the token. Raises ApiError."""
        self._check(request)
        token = self.settings.admin_token
        if token is None:
            message = "No `admin_token` is set, so nobody can log in. Set it, or open this page on Narrows' machine."
            raise ApiError(404, message, "no_admin_token")
        address = request.remote or ""
        self._check_tries(address)
        _, body = await Upload(request, self.settings.body_timeout).whole(_FORM_BYTES)
        self._check_tries(address)  # others may have come meanwhile
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=4) if body.count(b"&") < 4 else {}
        entry, whole = fields.get("token", [""])[0].strip(), token.get_secret_value()
        if not hmac.compare_digest(*(sha256(text.encode("utf-8", "replace")).digest() for text in (entry, whole))):
            self.wrong[address] = self.wrong.get(address, 0) + 1
            raise ApiError(403, "This is not the `admin_token`.", "forbidden", "token")
        return self._answer(request, admin_cookie(self.settings, self.secret, int(time.time()) + COOKIE_SECONDS))

    async def log_out(self, request: web.BaseRequest) -> web.Response:
        """Takes the cookie back. Raises ApiError."""
        self._check(request)
        return self._answer(request, "", 0)

    def helps(self, request: web.BaseRequest, error: ApiError) -> bool:
        """True where whoever shows the token gets another answer; who has shown it does not."""
        is_refused = self.settings.admin_token is not None and error.status in (403, 429)
        return is_refused and "admin" not in who(request, self.settings, self.secret).tokens

    def page(self, imprint: Imprint, error: ApiError, has_form: bool) -> str:
        """An error for people, with the form where a token would help."""
        why = element("p", error.message, role="status")
        if not has_form:
            way = element("p", element("a", "To the live page", href=HOME))
            return framed("no page", "No such page", imprint, why, way)
        return framed("log in", "Log in", imprint, why, _form(), has_forms=True)

    def _check(self, request: web.BaseRequest) -> None:
        """Raises ApiError where the form is not one of these pages'."""
        if request.method != "POST":
            raise ApiError(405, "This address accepts only POST.", "method_not_allowed", headers={"Allow": "POST"})
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        is_own = origin is None or origin.partition("://")[2] == request.host
        if site is not None:  # no page can set it, and no proxy that renames the host changes it
            is_own = site in ("same-origin", "none")
        if not is_own:
            raise ApiError(403, "A form of another site cannot log in or out here.", "forbidden")

    def _check_tries(self, address: str) -> None:
        """Raises ApiError where too many tokens of this address were wrong."""
        if self.wrong.get(address, 0) >= _WRONG:
            message = "Too many wrong tokens; try again in a minute."
            raise ApiError(429, message, "too_many_tokens", headers={"Retry-After": str(round(_SECONDS))})

    def _answer(self, request: web.BaseRequest, value: str, seconds: int = COOKIE_SECONDS) -> web.Response:
        response = web.Response(status=303, headers={"Location": HOME, "Cache-Control": "no-store"})
        is_secure = request.secure or request.headers.get("X-Forwarded-Proto", "").strip().lower() == "https"
        response.set_cookie(
            COOKIE, value, max_age=seconds, path=LIVE, httponly=True, samesite="Strict", secure=is_secure
        )
        return response


def _form() -> Markup:
    who = element("input", type="text", name="username", value="admin", autocomplete="username", hidden=True)
    token = element("input", type="password", name="token", required=True, autocomplete="current-password")
    label = element("label", "The admin token ", token)
    button = element("button", "Log in", type="submit")
    note = "A cookie keeps you logged in for twelve hours. It allows reading only; other sites cannot use it."
    form = element("form", who, label, " ", button, method="post", action=f"{HOME}login", class_="login")
    return element("div", form, element("p", note, class_="aside"))


# --- pages ---


@dataclass(frozen=True, slots=True)
class LivePages:
    parts: PageParts
    login: Login
    originals: "Originals | None"
    version: str = version("narrows")

    async def answer(self, request: web.BaseRequest, path: str) -> web.Response:
        """The page at one of `LIVE_PATHS`. Raises ApiError."""
        if path != LIVE:
            return await (self.login.log_in(request) if path.endswith("/login") else self.login.log_out(request))
        allow_only(request, READ)
        if request.query_string:
            raise ApiError(400, "This page takes no parameters.", "bad_parameter")
        view = await overview(self.parts, self.parts.permit(request, "figures"))
        if "application/json" in request.headers.get("Accept", "") and not wants_page(request):
            return json_page(await asyncio.to_thread(overview_json, view, self.version))
        return await _drawn(request, lambda is_logged_in: overview_page(view, self.version, is_logged_in))

    async def listed(self, request: web.BaseRequest) -> web.Response:
        grant = self.parts.permit(request, "figures")
        before, most = _place(request.query_string)
        rows, following = await newest(self.parts, grant, before, most)
        whose = "all tenants" if grant.tenant is None else "the requests of your credential"
        imprint = Imprint(self.parts.clock(), self.version, f"{len(rows):,} conversations of {whose}, newest first")
        if not wants_page(request):
            head = imprint_json("Narrows: conversations", imprint.at, self.version, imprint.covers)
            return json_page({**head, **list_json(rows, following)})
        return await _drawn(request, lambda is_logged_in: list_page(rows, following, imprint, is_logged_in))

    async def conversation(self, request: web.BaseRequest, name: str) -> web.Response:
        """One conversation, request by request, as a page. Raises ApiError."""
        view = await self.view(request, name)
        if view is None:
            raise nothing()
        return await _drawn(request, lambda is_logged_in: conversation_page(view, self.version, is_logged_in))

    def key(self, request: web.BaseRequest, name: str) -> Key:
        """The conversation: of the tenant that is named, or of the caller's."""
        tenant = request.query.get("tenant")
        return self.parts.named(request, name)[0] if tenant is None else Key(tenant, name)

    async def view(self, request: web.BaseRequest, name: str) -> ConversationView | None:
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
        text = self.login.page(imprint, error, has_form)
        return drawn_page(text, has_form, error.status, headers=dict(error.headers))


async def _drawn(request: web.BaseRequest, draw: Callable[[bool], str]) -> web.Response:
    is_logged_in = COOKIE in request.cookies
    return drawn_page(await asyncio.to_thread(draw, is_logged_in), is_logged_in)


def _place(query: str) -> tuple[float | None, int]:
    """Where a list begins, and how long it is. Raises ApiError."""
    fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=8))
    try:
        before = float(fields.pop("before")) if "before" in fields else None
        most = int(fields.pop("most", _PAGE))
    except ValueError as error:
        message = "`before` must be the `next` of another list, and `most` a number."
        raise ApiError(400, message, "bad_parameter") from error
    if fields or not 1 <= most <= _MOST or (before is not None and not math.isfinite(before)):
        message = f"This page takes only `before`, and `most` from 1 to {_MOST}."
        raise ApiError(400, message, "bad_parameter")
    return before, most


@dataclass(frozen=True, slots=True)
class ArtifactPages:
    parts: PageParts
    artifacts: "Artifacts | None"

    async def text(self, request: web.BaseRequest, digest: str) -> web.Response:
        """The text of this digest, from one conversation or from all that the credential sent. Raises ApiError."""
        allow_only(request, READ)
        artifacts, text = self._stored(), None
        if _DIGEST.fullmatch(digest):
            text = await self.parts.ask("artifact", self._find(request, artifacts, digest))
        if text is None:
            raise ApiError(404, "No artifact is stored for this digest.", "not_found")
        return text_page(text, "text/plain; charset=utf-8")

    async def listed(self, request: web.BaseRequest, name: str) -> web.Response:
        self._stored()
        _, listed = await self.parts.ask("artifacts", self._seen(request, name))
        if not listed:
            raise nothing()
        rows = [
            {
                **{field: artifact.about[field] for field in ("digest", "tool", "characters")},
                "message": message_of(str(artifact.about["message"])),
                "text_digest": artifact.about["text_digest"],
                "first_seen": moment(float(artifact.about["at"])),
            }
            for artifact in listed
        ]
        return json_page({"conversation": name, "artifacts": rows})

    async def _find(self, request: web.BaseRequest, artifacts: "Artifacts", digest: str) -> str | None:
        name = conversation_id(request.query.get("conversation", ""))
        if not name:
            self.parts.permit(request, "artifacts")
            identity = self.parts.who(request)
            return await artifacts.find(identity.tenant, identity.owner, digest)
        key, listed = await self._seen(request, name)
        names = [each.name for each in listed if each.about["digest"] == digest]
        texts = await self.parts.store.texts(key, ARTIFACTS, names[:1])
        return next(iter(texts.values()), None)

    async def _seen(self, request: web.BaseRequest, name: str) -> tuple[Key, Sequence[StoredText]]:
        """The conversation, and its outputs that the caller may see, without their texts."""
        key, grant = self.parts.named(request, name)
        texts = await self.parts.store.list_texts(key, ARTIFACTS)
        return key, grant.visible((str(each.about["owner"]), each) for each in texts)

    def _stored(self) -> "Artifacts":
        if self.artifacts is None:
            message = "Artifacts are not stored: `artifacts` is not set, or `mode` is off."
            raise ApiError(404, message, "no_artifacts")
        return self.artifacts


@dataclass(frozen=True, slots=True)
class ConversationPages:
    """The pages at a conversation's address, and below it (`log_pages`, by their names)."""

    parts: PageParts
    deletion: Deletion
    summaries: SummaryPages
    artifacts: ArtifactPages
    live: LivePages
    log_pages: Mapping[str, Page]

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The page that the target of the request names. Raises ApiError."""
        is_read = request.method in READ
        if is_read and request.path == CONVERSATIONS and "id" not in request.query:
            return await self.live.listed(request)
        more = ("tenant", "branch", "round") if is_read else ("tenant", "key") if request.method == "DELETE" else ()
        name, page = parse_target(request.raw_path, more)
        if name is None:
            allow_only(request, (*READ, "DELETE"))
            return await self._delete_all(request)
        pages: Mapping[str, Mapping[str, Page]] = {
            "": {**dict.fromkeys(READ, self._one), "DELETE": self._delete},
            "artifacts": dict.fromkeys(READ, self.artifacts.listed),
            "summaries": dict.fromkeys(READ, self.summaries.listed),
            "summary": {"POST": self.summaries.summarize},
            **{each: dict.fromkeys(READ, page) for each, page in self.log_pages.items()},
        }
        first, slash, _ = page.partition("/")
        page = first + slash
        if page not in pages:
            raise no_page()
        allow_only(request, tuple(pages[page]))
        return await pages[page][request.method](request, name)

    async def _one(self, request: web.BaseRequest, name: str) -> web.Response:
        """One conversation: request by request, and the summary that stands in the newest one."""
        if wants_page(request):
            return await self.live.conversation(request, name)
        key, reader = self.live.key(request, name), self.live.reader(request)
        summary = await self.summaries.newest(key, reader.texts) if reader.reads(key) and reader.texts else {}
        view = await self.live.view(request, name)
        content = await asyncio.to_thread(view_json, view, self.live.version) if view is not None else {}
        if not content and not summary:
            raise nothing()
        return json_page({**content, **summary})

    async def _delete(self, request: web.BaseRequest, name: str) -> web.Response:
        scopes = await self._scopes(request)
        keys = [(Key(each.tenant, name), each.owner) for each in scopes]
        deleted = [await self.parts.ask("delete", self.deletion.conversation(*key)) for key in keys]
        if not any(deleted) and not any(each.owner is None for each in scopes):
            raise nothing()
        return web.Response(status=204, headers=PRIVATE)

    async def _delete_all(self, request: web.BaseRequest) -> web.Response:
        count = 0
        for scope in await self._scopes(request):
            count += await self.parts.ask("delete_tenant", self.deletion.everything(scope.tenant, scope.owner))
        return json_page({"deleted": count})

    async def _scopes(self, request: web.BaseRequest) -> Sequence[Scope]:
        """In which tenants whoever asks deletes, and of which owners. Raises ApiError."""
        parameters = {name: request.query.getall(name) for name in ("tenant", "key") if name in request.query}
        if any(len(values) > 1 or not values[0] for values in parameters.values()) or len(parameters) > 1:
            raise ApiError(400, "Give `tenant` or `key`, once, with its name.", "bad_parameter")
        tenant, key = ("".join(parameters.get(name, ())) for name in ("tenant", "key"))
        parts = self.parts
        identity = parts.who(request)
        if parameters and identity.may("delete anywhere", parts.settings):
            if tenant:
                return [Scope(tenant)]
            return await parts.ask("day_rows", sent_with(parts.store, key, parts.secret))
        grant, mine = parts.permit(request, "conversations"), identity.key
        if (tenant or identity.tenant) != identity.tenant or (key and (mine is None or mine.name != key)):
            raise nothing()
        is_homeless = not parts.settings.tenant and "admin" in identity.tokens
        if is_homeless and not parameters:  # the token is no tenant's
            raise ApiError(400, "Say whose conversations: `?tenant=NAME` or `?key=NAME`.", "bad_parameter", "tenant")
        return [Scope(identity.tenant, None, grant.owner)]

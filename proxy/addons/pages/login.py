"""The form in which a browser shows the `admin_token` once, for a cookie.

Laws
  The token goes in the body of a request, never in an address; a form of another site is refused.
  Wrong tokens cost the same however wrong they are, and few are looked at in a minute.
"""

import hmac
import time
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import parse_qs

from aiohttp import web
from cachetools import TTLCache

from proxy.config import Settings
from proxy.drawing.html import Imprint, Markup, element, framed
from proxy.errors import ApiError
from proxy.identity.who import COOKIE, COOKIE_SECONDS, admin_cookie, who
from proxy.kernel.wire.downstream import Upload

HOME = "/narrows/"
_FORM_BYTES = 8_192
_WRONG, _SECONDS, _ADDRESSES = 10, 60.0, 4_096
"""Wrong tokens of one address in so many seconds, beyond which none is looked at; and addresses that are counted."""


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
            COOKIE, value, max_age=seconds, path=HOME.rstrip("/"), httponly=True, samesite="Strict", secure=is_secure
        )
        return response


def _form() -> Markup:
    who = element("input", type="text", name="username", value="admin", autocomplete="username", hidden=True)
    label = element(
        "label",
        "The admin token ",
        element("input", type="password", name="token", required=True, autocomplete="current-password"),
    )
    button = element("button", "Log in", type="submit")
    note = "A cookie keeps you logged in for twelve hours. It allows reading only; other sites cannot use it."
    form = element("form", who, label, " ", button, method="post", action=f"{HOME}login", class_="login")
    return element("div", form, element("p", note, class_="aside"))

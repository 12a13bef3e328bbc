"""Shared by all pages: the conversation that a request names, whoever asks, the store, and the form of an answer."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from proxy.config import Settings
from proxy.drawing.html import policy
from proxy.errors import ApiError
from proxy.identity.who import Action, Grant, Identity, who
from proxy.memory import Key, Store, StoreTrouble, conversation_id
from proxy.telemetry import Telemetry

CONVERSATIONS = "/narrows/conversations"
READ = ("GET", "HEAD")
PRIVATE = MappingProxyType({"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
"""The headers of an answer for one reader."""
_QUERY_FIELDS = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageParts:
    """The parts that every page needs. `secret`: the key of the hashes that name tenants and owners."""

    settings: Settings
    store: Store
    telemetry: Telemetry
    secret: bytes = field(repr=False)
    clock: Callable[[], float]

    def who(self, request: web.BaseRequest) -> Identity:
        return who(request, self.settings, self.secret)

    def permit(self, request: web.BaseRequest, action: Action) -> Grant:
        """The part that whoever asks may see by an action. Raises ApiError where it may not do that."""
        return self.who(request).permit(action, self.settings)

    def named(self, request: web.BaseRequest, name: str) -> tuple[Key, Grant]:
        """A conversation of the caller's tenant, and what the caller may see of it. Raises ApiError."""
        grant = self.permit(request, "conversations")
        return Key(self.who(request).tenant, name), grant

    async def ask(self, operation: str, answer: Awaitable[T]) -> T:
        """The answer of the store. Raises ApiError where it is in trouble."""
        try:
            return await answer
        except StoreTrouble as error:
            self.telemetry.metrics.store_trouble(operation)
            message = "The store does not answer; try again in a moment."
            raise ApiError(503, message, "store_trouble", headers={"Retry-After": "5"}) from error


def text_page(body: str | bytes, kind: str, headers: Mapping[str, str] = MappingProxyType({})) -> web.Response:
    """A text for one reader; what is no Unicode in it stays as it is."""
    content = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
    return web.Response(body=content, headers={"Content-Type": kind, **headers, **PRIVATE})


def drawn_page(
    text: str, has_forms: bool = False, status: int = 200, kind: str = "text/html", headers: Mapping[str, str] = PRIVATE
) -> web.Response:
    own = {
        "Content-Type": f"{kind}; charset=utf-8",
        "Content-Security-Policy": f"{policy(has_forms)}; frame-ancestors 'none'",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "same-origin" if has_forms else "no-referrer",
        "Vary": "Accept",
        **PRIVATE,
    }
    return web.Response(body=text.encode(), status=status, headers={**own, **headers})


def json_page(content: Mapping[str, Any]) -> web.Response:
    return web.json_response(content, headers=PRIVATE)


def nothing() -> ApiError:
    message = "This conversation is not stored; `GET /narrows/conversations` lists those that are."
    return ApiError(404, message, "not_found")


def no_page() -> ApiError:
    return ApiError(404, "A conversation has no such page.", "not_found")


def message_of(source: str) -> dict[str, Any]:
    """A message, given as `INDEX:DIGEST`."""
    index, _, digest = source.partition(":")
    return {"index": int(index), "digest": digest}


def moment(at: float) -> str:
    """A time in seconds since 1970, in ISO 8601."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def wants_page(request: web.BaseRequest) -> bool:
    """True where the answer is for a browser; whoever does not say so gets JSON."""
    return "text/html" in request.headers.get("Accept", "")


def parse_target(target: str, also: Sequence[str] = ()) -> tuple[str | None, str]:
    """The conversation that a raw target names, and the name of its page; None for all conversations of a tenant.

    The id is one segment of the path, percent-encoded once, or, as some ids cannot be in a path, the parameter `id`.
    `also` are other parameters that may stand there. Raises ApiError.
    """
    path, question, query = target.partition("?")
    if path != CONVERSATIONS and not path.startswith(CONVERSATIONS + "/"):
        raise no_page()
    try:
        fields = parse_qsl(query, keep_blank_values=True, errors="surrogatepass", max_num_fields=_QUERY_FIELDS)
        places = [unquote(part, errors="surrogatepass") for part in path.removeprefix(CONVERSATIONS).split("/")[1:]]
    except ValueError as error:
        raise ApiError(400, "The id must be UTF-8, percent-encoded.", "bad_conversation", "id") from error
    fields = [(name, value) for name, value in fields if name not in also]
    if (
        question and [name for name, _ in fields] != ["id"] and (fields or not also or not query)
    ):  # a misspelt one must not widen what is deleted
        raise ApiError(400, "This page takes only the parameter `id`.", "bad_parameter")
    if not fields and not places:
        return None, ""
    name, *rest = [fields[0][1], *places] if fields else places
    if not name:
        raise ApiError(400, "The id of the conversation is empty.", "bad_conversation", "id")
    if "" in rest or rest[2:] or (rest[1:] and rest[0] != "requests"):
        raise no_page()
    return conversation_id(name), "/".join(rest)


def allow_only(request: web.BaseRequest, methods: Sequence[str]) -> None:
    """Raises ApiError where the page is requested with another method."""
    if request.method not in methods:
        allow = ", ".join(methods)
        message = f"This page takes only {allow}."
        raise ApiError(405, message, "method_not_allowed", headers={"Allow": allow})

"""What all pages about conversations share: who asks and what they may see, and how the store is asked for it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from aiohttp import web

from proxy.config import Settings
from proxy.errors import ApiError
from proxy.identity import Caller, caller_of
from proxy.store import Store, StoreTrouble
from proxy.telemetry import Telemetry

PRIVATE = MappingProxyType({"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
"""The headers of an answer for one reader."""
READ = ("GET", "HEAD")

T = TypeVar("T")
Page = Callable[[web.BaseRequest, str], Awaitable[web.Response]]
"""Answers a request about the conversation of this name. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class Access:
    """The store, for callers who may read it."""

    settings: Settings
    store: Store
    telemetry: Telemetry
    secret: bytes = field(repr=False)
    """The key of the hashes that name tenants and owners."""

    def caller(self, request: web.BaseRequest) -> Caller:
        """Who asks. Raises ApiError where nothing proves it."""
        return caller_of(request, self.settings, self.secret)

    async def ask(self, operation: str, answer: Awaitable[T]) -> T:
        """What the store answers. Raises ApiError where it is in trouble."""
        try:
            return await answer
        except StoreTrouble as error:
            self.telemetry.metrics.store_trouble(operation)
            message = "The store is in trouble, so this cannot be done now; ask again in a moment."
            raise ApiError(503, message, "store_trouble") from error


def allow_only(request: web.BaseRequest, methods: Sequence[str]) -> None:
    """Raises ApiError where the page is requested with another method."""
    if request.method not in methods:
        allow = ", ".join(methods)
        message = f"This page can only be asked with {allow}."
        raise ApiError(405, message, "method_not_allowed", headers={"Allow": allow})


def json_page(content: Mapping[str, Any]) -> web.Response:
    """An answer in JSON for one reader."""
    return web.json_response(content, headers=PRIVATE)

"""What the pages of conversations have in common: who asks, what the store answers, and the form of an answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from aiohttp import web

from proxy.config import Settings
from proxy.errors import ApiError
from proxy.identity.who import Action, Grant, Identity, who
from proxy.memory import Store, StoreTrouble
from proxy.telemetry import Telemetry

PRIVATE = MappingProxyType({"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
"""The headers of an answer for one reader."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageParts:
    """What every page of stored things is answered with."""

    settings: Settings
    store: Store
    telemetry: Telemetry
    secret: bytes = field(repr=False)
    """The key of the hashes that name tenants and owners."""
    clock: Callable[[], float]

    def who(self, request: web.BaseRequest) -> Identity:
        """Who asks."""
        return who(request, self.settings, self.secret)

    def permit(self, request: web.BaseRequest, action: Action) -> Grant:
        """What whoever asks may see by an action. Raises ApiError where it may not do that."""
        return self.who(request).permit(action, self.settings)

    async def ask(self, operation: str, answer: Awaitable[T]) -> T:
        """What the store answers. Raises ApiError where it is in trouble."""
        try:
            return await answer
        except StoreTrouble as error:
            self.telemetry.metrics.store_trouble(operation)
            message = "The store does not answer; try again in a moment."
            raise ApiError(503, message, "store_trouble", headers={"Retry-After": "5"}) from error


def json_page(content: Mapping[str, Any]) -> web.Response:
    """An answer in JSON for one reader."""
    return web.json_response(content, headers=PRIVATE)


def nothing() -> ApiError:
    return ApiError(
        404,
        "This conversation is not stored; `GET /narrows/conversations` lists those that are.",
        "not_found",
    )


def message_of(source: str) -> dict[str, Any]:
    """A message, given as `INDEX:DIGEST`."""
    index, _, digest = source.partition(":")
    return {"index": int(index), "digest": digest}

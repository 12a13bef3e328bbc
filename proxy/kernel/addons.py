"""Addons: features that only want to know of requests. Each overrides the hooks that it needs, and subscribes by its
line in `proxy/generation.py`, in whose order hooks are awaited.

    admit      the head is there: refuse the request (ApiError), or set `exchange.answer`, and it is answered from here
    planned    it is decided what goes upstream, and nothing was sent yet
    answered   the upstream has answered with this status and these headers, which may be changed; once for each
               request that was sent
    finished   all is over, and the exchange complete

Laws
  An addon decides nothing about the bytes that go upstream.
  What fails in an addon fails no request, but for what it refuses.
  A request that no addon wants to know of costs nothing here.
"""

from collections.abc import Sequence

from multidict import CIMultiDict

from proxy.kernel.exchange import Exchange
from proxy.telemetry import Telemetry


class Addon:
    """One that wants to know nothing."""

    async def admit(self, exchange: Exchange, /) -> None:
        """Whether its body is read says `exchange.receive`, which an addon may call. Raises ApiError."""

    async def planned(self, exchange: Exchange, /) -> None: ...

    async def answered(self, exchange: Exchange, status: int, headers: CIMultiDict[str], /) -> None: ...

    async def finished(self, exchange: Exchange, /) -> None: ...


class Addons:
    """Those of one generation. The ones at the `door` are asked for each request; the `inner` ones only for those that
    go upstream, once there is a place for them."""

    def __init__(self, door: Sequence[Addon], inner: Sequence[Addon], telemetry: Telemetry) -> None:
        everyone = (*door, *inner)
        self._telemetry = telemetry
        self._door = [addon for addon in door if _has(addon, "admit")]
        self._inner = [addon for addon in inner if _has(addon, "admit")]
        self._planned = [addon for addon in everyone if _has(addon, "planned")]
        self._answered = [addon for addon in everyone if _has(addon, "answered")]
        self._finished = [addon for addon in everyone if _has(addon, "finished")]

    async def knock(self, exchange: Exchange) -> None:
        """Raises ApiError where one at the door refuses the request."""
        for addon in self._door:
            await addon.admit(exchange)

    async def admit(self, exchange: Exchange) -> None:
        """Raises ApiError where an inner one refuses the request."""
        for addon in self._inner:
            await addon.admit(exchange)

    async def planned(self, exchange: Exchange) -> None:
        for addon in self._planned:
            try:
                await addon.planned(exchange)
            except Exception as error:
                self._report(error)

    async def answered(self, exchange: Exchange, status: int, headers: CIMultiDict[str]) -> None:
        for addon in self._answered:
            try:
                await addon.answered(exchange, status, headers)
            except Exception as error:
                self._report(error)

    async def finished(self, exchange: Exchange) -> None:
        for addon in self._finished:
            try:
                await addon.finished(exchange)
            except Exception as error:
                self._report(error)

    def _report(self, error: Exception) -> None:
        self._telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)


def _has(addon: Addon, hook: str) -> bool:
    return getattr(type(addon), hook) is not getattr(Addon, hook)

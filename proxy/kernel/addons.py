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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
    """Those of one generation: what answers where no API is asked (`pages`), who looks at the head of a request
    (`door`), and who is told of it once there is a place for it (`inner`)."""

    def __init__(
        self, pages: Sequence[Addon], door: Sequence[Addon], inner: Sequence[Addon], telemetry: Telemetry
    ) -> None:
        self._telemetry = telemetry
        self._pages, self._door, self._inner = pages, door, [each for each in inner if _has(each, "admit")]
        self._listeners = {
            hook: [each for each in (*pages, *door, *inner) if _has(each, hook)]
            for hook in ("planned", "answered", "finished")
        }

    async def knock(self, exchange: Exchange) -> None:
        """Raises ApiError where one refuses the request at the door."""
        for addon in self._door if exchange.is_api else self._pages:
            await addon.admit(exchange)

    async def admit(self, exchange: Exchange) -> None:
        """Raises ApiError where an inner one refuses the request."""
        for addon in self._inner:
            await addon.admit(exchange)

    async def planned(self, exchange: Exchange) -> None:
        for addon in self._listeners["planned"]:
            with self._guarded():
                await addon.planned(exchange)

    async def answered(self, exchange: Exchange, status: int, headers: CIMultiDict[str]) -> None:
        for addon in self._listeners["answered"]:
            with self._guarded():
                await addon.answered(exchange, status, headers)

    async def finished(self, exchange: Exchange) -> None:
        for addon in self._listeners["finished"]:
            with self._guarded():
                await addon.finished(exchange)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._telemetry.log.error("unexpected", error=type(error).__name__, exc_info=error)


def _has(addon: Addon, hook: str) -> bool:
    return getattr(type(addon), hook) is not getattr(Addon, hook)

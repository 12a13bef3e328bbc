"""Writing behind the requests, where nothing waits for it and nothing fails by it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from proxy.telemetry import Telemetry

_PAUSE = 5.0
"""Seconds until the second try."""
_LAST_SECONDS = 2.0

T = TypeVar("T")


class WriteBehindQueue(Generic[T]):
    """A queue that is written one by one: what cannot be written is tried once more, then given up."""

    def __init__(self, write: Callable[[T], Awaitable[bool]], telemetry: Telemetry) -> None:
        """`write` says whether there is nothing more to do about an item."""
        self._try = write
        self._telemetry = telemetry
        self._waiting: deque[T] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting)

    def put(self, item: T) -> bool:
        """Whether it will be written: not once this is closed."""
        if not self._closed:
            self._waiting.append(item)
            if self._writer is None or self._writer.done():
                self._writer = asyncio.create_task(self._write())
        return not self._closed

    async def close(self) -> int:
        """Write what is waiting, for a moment at most; how many could not be written."""
        self._closed = True
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=_LAST_SECONDS)
            self._writer.cancel()
            with suppress(asyncio.CancelledError):
                await self._writer
        lost = len(self._waiting)
        self._waiting.clear()
        return lost

    async def _write(self) -> None:
        while self._waiting:
            item = self._waiting[0]
            if not await self._written(item):
                await asyncio.sleep(_PAUSE)
                await self._written(item)
            self._waiting.popleft()

    async def _written(self, item: T) -> bool:
        try:
            return await self._try(item)
        except Exception as error:  # one item is no reason to write no more of them
            self._telemetry.log.error("behind", exc_info=error)
            return True

"""Turns of work of which little runs at once, fair between those who ask for it.

Laws
  Whoever had the last turn comes after all others who wait; each of them has one turn after the other.
  Who waits is bounded, in all and of each owner, and each waits for some seconds at most.
"""

import asyncio
from collections import deque

_MOST, _MOST_OF_OWNER = 64, 4


class Turns:
    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By owner; who had a turn goes to the end."""
        self._last = ""

    async def take(self, owner: str, seconds: float) -> bool:
        """Wait for a turn; False where none comes in time. After True, `give` must follow."""
        if self._free:
            self._free -= 1
            self._last = owner
            return True
        mine = self._waiting.get(owner, ())
        if len(mine) >= _MOST_OF_OWNER or sum(map(len, self._waiting.values())) >= _MOST:
            return False
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except TimeoutError:
            self._leave(owner, turn)
            return False
        except asyncio.CancelledError:
            self._leave(owner, turn)
            raise
        return True

    def give(self) -> None:
        """End a turn."""
        while self._waiting:
            owner = next((each for each in self._waiting if each != self._last), self._last)
            waiting = self._waiting.pop(owner)
            turn = waiting.popleft()
            if waiting:
                self._waiting[owner] = waiting
            if not turn.done():
                self._last = owner
                turn.set_result(None)
                return
        self._free += 1

    def _leave(self, owner: str, turn: asyncio.Future[None]) -> None:
        if not turn.cancelled():  # the turn came at the same moment
            self.give()
        elif turn in (waiting := self._waiting.get(owner, deque())):
            waiting.remove(turn)
            if not waiting:
                del self._waiting[owner]

"""Turns of work of which little runs at once, fair between those who ask for it; and when such work is to stop.

Laws
  Work stops after so many seconds of its own, or once its client has left (`Deadline`).
  Whoever had the last turn comes after all others who wait; each of them has one turn after the other.
  Where some are accepted and some are not, every other turn is for the accepted ones, and half of the places.
  Who waits is bounded, in all and of each owner, and each waits for some seconds at most.
"""

import asyncio
from collections import deque
from time import monotonic, thread_time

_MOST, _MOST_OF_OWNER = 64, 4

_Owner = tuple[bool, str]
"""Whether its credential was accepted, and its name."""


class Turns:
    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: dict[_Owner, deque[asyncio.Future[None]]] = {}
        """By owner; who had a turn goes to the end."""
        self._last = False, ""

    async def take(self, name: str, seconds: float, is_accepted: bool = True) -> bool:
        """Wait for a turn of the owner of this name; False where none comes in time. After True, `give` must follow.
        `is_accepted`: whether it is more than a name that somebody has made up."""
        owner = is_accepted, name
        if self._free:
            self._free -= 1
            self._last = owner
            return True
        others = sum(len(waiting) for each, waiting in self._waiting.items() if not each[0])
        is_full = sum(map(len, self._waiting.values())) >= _MOST or (not is_accepted and others >= _MOST // 2)
        if is_full or len(self._waiting.get(owner, ())) >= _MOST_OF_OWNER:
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
            other = (each for each in self._waiting if each[0] != self._last[0])
            another = (each for each in self._waiting if each != self._last)
            owner = next(other, None) or next(another, self._last)
            waiting = self._waiting.pop(owner)
            turn = waiting.popleft()
            if waiting:
                self._waiting[owner] = waiting
            if not turn.done():
                self._last = owner
                turn.set_result(None)
                return
        self._free += 1

    def _leave(self, owner: _Owner, turn: asyncio.Future[None]) -> None:
        if not turn.cancelled():  # the turn came at the same moment
            self.give()
        elif turn in (waiting := self._waiting.get(owner, deque())):
            waiting.remove(turn)
            if not waiting:
                del self._waiting[owner]


# --- when planning is to stop: its time is up, or nobody wants the plan any more ---

_SLOWNESS = 5
"""How many times longer planning may take by the clock than it works: others work beside it."""


class LeftError(Exception):
    """The client has left, and nobody wants the plan any more."""


class Deadline:
    """Says, in the one thread that plans, when that is to stop: after so many seconds of work."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = monotonic() + _SLOWNESS * seconds
        self._begun: float | None = None
        self._is_left = False

    def leave(self) -> None:
        """The client has left."""
        self._is_left = True

    def __call__(self) -> bool:
        """Raises LeftError."""
        if self._is_left:
            raise LeftError
        now = thread_time()
        if self._begun is None:
            self._begun = now
        return now - self._begun >= self._seconds or monotonic() >= self._until

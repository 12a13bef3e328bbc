"""When planning is to stop: its time is up, or nobody wants the plan any more."""

from time import monotonic, thread_time

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

"""What upstreams last answered to each credential through this process.

Law: credentials are remembered by a keyed hash, never as they are.
"""

import math
import time
from collections.abc import Callable

from cachetools import LRUCache

_OWNERS = 65_536
"""Credentials whose states are remembered."""
_LIMITED, _LONGEST_LIMIT = 60.0, 86_400.0
"""Seconds in which nothing is asked after a 429 that does not say how long, and at most."""


class CredentialStates:
    """What the upstream last answered to each credential through this process, by a keyed hash of the credential."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accepted: LRUCache[str, bool] = LRUCache(_OWNERS)
        self._blocked_until: LRUCache[str, float] = LRUCache(_OWNERS)

    def note(self, owner: str, status: int, retry_after: float | None = None) -> None:
        """Remember an answer. `retry_after`: the seconds that it asks for."""
        if 200 <= status < 300:
            self._accepted[owner] = True
            if self._blocked_until.get(owner) == math.inf:
                del self._blocked_until[owner]
        elif status in (401, 403):
            self._accepted.pop(owner, None)
            self._blocked_until[owner] = math.inf
        elif status == 429:
            until = self._clock() + min(_LIMITED if retry_after is None else retry_after, _LONGEST_LIMIT)
            self._blocked_until[owner] = max(until, self._blocked_until.get(owner, 0.0))

    def is_accepted(self, owner: str) -> bool:
        """Whether the upstream took the credential, and has not refused it since."""
        return owner in self._accepted

    def is_refused(self, owner: str) -> bool:
        """Whether the upstream refused the credential, and has not taken it since."""
        return self._blocked_until.get(owner) == math.inf

    def is_blocked(self, owner: str) -> bool:
        """Whether nothing may be asked with it: it was refused, and not accepted since, or is over its rate limit."""
        return self._blocked_until.get(owner, 0.0) > self._clock()


def seconds_of(retry_after: str | None) -> float | None:
    """The seconds that a Retry-After header asks for; None where it has none, or a date."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None

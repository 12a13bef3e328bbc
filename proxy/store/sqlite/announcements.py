"""How many recall exchanges the processes on one SQLite file have had: the size of a small file beside it.

A store that answers late cannot say whether another process has had one meanwhile. The size of a file can be had in
microseconds, whatever SQLite does.
"""

import os
from contextlib import suppress

from proxy.store.sqlite.connection import MEMORY


class ExchangeAnnouncements:
    """One byte for each exchange, in a file that only grows."""

    def __init__(self, path: str) -> None:
        self._file = None if path == MEMORY else f"{path}-exchanges"
        self._own = 0

    def add(self) -> None:
        """Announce one. Where the disk takes no byte, SQLite does not take the exchange either."""
        self._own += 1
        if self._file is None:
            return
        with suppress(OSError):
            file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, b"+")
            finally:
                os.close(file)

    def foreign(self) -> int | None:
        """How many others have announced; None where that cannot be read."""
        if self._file is None:
            return 0
        try:
            return os.stat(self._file).st_size - self._own
        except FileNotFoundError:
            return -self._own
        except OSError:
            return None

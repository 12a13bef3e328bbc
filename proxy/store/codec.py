"""From records to what is stored: encrypted, where there are keys.

Laws
  Whatever holds a text is sealed for its place: its tenant, conversation, kind and name. Moved elsewhere it is a miss.
  With keys, what was stored without is read all the same, so that they may come later, and is sealed when it is
  written next. Without them, what was sealed is a miss.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from proxy.config.keyring import SEALED, Keyring, SealedError
from proxy.store.serialization import UnreadableError

P = ParamSpec("P")
T = TypeVar("T")


class Codec:
    """Seals what is to be stored and reads what is stored, and counts what cannot be read."""

    def __init__(self, keyring: Keyring | None = None) -> None:
        self.misses = 0
        self._keyring = keyring

    def __call__(self, read: Callable[P, T | None], *stored: P.args, **more: P.kwargs) -> T | None:
        """What `read` makes of what was never sealed; where the last is not there it is nothing, and what cannot be
        read is a miss."""
        if stored[-1] is None:
            return None
        try:
            return read(*stored, **more)
        except (UnreadableError, UnicodeDecodeError):
            self.misses += 1
            return None

    def opened(self, place: bytes, read: Callable[[bytes], T], stored: object) -> T | None:
        """The same of what may be sealed, for this place."""
        return self(lambda sealed: read(self._plain(place, sealed)), stored)

    def seal(self, place: bytes, record: bytes) -> bytes:
        """The record as it is stored."""
        return record if self._keyring is None else self._keyring.seal(place, record)

    def is_newest(self, stored: object) -> bool:
        """Whether it is stored as it would be now."""
        return self._keyring is None or (isinstance(stored, bytes) and self._keyring.is_newest(stored))

    def kept(self, place: bytes, read: Callable[[bytes], object], stored: object, new: bytes) -> bytes:
        """What shall stand where something is stored and stays: that, sealed anew where need be; the new one where
        nobody can read it."""
        if self.opened(place, read, stored) is None or not isinstance(stored, bytes):
            return new
        return stored if self.is_newest(stored) else self.seal(place, self._plain(place, stored))

    def _plain(self, place: bytes, stored: object) -> bytes:
        if not isinstance(stored, bytes):
            raise UnreadableError("it is no record")
        if stored[:1] != bytes([SEALED]):
            return stored
        if self._keyring is None:
            raise UnreadableError("it is encrypted, and there is no key")
        try:
            return self._keyring.open(place, stored)
        except SealedError as error:
            raise UnreadableError(str(error)) from error


def place(kind: str, *names: bytes) -> bytes:
    """Where a record stands: of which kind it is, and in which tenant and conversation, under which name."""
    parts = (kind.encode(), *names)
    return b"".join(b"%d:%s" % (len(part), part) for part in parts)

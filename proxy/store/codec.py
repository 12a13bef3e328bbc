"""From records to the bytes that back ends store, and back; encrypted, where there are keys.

Laws
  Whatever holds a text is sealed for its place: its tenant, conversation, kind and name. Moved elsewhere it is a miss.
  With keys, what was stored without is read all the same, so that keys may come later, and is sealed when it is
  written next. Without keys, what was sealed is a miss.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

from policies.model.edits import Insert
from policies.model.memory import StepRecord
from policies.model.summary_record import SummaryRecord
from proxy.config.keyring import SEALED, Keyring, SealedError
from proxy.store import Key, StoredText, TextKind, serialization
from proxy.store.serialization import UnreadableRecordError, name_bytes

P = ParamSpec("P")
T = TypeVar("T")
Names = tuple[bytes, bytes]
"""A tenant and a conversation, as keys and columns hold them."""


class Codec:
    """Seals what is to be stored and reads what is stored. Counts what cannot be read as `misses`."""

    def __init__(self, keyring: Keyring | None = None) -> None:
        self.misses = 0
        self._keyring = keyring

    def read(self, read: Callable[P, T | None], *stored: P.args, **more: P.kwargs) -> T | None:
        """What `read` returns for what was never sealed. None where the last of `stored` is None, and, which is a
        miss, where it cannot be read."""
        if stored[-1] is None:
            return None
        try:
            return read(*stored, **more)
        except (UnreadableRecordError, UnicodeDecodeError):
            self.misses += 1
            return None

    def open(self, place: bytes, read: Callable[[bytes], T], stored: object) -> T | None:
        """What `read` returns for what may be sealed for this place; None as in `read`."""
        return self.read(lambda sealed: read(self._plain(place, sealed)), stored)

    def seal(self, place: bytes, record: bytes) -> bytes:
        """The record as it is stored."""
        return record if self._keyring is None else self._keyring.seal(place, record)

    def is_newest(self, stored: object) -> bool:
        """Whether it is stored as it would be now: with the newest key."""
        return self._keyring is None or (isinstance(stored, bytes) and self._keyring.is_newest(stored))

    def first_readable(self, place: bytes, read: Callable[[bytes], object], stored: object, new: bytes) -> bytes:
        """What is stored, sealed anew where the key is not the newest; the new record where it cannot be read."""
        if self.open(place, read, stored) is None or not isinstance(stored, bytes):
            return new
        return stored if self.is_newest(stored) else self.seal(place, self._plain(place, stored))

    def decision_bytes(self, names: Names, record: StepRecord) -> bytes:
        there = place("decision", *names, name_bytes(record.anchor))
        return self.seal(there, serialization.decision_bytes(record))

    def step(self, names: Names, anchor: str, decision: object, sent: object, at: float) -> StepRecord | None:
        """The record of a step, or what can be read of it."""
        there = place("decision", *names, name_bytes(anchor))
        record = self.open(there, partial(serialization.decision, anchor), decision)
        return None if record is None else replace(record, sent=self.read(serialization.sent, sent), at=at)

    def insert_bytes(self, names: Names, insert: Insert) -> bytes:
        return self.seal(place("insert", *names, name_bytes(insert.after)), serialization.insert_bytes(insert))

    def insert(self, names: Names, anchor: str, stored: object) -> Insert | None:
        there = place("insert", *names, name_bytes(anchor))
        return self.open(there, partial(serialization.insert, anchor), stored)

    def summary_bytes(self, names: Names, record: SummaryRecord) -> bytes:
        return self.seal(place("summary", *names, name_bytes(record.id)), serialization.summary_bytes(record))

    def summary(self, names: Names, id: str, first: str, stored: object) -> SummaryRecord | None:
        there = place("summary", *names, name_bytes(id))
        return self.open(there, partial(serialization.summary, id, first), stored)

    def text_bytes(self, names: Names, kind: TextKind, text: StoredText) -> tuple[bytes, bytes]:
        """What a list shows of a text, and the text."""
        name = name_bytes(text.name)
        about = self.seal(place(f"about {kind.name}", *names, name), serialization.about_bytes(text.about))
        return about, self.seal(place(kind.name, *names, name), serialization.text_bytes(name, text.text))

    def listed_text(self, names: Names, kind: TextKind, name: object, about: object) -> StoredText | None:
        """A text as a list shows it: without the text itself."""
        text_name = self.read(serialization.name, name)
        if text_name is None:
            return None
        there = place(f"about {kind.name}", *names, name_bytes(text_name))
        readable = self.open(there, serialization.about, about)
        return None if readable is None else StoredText(text_name, "", readable)

    def text(self, names: Names, kind: TextKind, name: bytes, stored: object) -> str | None:
        return self.open(place(kind.name, *names, name), partial(serialization.text, name), stored)

    def first_text(self, names: Names, kind: TextKind, name: bytes, stored: bytes, new: bytes) -> bytes:
        """The text that stays under this name, of the one that is stored and a new one."""
        if not kind.first_stays:
            return new
        return self.first_readable(place(kind.name, *names, name), partial(serialization.text, name), stored, new)

    def _plain(self, place: bytes, stored: object) -> bytes:
        if not isinstance(stored, bytes):
            raise UnreadableRecordError("it is no record")
        if stored[:1] != bytes([SEALED]):
            return stored
        if self._keyring is None:
            raise UnreadableRecordError("it is encrypted, and there is no key")
        try:
            return self._keyring.open(place, stored)
        except SealedError as error:
            raise UnreadableRecordError(str(error)) from error


def place(kind: str, *names: bytes) -> bytes:
    """What a record is sealed for: its kind, its tenant and conversation, and its name there."""
    parts = (kind.encode(), *names)
    return b"".join(b"%d:%s" % (len(part), part) for part in parts)


def names_of(key: Key) -> Names:
    return name_bytes(key.tenant), name_bytes(key.conversation)

"""Keys of this gateway, without the keys themselves: rows that hold no text, and are not encrypted."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from operator import attrgetter

from pydantic import ValidationError

from proxy.config import KeyRow
from proxy.memory import serialization
from proxy.memory.records import KEY, Change, Kind, RecordStore, Rows
from proxy.memory.serialization import Codec, UnreadableRecordError, readable

KEYS = 2_000
"""Rows of keys that are stored, at most."""


class KeyStore:
    """Rows of keys. They are no tenant's, and leave the store by revocation alone."""

    _records: RecordStore
    _codec: Codec

    async def add_key(self, row: KeyRow) -> bool:
        """Store a row. False, and nothing is stored, where there is one of this name or with this SHA-256, or KEYS."""
        digest = row.sha256.encode()
        content = key_bytes(row)
        is_there = False

        def added(there: Mapping[Kind, Rows]) -> Mapping[Kind, Mapping[bytes, bytes]]:
            nonlocal is_there
            rows = there[KEY]
            is_free = digest not in rows and row.name not in {each.name for each in self._read(rows)}
            is_there = rows.get(digest) == content or (is_free and len(rows) < KEYS)
            return {KEY: {digest: content}} if is_there else {}

        await self._records.change([Change(b"", b"", {KEY: None}, added)])
        return is_there

    async def key_rows(self, unless: str = "") -> tuple[str, Sequence[KeyRow]] | None:
        """All rows, in the order of their names, and what this state of them is called; None where that is `unless`."""
        rows = await self._records.rows(KEY, b"", b"")
        revision = sha256(b"\n".join(repr(each).encode() for each in sorted(rows.items()))).hexdigest()
        return None if revision == unless else (revision, sorted(self._read(rows), key=attrgetter("name")))

    async def delete_key(self, name: str) -> bool:
        """Delete the row of this name; whether there was one."""
        digests: list[bytes] = []

        def without(there: Mapping[Kind, Rows]) -> Mapping[Kind, Mapping[bytes, None]]:
            nonlocal digests
            digests = [row.sha256.encode() for row in self._read(there[KEY]) if row.name == name]
            return {KEY: dict.fromkeys(digests)}

        await self._records.change([Change(b"", b"", {KEY: None}, without)])
        return bool(digests)

    def _read(self, rows: Rows) -> list[KeyRow]:
        return readable(self._codec.read(key_row, *each) for each in rows.items())


def key_bytes(row: KeyRow) -> bytes:
    return serialization.packed("key", row.model_dump(mode="json", exclude_defaults=True))


def key_row(digest: bytes, stored: object) -> KeyRow:
    """The row with this SHA-256. Raises UnreadableRecordError."""
    try:
        row = KeyRow.model_validate(serialization.record_of("key", stored), strict=False)
    except ValidationError as error:  # a newer release may know more
        raise UnreadableRecordError("it is no row of a key") from error
    if row.sha256.encode() != digest:
        raise UnreadableRecordError("it belongs to another key")
    return row

"""Keys of this gateway, without the keys themselves: rows that hold no text, and are not encrypted."""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from pydantic import ValidationError

from proxy.config import KeyRow
from proxy.memory import serialization
from proxy.memory.records import KEY, Change, KeyEntry, Kind, RecordStore, Rows
from proxy.memory.serialization import Codec, UnreadableRecordError, readable

KEYS = 2_000
"""Rows of keys that are stored, at most."""


class KeyStore:
    """Rows of keys. They are no tenant's, and leave the store by revocation alone."""

    _records: RecordStore
    _codec: Codec

    async def add_key(self, row: KeyRow) -> bool:
        """Store a row. False, and nothing is stored, where there is one of this name or with this SHA-256, or KEYS."""
        content = serialization.packed("key", row.model_dump(mode="json", exclude_defaults=True))
        name, entry = row.name.encode(), KeyEntry(row.sha256, content)
        is_there = False

        def added(there: Mapping[Kind, Rows]) -> Mapping[Kind, Mapping[bytes, KeyEntry]]:
            nonlocal is_there
            rows = there[KEY]
            is_free = name not in rows and all(each is None or each.sha256 != row.sha256 for each in rows.values())
            is_there = rows.get(name) == entry or (is_free and len(rows) < KEYS)
            return {KEY: {name: entry}} if is_there else {}

        await self._records.change([Change(b"", b"", {KEY: None}, added)])
        return is_there

    async def key_rows(self, unless: str = "") -> tuple[str, Sequence[KeyRow]] | None:
        """All rows, in the order of their names, and what this state of them is called; None where that is `unless`."""
        rows = sorted((await self._records.rows(KEY, b"", b"")).items())
        revision = sha256(b"\n".join(repr(each).encode() for each in rows)).hexdigest()
        if revision == unless:
            return None
        return revision, readable(self._codec.read(_key_row, name, entry) for name, entry in rows)

    async def delete_key(self, name: str) -> bool:
        """Delete the row of this name; whether there was one."""
        there = Rows()

        def without(rows: Mapping[Kind, Rows]) -> Mapping[Kind, Mapping[bytes, None]]:
            nonlocal there
            there = rows[KEY]
            return {KEY: {name.encode(): None}} if name.encode() in there else {}

        await self._records.change([Change(b"", b"", {KEY: None}, without)])
        return name.encode() in there


def _key_row(name: bytes, entry: KeyEntry) -> KeyRow:
    """The row of this name. Raises UnreadableRecordError."""
    try:
        row = KeyRow.model_validate(serialization.record_of("key", entry.content), strict=False)
    except ValidationError as error:  # a newer release may know more
        raise UnreadableRecordError("it is no row of a key") from error
    if row.name.encode() != name:
        raise UnreadableRecordError("it belongs to another name")
    return row

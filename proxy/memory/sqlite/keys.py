"""Keys of this gateway in SQLite: a row leaves its table by revocation alone."""

from collections.abc import Sequence
from hashlib import sha256

from proxy.config import KeyRow
from proxy.memory import KEYS
from proxy.memory.key_rows import key_row, packed
from proxy.memory.serialization import Codec, readable
from proxy.memory.sqlite.connection import SqliteConnection

_ADD = """
INSERT INTO gateway_key SELECT ?, ?, ? WHERE (SELECT count(*) FROM gateway_key) < ?
ON CONFLICT DO NOTHING RETURNING 1"""
_ALL = "SELECT name, content FROM gateway_key ORDER BY name"
_DELETE = "DELETE FROM gateway_key WHERE name = ? RETURNING 1"


class SqliteKeys:
    """The part of the store that holds rows of keys."""

    _connection: SqliteConnection
    _codec: Codec

    async def add_key(self, row: KeyRow) -> bool:
        return bool(await self._connection.run(_ADD, row.name, row.sha256, packed(row), KEYS))

    async def key_rows(self, unless: str = "") -> tuple[str, Sequence[KeyRow]] | None:
        rows = await self._connection.run(_ALL)
        revision = sha256(b"\n".join(repr(tuple(row)).encode() for row in rows)).hexdigest()
        if revision == unless:
            return None
        return revision, readable(self._codec.read(key_row, str(name), content) for name, content in rows)

    async def delete_key(self, name: str) -> bool:
        return bool(await self._connection.run(_DELETE, name))

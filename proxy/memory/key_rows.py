"""Rows of keys, as both back ends store them. They hold no text, and are not encrypted."""

from pydantic import ValidationError

from proxy.config import KeyRow
from proxy.memory import serialization
from proxy.memory.serialization import UnreadableRecordError


def packed(row: KeyRow) -> bytes:
    return serialization.packed("key", row.model_dump(mode="json", exclude_defaults=True))


def key_row(name: str, stored: object) -> KeyRow:
    """The row of this name. Raises UnreadableRecordError."""
    try:
        row = KeyRow.model_validate(serialization.record_of("key", stored), strict=False)
    except ValidationError as error:  # a newer release may know more
        raise UnreadableRecordError("it is no row of a key") from error
    if row.name != name:
        raise UnreadableRecordError("it belongs to another name")
    return row

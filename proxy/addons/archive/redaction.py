"""What is left out of recordings: chosen fields, and the credential of the request, in any form in which it may stand.

Laws
  A field is chosen by its path (`messages.*.content`; `*` is any name or place, `$` everything), and all below it.
  A pattern is searched by RE2, in linear time; without one the whole value goes.
  Nothing is left out of the names of fields, so that a session stays one.
"""

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import re2  # type: ignore[import-untyped]  # it ships no types

from policies.dialects.common import as_json

REDACTED = "[redacted]"
_SHORTEST = 8
"""Characters of a credential that is looked for."""

_QUIET = re2.Options()
_QUIET.log_errors = False  # what is wrong with a pattern is said in the error
_Row = tuple[tuple[str, ...], Any]


class Redaction:
    """Leaves out what a table says: patterns by paths. Raises ValueError for a pattern that is none."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self._rows: list[_Row] = []
        for path, pattern in table.items():
            names = tuple(name for name in path.removeprefix("$").split(".") if name)
            try:
                self._rows.append((names, re2.compile(pattern, _QUIET) if pattern else None))
            except re2.error as error:
                raise ValueError(
                    f"{path}: {pattern!r} is not a valid RE2 pattern ({_reason(error)}); correct it"
                ) from error

    def applied(self, session: Mapping[str, Any], credential: str) -> bytes:
        """The session as JSON, without what is to be left out."""
        raw = as_json(_redacted(session, self._rows) if self._rows else session)
        for form in forms_of(credential):
            raw = raw.replace(form, REDACTED.encode())
        return raw


def _reason(error: Exception) -> str:
    """What RE2 says of a pattern, which it says in bytes."""
    reason = error.args[0] if error.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def forms_of(credential: str) -> Iterator[bytes]:
    """The keys of a credential, plain, and in the encodings in which a text may hold them."""
    for key in credential.split("\n"):
        raw = key.encode("utf-8", "surrogateescape")
        if len(raw) >= _SHORTEST:
            yield raw
            yield as_json(key)[1:-1]
            yield from (encode(raw).rstrip(b"=") for encode in (b64encode, urlsafe_b64encode))
            # inside of a longer text it begins at any of three places, and shares its outer characters with neighbours
            yield from (
                encode(bytes(before) + raw)[before + bool(before) : (before + len(raw)) * 4 // 3]
                for encode in (b64encode, urlsafe_b64encode)
                for before in range(3)
            )
            yield from (raw.hex().encode(), raw.hex().upper().encode())
            yield from (quote(raw, safe=safe).encode() for safe in ("", "/"))


def _redacted(value: Any, rows: Sequence[_Row]) -> Any:
    here = [pattern for names, pattern in rows if not names]
    if isinstance(value, dict):
        return {name: _redacted(each, _under(name, rows)) for name, each in value.items()} if rows else value
    if isinstance(value, list):
        return [_redacted(each, _under(str(at), rows)) for at, each in enumerate(value)] if rows else value
    if None in here:
        return REDACTED
    if isinstance(value, str):
        for pattern in here:
            value = pattern.sub(REDACTED, value)
    return value


def _under(name: str, rows: Sequence[_Row]) -> Sequence[_Row]:
    """The rows that count below a field: those that cover all of it, and those whose path goes on through it."""
    return [(names[1:], pattern) for names, pattern in rows if not names or names[0] in (name, "*")]

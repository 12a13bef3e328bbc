"""The request that keeps the prompt of another one in its provider's cache: a ping. What it looks like is each API's
own, and stands there beside the words of its vendor.

Laws
  A form is as the vendor words it; where there are no words, there is no ping.
  All bytes stay but the limit of the output, `stream`, and what has to change with them.
  Nothing is sent that the provider runs, fetches, stores, or goes on with by itself. What is not known refuses.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from policies.dialects.common import decoded
from policies.model.rawjson import Span, UnreadableError, members, spliced


class NoPingError(Exception):
    """None is sent, and why: hosted_tools, stored, tier, or form, where the vendor says nothing of such a request."""


Values = Callable[[str], object]
"""The value that a request has at a key; None where it has none."""
Objections = Callable[[Values], Iterable[tuple[str, bool]]]
"""Reasons not to send a ping, and whether each holds."""
Changes = Callable[[Values], Mapping[str, bytes]]
"""The members that a ping has in place of the request's, or beside them."""


_REMOTE = re.compile(rb'"(?:image|file)_url"\s*:\s*"(?!data:)|"type"\s*:\s*"url"|(?<!\\)(?:\\\\)*\\u00[4-7]')
"""An image or a file that the provider fetches from its URL each time, or a letter written so as to hide one."""


def no_ping(body: bytes) -> NoReturn:
    raise NoPingError("form")


def ping_of(body: bytes, names: re.Pattern[str], objections: Objections, changes: Changes) -> bytes:
    """The body of the ping. Raises NoPingError; by its form for a member that is not known, or a URL, too."""

    def value(name: str) -> object:
        raw = body[slice(*fields[name])] if name in fields else b"null"
        if (read := decoded(raw)) is None and raw != b"null":
            raise UnreadableError(name)
        return read

    try:
        fields = members(body)
        is_known = all(map(names.fullmatch, fields)) and not _REMOTE.search(body)
        if reason := next((reason for reason, holds in objections(value) if holds), "" if is_known else "form"):
            raise NoPingError(reason)
        return _changed(body, fields, changes(value))
    except UnreadableError as error:
        raise NoPingError("form") from error


def _changed(body: bytes, fields: Mapping[str, Span], values: Mapping[str, bytes]) -> bytes:
    end = body.rindex(b"}")
    added = b"".join(b',"%s":%s' % (name.encode(), value) for name, value in values.items() if name not in fields)
    changed = [(fields[name], value) for name, value in values.items() if name in fields]
    return spliced(body, [*changed, ((end, end), added)])

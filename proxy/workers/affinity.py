"""Which worker a request belongs to, found without decoding its body: some 20 microseconds, whatever its size.

Law: requests of one conversation have one owner for as long as its name, or the first message of the user, stays. A
request whose owner cannot be told is served by whoever has it. A wrong guess costs a look at the store, no more.
"""

import re
from zlib import crc32

_ENDS = 16_384
"""Bytes at either end of a body in which the name of a conversation is looked for."""
_LONGEST = 32_768
"""Bytes of a first message that count."""
_NAME = re.compile(rb'"(?:prompt_cache_key|conversation_id)"\s*+:\s*+("[^"\\]++")')
_ROLE = re.compile(rb'"role"\s*+:\s*+"user"')
_PIECE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[]}]', re.DOTALL)
"""A string of JSON, which may be cut off, or where a list or an object begins or ends."""


def owner(tenant: str, conversation: str | None, body: bytes, count: int) -> int | None:
    """The number of the worker, of `count`, that serves this conversation; None where the request does not tell.
    `conversation`: its name in a header."""
    name = conversation.encode("utf-8", "surrogateescape") if conversation else _name(body) or _first_message(body)
    return crc32(name, crc32(tenant.encode("utf-8", "surrogateescape"))) % count if name else None


def _name(body: bytes) -> bytes:
    """The name of the conversation in the body: it stands before the history or after it."""
    match = _NAME.search(body, 0, _ENDS) or _NAME.search(body, max(_ENDS, len(body) - _ENDS))
    return match[1] if match else b""


def _first_message(body: bytes) -> bytes:
    """The first message of the user, which stays while a conversation grows."""
    role = _ROLE.search(body)
    if role is None:
        return b""
    depth = 0
    for piece in _PIECE.finditer(body, role.end(), role.end() + _LONGEST):
        first = piece[0][:1]
        depth += (first in b"[{") - (first in b"]}")
        if depth < 0:
            # some clients sort keys, and the content stands before the role
            start = body.rfind(b'{"content"', 0, role.start())
            return body[role.end() : piece.start()].strip() or body[max(start, 0) : role.start()][:_LONGEST]
    return body[role.end() : role.end() + _LONGEST]

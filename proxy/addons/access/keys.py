"""The form of a key of this gateway: `nrw_`, 24 random bytes in 33 characters of base58, and a checksum in 6.

Laws
  Scanners for secrets know a key by its shape (`KEY_SHAPE`), and its checksum tells it from what only looks like one.
  A key is shown once, when it is made; its SHA-256 is stored: nobody guesses so many random bytes.
"""

import secrets
from hashlib import sha256
from string import ascii_lowercase, ascii_uppercase, digits
from zlib import crc32

from proxy.config.rules import KEY_PREFIX, KEY_SHAPE

_DIGITS = "".join(each for each in digits + ascii_uppercase + ascii_lowercase if each not in "0OIl")
_RANDOM_BYTES = 24
_LENGTH, _CHECKSUM_LENGTH = 33, 6
"""Digits that 24 bytes, and 32 bits, need at most."""


def new_key() -> str:
    content = _base58(int.from_bytes(secrets.token_bytes(_RANDOM_BYTES)), _LENGTH)
    return KEY_PREFIX + content + _checksum(content)


def is_sound(key: str) -> bool:
    """True where this is a key in full: one that was cut or mistyped is not."""
    return (
        KEY_SHAPE.fullmatch(key) is not None
        and _checksum(key[len(KEY_PREFIX) : -_CHECKSUM_LENGTH]) == key[-_CHECKSUM_LENGTH:]
    )


def digest_of(key: str) -> str:
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _checksum(content: str) -> str:
    return _base58(crc32(content.encode()), _CHECKSUM_LENGTH)


def _base58(number: int, length: int) -> str:
    text = ""
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text

"""The keys that encrypt what is at rest, and what they do: AES-256-GCM, a random nonce of 96 bits for each text.

Laws
  What was sealed for one place opens for no other: the place is part of what is authenticated. A flipped bit, a cut, a
  foreign key: SealedError, never another text.
  The first key seals, and each of them opens what names it: so they are rotated. With random nonces one key is good for
  2^32 texts.
  No key stands in an error or a representation.
"""

import os
import re
from base64 import b64decode
from collections.abc import Mapping
from secrets import token_bytes
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALED = 0xE5
"""The first byte of what is sealed; the records of the store begin with a small one, their version."""

_KEY, _NONCE = 32, 12
"""Bytes."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,32}")
_HOW = "write ID:KEY, where KEY is the output of openssl rand -base64 32; several with commas, the newest first"


class SealedError(ValueError):
    """The key is missing, or the text was sealed for another place or damaged."""


class Keyring:
    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = {bytes([SEALED, len(name)]) + name.encode(): AESGCM(key) for name, key in keys.items()}
        """By what begins a text that they have sealed."""
        self._first = next(iter(self._keys))

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `ID:BASE64` with commas between. Raises ValueError, which says what to write and no key."""
        keys: dict[str, bytes] = {}
        for entry in text.split(","):
            name, _, encoded = entry.strip().partition(":")
            if not _ID.fullmatch(name) or name in keys:
                raise ValueError(f"each key needs an id of its own (letters, digits, . _ -): {_HOW}")
            try:
                keys[name] = b64decode(encoded, validate=True)
            except ValueError:
                keys[name] = b""
            if len(keys[name]) != _KEY:
                raise ValueError(f"a key is {_KEY} bytes in base64: {_HOW}")
        return cls(keys)

    def seal(self, place: bytes, plain: bytes) -> bytes:
        nonce = token_bytes(_NONCE)
        return self._first + nonce + self._keys[self._first].encrypt(nonce, plain, self._first + place)

    def open(self, place: bytes, sealed: bytes) -> bytes:
        """The plain text. Raises SealedError."""
        head = sealed[: 2 + sealed[1]] if len(sealed) > 1 else b""
        key, nonce = self._keys.get(head), sealed[len(head) : len(head) + _NONCE]
        if key is None or len(nonce) < _NONCE:
            raise SealedError("there is no key of its name")
        try:
            return key.decrypt(nonce, sealed[len(head) + _NONCE :], head + place)
        except InvalidTag as error:
            raise SealedError("it was damaged, or sealed elsewhere or with another key") from error

    def is_newest(self, sealed: bytes) -> bool:
        """True where the key that seals now has sealed it."""
        return sealed.startswith(self._first)


def keyring_of(variable: str) -> Keyring | None:
    """The keys in this variable of the environment; None where none is named. Raises ValueError."""
    if not variable:
        return None
    text = os.environ.get(variable, "")
    if not text.strip():
        raise ValueError(f"the environment variable {variable} is empty or not set: {_HOW}")
    return Keyring.parse(text)

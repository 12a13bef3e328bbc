"""What a provider gives away and takes back unchanged: signatures and encrypted content. They hide nothing here.

Laws: the same text is sealed the same way; what was changed, or sealed as something else, does not open.
"""

from base64 import b64decode, b64encode
from hashlib import sha256


def seal(kind: str, text: str) -> str:
    """The text, with a stamp that shows any change."""
    plain = text.encode("utf-8", "surrogatepass")
    return b64encode(_stamp(kind, plain) + plain).decode()


def opened(kind: str, sealed: object) -> str | None:
    """The text again; None where it was not sealed like this."""
    try:
        raw = b64decode(sealed, validate=True) if isinstance(sealed, str) else b""
    except ValueError:
        return None
    stamp, plain = raw[:_SIZE], raw[_SIZE:]
    return plain.decode("utf-8", "surrogatepass") if stamp == _stamp(kind, plain) else None


_SIZE = 18


def _stamp(kind: str, plain: bytes) -> bytes:
    return sha256(kind.encode() + b"\0" + plain).digest()[:_SIZE]

"""Signatures and encrypted content: text that a provider hands out and takes back only unchanged. Nothing is hidden.

Laws: the same text is sealed the same way; what was changed, or sealed as another kind, does not unseal.
"""

from base64 import b64decode, b64encode
from hashlib import sha256

REASONING = "openai reasoning"
THINKING = "anthropic thinking"
"""The kind of a signature that is bound to no prompt."""
BOUND_THINKING = "anthropic bound thinking"
PREFIX_DIGEST = 32
"""Characters of the digest of a prompt in a bound signature."""
_STAMP = 18


def seal(kind: str, text: str) -> str:
    """The text in base64, behind a stamp that shows any change."""
    plain = text.encode("utf-8", "surrogatepass")
    return b64encode(_stamp(kind, plain) + plain).decode()


def unseal(kind: str, sealed: object) -> str | None:
    """The text again; None where it was not sealed as this kind."""
    try:
        raw = b64decode(sealed, validate=True) if isinstance(sealed, str) else b""
    except ValueError:
        return None
    stamp, plain = raw[:_STAMP], raw[_STAMP:]
    return plain.decode("utf-8", "surrogatepass") if stamp == _stamp(kind, plain) else None


def _stamp(kind: str, plain: bytes) -> bytes:
    return sha256(kind.encode() + b"\0" + plain).digest()[:_STAMP]


# --- Anthropic's signatures of thinking blocks ---


def sign(thought: str, prefix: str = "") -> str:
    """The signature of a thought, bound to the prompt with this digest if there is one."""
    return seal(BOUND_THINKING, prefix + thought) if prefix else seal(THINKING, thought)


def signed(signature: object) -> tuple[str, str] | None:
    """The thought that a signature holds, and the digest of the prompt before it, empty where it is bound to none; None
    where the provider never made it."""
    bound = unseal(BOUND_THINKING, signature)
    if bound is not None:
        return bound[PREFIX_DIGEST:], bound[:PREFIX_DIGEST]
    free = unseal(THINKING, signature)
    return None if free is None else (free, "")


def thought_in(signature: object) -> str:
    """The thought that a signature holds; empty where the signature is not the provider's."""
    return (signed(signature) or ("", ""))[0]

"""Signatures of thoughts: what was thought and, by models that bind it, the prompt that it was thought behind."""

from dataclasses import dataclass

from proxy.lab.provider.sealed import opened, seal

THINKING = "anthropic thinking"
"""What signatures are of that are bound to nothing."""
BOUND = "anthropic bound thinking"
DIGEST = 32
"""Characters of the digest of a prompt."""


@dataclass(frozen=True, slots=True)
class Signed:
    """What a signature tells."""

    thought: str
    prefix: str
    """A digest of the prompt before; empty where the thought is bound to none."""


def sign(thought: str, prefix: str = "") -> str:
    """The signature of a thought behind a prompt with this digest."""
    return seal(BOUND, prefix + thought) if prefix else seal(THINKING, thought)


def signed(signature: object) -> Signed | None:
    """What a signature tells; None where the provider never gave it."""
    bound = opened(BOUND, signature)
    if bound is not None:
        return Signed(bound[DIGEST:], bound[:DIGEST])
    free = opened(THINKING, signature)
    return None if free is None else Signed(free, "")


def thought_of(signature: object) -> str:
    """The thought; empty where there is none to read."""
    found = signed(signature)
    return found.thought if found else ""

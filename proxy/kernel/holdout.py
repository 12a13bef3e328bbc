"""Which conversations pass as the client wrote them, so that what the others save is measured."""

import hmac
from dataclasses import dataclass, field

from policies.money.bills import Arm
from proxy.memory import Key


@dataclass(frozen=True, slots=True)
class Holdout:
    """A share of all conversations, by a keyed hash of tenant and conversation: each belongs to it for its whole life,
    in every replica, and nobody who chooses a name can tell whether."""

    share: float
    secret: bytes = field(repr=False)

    def arm(self, key: Key) -> Arm:
        """The arm in which a conversation is, unless it leaves that."""
        if not self.share:
            return ""
        return "holdout" if self.has(key) else "on"

    def has(self, key: Key) -> bool:
        if not self.share:
            return False
        name = f"holdout\0{key.tenant}\0{key.conversation}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hmac.digest(self.secret, name, "sha256")[:8]) < self.share * 2**64

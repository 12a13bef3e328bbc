"""What keys are called.

Laws
  The keys of a conversation share a hash tag, and so a slot of a cluster.
  Names are digests: what a client writes cannot forge a key, and keys tell nothing.
"""

from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class Place:
    """The keys of a conversation."""

    steps: str
    ages: str
    originals: str
    summaries: str
    leases: str
    spent: str

    @property
    def keys(self) -> tuple[str, ...]:
        return self.steps, self.ages, self.originals, self.summaries, self.leases, self.spent


class Keys:
    """All of them, below one prefix."""

    def __init__(self, prefix: str) -> None:
        self.ready = f"{prefix}:ready"
        self.tenants = f"{prefix}:tenants"
        self._prefix = prefix

    def place(self, tenant: bytes, name: bytes) -> Place:
        """Of a conversation."""
        tag = f"{self._prefix}:{{{_digest(tenant, name)}}}"
        return Place(*(f"{tag}:{kind}" for kind in ("steps", "ages", "originals", "summaries", "leases", "spent")))

    def conversations(self, tenant: bytes) -> str:
        """Those of a tenant."""
        return f"{self._prefix}:{{{_digest(tenant)}}}:conversations"

    def events(self, tenant: bytes) -> str:
        """Those of a tenant."""
        return f"{self._prefix}:{{{_digest(tenant)}}}:events"

    def kept(self, tenant: bytes, ref: bytes) -> str:
        """The conversations that keep an original."""
        return f"{self._prefix}:{{{_digest(tenant, b'ref', ref)}}}:kept"

    def secret(self, name: str) -> str:
        """A secret that all share."""
        return f"{self._prefix}:secret:{name}"


def _digest(*names: bytes) -> str:
    """One for each sequence of names, whatever stands in them."""
    return sha256(b"".join(b"%d:%s" % (len(name), name) for name in names)).hexdigest()[:32]

"""What keys are called.

Laws
  The keys of a conversation share a hash tag, and so a slot of a cluster.
  Names are digests: what a client writes cannot forge a key, and keys tell nothing.
"""

from dataclasses import dataclass
from hashlib import sha256

from proxy.store import Shelf

Index = tuple[str, str]
"""The leaves of a shelf, and how many bytes they are."""
_KINDS = ["steps", "ages", "originals", "summaries", "leases", "spent", "leaves", "texts", "messages", "message_bytes"]


@dataclass(frozen=True, slots=True)
class Place:
    """The keys of a conversation."""

    steps: str
    ages: str
    originals: str
    summaries: str
    leases: str
    spent: str
    leaves: str
    texts: str
    messages: str
    message_bytes: str

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(getattr(self, kind) for kind in _KINDS)


class Keys:
    """All of them, below one prefix."""

    def __init__(self, prefix: str) -> None:
        self.ready = f"{prefix}:ready"
        self.tenants = f"{prefix}:tenants"
        self._prefix = prefix

    def place(self, tenant: bytes, name: bytes) -> Place:
        """Of a conversation."""
        tag = f"{self._prefix}:{{{_digest(tenant, name)}}}"
        return Place(*(f"{tag}:{kind}" for kind in _KINDS))

    def index(self, shelf: Shelf, tenant: bytes, name: bytes) -> Index:
        """Of the artifacts of a tenant, or of the log of a conversation."""
        if shelf == "message":
            there = self.place(tenant, name)
            return there.messages, there.message_bytes
        tag = f"{self._prefix}:{{{_digest(tenant)}}}"
        return f"{tag}:artifacts", f"{tag}:artifact_bytes"

    def conversations(self, tenant: bytes) -> str:
        """Those of a tenant."""
        return f"{self._prefix}:{{{_digest(tenant)}}}:conversations"

    def events(self, tenant: bytes) -> str:
        """Those of a tenant."""
        return f"{self._prefix}:{{{_digest(tenant)}}}:events"

    def kept(self, tenant: bytes, ref: bytes) -> str:
        """The conversations that keep an original, or an artifact."""
        return f"{self._prefix}:{{{_digest(tenant, b'ref', ref)}}}:kept"

    def secret(self, name: str) -> str:
        """A secret that all share."""
        return f"{self._prefix}:secret:{name}"


def _digest(*names: bytes) -> str:
    """One for each sequence of names, whatever stands in them."""
    return sha256(b"".join(b"%d:%s" % (len(name), name) for name in names)).hexdigest()[:32]

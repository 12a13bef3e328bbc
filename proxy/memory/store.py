"""A store as callers see it: the decisions, the records by their rules, and what is done with all of them."""

from typing import Protocol

from proxy.memory.bills import BillStore
from proxy.memory.decisions import DecisionStore, Key
from proxy.memory.gateway_keys import KeyStore
from proxy.memory.texts import EventStore, OwnerStore, TextStore


class Lifecycle(Protocol):
    """What is done with a store as a whole."""

    @property
    def shared(self) -> bool:
        """Whether another store of the same URL has the same content."""

    @property
    def misses(self) -> int:
        """How many records could not be read so far."""

    async def open(self) -> None:
        """Make it usable, or StoreTrouble. From then on each operation opens it anew where that is needed."""

    async def close(self) -> None:
        """Close files and connections. Harmless where it is closed."""

    async def ready(self) -> bool:
        """Whether it is open and can be read and written now. Never raises."""

    async def delete(self, key: Key, *, with_events: bool = True) -> int:
        """Delete a conversation, and all that is stored of it: 1, or 0 where there is none (its events go all the
        same). A second time is harmless."""

    async def delete_tenant(self, tenant: str, *, with_events: bool = True) -> int:
        """Delete a tenant's conversations and events, and what its days cost. Returns how many conversations there
        were."""

    async def trim(self, limit: int) -> tuple[int, int] | None:
        """Where more bytes are stored than the limit, delete conversations until there is room: the oldest of the
        tenant that holds most, again and again. Returns how many bytes are stored now, and how many conversations went;
        None where another replica has looked a moment ago."""

    async def sweep(self, older_than: float) -> int:
        """Delete the conversations last written before this time (seconds since 1970), and the events noted before it.
        Returns how many conversations they were."""

    async def secret(self, name: str) -> bytes:
        """32 random bytes, made at the first call and the same from then on for all who share the store."""


class Store(TextStore, EventStore, OwnerStore, BillStore, KeyStore, DecisionStore, Lifecycle):
    """Memory that workers, restarts and replicas share."""

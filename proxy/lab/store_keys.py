"""The keys of the gateway, as the file and the store have them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import SecretStr

from proxy.config import KeyRow
from proxy.identity import STANDS_FOR, owner_of
from proxy.lab.read_store import StoreSettings
from proxy.store import Store


class KeySettings(StoreSettings):
    """The settings that name the store, and the keys beside those of the store."""

    keys: tuple[KeyRow, ...] = ()
    upstreams: tuple[Mapping[str, Any], ...] = ()
    """As they stand there: of these only the names are wanted."""
    upstream: str | None = None
    anthropic_upstream: str | None = None
    tenant_secret: SecretStr | None = None


async def stored_keys(store: Store) -> Sequence[KeyRow]:
    """The rows of the store. Raises StoreTrouble."""
    answer = await store.key_rows()
    return answer[1] if answer is not None else ()


async def tenants_secret(store: Store, settings: KeySettings) -> bytes:
    """The key of the hashes that name tenants and owners, as far as it is known here. Raises StoreTrouble."""
    configured = settings.tenant_secret
    return configured.get_secret_value().encode() if configured else await store.secret("tenant")


async def key_names(store: Store, settings: KeySettings) -> Mapping[str, str]:
    """The names of keys by the digest that stands for their holders in records. Raises StoreTrouble."""
    secret = await tenants_secret(store, settings)
    return {owner_of(secret, STANDS_FOR + row.name): row.name for row in (*settings.keys, *await stored_keys(store))}

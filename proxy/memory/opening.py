"""A store as it is opened at start: what is wrong with it, its secret that names tenants, and how it stays small."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from proxy.config import ConfigurationError, Settings
from proxy.memory import Store, StoreTrouble, open_store
from proxy.memory.forgetting import ForgetRegistry
from proxy.telemetry import Telemetry

_PAUSE = 60.0
"""Seconds from one look at the size to the next."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """A store that no request waits for, the key of the names in it, the time, and where deletions are announced."""

    store: Store
    telemetry: Telemetry
    secret: bytes = field(repr=False)
    clock: Callable[[], float]
    forgets: ForgetRegistry


async def start_store(
    settings: Settings, telemetry: Telemetry | None, parts: AsyncExitStack, patience: float | None = None
) -> Store:
    """The store that the settings name, which `parts` closes. `telemetry`: None where another connection to it has
    logged its troubles; `patience`: seconds that requests wait for it, if not the usual ones."""

    def announce(what: str) -> None:
        if telemetry is not None:
            telemetry.log.warning("store_set_aside", what=what)

    try:
        opener = partial(open_store, patience=patience) if patience else open_store
        store = opener(settings.store, keyring=settings.keyring, announce=announce)
    except ValueError as error:
        raise ConfigurationError(f"store: {error}") from error
    parts.push_async_callback(store.close)
    try:
        await store.open()
    except StoreTrouble as error:  # requests are served all the same
        if telemetry is not None:
            telemetry.metrics.store_trouble("open")
            telemetry.log.warning("store_unavailable", error=str(error), effect="replies stay right; nothing is stored")
    return store


async def shared_secret(settings: Settings, telemetry: Telemetry, before: bytes | None = None) -> bytes:
    """The key of the hash that names tenants, for all workers; `before`: the one that they had. Raises
    ConfigurationError where they cannot share the store."""
    async with AsyncExitStack() as parts:
        store = await start_store(settings, telemetry, parts) if not settings.only_relays else None
        if store is not None and not store.shared:
            message = f"store: {settings.store} is in the memory of one process; name a file, or set `workers` to 1"
            raise ConfigurationError(message)
        return await tenant_secret(settings, store, telemetry, before)


async def tenant_secret(settings: Settings, store: Store | None, telemetry: Telemetry, before: bytes | None) -> bytes:
    """The key of the hash that names tenants: configured or stored; in trouble the one before, or this process's."""
    if settings.tenant_secret is not None:
        return settings.tenant_secret.get_secret_value().encode()
    if store is not None:
        try:
            return await store.secret("tenant")
        except StoreTrouble as error:
            telemetry.metrics.store_trouble("secret")
            telemetry.log.warning("store_unavailable", error=str(error), effect="restart to find what is stored")
    return before or secrets.token_bytes(32)


async def keep_within(limit: int, store: Store, telemetry: Telemetry) -> None:
    """Look now and then whether more is stored than may be, and trim it; until it is cancelled."""
    while True:
        try:
            looked = await store.trim(limit)
        except StoreTrouble:
            telemetry.metrics.store_trouble("trim")
        else:
            if looked is not None:
                size, trimmed = looked
                telemetry.metrics.stored.set(size)
                telemetry.metrics.count("trimmed", by=trimmed)
                if trimmed:
                    telemetry.log.warning("store_trimmed", conversations=trimmed, size=size, limit=limit)
        await asyncio.sleep(_PAUSE)

"""The store of `narrows serve`, and the keys of the gateway in it, read by other commands for people.

Law: they only read, but for rows of keys and for what `narrows delete` deletes, and where there is no store, none is
created. An older file is brought up to date, as by any opening.
"""

import sqlite3
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import AfterValidator, Field, SecretStr

from proxy.config import Configured, KeyRow
from proxy.config.groups.keeping import default_store, whole_store_url
from proxy.config.keyring import keyring_of
from proxy.config.sources import loaded
from proxy.identity.credential import STANDS_FOR, owner_of
from proxy.memory import Store, StoreTrouble, open_store

T = TypeVar("T")
StoreUrl = Annotated[
    str, typer.Option("--store", metavar="URL", help="The store to read. Default: as `narrows serve` would find it.")
]
StoreConfig = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The TOML file that names the store.")
]
StoreTenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="Only this tenant, whole as --json prints it. Default: all.")
]
_PATIENCE = 10.0


class StoreSettings(Configured):
    """The settings of `narrows serve` that name the store."""

    store: Annotated[str, AfterValidator(whole_store_url)] = Field(default_factory=default_store)
    tenant: str | None = None
    config: str | None = None
    encryption_key_env: str = ""


class KeySettings(StoreSettings):
    """The settings that name the store, and the keys beside those of the store."""

    keys: tuple[KeyRow, ...] = ()
    upstreams: tuple[Mapping[str, Any], ...] = ()
    """As they stand there: of these only the names are wanted."""
    upstream: str | None = None
    anthropic_upstream: str | None = None
    tenant_secret: SecretStr | None = None


S = TypeVar("S", bound=StoreSettings)


def settings_of(kind: type[S], store: str, config: Path | None) -> S:
    """An empty option comes from the environment, the file or the default. Raises ConfigurationError."""
    options = {"store": store, "config": str(config or "")}
    return loaded(kind, {name: value for name, value in options.items() if value})


async def read_store(settings: StoreSettings, read: Callable[[Store], Awaitable[T]]) -> T:
    """The answer of the store that the settings name. Raises ValueError where there is none, or no answer."""
    store = _store(settings)
    try:
        await store.open()
        return await read(store)
    except StoreTrouble as error:
        raise ValueError(f"store: {error}") from error
    finally:
        await store.close()


def _store(settings: StoreSettings) -> Store:
    """The store, where there is one to read. Raises ValueError."""
    try:
        keyring = keyring_of(settings.encryption_key_env)
    except ValueError as error:
        raise ValueError(f"encryption_key_env: {error}") from error
    try:
        announce = partial(print, file=sys.stderr)
        store = open_store(settings.store, patience=_PATIENCE, keyring=keyring, announce=announce)
    except ValueError as error:
        raise ValueError(f"store: {error}") from error
    scheme, _, place = settings.store.partition("?")[0].partition(":")
    if scheme != "sqlite":
        return store
    name = place.removeprefix("//").removeprefix("/")
    if name in ("", ":memory:"):
        raise ValueError("store: one in memory is gone with its process; name a file or a server with --store")
    file = Path(name).expanduser()
    if not file.is_file():
        raise ValueError(f"store: there is no file {file}; name another with --store, or run `narrows serve` first")
    if _is_foreign(file):  # opening it would make it a store, or bring up to date what is none
        raise ValueError(f"store: {file} is not a store of Narrows; name another with --store")
    return store


def _is_foreign(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB
    return not tables >= {"secret", "conversation", "step"}


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

"""The events of summaries and deletions, read from the store for people.

Laws
  It only reads, and where there is no store, none is created. An older file is brought up to date, as by any opening.
  No text of a conversation is in it, but for the texts of summaries where they are asked for.
"""

import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict

from policies.model.summary_record import SummaryRecord, SummaryStatus
from proxy.admin.export import moment
from proxy.admin.summaries import provenance, statuses_in
from proxy.config import ConfigurationError, Configured, Settings
from proxy.config.keyring import keyring_of
from proxy.store import Event, Key, Store, StoreTrouble, conversation_id, open_store

T = TypeVar("T")
_PATIENCE = 10.0
"""Seconds that the store has for an answer."""


class StoreSettings(Configured):
    """The settings of `narrows serve` that name the store: the others need not fit this machine."""

    model_config = SettingsConfigDict(env_prefix="NARROWS_", extra="ignore", frozen=True, hide_input_in_errors=True)

    store: str = Field(
        default_factory=lambda: str(Settings.model_fields["store"].get_default(call_default_factory=True))
    )
    tenant: str | None = None
    config: str | None = None
    encryption_key_env: str = ""


@dataclass(frozen=True, slots=True)
class AuditedSummary:
    """A summary or a digest, and what became of it where it is a summary for the prompt."""

    tenant: str
    record: SummaryRecord
    status: SummaryStatus | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """The events, oldest first, each with its tenant, and the summaries of one conversation."""

    events: Sequence[tuple[str, Event]]
    summaries: Sequence[AuditedSummary] = ()

    def as_json(self, with_text: bool = False) -> dict[str, Any]:
        """As `--json` prints it: times as ISO 8601 writes them; the texts of summaries only where asked for."""
        events = [
            {
                "tenant": tenant,
                "at": moment(event.at),
                "conversation": event.conversation,
                "event": event.name,
                "details": dict(event.details),
            }
            for tenant, event in self.events
        ]
        summaries = [
            {
                "tenant": each.tenant,
                **provenance(each.record, each.status),
                **({"content": each.record.content} if with_text else {}),
            }
            for each in self.summaries
        ]
        return {"events": events, "summaries": summaries}


def store_settings(store: str, config: Path | None) -> StoreSettings:
    """The settings with these options; an empty one comes from the environment, the file or the default.

    Raises ConfigurationError.
    """
    options: Mapping[str, Any] = {"store": store, "config": str(config or "")}
    try:
        return StoreSettings(**{name: value for name, value in options.items() if value})
    except ValidationError as error:
        (name,), wish = error.errors()[0]["loc"], error.errors()[0]["msg"]
        raise ConfigurationError(f"{name}: {wish}") from error


async def read_audit(
    settings: StoreSettings, conversation: str | None = None, tenant: str | None = None, limit: int = 50
) -> Audit:
    """The newest so many events of one conversation or all, of one tenant or all; the summaries of one conversation.

    Raises ValueError where there is no store, or no answer.
    """
    return await reading(settings, partial(_audit, settings, conversation, tenant, limit))


async def reading(settings: StoreSettings, read: Callable[[Store], Awaitable[T]]) -> T:
    """What is read from the store that the settings name. Raises ValueError where there is none, or no answer."""
    store = existing_store(settings)
    try:
        await store.open()
        return await read(store)
    except StoreTrouble as error:
        raise ValueError(f"store: {error}") from error
    finally:
        await store.close()


async def _audit(
    settings: StoreSettings, conversation: str | None, tenant: str | None, limit: int, store: Store
) -> Audit:
    conversation = conversation_id(conversation) if conversation is not None else None
    events = await store.events(tenant, conversation, limit)
    summaries: list[AuditedSummary] = []
    if conversation is not None:
        # in each tenant that it may be in: events may be gone that would name it
        tenants = {tenant} if tenant else {each for each, _ in events} | {settings.tenant or "local"}
        for each in sorted(tenants):
            key = Key(each, conversation)
            records = await store.summaries(key)
            status_of = await statuses_in(store, key, records, time.time())
            summaries += [AuditedSummary(each, record, status_of.get(record.id)) for record in records]
    return Audit(events, summaries)


def existing_store(settings: StoreSettings) -> Store:
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
    if scheme.lower() != "sqlite":
        return store
    name = place.removeprefix("//").removeprefix("/")
    if name in ("", ":memory:"):
        raise ValueError("store: one in memory is gone with its process; name a file or a server with --store")
    file = Path(name).expanduser()
    if not file.is_file():
        raise ValueError(f"store: there is no file {file}; name another with --store, or run `narrows serve` first")
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            ((version,),) = database.execute("PRAGMA user_version")
    except sqlite3.Error:
        return store  # opening it says what is wrong
    if version == 0:  # a database that was never a store: opening it would make it one
        raise ValueError(f"store: {file} is no store of Narrows; name another with --store")
    return store

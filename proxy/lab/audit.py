"""What became of summaries, and what was deleted: read from the store, for people.

Laws
  It only reads, and where there is no store, none is made. An older file is brought up to date, as by any opening.
  It tells what was done to which messages; no text of a conversation is in it.
"""

import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict

from policies.model.summary_record import SummaryRecord
from proxy.admin.conversations import provenance
from proxy.admin.export import moment
from proxy.config import ConfigurationError, Configured, Settings
from proxy.config.keyring import keyring_of
from proxy.store import Event, Key, Store, StoreTrouble, open_store

_PATIENCE = 10.0
"""Seconds until the store has answered too late."""


class Place(Configured):
    """Of the settings of `narrows serve`, those that say what is read: the others need not fit this machine."""

    model_config = SettingsConfigDict(env_prefix="NARROWS_", extra="ignore", frozen=True, hide_input_in_errors=True)

    store: str = Field(
        default_factory=lambda: str(Settings.model_fields["store"].get_default(call_default_factory=True))
    )
    tenant: str | None = None
    config: str | None = None
    encryption_key_env: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody wants to know: of one tenant or all, of one conversation or all, the newest so many events."""

    place: Place
    conversation: str | None = None
    tenant: str | None = None
    most: int = 50


@dataclass(frozen=True, slots=True)
class Audit:
    """The events, oldest first, and the summaries of the conversation in question; each with its tenant."""

    events: Sequence[tuple[str, Event]]
    summaries: Sequence[tuple[str, SummaryRecord]] = ()

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "events": [{"tenant": tenant, **_told(event)} for tenant, event in self.events],
            "summaries": [{"tenant": tenant, **provenance(record)} for tenant, record in self.summaries],
        }


def placed(store: str, config: Path | None) -> Place:
    """The place that these words name; what is empty, the environment, the file or the default says.

    Raises ConfigurationError.
    """
    given: Mapping[str, Any] = {"store": store, "config": str(config or "")}
    try:
        return Place(**{name: value for name, value in given.items() if value})
    except ValidationError as error:
        (name,), wish = error.errors()[0]["loc"], error.errors()[0]["msg"]
        raise ConfigurationError(f"{name}: {wish}") from error


async def audited(question: Question) -> Audit:
    """What the store tells. Raises ValueError where there is none, or no answer."""
    store = _reached(question.place)
    try:
        await store.open()
        events = await store.events(question.tenant, question.conversation, question.most)
        return Audit(events, await _summaries(store, question, {tenant for tenant, _ in events}))
    except StoreTrouble as error:
        raise ValueError(f"store: {error}") from error
    finally:
        await store.close()


async def _summaries(store: Store, question: Question, seen: set[str]) -> list[tuple[str, SummaryRecord]]:
    """Those of the conversation in each tenant that it may be in: events may be gone that would name it."""
    if question.conversation is None:
        return []
    tenants = {question.tenant} if question.tenant else seen | {question.place.tenant or "local"}
    found = []
    for tenant in sorted(tenants):
        found += [(tenant, record) for record in await store.summaries(Key(tenant, question.conversation))]
    return found


def _reached(where: Place) -> Store:
    """The store of this place, where there is one to read."""
    url = where.store
    try:
        keyring = keyring_of(where.encryption_key_env)
    except ValueError as error:
        raise ValueError(f"encryption_key_env: {error}") from error
    try:
        store = open_store(url, patience=_PATIENCE, keyring=keyring, announce=partial(print, file=sys.stderr))
    except ValueError as error:
        raise ValueError(f"store: {error}") from error
    scheme, _, place = url.partition("?")[0].partition(":")
    if scheme.lower() != "sqlite":
        return store
    name = place.removeprefix("//").removeprefix("/")
    if name in ("", ":memory:"):
        raise ValueError("store: one in memory is gone with its process; name a file or a server with --store")
    file = Path(name).expanduser()
    if not file.is_file():
        raise ValueError(f"store: there is no file {file}; name another with --store, or run `narrows serve` first")
    if _is_blank(file):
        raise ValueError(f"store: {file} is no store of Narrows; name another with --store")
    return store


def _is_blank(file: Path) -> bool:
    """Whether it is a database that was never a store: opening it would make it one."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            ((version,),) = database.execute("PRAGMA user_version")
    except sqlite3.Error:
        return False  # the store knows what to say of it
    return bool(version == 0)


def _told(event: Event) -> dict[str, Any]:
    return {
        "at": moment(event.at),
        "conversation": event.conversation,
        "event": event.name,
        "details": dict(event.details),
    }

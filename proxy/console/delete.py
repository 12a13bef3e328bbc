"""`narrows delete`: what is stored of a tenant, of a key's holder or of a conversation, deleted by an operator.

Law: it says what there is before it deletes, and what is left behind it. Every Narrows on the store hears of it within
seconds, forgets it and deletes what it has recorded of it.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from proxy.addons.archive.recordings import Recordings
from proxy.console.arguments import AsJson
from proxy.console.output import print_json, printable, refusing
from proxy.console.read_store import KeySettings, StoreConfig, StoreUrl, read_store, settings_of, tenants_secret
from proxy.memory import TEXT_KINDS, Event, Key, Store, conversation_id
from proxy.memory.forgetting import Scope, announce, delete_stored, sent_with

_KINDS = ("conversations", "texts", "summaries", "bills", "recordings")


class DeletionSettings(KeySettings):
    record: Path | None = None


def delete(
    tenant: Annotated[str, typer.Option(metavar="NAME", help="All of this tenant.")] = "",
    key: Annotated[str, typer.Option(metavar="NAME", help="All that was sent with this key, by its name.")] = "",
    conversation: Annotated[str, typer.Option(metavar="CONVERSATION", help="This one, in whatever tenant.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreUrl = "",
    config: StoreConfig = None,
    as_json: AsJson = False,
) -> None:
    """Delete what is stored of a tenant, a key or a conversation.

    Says what there is, asks, deletes it from the store and from the folder of `record`, and says what it was. A Narrows
    that uses the store need not end: within 5 seconds it forgets the same, and deletes its own recordings of it. What
    days have cost stays, but for a tenant. NARROWS_STORE, NARROWS_CONFIG and NARROWS_RECORD count here too.
    """
    with refusing():
        if sum(map(bool, (tenant, key, conversation))) != 1:
            raise ValueError("name one of --tenant, --key and --conversation")
        settings = settings_of(DeletionSettings, store, config)
        recordings = Recordings(settings.record) if settings.record is not None else None
        meant = partial(_scopes, settings, tenant, key, conversation)
        scopes = asyncio.run(read_store(settings, meant))
        before = asyncio.run(read_store(settings, partial(_counted, scopes, recordings)))
        for scope, counts in zip(scopes, before, strict=True):
            one = f"conversation {printable(scope.conversation, 40)} of " if scope.conversation else ""
            whose = f", what {printable(scope.owner, 40)} has sent" if scope.owner else ""
            where = f"{one}tenant {printable(scope.tenant, 40)}{whose}"
            print(f"narrows: {where}: {_in_words(counts)}", file=sys.stderr)
        if not yes and not sys.stdin.isatty():
            raise ValueError("add --yes if all of that is to be deleted")
        if not yes and not typer.confirm("Delete all of it?", err=True):
            raise typer.Exit(2)
        after = asyncio.run(read_store(settings, partial(_delete, scopes, recordings)))
    rest, there = sum(after, Counter[str]()), sum(before, Counter[str]())
    if as_json:
        print_json({"deleted": _by_kind(there - rest), "left": _by_kind(rest)})
    else:
        print(f"Deleted: {_in_words(there - rest)}.")
        print("A Narrows that runs on this store forgets it within 5 seconds, and deletes its recordings of it.")
    if rest:
        print(f"narrows: left, or written meanwhile: {_in_words(rest)}", file=sys.stderr)
        raise typer.Exit(1)


async def _scopes(settings: DeletionSettings, tenant: str, key: str, conversation: str, store: Store) -> list[Scope]:
    """The scopes that are meant. Raises StoreTrouble."""
    if tenant:
        return [Scope(tenant)]
    if key:
        return await sent_with(store, key, await tenants_secret(store, settings))
    name = conversation_id(conversation)
    tenants = {row.labels.tenant for row in await store.day_rows("")} | {settings.tenant or "local"}
    return [Scope(each, name) for each in sorted(tenants) if name in await store.conversations(each)]


async def _delete(scopes: Sequence[Scope], recordings: Recordings | None, store: Store) -> list[Counter[str]]:
    """Delete it, and let others hear of it. Returns what is left. Raises StoreTrouble."""
    for scope in scopes:
        names = [scope.conversation]
        if scope.owner is not None:  # each by its name: what is written of one meanwhile may name nobody
            names = [*await store.conversations(scope.tenant, scope.owner), None]
        for name in names:
            one = Scope(scope.tenant, name, scope.owner)
            count = await delete_stored(store, one)
            await announce(store, one, time.time(), uuid4().hex)
            if name is not None or scope.owner is None:
                event = "tenant.deleted" if name is None else "conversation.deleted"
                details = {"conversations": count} if name is None else {}
                await store.note(scope.tenant, Event(time.time(), name or "", event, details))
        if recordings is not None:
            recordings.delete(scope.tenant, scope.conversation, scope.owner)
    return await _counted(scopes, recordings, store)


async def _counted(scopes: Sequence[Scope], recordings: Recordings | None, store: Store) -> list[Counter[str]]:
    """How much there is in each scope, by kind. Raises StoreTrouble."""
    rows = []
    for scope in scopes:
        tenant, conversation, owner = scope.tenant, scope.conversation, scope.owner
        counts = Counter({"recordings": len(recordings.of(tenant, conversation, owner)) if recordings else 0})
        names = [each for each in await store.conversations(tenant, owner) if conversation in (None, each)]
        for key in (Key(tenant, name) for name in names):
            counts["conversations"] += 1
            counts["texts"] += sum([len(await store.list_texts(key, kind)) for kind in TEXT_KINDS.values()])
            counts["summaries"] += sum(owner in (None, each.owner) for each in await store.summaries(key))
            counts["bills"] += sum(owner in (None, each.labels.owner) for each in await store.request_bills(key))
        rows.append(+counts)
    return rows


def _by_kind(counts: Counter[str]) -> dict[str, int]:
    return {kind: counts[kind] for kind in _KINDS}


def _in_words(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[kind]:,} {kind}" for kind in _KINDS if counts[kind]) or "nothing"

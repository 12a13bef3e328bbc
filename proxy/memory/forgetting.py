"""The one list of what has to be forgotten where a conversation, or all of a tenant, is deleted.

What holds something of conversations in memory is registered once; a deletion calls `ForgetRegistry.forget_everywhere`
before it deletes from the store, so that nothing that waits here is written after it.

Laws
  Of a conversation that several have sent, each deletes its own texts, summaries and bills, and the last of them all
  the rest.
  A deletion is announced behind what it deletes: whoever hears of it forgets what it holds and deletes once more, so
  that nothing stays that was written meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from proxy.identity.credential import STANDS_FOR, owner_of
from proxy.memory import DELETIONS, EVENTS, TEXT_KINDS, Event, Key, Store, StoreTrouble, TextKind

_POLL = 1.5
"""Seconds between two questions for what others have deleted."""

Forget = Callable[[str, str | None], None]
"""Forgets one conversation of a tenant (named first), or all of them where no conversation is given."""


class ForgetRegistry:
    """Caches, queues and background work that hold something of conversations."""

    def __init__(self, others: Callable[[str, str | None], Awaitable[None]] | None = None) -> None:
        """`others`: has the other workers of this machine forget the same."""
        self._forgets: list[Forget] = []
        self._others = others

    def register(self, forget: Forget) -> None:
        """Call this at each deletion."""
        self._forgets.append(forget)

    def forget(self, tenant: str, conversation: str | None = None) -> None:
        """A conversation is deleted, or a whole tenant: forget it in this process."""
        for forget in self._forgets:
            forget(tenant, conversation)

    async def forget_everywhere(self, tenant: str, conversation: str | None = None) -> None:
        """A conversation is deleted, or a whole tenant: forget it in all workers of this machine."""
        self.forget(tenant, conversation)
        if self._others is not None:
            await self._others(tenant, conversation)


class Scope(Struct, frozen=True, order=True):
    """A deletion: of a tenant or one conversation of it; and of that all, or what this owner has sent."""

    tenant: str
    conversation: str | None = None
    owner: str | None = None


async def delete_stored(store: Store, scope: Scope, *, with_events: bool = True) -> int:
    """Delete it from the store. Of how many conversations there was anything. `with_events`: not where the event of the
    deletion itself is there by now. Raises StoreTrouble."""
    if scope.conversation is not None:
        return int(await _delete_one(store, Key(scope.tenant, scope.conversation), scope.owner, with_events))
    if scope.owner is None:
        return await store.delete_tenant(scope.tenant, with_events=with_events)
    names = await store.conversations(scope.tenant, scope.owner)
    return sum([await _delete_one(store, Key(scope.tenant, name), scope.owner, with_events) for name in names])


async def owners_of(store: Store, key: Key) -> set[str]:
    """All who have sent something of a conversation. Raises StoreTrouble."""
    texts = [owner for kind in TEXT_KINDS.values() for owner in (await _text_owners(store, key, kind)).values()]
    bills = (bill.labels.owner for bill in await store.request_bills(key))
    return {*await store.owners(key), *texts, *bills, *(record.owner for record in await store.summaries(key))}


async def sent_with(store: Store, key: str, secret: bytes) -> list[Scope]:
    """All that was sent with a key of the gateway, by its name, or with the credential of this digest, in each tenant;
    as the bills of days have it. `secret`: of the tenants. Raises StoreTrouble."""
    names = {key, owner_of(secret, STANDS_FOR + key)} - {""}
    labels = [row.labels for row in await store.day_rows("")]
    return sorted({Scope(each.tenant, None, each.owner) for each in labels if names & {each.key, each.owner}})


async def announce(store: Store, scope: Scope, at: float, id: str) -> None:
    """Let all who share the store hear of a deletion. Raises StoreTrouble."""
    details = {"id": id, "tenant": scope.tenant}
    if scope.owner is not None:
        details["owner"] = scope.owner
    if scope.conversation is None:
        details["all"] = "yes"
    await store.note(DELETIONS, Event(at, scope.conversation or "", "deleted", details))


async def announced_since(store: Store, last: str) -> list[tuple[str, Scope]]:
    """The deletions announced after this id, oldest first: all where it is none, or gone. Raises StoreTrouble."""
    newest = await store.events(DELETIONS, None, 1)
    if not newest or newest[0][1].details.get("id") == last:
        return []
    events = [event for _, event in await store.events(DELETIONS, None, EVENTS)]
    ids = [str(event.details.get("id")) for event in events]
    new = events[ids.index(last) + 1 :] if last in ids else events
    scopes: list[tuple[str, Scope]] = []
    for event in new:
        owner, conversation = event.details.get("owner"), None if "all" in event.details else event.conversation
        scope = Scope(str(event.details.get("tenant", "")), conversation, None if owner is None else str(owner))
        scopes.append((str(event.details.get("id")), scope))
    return scopes


async def _delete_one(store: Store, key: Key, owner: str | None, with_events: bool) -> bool:
    if owner is None or not await owners_of(store, key) - {owner, ""}:
        return bool(await store.delete(key, with_events=with_events))
    summaries = {record.id: record.owner for record in await store.summaries(key)}
    bills = {bill.id: bill.labels.owner for bill in await store.request_bills(key)}
    for kind in TEXT_KINDS.values():
        await store.delete_texts(key, kind, _of(owner, await _text_owners(store, key, kind)))
    await store.delete_summaries(key, _of(owner, summaries))
    await store.delete_bills(key, _of(owner, bills))
    await store.disown(key, owner)
    return True


async def _text_owners(store: Store, key: Key, kind: TextKind) -> Mapping[str, str]:
    """Who has sent each text: the name of what a reference stands for begins with it."""
    texts = await store.list_texts(key, kind)
    return {text.name: str(text.about.get("owner") or text.name.partition(".")[0]) for text in texts}


def _of(owner: str, owner_of: Mapping[str, str]) -> list[str]:
    return [name for name, each in owner_of.items() if each == owner]


async def follow(
    store: Store, repeat: Callable[[Scope], Awaitable[None]], own: set[str], failed: Callable[[Exception], None]
) -> None:
    """Repeat what others have deleted, for as long as this runs. `own`: announcements from here; `failed`: hears of an
    error that is not the store's."""
    last: str | None = None
    while True:
        try:
            if last is None:  # what was deleted before this process began is not in its memory
                earlier = await announced_since(store, "")
                last = earlier[-1][0] if earlier else ""
            for id, scope in await announced_since(store, last):
                if id not in own:
                    await repeat(scope)
                own.discard(id)
                last = id
        except StoreTrouble:  # it was logged, and is asked again
            pass
        except Exception as error:
            failed(error)
        await asyncio.sleep(_POLL)

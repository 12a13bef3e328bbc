"""Deletion of conversations, from all that has something of them.

Laws
  What is being written of a conversation is forgotten first, or it would be stored after the deletion.
  A deletion stays on record: it is noted after what it deletes, and only where it deletes anything.
  What others have deleted who share the store (replicas, `narrows delete`) is forgotten and deleted here within
  seconds, as are its recordings in the folder of this one.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import uuid4

from proxy.memory import Key, Store
from proxy.memory.audit_log import AuditLog
from proxy.memory.cached import CachedStore
from proxy.memory.forgetting import ForgetRegistry, Scope, announce, delete_stored, owners_of
from proxy.summaries.maker import SummaryMaker


@dataclass(slots=True)
class Deletion:
    store: Store
    cached_store: CachedStore
    forgets: ForgetRegistry
    audit_log: AuditLog
    maker: SummaryMaker
    delete_recordings: Callable[[str, str | None, str | None], Awaitable[int]] | None = None
    """Deletes those of a tenant, of one conversation, of one owner: how many there were. None where there are none."""
    own: set[str] = field(default_factory=set)

    async def conversation(self, key: Key, owner: str | None) -> bool:
        """Delete a conversation, or what this owner has sent of it. True where there was any. Raises StoreTrouble."""
        is_its = owner is not None and await self._is_its(key, owner)
        scope = Scope(key.tenant, key.conversation, owner)
        if owner is None or is_its:
            await self.forgets.forget_everywhere(key.tenant, key.conversation)
            is_its = bool(await delete_stored(self.store, scope)) or is_its
        is_deleted = bool(await self._recordings(scope)) or is_its
        if is_deleted:
            await self._announce(scope)
            self.audit_log.note(key, "conversation.deleted")
        return is_deleted

    async def everything(self, tenant: str, owner: str | None) -> int:
        """Delete all conversations of a tenant, or what this owner has sent of them. Raises StoreTrouble."""
        if owner is not None:
            count = sum([await self.conversation(key, owner) for key in await self._sent_by(tenant, owner)])
            if await self._recordings(Scope(tenant, None, owner)) or count:
                await self._announce(Scope(tenant, None, owner))
            return count
        await self.forgets.forget_everywhere(tenant)
        count = await self.store.delete_tenant(tenant)
        if await self._recordings(Scope(tenant)) or count:
            await self._announce(Scope(tenant))
            self.audit_log.note(Key(tenant, ""), "tenant.deleted", conversations=count)
        return count

    async def repeat(self, scope: Scope) -> None:
        """Forget what was deleted elsewhere, and delete what was written of it since."""
        names = [scope.conversation]
        if scope.owner is not None and scope.conversation is None:
            names = [key.conversation for key in await self._sent_by(scope.tenant, scope.owner)]
        for name in names:
            self.forgets.forget(scope.tenant, name)
            await delete_stored(self.store, Scope(scope.tenant, name, scope.owner), with_events=False)
        await self._recordings(scope)

    async def _sent_by(self, tenant: str, owner: str) -> set[Key]:
        keys = {Key(tenant, name) for name in await self.store.conversations(tenant, owner)}
        return keys | self.maker.written_for(tenant, owner) | self.cached_store.conversations.owned(tenant, owner)

    async def _announce(self, scope: Scope) -> None:
        if self.store.shared:
            id = uuid4().hex
            self.own.add(id)
            await announce(self.store, scope, time.time(), id)

    async def _recordings(self, scope: Scope) -> int:
        if self.delete_recordings is None:
            return 0
        return await self.delete_recordings(scope.tenant, scope.conversation, scope.owner)

    async def _is_its(self, key: Key, owner: str) -> bool:
        if key in self.maker.written_for(key.tenant, owner) or await self.cached_store.is_owner(key, owner):
            return True
        return owner in await owners_of(self.store, key)

"""Deletion of conversations, for whoever may read them.

Laws
  Of a conversation that several have sent, each deletes its own texts and summaries, and the last of them all the rest.
  What is being written of it is forgotten first, or it would be stored after the deletion.
  A deletion stays on record: it is noted after what it deletes, and only where it deletes anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.archive.recorder import Recorder
from proxy.store import TEXT_KINDS, Key, Store, TextKind
from proxy.store.audit_log import AuditLog
from proxy.store.cached import CachedStore
from proxy.store.forgetting import ForgetRegistry
from proxy.summaries.maker import SummaryMaker


@dataclass(frozen=True, slots=True)
class Deletion:
    """Deletes from all that has something of a conversation."""

    store: Store
    cached_store: CachedStore
    forgets: ForgetRegistry
    audit_log: AuditLog
    maker: SummaryMaker
    recorder: Recorder | None = None

    async def conversation(self, key: Key, owner: str | None) -> bool:
        """Delete a conversation, or what this owner has sent of it. Whether there was any. Raises StoreTrouble."""
        if owner is None:
            await self.forgets.forget_everywhere(key.tenant, key.conversation)
            is_deleted = bool(await self.store.delete(key))
        else:
            is_deleted = await self._own(key, owner)
        is_deleted = bool(await self._recordings(key.tenant, key.conversation, owner)) or is_deleted
        if is_deleted:
            self.audit_log.note(key, "conversation.deleted")
        return is_deleted

    async def everything(self, tenant: str, owner: str | None) -> int:
        """Delete all conversations of a tenant, or what this owner has sent of them. Raises StoreTrouble."""
        if owner is not None:
            keys = {Key(tenant, name) for name in await self.store.owned(tenant, owner)}
            keys |= self.maker.written_for(tenant, owner) | self.cached_store.owned_here(tenant, owner)
            count = sum([await self.conversation(key, owner) for key in keys])
            await self._recordings(tenant, None, owner)
            return count
        await self.forgets.forget_everywhere(tenant)
        count = await self.store.delete_tenant(tenant)
        await self._recordings(tenant, None, None)
        if count:
            self.audit_log.note(Key(tenant, ""), "tenant.deleted", conversations=count)
        return count

    async def _recordings(self, tenant: str, conversation: str | None, owner: str | None) -> int:
        """Delete recordings. How many there were."""
        return 0 if self.recorder is None else await self.recorder.delete(tenant, conversation, owner)

    async def _own(self, key: Key, owner: str) -> bool:
        summaries = {record.id: record.owner for record in await self.store.summaries(key)}
        texts = {kind: await self._text_owners(key, kind) for kind in TEXT_KINDS.values()}
        owners = {*await self.store.owners(key), *summaries.values()}.union(*(of.values() for of in texts.values()))
        is_written = key in self.maker.written_for(key.tenant, owner)
        if owner not in owners and not is_written and not await self.cached_store.is_owner(key, owner):
            return False
        await self.forgets.forget_everywhere(key.tenant, key.conversation)
        if not owners - {owner, ""}:
            await self.store.delete(key)
            return True
        for kind in texts:
            await self.store.delete_texts(key, kind, _of(owner, texts[kind]))
        await self.store.delete_summaries(key, _of(owner, summaries))
        await self.store.disown(key, owner)
        return True

    async def _text_owners(self, key: Key, kind: TextKind) -> Mapping[str, str]:
        """Who has sent each text: the name of what a reference stands for begins with it."""
        texts = await self.store.list_texts(key, kind)
        return {text.name: str(text.about.get("owner") or text.name.partition(".")[0]) for text in texts}


def _of(owner: str, owner_of: Mapping[str, str]) -> list[str]:
    return [name for name, each in owner_of.items() if each == owner]

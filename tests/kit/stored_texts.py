"""Originals in a store, as one mapping of references to texts."""

from collections.abc import Mapping

from proxy.memory import ORIGINALS, Key, Store, StoredText


async def put_originals(store: Store, key: Key, originals: Mapping[str, str]) -> None:
    await store.put_texts(key, ORIGINALS, [StoredText(ref, text, {}) for ref, text in originals.items()])


async def original(store: Store, tenant: str, ref: str, conversation: str | None) -> Mapping[str, str]:
    """The text of a reference in each conversation of the tenant that has it, or in the one given."""
    conversations = [conversation] if conversation is not None else []
    if conversation is None:
        conversations += await store.conversations_with(tenant, ORIGINALS, ref)
    texts = {each: await store.texts(Key(tenant, each), ORIGINALS, [ref]) for each in conversations}
    return {each: found[ref] for each, found in texts.items() if ref in found}

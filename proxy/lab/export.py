"""A logged conversation as a recorded session, read from the store for people."""

from policies.dialects.common import as_json
from proxy.archive.logged_requests import ConversationLog, DamagedError, MissingError
from proxy.lab.read_store import StoreSettings, read_store
from proxy.store import MESSAGES, Key, Store, conversation_id


async def read_session(settings: StoreSettings, conversation: str, tenant: str = "", branch: str = "") -> bytes:
    """The session of a conversation's branch as JSON; the newest where none is named. Raises ValueError where there is
    none, or no answer."""
    key = Key(tenant or settings.tenant or "local", conversation_id(conversation))

    async def read(store: Store) -> bytes:
        texts = await store.list_texts(key, MESSAGES)
        if not texts:
            raise ValueError(
                f"tenant {key.tenant!r} has no logged conversation {conversation!r}: only what passes while "
                "the setting `history` is on is logged; `narrows usage --by conversation --json` lists them"
            )
        try:
            return as_json(await ConversationLog(store, key, texts).session(branch))
        except (MissingError, DamagedError) as error:
            raise ValueError(str(error)) from error

    return await read_store(settings, read)

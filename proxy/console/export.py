"""`narrows export`: a logged conversation as a recorded session, read from the store for people."""

import asyncio
from typing import Annotated

import typer

from policies.dialects.common import as_json
from proxy.addons.archive.sent_requests import ConversationLog, DamagedError, MissingError
from proxy.console.output import refusing
from proxy.console.read_store import StoreConfig, StoreSettings, StoreUrl, read_store, settings_of
from proxy.memory import MESSAGES, Key, Store, conversation_id


def export(
    conversation: Annotated[str, typer.Argument(metavar="CONVERSATION", help="As x-narrows-conversation names it.")],
    branch: Annotated[
        str, typer.Option(metavar="NAME", help="The newest branch with the message of this name. Default: the newest.")
    ] = "",
    store: StoreUrl = "",
    config: StoreConfig = None,
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Whose conversation it is. Default: the configured one, or local.")
    ] = "",
) -> None:
    """Print a logged conversation as a session, for `narrows replay`.

    With `history` on, the log of a conversation holds all of it: this is its newest request with the reply, in the form
    of its API. Reads the store itself, so that `narrows serve` need not run; where it is encrypted, with the same keys.
    """
    with refusing():
        session = asyncio.run(read_session(settings_of(StoreSettings, store, config), conversation, tenant, branch))
    print(session.decode("utf-8", "replace"))


async def read_session(settings: StoreSettings, conversation: str, tenant: str = "", branch: str = "") -> bytes:
    """A branch as JSON, "" for the newest. Raises ValueError where there is none, or no answer."""
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

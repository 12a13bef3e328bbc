"""The one list of what has to be forgotten where a conversation, or all of a tenant, is deleted.

What holds something of conversations in memory is registered once; a deletion calls `ForgetRegistry.forget_everywhere`
before it deletes from the store, so that nothing that waits here is written after it.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from proxy.store import Key

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

    def register_cache(self, *caches: MutableMapping[Any, Any]) -> None:
        """Drop from these at each deletion; their keys are a `Key`, or tuples that begin with one."""
        for cache in caches:
            self.register(partial(forget_in, cache))

    def forget(self, tenant: str, conversation: str | None = None) -> None:
        """A conversation is deleted, or a whole tenant: forget it in this process."""
        for forget in self._forgets:
            forget(tenant, conversation)

    async def forget_everywhere(self, tenant: str, conversation: str | None = None) -> None:
        """A conversation is deleted, or a whole tenant: forget it in all workers of this machine."""
        self.forget(tenant, conversation)
        if self._others is not None:
            await self._others(tenant, conversation)


def forget_in(cache: MutableMapping[Any, Any], tenant: str, conversation: str | None = None) -> None:
    """Drop what a cache holds of a conversation, or of a whole tenant."""
    for name in list(cache):
        key = name if isinstance(name, Key) else name[0]
        if key.tenant == tenant and conversation in (None, key.conversation):
            cache.pop(name, None)

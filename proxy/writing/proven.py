"""Whose credentials the upstream takes: nobody else spends a key of the gateway's own."""

from cachetools import LRUCache

from proxy.config import Settings

_KNOWN = 65_536


class Proven:
    """Who had an answer from the upstream, through this process, by a keyed hash of the credential."""

    def __init__(self, settings: Settings) -> None:
        self._matters = any(each.key_env for each in settings.summarizers)
        self._known: LRUCache[str, bool] = LRUCache(_KNOWN)

    def add(self, owner: str) -> None:
        """The upstream answered a request of this one."""
        self._known[owner] = True

    def __contains__(self, owner: str) -> bool:
        """Whether summaries may be made for this one: each pays with the own credential, or is known to have one."""
        return not self._matters or owner in self._known

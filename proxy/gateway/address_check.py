"""Whether the URL of an upstream is that of its API, as far as the URL itself and the first answers tell.

Laws
  It is a warning, once in a process: some APIs are below other paths than /v1.
  No request waits for it, and no credential is sent for it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from proxy.config import UpstreamRow
from proxy.config.addresses import names_no_version, usual_address
from proxy.config.routes import CHATS
from proxy.config.upstreams import MODEL
from proxy.errors import ApiError
from proxy.telemetry import Telemetry

_SECONDS = 5.0
"""For both looks together."""
_CHATS = {path.removeprefix("/v1") for path in CHATS}
"""What is asked below the URL."""


class AddressCheck:
    """Warns of one upstream."""

    def __init__(self, row: UpstreamRow, telemetry: Telemetry) -> None:
        self._row = row
        self._telemetry = telemetry
        self._is_doubtful = names_no_version(row.url) and MODEL not in row.url and not row.query
        """Whether an answer may show that the URL lacks /v1."""

    def note(self, target: str, status: int) -> None:
        """Take notice of an answer to what was asked below the URL."""
        path = target.partition("?")[0]
        if not self._is_doubtful or path not in _CHATS:
            return
        if status == 404:
            remedy = f"unless that is about the model, set its address to {self._row.url}/v1"
            self._warn(f"it answered 404 at {path}", remedy)
        self._is_doubtful = self._is_doubtful and status >= 400

    async def look(self, ask: Callable[[str], Awaitable[int]]) -> None:
        """Find out whether the API is elsewhere. `ask`: the status of the answer to a GET without a credential."""
        if usual := usual_address(self._row.url):
            self._warn(f"the API of this host is at {usual}", f"set its address to {usual}")
        if not self._is_doubtful or self._row.has_key or self._row.headers:  # which go along with all that is asked
            return
        with suppress(ApiError, TimeoutError):  # a request will say it
            async with asyncio.timeout(_SECONDS):
                if await ask("/models") == 404 and await ask("/v1/models") in (200, 401, 403):
                    self._warn("it has no models here, but below /v1", f"set its address to {self._row.url}/v1")

    def _warn(self, fault: str, remedy: str) -> None:
        self._is_doubtful = False  # once is enough
        self._telemetry.log.warning(
            "upstream_address", upstream=self._row.name, url=self._row.url, reason=fault, remedy=remedy
        )

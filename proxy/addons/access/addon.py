"""The entrance: who asks, and whether that is allowed.

Laws
  A key of this gateway is for this gateway: what is behind the entrance goes by the name of the key, and no upstream
  receives the key.
  Only the address of the peer says whether a gateway in front is trusted: no header does. What a trusted one says of
  who asks narrows down what its client may see, and never widens it.
  A key that is unknown, cut, or over is refused in the words of the API that is asked, and never repeated.
  The store of keys is asked in the background, every few seconds: what is added or revoked in it counts in all replicas
  soon. A request waits for it only where nobody knows its key, and however many such requests there are, it is asked
  four times a second at most. Where the store is away, the keys that are remembered count on.
  A row of the settings counts before one of the store with its name or its key.
"""

import asyncio
import hmac
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from ipaddress import ip_address, ip_network
from urllib.parse import unquote

from aiohttp import web
from cachetools import TTLCache
from msgspec import structs

from proxy.addons.access.keys import digest_of, is_sound
from proxy.config import ConfigurationError, KeyRow, Settings
from proxy.config.presets import NAME
from proxy.config.rules import KEY_PREFIX, KEY_SHAPE
from proxy.errors import ApiError
from proxy.identity.credential import KEY_HEADER, STANDS_FOR, name_of, owner_of, received_credential
from proxy.identity.who import IDENTITY, Identity, who
from proxy.kernel.addons import Addon, Exchange
from proxy.kernel.services import Services
from proxy.memory import DEADLINE, StoreTrouble
from proxy.memory.breaker import GuardedStore
from proxy.memory.opening import start_store

_REFUSED: Mapping[str, str] = {"x-should-retry": "false"}
_LONGEST_ID = 128


# --- the keys there are: those of the settings, and those of the store, followed ---

_POLL = 3.0
"""Seconds between two questions in the background."""
_SPACING = 0.25
"""Seconds between two questions for keys that nobody knows."""
_UNKNOWN = 10_000
"""Unknown keys that are remembered as such."""
_PLACE = 16
"""Characters of a digest by which a row is found; the rest is compared in constant time."""


class KeyRegistry:
    """`store`: None where keys are in the settings only."""

    def __init__(self, settings: Settings, store: GuardedStore | None) -> None:
        self._own = settings.keys
        self._store = store
        self._rows = _by_digest(self._own)
        self._revision = ""
        self._unknown: TTLCache[str, bool] = TTLCache(_UNKNOWN, _POLL)
        self._one_at_a_time = asyncio.Lock()
        self._asked_at = -_SPACING
        self._next: asyncio.Task[None] | None = None
        """A question that is still to be asked."""
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> bool:
        """Ask the store for the first time, and follow it from then on. True where it has answered."""
        if self._store is not None:
            self._following = asyncio.create_task(self._follow())
        try:
            await self._refresh()
        except StoreTrouble:  # it was logged
            return False
        return True

    async def close(self) -> None:
        tasks = [task for task in (self._following, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._store is not None:
            self._store.close()

    def find(self, digest: str) -> KeyRow | None:
        row = self._rows.get(digest[:_PLACE])
        return row if row is not None and hmac.compare_digest(row.sha256, digest) else None

    async def look_up(self, digest: str) -> KeyRow | None:
        """The row of a key that is not known here, as the store has it now. Raises StoreTrouble."""
        if self._store is None or digest in self._unknown:
            return None
        if self._next is None:
            self._next = asyncio.create_task(self._ask_soon())
            self._next.add_done_callback(_observed)
        await asyncio.shield(self._next)  # others wait for the same answer
        row = self.find(digest)
        if row is None:
            self._unknown[digest] = True
        return row

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_POLL)
            try:
                await self._refresh()
            except StoreTrouble:  # it was logged
                continue
            except Exception as error:  # whatever it is: else no revoked key would be noticed any more
                fault = {"message": "the keys of the store could not be read", "exception": error}
                asyncio.get_running_loop().call_exception_handler(fault)

    async def _ask_soon(self) -> None:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._asked_at + _SPACING - now()))
        self._next = None  # whoever comes from now on may know of a newer key
        self._asked_at = now()
        await self._refresh()

    async def _refresh(self) -> None:
        """Take over what the store has. Raises StoreTrouble."""
        if self._store is None:
            return
        async with self._one_at_a_time:  # so that no older answer comes after a newer one
            answer = await self._store.ask("keys", lambda store: store.key_rows(self._revision), DEADLINE)
            if answer is not None:
                self._revision, rows = answer
                names = {row.name for row in self._own}
                self._rows = {**_by_digest(row for row in rows if row.name not in names), **_by_digest(self._own)}


def _by_digest(rows: Iterable[KeyRow]) -> Mapping[str, KeyRow]:
    return {row.sha256[:_PLACE]: row for row in rows}


def _observed(task: "asyncio.Task[None]") -> None:
    """Those who waited for it may all have left."""
    if not task.cancelled():
        task.exception()


# --- the entrance ---


class Gate(Addon):
    """`registry`: the keys there are."""

    def __init__(
        self, settings: Settings, registry: KeyRegistry, secret: bytes, clock: Callable[[], datetime] | None = None
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._secret = secret
        self._clock = clock or partial(datetime.now, UTC)
        self._networks = tuple(map(ip_network, settings.trusted_proxies))
        self._trusts = lru_cache(self._is_trusted)
        self.takes_keys = settings.auth != "passthrough"

    async def admit(self, exchange: Exchange) -> None:
        await self.enter(exchange.request)

    async def enter(self, request: web.BaseRequest, is_page: bool = False) -> None:
        """Find out who asks, for all that is behind this. Raises ApiError where a key is wrong, or, but for a page of
        our own, which says itself who may see it, missing or misplaced."""
        if self.takes_keys and not is_page and (place := _misplaced(request)):  # its upstream would get it
            raise _refused(f"a key of this gateway stands in {place}; send it as the API key, and have it replaced.")
        key = _key_in(request) if self.takes_keys else ""
        if not key and not is_page and self._settings.auth == "keys":
            raise _refused("send a key of this gateway (nrw_...) as the API key, or in the header x-narrows-key.")
        request[IDENTITY] = self._identity(request, await self._row_of(key) if key else None)

    def counts(self, row: KeyRow) -> bool:
        """True where a key is still what it was."""
        return self._registry.find(row.sha256) == row and not row.has_expired(self._clock())

    def _identity(self, request: web.BaseRequest, row: KeyRow | None) -> Identity:
        client = who(request, self._settings, self._secret)
        person = id = ""
        if self._trusts(request.remote or ""):  # a gateway in front may name the person who asks, and the request
            values = (request.headers.get(name, "").strip() for name in self._settings.tenant_headers)
            person, id = next(filter(None, values), ""), request.headers.get("x-request-id", "")
            person = person if not person or re.fullmatch(NAME, person) else name_of(self._secret, person)
            id = id if len(id) <= _LONGEST_ID and id.isascii() and id.isprintable() else ""
        credential, tenant = client.credential, client.tenant
        if row is not None:
            credential = STANDS_FOR + row.name
            tenant = row.tenant or self._settings.tenant or row.name
        if person:
            credential, tenant = f"{credential}\n{STANDS_FOR}{person}", f"{tenant}/{person}"
        return structs.replace(
            client,
            key=row,
            credential=credential,
            tenant=tenant,
            owner=owner_of(self._secret, credential),
            request_id=id,
        )

    async def _row_of(self, key: str) -> KeyRow:
        """The row of a key. Raises ApiError where there is none that counts."""
        if not is_sound(key):
            raise _refused("this key of this gateway is incomplete or mistyped; copy it again.")
        digest = digest_of(key)
        row = self._registry.find(digest)
        if row is None:
            try:
                row = await self._registry.look_up(digest)
            except StoreTrouble as error:
                message = "The store of keys does not answer, so this key cannot be checked; try again in a moment."
                raise ApiError(503, message, "keys_unavailable", headers={"Retry-After": "5"}) from error
        if row is None:
            raise _refused("this key is unknown here, or was revoked; ask whoever runs this gateway for another one.")
        if row.expires is not None and row.has_expired(self._clock()):
            since = row.expires.astimezone(UTC).isoformat(timespec="seconds")
            raise _refused(f"this key expired at {since}; ask whoever runs this gateway for another one.")
        return row

    def _is_trusted(self, remote: str) -> bool:
        try:
            address = ip_address(remote.partition("%")[0])
        except ValueError:  # a socket file has none
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)


def _key_in(request: web.BaseRequest) -> str:
    """The key of this gateway that a client shows, or what begins as one; "" for none."""
    own = request.headers.get(KEY_HEADER, "").strip()
    if own:
        return own
    values = received_credential(request).split("\n")
    return next((each for each in values if each.startswith(KEY_PREFIX)), "")


def _misplaced(request: web.BaseRequest) -> str:
    """Where a key of this gateway stands that would be passed on from there; "" where none does."""
    if KEY_SHAPE.search(unquote(request.raw_path)):
        return "the URL"
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):  # it is none
            if KEY_SHAPE.search(b64decode(token).decode("latin-1")):
                return "a user name or a password"
    return ""


def _refused(what_to_do: str) -> ApiError:
    headers = {**_REFUSED, "WWW-Authenticate": "Bearer"}
    return ApiError(401, f"No access: {what_to_do}", "invalid_api_key", headers=headers)


async def start(services: Services) -> Gate | None:
    """The entrance, with the keys of the settings and, where any count, those of the store; None where nobody is looked
    at. Raises ConfigurationError where a reload would forget these."""
    settings, telemetry, parts = services.settings, services.telemetry, services.parts
    if settings.auth == "passthrough":
        registry = KeyRegistry(settings, None)
        return Gate(settings, registry, services.secret) if settings.trusted_proxies else None
    store = services.store or await start_store(settings, telemetry, parts)
    registry = KeyRegistry(settings, GuardedStore(store, telemetry, "keys_store"))
    parts.push_async_callback(registry.close)
    before = services.before.get("access")
    is_reload = isinstance(before, Gate) and before.takes_keys
    if not await registry.open() and is_reload:
        raise ConfigurationError("store: it does not answer, so its keys would be forgotten; reload again once it does")
    return Gate(settings, registry, services.secret)

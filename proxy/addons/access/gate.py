"""The entrance: who asks, and whether that is allowed.

Laws
  A key of this gateway is for this gateway: what is behind the entrance goes by the name of the key, and no upstream
  receives the key.
  Only the address of the peer says whether a gateway in front is trusted: no header does. What a trusted one says of
  who asks narrows down what its client may see, and never widens it.
  A key that is unknown, cut, or over is refused in the words of the API that is asked, and never repeated.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address, ip_network
from urllib.parse import unquote

from aiohttp import web
from msgspec import structs

from proxy.addons.access.keys import digest_of, is_sound
from proxy.addons.access.registry import KeyRegistry
from proxy.config import KeyRow, Settings
from proxy.config.keys import KEY_PREFIX, KEY_SHAPE
from proxy.config.presets import NAME
from proxy.errors import ApiError
from proxy.identity.credential import KEY_HEADER, STANDS_FOR, name_of, owner_of, received_credential
from proxy.identity.who import IDENTITY, Identity, who
from proxy.kernel.addons import Addon, Exchange
from proxy.memory import StoreTrouble

_REFUSED: Mapping[str, str] = {"x-should-retry": "false"}
_LONGEST_ID = 128


def _now() -> datetime:
    return datetime.now(UTC)


class Gate(Addon):
    """`registry`: the keys there are."""

    def __init__(
        self, settings: Settings, registry: KeyRegistry, secret: bytes, clock: Callable[[], datetime] = _now
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._secret = secret
        self._clock = clock
        self._networks = tuple(map(ip_network, settings.trusted_proxies))
        self._trusts = lru_cache(self._is_trusted)
        self.takes_keys = settings.auth != "passthrough"

    async def admit(self, exchange: Exchange) -> None:
        await self.enter(exchange.request)

    async def enter(self, request: web.BaseRequest) -> None:
        """Find out who asks, for all that is behind this. Raises ApiError where a key is wanted, or wrong."""
        if self.takes_keys and (place := _misplaced(request)):  # the upstream would get it, and its logs
            raise _refused(f"a key of this gateway stands in {place}; send it as the API key, and have it replaced.")
        key = _key_in(request) if self.takes_keys else ""
        if key:
            request[IDENTITY] = self._identity(request, await self._row_of(key))
        elif self._settings.auth == "keys":
            raise _refused("send a key of this gateway (nrw_...) as the API key, or in the header x-narrows-key.")
        else:
            request[IDENTITY] = self._identity(request, None)

    async def recognize(self, request: web.BaseRequest) -> None:
        """As `enter`, for a page of our own: it says itself who may see it."""
        key = _key_in(request) if self.takes_keys else ""
        request[IDENTITY] = self._identity(request, await self._row_of(key) if key else None)

    def _identity(self, request: web.BaseRequest, row: KeyRow | None) -> Identity:
        client = who(request, self._settings, self._secret)
        is_trusted = self._trusts(request.remote or "")
        person = self._person(request) if is_trusted else ""
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
            request_id=_request_id(request) if is_trusted else "",
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

    def _person(self, request: web.BaseRequest) -> str:
        """Whom a gateway in front names, as part of a tenant; "" for nobody."""
        values = (request.headers.get(name, "").strip() for name in self._settings.tenant_headers)
        person = next(filter(None, values), "")
        return person if not person or re.fullmatch(NAME, person) else name_of(self._secret, person)

    def _is_trusted(self, remote: str) -> bool:
        """Whether the address is one of the trusted networks."""
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


def _request_id(request: web.BaseRequest) -> str:
    """The id that a request has already; "" where it is none that can be logged and returned."""
    name = request.headers.get("x-request-id", "")
    return name if len(name) <= _LONGEST_ID and name.isascii() and name.isprintable() else ""


def _refused(what_to_do: str) -> ApiError:
    headers = {**_REFUSED, "WWW-Authenticate": "Bearer"}
    return ApiError(401, f"No access: {what_to_do}", "invalid_api_key", headers=headers)

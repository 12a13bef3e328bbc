"""Who the client is: its credential, its tenant, what it owns, and what it may see.

Laws
  A tenant is configured, or this machine, or a keyed hash of the credential; never the credential.
  Whoever asks for stored conversations proves who it is, and reads and deletes what it proves: a credential, what was
  sent with it, which is the whole tenant where that is a hash of it; a process on this machine that shows none, and the
  `admin_token` where a tenant is configured, all of the tenant.
  An operator, who shows the `admin_token`, deletes in all tenants, and reads in none but the configured one.
  Figures hold no text: a process on this machine that shows no credential, and the `admin_token`, see those of all
  tenants; a credential sees its own.
  A browser that has shown the `admin_token` once carries a signed cookie in its place, for reading alone and not for
  ever; neither says anything about the token.
  A web page of another site, opened on this machine, is not this machine.
  A credential that has the shape of an OAuth or subscription token is no API key; every other string counts as one.
  Who asks with a key of this gateway's own is its name, whatever the key: nothing here is made of the key itself. It
  reads and deletes what was sent under that name.
"""

import hmac
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address
from typing import TypeVar

from aiohttp import web
from cachetools import LRUCache
from msgspec import Struct
from pydantic import SecretStr
from yarl import URL

from proxy.config import KeyRow, Settings
from proxy.config.headers import ACCOUNTS, CREDENTIALS, SIGN_INS, VERSIONS, words_in
from proxy.config.keys import KEY_SHAPE
from proxy.config.upstreams import is_public
from proxy.errors import ApiError

T = TypeVar("T")
_OWNERS = 65_536
"""Credentials whose states are remembered."""
_LONGEST_KEY = 1_000
"""Characters of a credential whose hash is remembered."""
_LIMITED, _LONGEST_LIMIT = 60.0, 86_400.0
"""Seconds in which nothing is asked after a 429 that does not say how long, and at most."""
_AUTH_HEADERS = (*CREDENTIALS, *ACCOUNTS, *VERSIONS)
_TOKENS = (
    *("sk-ant-oat", "sk-ant-ort", "sk-ant-sid"),  # Anthropic: Claude Code, claude.ai
    "eyJ",  # JSON web tokens: Sign in with ChatGPT (Codex), Entra ID, and whoever else signs people in
    "ya29.",  # Google
    *("gho_", "ghu_", "ghs_", "ghr_", "tid="),  # GitHub, and Copilot, whose own tokens begin with `tid=`
    "hf_oauth_",  # Hugging Face
    *("sk-sp-", "sk-kimi-", "sk-cp-"),  # keys of coding subscriptions: Alibaba, Kimi, MiniMax
)
"""How credentials begin that stand for a person's sign-in or subscription."""
_SIGNED = ("aws4-", "digest ", "dpop ", "hawk ", "negotiate ", "signature ")
"""How an Authorization header begins that is good for one request, or for one connection."""
_SIGN_IN = ("chatgpt-account-id", "copilot-integration-id")
"""Headers that go with a subscription, whatever the credential looks like."""
COOKIE = "narrows_admin"
"""The cookie of a browser that has shown the `admin_token`."""
COOKIE_SECONDS = 12 * 3600
"""How long it counts."""
_COOKIE_LENGTH = 96
_FORWARDING = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-envoy-external-address"),
)
"""Headers by which proxies say that they ask for somebody else; few of them set all."""
KEY_HEADER = "x-narrows-key"
"""Where a key of this gateway stands beside a credential for the upstream."""
STANDS_FOR = "\0"
"""How begins what stands for a key, or for a person: no header can hold it."""


class Access(Struct, frozen=True):
    """Who asks, as the entrance has found out."""

    key: KeyRow | None
    """Of this gateway; None where the client's own credential is all that it shows."""
    credential: str
    """The client's own; with a key of this gateway, what stands for the name of that key."""
    tenant: str
    owner: str
    request_id: str = ""
    """The id that a trusted gateway in front has given the request; "" for none. It may come twice: whoever sends a
    request again keeps it."""

    @property
    def digests(self) -> Collection[str]:
        """By which rules and lists name the credential."""
        return digests_of(self.credential) if self.key is None else (self.key.sha256,)


ACCESS = web.RequestKey("access", Access)
"""With each request that the entrance has looked at; it looks at none where there are neither keys nor trusted
gateways in front."""


def access_of(request: web.BaseRequest, settings: Settings, secret: bytes) -> Access:
    """Who asks."""
    access: Access | None = request.get(ACCESS)
    if access is not None:
        return access
    credential = credential_of(request)
    tenant = tenant_of(request, credential, secret, settings.tenant)
    return Access(None, credential, tenant, owner_of(secret, credential))


def credential_of(request: web.BaseRequest) -> str:
    """What stands for whoever asks: the client's credential, where the entrance has found nothing else."""
    access: Access | None = request.get(ACCESS)
    return received_credential(request) if access is None else access.credential


def received_credential(request: web.BaseRequest) -> str:
    """The client's credential, as the APIs carry it; "" for none. Several are joined, one on each line: one of them may
    be the same for everybody, and the upstream decides which of them it looks at."""
    headers = request.headers
    scheme, _, token = headers.get(CREDENTIALS[0], "").partition(" ")
    values = (token.strip() or scheme, *(headers.get(name, "") for name in CREDENTIALS[1:]))
    return "\n".join(dict.fromkeys(filter(None, values)))


def auth_of(request: web.BaseRequest) -> dict[str, str]:
    """The headers by which the upstream knows who asks."""
    headers = {name: request.headers[name] for name in _AUTH_HEADERS if name in request.headers}
    if _has_key(request):  # it is for this gateway, and not for the upstream
        headers = {name: value for name, value in headers.items() if not KEY_SHAPE.search(value)}
    return headers | _sign_ins(request)


def _sign_ins(request: web.BaseRequest) -> dict[str, str]:
    """The headers in which a sign-in has to stand, with that word alone: no other is about who asks."""
    words = {
        name: ",".join(word for word in words_in(request.headers.getall(name, ())) if word.startswith(start))
        for name, start in SIGN_INS
    }
    return {name: value for name, value in words.items() if value}


def is_plain_key(request: web.BaseRequest) -> bool:
    """Whether the credential is a plain API key, so far as its shape tells, or there is none. What it is used for
    beside the client's own requests is then for its owner to pay, and not a use of somebody's subscription."""
    headers = request.headers
    if headers.get("Authorization", "").lower().startswith(_SIGNED) or any(name in headers for name in _SIGN_IN):
        return False
    words = received_credential(request).replace('"', " ").split()  # whatever space an upstream takes before the token
    return not _sign_ins(request) and not any(word.startswith(_TOKENS) for word in words)


def is_allowed(credential: str, digests: Collection[str]) -> bool:
    """Whether the SHA-256 of one of the keys in the credential is among these; `*` stands for all. Whoever has a key of
    this gateway is let in by that."""
    if credential.startswith(STANDS_FOR):
        return True
    return "*" in digests or not {each.lower() for each in digests}.isdisjoint(digests_of(credential))


def digests_of(credential: str) -> Collection[str]:
    """The SHA-256 of each of the keys in a credential."""
    return {sha256(key.encode("utf-8", "surrogateescape")).hexdigest() for key in credential.split("\n") if key}


def tenant_of(request: web.BaseRequest, credential: str, secret: bytes, configured: str | None) -> str:
    """The configured tenant, or `local` for this machine, or a hash of the credential keyed with `secret`; what the
    entrance has found comes before all of them."""
    access: Access | None = request.get(ACCESS)
    if access is not None:
        return access.tenant
    if configured:
        return configured
    if is_local(request):
        return "local"
    return _hash(secret, credential)


def is_local(request: web.BaseRequest) -> bool:
    """Whether the client is on this machine, and not a proxy that speaks for somebody else."""
    if not request.remote or any(name in request.headers for name in _FORWARDING):
        return False
    return _is_loopback(request.remote)


@lru_cache
def _is_loopback(remote: str) -> bool:
    address = ip_address(remote)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_here(request: web.BaseRequest, host: str) -> bool:
    """Whether the client is on this machine and has addressed it as such, or by the name that Narrows listens at
    (`host`): a web page of another site, whose host name resolves to this machine, has not."""
    if not is_local(request):
        return False
    if (address := request.headers.get("Host")) is None:  # no browser
        return True
    try:
        name = URL.build(scheme="http", authority=address).host or ""
        return name in ("localhost", host) or bool(ip_address(name))
    except ValueError:
        return False


def owner_of(secret: bytes, credential: str) -> str:
    """A name for whoever proves itself so: within a tenant nobody sees what another sent."""
    return _hash(secret, f"originals\0{credential}")[:24]


def name_of(secret: bytes, person: str) -> str:
    """A name for a person whom a gateway in front names in words that a tenant cannot have."""
    return "~" + _hash(secret, f"person\0{person}")[:24]


def _hash(secret: bytes, text: str) -> str:
    return (_keyed_hash if len(text) <= _LONGEST_KEY else _keyed_hash.__wrapped__)(secret, text)


@lru_cache(maxsize=4_096)  # to compute it lets go of the interpreter, for which the event loop then may have to wait
def _keyed_hash(secret: bytes, text: str) -> str:
    return hmac.digest(secret, text.encode("utf-8", "surrogateescape"), "sha256").hex()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who proved what: the tenant, and whether all of it is to be seen or only what this owner sent."""

    tenant: str
    owner: str
    sees_all: bool

    def visible(self, owned: Iterable[tuple[str, T]]) -> list[T]:
        """What of this, each with its owner, the caller may see."""
        return [each for owner, each in owned if self.sees_all or owner == self.owner]


def caller_of(request: web.BaseRequest, settings: Settings, secret: bytes) -> Caller:
    """Who may see and delete a tenant's conversations. Raises ApiError where nothing proves it."""
    credential, configured = credential_of(request), settings.tenant
    tenant = tenant_of(request, credential, secret, configured)
    owner = owner_of(secret, credential)
    if configured and is_admin(request, settings, secret):
        return Caller(tenant, owner, sees_all=True)
    if _has_key(request):
        return Caller(tenant, owner, sees_all=False)
    if asks_here(request, settings.host):
        return Caller(tenant, owner, sees_all=not credential)
    if credential and not is_local(request):
        return Caller(tenant, owner, sees_all=not configured)
    message = (
        "Conversations are visible to the credential that sent them, and from this machine by address without a "
        "credential; where `tenant` is set, to the `admin_token`, too."
    )
    raise ApiError(403, message, "forbidden")


@dataclass(frozen=True, slots=True)
class Viewer:
    """Whose figures are to be seen: of this tenant or all (None), and of this owner in it or all."""

    tenant: str | None = None
    owner: str | None = None


def viewer_of(request: web.BaseRequest, settings: Settings, secret: bytes) -> Viewer:
    """Whose figures may be seen by whoever asks. Raises ApiError where nothing proves who that is."""
    credential = credential_of(request)
    if is_admin(request, settings, secret) or (not credential and asks_here(request, settings.host)):
        return Viewer()
    if credential and (_has_key(request) or asks_here(request, settings.host) or not is_local(request)):
        return Viewer(tenant_of(request, credential, secret, settings.tenant), owner_of(secret, credential))
    message = (
        "Figures are visible to the credential whose requests they are of, to the `admin_token`, and from this machine "
        "by address without a credential."
    )
    raise ApiError(403, message, "forbidden")


def is_operator(request: web.BaseRequest, settings: Settings, secret: bytes) -> bool:
    """Whether the request may delete in all tenants: it shows the `admin_token`; where there is none, it comes from
    this machine and shows no credential."""
    if settings.admin_token is not None:
        return is_admin(request, settings, secret)
    return not credential_of(request) and asks_here(request, settings.host)


def _has_key(request: web.BaseRequest) -> bool:
    """Whether the client has shown a key of this gateway."""
    access: Access | None = request.get(ACCESS)
    return access is not None and access.key is not None


def is_admin(request: web.BaseRequest, settings: Settings, secret: bytes) -> bool:
    """Whether the request shows the `admin_token`, or, where it only reads, the cookie of a browser that has."""
    if opens(settings.admin_token, received_credential(request)):
        return True
    value = request.cookies.get(COOKIE, "") if request.method in ("GET", "HEAD") else ""
    until = value.partition(".")[0]
    if settings.admin_token is None or not (until.isascii() and until.isdigit()) or len(value) > _COOKIE_LENGTH:
        return False
    is_signed = hmac.compare_digest(
        value.encode("utf-8", "replace"), admin_cookie(settings, secret, int(until)).encode()
    )
    return is_signed and time.time() < int(until) <= time.time() + COOKIE_SECONDS


def admin_cookie(settings: Settings, secret: bytes, until: int) -> str:
    """What stands for the `admin_token` until this time, in seconds since 1970. It ends with the token."""
    token = settings.admin_token.get_secret_value() if settings.admin_token is not None else ""
    proof = f"cookie\0{until}\0{token}".encode()
    return f"{until}.{hmac.digest(secret, proof, 'sha256').hex()}"


def sender_of(request: web.BaseRequest, settings: Settings, secret: bytes, what: str) -> tuple[str, str]:
    """The tenant and the credential of whoever asks for what it sent itself. Raises ApiError, of `what`."""
    credential = credential_of(request)
    if not credential and not asks_here(request, settings.host):
        message = f"{what} are visible to the credential that sent them and, without one, from this machine by address."
        raise ApiError(403, message, "forbidden")
    return tenant_of(request, credential, secret, settings.tenant), credential


def opens(token: SecretStr | None, credential: str) -> bool:
    """Whether the credential is this token."""
    raw = credential.encode("utf-8", "surrogateescape")
    return token is not None and hmac.compare_digest(raw, token.get_secret_value().encode())


def asks_here(request: web.BaseRequest, host: str) -> bool:
    """Whether the client is on this machine and means it. Browsers give images, scripts and frames no Origin, but say
    that another site wants them: by whether they load, it would learn what there is."""
    headers = request.headers
    origin = headers.get("Origin")
    is_asked = headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
    is_asked = is_asked or headers.get("Sec-Fetch-Dest") == "document"  # somebody follows a link
    is_asked = is_asked and not _is_public_address(headers.get("Host", ""))
    return is_here(request, host) and is_asked and (origin is None or origin.partition("://")[2] == request.host)


@lru_cache
def _is_public_address(authority: str) -> bool:
    """Whether a Host is the address of another machine, or of this one for others: a proxy here was asked by it."""
    try:
        address = ip_address(URL.build(scheme="http", authority=authority).host or "")
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def is_rebound(request: web.BaseRequest, host: str) -> bool:
    """Whether a web page asks whose host name resolves to this machine. The upstream could not tell: it is asked by
    its own name."""
    return "Origin" in request.headers and is_local(request) and not is_public(host) and not is_here(request, host)


class CredentialStates:
    """What the upstream last answered to each credential through this process, by a keyed hash of the credential."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accepted: LRUCache[str, bool] = LRUCache(_OWNERS)
        self._blocked_until: LRUCache[str, float] = LRUCache(_OWNERS)

    def note(self, owner: str, status: int, retry_after: float | None = None) -> None:
        """Remember an answer. `retry_after`: the seconds that it asks for."""
        if 200 <= status < 300:
            self._accepted[owner] = True
            if self._blocked_until.get(owner) == math.inf:
                del self._blocked_until[owner]
        elif status in (401, 403):
            self._accepted.pop(owner, None)
            self._blocked_until[owner] = math.inf
        elif status == 429:
            until = self._clock() + min(_LIMITED if retry_after is None else retry_after, _LONGEST_LIMIT)
            self._blocked_until[owner] = max(until, self._blocked_until.get(owner, 0.0))

    def is_accepted(self, owner: str) -> bool:
        """Whether the upstream took the credential, and has not refused it since."""
        return owner in self._accepted

    def is_refused(self, owner: str) -> bool:
        """Whether the upstream refused the credential, and has not taken it since."""
        return self._blocked_until.get(owner) == math.inf

    def is_blocked(self, owner: str) -> bool:
        """Whether nothing may be asked with it: it was refused, and not accepted since, or is over its rate limit."""
        return self._blocked_until.get(owner, 0.0) > self._clock()


def seconds_of(retry_after: str | None) -> float | None:
    """The seconds that a Retry-After header asks for; None where it has none, or a date."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None

"""Who asks, from where, and what that lets it do: the table of guards, and what a key of this gateway may ask for.

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
  Who asks with a key of this gateway's own is its name, whatever the key: it reads and deletes what was sent under that
  name.
  A web page of another site, opened on this machine, is not this machine.
"""

import hmac
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal, NamedTuple, TypeVar

from aiohttp import web
from msgspec import Struct
from pydantic import SecretStr
from yarl import URL

from policies.dialects import DIALECTS
from proxy.config import KeyRow, Settings
from proxy.config.upstreams import is_public
from proxy.errors import ApiError
from proxy.identity.credential import digests_of, hash_of, owner_of, received_credential

T = TypeVar("T")
COOKIE = "narrows_admin"
"""The cookie of a browser that has shown the `admin_token`."""
COOKIE_SECONDS = 12 * 3600
_COOKIE_LENGTH = 96
Action = Literal[
    "conversations", "figures", "delete anywhere", "originals", "artifacts", "metrics", "reload", "summarize"
]


class Grant(Struct, frozen=True):
    """The part that may be seen: of a tenant, or of all (None); in it what this owner sent, or all."""

    tenant: str | None = None
    owner: str | None = None

    def visible(self, owned: Iterable[tuple[str, T]]) -> list[T]:
        return [each for owner, each in owned if self.owner in (None, owner)]


class Identity(Struct, frozen=True):
    credential: str
    """The client's own; with a key of this gateway, what stands for the name of that key; "" for none."""
    tenant: str
    owner: str
    key: KeyRow | None = None
    """Of this gateway; None where the client's own credential is all that it shows."""
    request_id: str = ""
    """The id that a trusted gateway in front has given the request, or ""; whoever sends a request again keeps it."""
    is_local: bool = False
    """True where the client is on this machine, and no proxy that speaks for somebody else."""
    is_here: bool = False
    """True where it also means this machine, and no page of another site asks."""
    tokens: Collection[str] = ()
    """Which of the operator's tokens it shows: `admin`, `metrics`."""

    @property
    def digests(self) -> Collection[str]:
        """By which rules and lists name the credential."""
        return digests_of(self.credential) if self.key is None else (self.key.sha256,)

    def may(self, action: Action, settings: Settings) -> Grant | None:
        """The part that an action lets it see; None where it may not do that."""
        return GUARDS[action].grant(self, settings)

    def permit(self, action: Action, settings: Settings) -> Grant:
        """As `may`. Raises ApiError where it may not do that."""
        if (grant := self.may(action, settings)) is None:
            raise ApiError(403, GUARDS[action].message, "forbidden")
        return grant


IDENTITY = web.RequestKey("identity", Identity)
"""With each request that the entrance has looked at: none where there are neither keys nor trusted gateways."""


def who(request: web.BaseRequest, settings: Settings, secret: bytes) -> Identity:
    """Who asks. `secret` keys the hashes that name tenants and owners."""
    identity: Identity | None = request.get(IDENTITY)
    if identity is not None:
        return identity
    credential, is_on_this_machine = received_credential(request), is_local(request)
    tenant = settings.tenant or ("local" if is_on_this_machine else hash_of(secret, credential))
    is_here = is_on_this_machine and asks_here(request, settings.host)
    tokens = _tokens(request, credential, settings, secret)
    return Identity(
        credential=credential,
        tenant=tenant,
        owner=owner_of(secret, credential),
        is_local=is_on_this_machine,
        is_here=is_here,
        tokens=tokens,
    )


def _tokens(request: web.BaseRequest, credential: str, settings: Settings, secret: bytes) -> Collection[str]:
    tokens = (("admin", settings.admin_token), ("metrics", settings.metrics_token))
    shows = [name for name, token in tokens if token is not None and _is_token(token, credential)]
    if "admin" not in shows and settings.admin_token is not None and _has_cookie(request, settings, secret):
        shows.append("admin")
    return shows


def _is_token(token: SecretStr, credential: str) -> bool:
    raw = credential.encode("utf-8", "surrogateescape")
    return hmac.compare_digest(raw, token.get_secret_value().encode())


def _has_cookie(request: web.BaseRequest, settings: Settings, secret: bytes) -> bool:
    value = request.cookies.get(COOKIE, "") if request.method in ("GET", "HEAD") else ""
    until = value.partition(".")[0]
    if not (until.isascii() and until.isdigit()) or len(value) > _COOKIE_LENGTH:
        return False
    cookie = admin_cookie(settings, secret, int(until)).encode()
    is_signed = hmac.compare_digest(value.encode("utf-8", "replace"), cookie)
    return is_signed and time.time() < int(until) <= time.time() + COOKIE_SECONDS


def admin_cookie(settings: Settings, secret: bytes, until: int) -> str:
    """The cookie that stands for the `admin_token` until this time, in seconds since 1970. It ends with the token."""
    token = settings.admin_token.get_secret_value() if settings.admin_token is not None else ""
    proof = f"cookie\0{until}\0{token}".encode()
    return f"{until}.{hmac.digest(secret, proof, 'sha256').hex()}"


# --- the guards: who may do what, and what the others are told ---


class Guard(NamedTuple):
    grant: Callable[[Identity, Settings], Grant | None]
    """The part that the action lets this identity see; None where it may not do it."""
    message: str


def _conversations(who: Identity, settings: Settings) -> Grant | None:
    if settings.tenant and "admin" in who.tokens:
        return Grant(who.tenant)
    if who.key is not None:
        return Grant(who.tenant, who.owner)
    if who.is_here:
        return Grant(who.tenant, who.owner if who.credential else None)
    if who.credential and not who.is_local:
        return Grant(who.tenant, who.owner if settings.tenant else None)
    return None


def _figures(who: Identity, _: Settings) -> Grant | None:
    if "admin" in who.tokens or (who.is_here and not who.credential):
        return Grant()
    is_proven = who.credential and (who.key is not None or who.is_here or not who.is_local)
    return Grant(who.tenant, who.owner) if is_proven else None


def _everywhere(who: Identity, settings: Settings) -> Grant | None:
    is_operator = "admin" in who.tokens if settings.admin_token is not None else who.is_here and not who.credential
    return Grant() if is_operator else None


def _of_its_own(who: Identity, _: Settings) -> Grant | None:
    return Grant(who.tenant, who.owner) if who.credential or who.is_here else None


def _reload(who: Identity, _: Settings) -> Grant | None:
    return Grant() if "admin" in who.tokens or (who.is_here and not who.credential) else None


_SENDER = "{} are visible to the credential that sent them and, without one, from this machine by address."
GUARDS: Mapping[Action, Guard] = {
    "conversations": Guard(
        _conversations,
        "Conversations are visible to the credential that sent them, and from this machine by address without a "
        "credential; where `tenant` is set, to the `admin_token`, too.",
    ),
    "figures": Guard(
        _figures,
        "Figures are visible to the credential whose requests they are of, to the `admin_token`, and from this machine "
        "by address without a credential.",
    ),
    "delete anywhere": Guard(_everywhere, "To delete in all tenants, show the `admin_token`."),
    "originals": Guard(_of_its_own, _SENDER.format("Originals")),
    "artifacts": Guard(_of_its_own, _SENDER.format("Artifacts")),
    "summarize": Guard(_of_its_own, "To order a summary, send your credential, or ask from this machine."),
    "metrics": Guard(
        lambda who, _: Grant() if "metrics" in who.tokens or who.is_here else None,
        "Metrics need the `metrics_token`, or a request from this machine by address.",
    ),
    "reload": Guard(
        _reload,
        "A reload needs the `admin_token`, or a request from this machine, by address and without a credential.",
    ),
}


# --- where a request comes from: this machine, or another one ---

_FORWARDING = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-envoy-external-address"),
)
"""Headers by which proxies say that they ask for somebody else; few of them set all."""


def is_local(request: web.BaseRequest) -> bool:
    """True where the client is on this machine, and not a proxy that speaks for somebody else."""
    if not request.remote or any(name in request.headers for name in _FORWARDING):
        return False
    return _is_loopback(request.remote)


@lru_cache
def _is_loopback(remote: str) -> bool:
    address = ip_address(remote)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_here(request: web.BaseRequest, host: str) -> bool:
    """True where the client is on this machine and has addressed it as such, or by the name that Narrows listens at
    (`host`): a web page of another site, whose host name resolves to this machine, has not."""
    if not is_local(request):
        return False
    if (authority := request.headers.get("Host")) is None:  # no browser
        return True
    name, address = _place(authority)
    return address is not None or name in ("localhost", host)


def asks_here(request: web.BaseRequest, host: str) -> bool:
    """True where the client is on this machine and means it. Browsers give images, scripts and frames no Origin, but
    say that another site wants them: by whether they load, it would learn what there is."""
    headers = request.headers
    origin, (_, address) = headers.get("Origin"), _place(headers.get("Host", ""))
    is_asked = headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
    is_asked = is_asked or headers.get("Sec-Fetch-Dest") == "document"  # somebody follows a link
    # by an address of this machine for others, a proxy here was asked
    is_asked = is_asked and (address is None or address.is_loopback or address.is_unspecified)
    return is_here(request, host) and is_asked and (origin is None or origin.partition("://")[2] == request.host)


def has_other_name(request: web.BaseRequest, host: str) -> bool:
    """True where a client on this machine asks by a host name that is not served: a web page may make it do so."""
    return is_local(request) and not is_public(host) and not is_here(request, host)


@lru_cache
def _place(authority: str) -> tuple[str, IPv4Address | IPv6Address | None]:
    """The host of a Host header, and its address where it is one."""
    try:
        name = URL.build(scheme="http", authority=authority).host or ""
    except ValueError:
        return "", None
    try:
        return name, ip_address(name)
    except ValueError:
        return name, None


# --- what a key of this gateway may ask for: models, and paths of an account that all keys share ---

_NO_RETRY: Mapping[str, str] = {"x-should-retry": "false"}
_APIS = [api.http for api in DIALECTS.values()]
_SHARED_PATHS = tuple(
    (method, re.compile(pattern).fullmatch)
    for method, pattern in (
        ("GET", r"/models(/[\w.:@%-]+)*"),
        ("HEAD", r"/models"),
        ("POST", r"/(embeddings|completions|moderations|rerank|score|tokenize|detokenize)"),
        ("POST", r"/(audio/(speech|transcriptions|translations)|images/(generations|edits|variations))"),
        *(("POST", re.escape(api.compact_path)) for api in _APIS if api.compact_path),
        *(("*", api.stored_path) for api in _APIS if api.stored_path),
    )
)
"""Relayed requests for keys that share an account: what stores nothing there, and what a secret id names."""


def may_ask(identity: Identity, model: str) -> bool:
    """True where the key may ask this model."""
    patterns = identity.key.models if identity.key is not None else ()
    return not patterns or (bool(model) and any(fnmatchcase(model, pattern) for pattern in patterns))


def check_model(identity: Identity, *models: str) -> None:
    """Raises ApiError where the key may not ask one of these models; "" for one that could not be read."""
    refused = [model for model in models if not may_ask(identity, model)]
    if identity.key is None or not refused:
        return
    names, what_to_do = ", ".join(identity.key.models), "" if all(refused) else "; name one of them"
    message = f"This key may use no other model than {names}{what_to_do}."
    raise ApiError(403, message, "model_not_allowed", "model", _NO_RETRY)


def check_path(method: str, rest: str) -> None:
    """Raises ApiError for what shows or changes what others have in a shared account. `rest`: the target, after /v1."""
    path = rest.partition("?")[0]
    if any(fullmatch(path) for each, fullmatch in _SHARED_PATHS if each in (method, "*")):
        return
    message = (
        "All keys of this gateway share one account at this upstream, so they may not use what is stored there (files, "
        "batches, lists); send a credential of the upstream itself."
    )
    raise ApiError(403, message, "path_not_allowed", headers=_NO_RETRY)

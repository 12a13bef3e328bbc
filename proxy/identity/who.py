"""Who asks, and what that lets it do: the table of guards.

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
"""

import hmac
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, NamedTuple, TypeVar

from aiohttp import web
from msgspec import Struct
from pydantic import SecretStr

from proxy.config import KeyRow, Settings
from proxy.errors import ApiError
from proxy.identity.credential import digests_of, hash_of, owner_of, received_credential
from proxy.identity.place import asks_here, is_local

T = TypeVar("T")
COOKIE = "narrows_admin"
"""The cookie of a browser that has shown the `admin_token`."""
COOKIE_SECONDS = 12 * 3600
_COOKIE_LENGTH = 96
Action = Literal[
    "conversations", "figures", "delete anywhere", "originals", "artifacts", "metrics", "reload", "summarize"
]


class Grant(Struct, frozen=True):
    """What may be seen: of a tenant, or of all (None); in it what this owner sent, or all."""

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
    """The id that a trusted gateway in front has given the request; "" for none. It may come twice: whoever sends a
    request again keeps it."""
    is_local: bool = False
    """Whether the client is on this machine, and no proxy that speaks for somebody else."""
    is_here: bool = False
    """Whether it also means this machine, and no page of another site asks."""
    tokens: Collection[str] = ()
    """Which of the operator's tokens it shows: `admin`, `metrics`."""

    @property
    def digests(self) -> Collection[str]:
        """By which rules and lists name the credential."""
        return digests_of(self.credential) if self.key is None else (self.key.sha256,)

    def may(self, action: Action, settings: Settings) -> Grant | None:
        """What an action lets it see; None where it may not do that."""
        return GUARDS[action].grant(self, settings)

    def permit(self, action: Action, settings: Settings) -> Grant:
        """As `may`. Raises ApiError where it may not do that."""
        if (grant := self.may(action, settings)) is None:
            raise ApiError(403, GUARDS[action].message, "forbidden")
        return grant


IDENTITY = web.RequestKey("identity", Identity)
"""With each request that the entrance has looked at; it looks at none where there are neither keys nor trusted
gateways in front."""


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
    """What stands for the `admin_token` until this time, in seconds since 1970. It ends with the token."""
    token = settings.admin_token.get_secret_value() if settings.admin_token is not None else ""
    proof = f"cookie\0{until}\0{token}".encode()
    return f"{until}.{hmac.digest(secret, proof, 'sha256').hex()}"


# --- the guards: who may do what, and what the others are told ---


class Guard(NamedTuple):
    grant: Callable[[Identity, Settings], Grant | None]
    """What the action lets this identity see; None where it may not do it."""
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


def _metrics(who: Identity, _: Settings) -> Grant | None:
    return Grant() if "metrics" in who.tokens or who.is_here else None


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
    "metrics": Guard(_metrics, "Metrics need the `metrics_token`, or a request from this machine by address."),
    "reload": Guard(
        _reload,
        "A reload needs the `admin_token`, or a request from this machine, by address and without a credential.",
    ),
}

"""Who asks for Narrows' own pages, and what they have proved.

Laws
  Who asks proves it: by the credential where the tenant is a hash of it, else by asking on this machine. Where a tenant
  is configured a credential proves nothing about the others of it, and `admin_token` does.
  A web page of another site, seen on this machine, is not this machine.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web
from pydantic import SecretStr

from proxy.config import Settings
from proxy.downstream import credential_of, is_here, is_local, tenant_of
from proxy.kept.originals import owner_of
from proxy.upstream import ShapedError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who proved what: the tenant, and whether all of it is to be seen or only what this owner sent."""

    tenant: str
    owner: str
    sees_all: bool

    def seen(self, found: Iterable[tuple[str, T]]) -> list[T]:
        """What of this, each with its owner, the caller may see."""
        return [each for owner, each in found if self.sees_all or owner == self.owner]


def caller_of(request: web.BaseRequest, settings: Settings, secret: bytes) -> Caller:
    """Who may see and delete a tenant's conversations. Raises ShapedError where nothing proves it."""
    credential, configured = credential_of(request), settings.tenant
    tenant = tenant_of(request, credential, secret, configured)
    owner = owner_of(secret, credential)
    if configured and opens(settings.admin_token, credential):
        return Caller(tenant, owner, sees_all=True)
    if asks_here(request):
        return Caller(tenant, owner, sees_all=not credential)
    if credential and not configured and not is_local(request):
        return Caller(tenant, owner, sees_all=True)
    message = (
        "Conversations are for the credential that sent them, or for this machine, asked by address; "
        "where `tenant` is set, for the `admin_token`."
    )
    raise ShapedError(403, message, "forbidden")


def sender_of(request: web.BaseRequest, settings: Settings, secret: bytes, what: str) -> tuple[str, str]:
    """The tenant and the credential of whoever asks for what it sent itself. Raises ShapedError, of `what`."""
    credential = credential_of(request)
    if not credential and not is_here(request):
        message = f"{what} are for the credential that sent them; without one, for this machine, asked by address."
        raise ShapedError(403, message, "forbidden")
    return tenant_of(request, credential, secret, settings.tenant), credential


def opens(token: SecretStr | None, credential: str) -> bool:
    """Whether the credential is this token."""
    given = credential.encode("utf-8", "surrogateescape")
    return token is not None and hmac.compare_digest(given, token.get_secret_value().encode())


def asks_here(request: web.BaseRequest) -> bool:
    """Whether the client is on this machine and means it."""
    origin = request.headers.get("Origin")
    return is_here(request) and (origin is None or origin.partition("://")[2] == request.host)

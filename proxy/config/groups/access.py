"""The settings about who may ask, and whose data is whose."""

import re
from collections.abc import Iterator
from ipaddress import ip_network

from pydantic import Field, SecretStr, field_validator

from proxy.config.errors import Path, refused_at
from proxy.config.headers import CREDENTIALS
from proxy.config.keys import AuthMode, KeyRow
from proxy.config.presets import NAME
from proxy.config.sources import Configured

_NO_PERSONS = frozenset(
    {*map(str.lower, CREDENTIALS), "x-narrows-key", "cookie", "host", "content-length", "content-type"}
    | {"x-forwarded-for", "x-real-ip", "forwarded"}
)
"""Headers that hold a credential or an address, or are needed for something else."""


class AccessGroup(Configured):
    """Access"""

    auth: AuthMode = Field(
        default="passthrough",
        description="who may use Narrows: passthrough, everybody, with their own credential for the upstream; keys, "
        "holders of a key of this gateway; both, either",
    )
    keys: tuple[KeyRow, ...] = Field(
        default=(), description="keys of this gateway, and what each allows; `narrows keys new NAME` prints a row"
    )
    tenant: str | None = Field(
        default=None,
        pattern=NAME,
        description="one tenant for all clients; default: `local` on loopback, else a hash of the credential",
    )
    tenant_secret: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="the key of that hash; by default Narrows makes one and keeps it in the store",
    )
    trusted_proxies: tuple[str, ...] = Field(
        default=(), description="networks (CIDR) of gateways in front whose headers Narrows trusts"
    )
    tenant_headers: tuple[str, ...] = Field(
        default=(), description="headers in which these gateways name the person who asks; the first one present counts"
    )
    metrics_token: SecretStr | None = Field(
        default=None, min_length=1, description="bearer token for /metrics from other machines"
    )
    admin_token: SecretStr | None = Field(
        default=None, min_length=1, description="bearer token for all figures, and for the conversations of a `tenant`"
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        faults = list(_unreadable_networks(value))
        if faults:
            raise refused_at(faults)
        return value

    @field_validator("tenant_headers")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        faults: list[tuple[Path, str]] = [
            ((at,), f"{name[:64]!r} is no header that names a person; for example X-OpenWebUI-User-Id")
            for at, name in enumerate(value)
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or name.lower() in _NO_PERSONS
        ]
        if faults:
            raise refused_at(faults)
        return value


def _unreadable_networks(networks: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    for at, network in enumerate(networks):
        try:
            ip_network(network)
        except ValueError:
            yield (at,), f"{network[:64]!r} is no network; write for example 10.0.0.0/8, or one address: 10.0.0.7"

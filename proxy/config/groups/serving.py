"""The settings about what is served: where requests go, where clients find Narrows, how much it takes and for how
long, its log, who may ask, and whose data is whose."""

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Literal, Self

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator

from policies.dialects import DIALECTS
from proxy.config.errors import Path as Place
from proxy.config.errors import check, refused_at
from proxy.config.presets import NAME
from proxy.config.routes import CREDENTIALS
from proxy.config.rules import AuthMode, KeyRow
from proxy.config.sources import Configured
from proxy.config.units import Period, Seconds, Size, size
from proxy.config.upstreams import PemFile, UpstreamRow, Url, VersionedUrl


class UpstreamGroup(Configured):
    """Upstream"""

    upstream: Url | None = Field(
        default=None, description="the client's former base_url, /v1 included, for example https://api.openai.com/v1"
    )
    anthropic_upstream: VersionedUrl | None = Field(
        default=None,
        description="where requests in Anthropic's API go, for example https://api.anthropic.com; default: `upstream`",
    )
    upstreams: tuple[UpstreamRow, ...] = Field(
        default=(),
        description="more upstreams, by API and model; the first that fits a request serves it",
        examples=['[{ name = "local", url = "http://127.0.0.1:11434/v1" }]'],
    )
    ca_bundle: PemFile | None = Field(default=None, description="PEM file to trust instead of the system's")

    @property
    def upstream_rows(self) -> tuple[UpstreamRow, ...]:
        rows = list(self.upstreams)
        if self.anthropic_upstream is not None:
            apis = tuple(api.label for api in DIALECTS.values() if api.provider == "anthropic")
            rows.append(UpstreamRow(name="anthropic", url=self.anthropic_upstream, apis=apis))
        if self.upstream is not None:
            rows.append(UpstreamRow(name="default", url=self.upstream))
        return tuple(rows)

    def upstream_of(self, dialect: str) -> str | None:
        """Where requests in this API go that name no model."""
        row = self.upstream_row_of(dialect)
        return row.url if row is not None else None

    def upstream_of_provider(self, provider: str) -> str | None:
        """Where requests in the first API of this provider go that name no model."""
        return self.upstream_of(next(name for name, api in DIALECTS.items() if api.provider == provider))

    def upstream_row_of(self, dialect: str) -> UpstreamRow | None:
        """The upstream of requests in this API that name no model."""
        return next((row for row in self.upstream_rows if row.fits(dialect, None)), None)


class ListenGroup(Configured):
    """Listen"""

    config: Path | None = Field(default=None, description="a TOML file with settings of these names")
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8787, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    workers: int = Field(default=1, ge=1, le=64, description="processes that serve on this port (Linux)")
    compress_api: bool = Field(default=False, description="serve POST /v1/compress and GET /v1/retrieve/HASH")


class LimitsGroup(Configured):
    """Limits"""

    body_limit: ByteSize = Field(default=ByteSize(64 * 2**20), gt=0, description="largest request body, decompressed")
    requests_limit: int = Field(
        default=2048,
        ge=4,
        le=10**6,
        description="requests in flight in a process, 4 or more; one address may have half, one credential a third",
    )
    bytes_limit: Size | None = Field(
        default=None,
        description="bytes of bodies in flight in a process, shared in the same way; at least three times "
        "`body_limit`, default: eight times",
    )
    connect_timeout: Period = Field(default=10, description="how long connecting to the upstream may take")
    read_timeout: Period = Field(default=600, description="how long the upstream may be silent (no total limit)")
    header_timeout: Period = Field(
        default=30,
        description="how long a client may take for a request's head, from connecting or from the reply before",
    )
    body_timeout: Period = Field(
        default=30, description="how long a client may be silent in a body, or slower than 1 KiB a second"
    )
    planning_timeout: Period = Field(
        default=2, le=600, description="how long planning a request may work; three times that with `cold_process`"
    )
    grace: Seconds = Field(default=25, ge=0, description="how long running replies may go on after SIGTERM")

    @model_validator(mode="after")
    def _bodies_have_room(self) -> Self:
        limit, body = self.bytes_limit, self.body_limit
        if limit is not None and limit < 3 * body:  # of which one client gets a third
            text = f"{size(limit)} must be three times body_limit ({size(body)}) or more; raise it"
            raise refused_at([(("bytes_limit",), text)])
        return self


class LoggingGroup(Configured):
    """Logging"""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least severe level to log"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="json; console, for people; or auto, which is console on a terminal"
    )


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
        faults: list[tuple[Place, str]] = []
        for at, network in enumerate(value):
            try:
                ip_network(network)
            except ValueError:
                what = f"{network[:64]!r} is no network; write for example 10.0.0.0/8, or one address: 10.0.0.7"
                faults.append(((at,), what))
        check(faults)
        return value

    @field_validator("tenant_headers")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check(
            ((at,), f"{name[:64]!r} is no header that names a person; for example X-OpenWebUI-User-Id")
            for at, name in enumerate(value)
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or name.lower() in _NO_PERSONS
        )
        return value

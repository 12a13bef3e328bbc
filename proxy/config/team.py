"""The settings of a gateway for a team: where requests go, and who may send them."""

import re
from collections.abc import Collection, Iterator, Sequence
from ipaddress import ip_network

from pydantic import Field, field_validator

from proxy.config.addresses import Url
from proxy.config.errors import Path, refused_at, unknown
from proxy.config.keys import AuthMode, KeyRow, faults_in
from proxy.config.sources import Configured
from proxy.config.upstreams import UpstreamRow, VersionedUrl, upstream_faults

_NO_PERSONS = frozenset(
    {"authorization", "api-key", "x-api-key", "x-narrows-key", "cookie", "host", "content-length", "content-type"}
    | {"x-forwarded-for", "x-real-ip", "forwarded"}
)
"""Headers that hold a credential or an address, or are needed for something else."""


class TeamSettings(Configured):
    """The part of the settings that says where requests go, and for whom."""

    upstream: Url | None = Field(
        default=None, description="the client's former base_url, /v1 included, for example https://api.openai.com/v1"
    )
    anthropic_upstream: VersionedUrl | None = Field(
        default=None,
        description="where requests in Anthropic's API go, for example https://api.anthropic.com; else to `upstream`",
    )
    upstreams: tuple[UpstreamRow, ...] = Field(
        default=(), description="more upstreams, by API and model; the first that fits a request counts"
    )
    auth: AuthMode = Field(
        default="passthrough",
        description="who is let in: passthrough anybody, whose credential goes upstream; keys holders of a key of "
        "this gateway; both either",
    )
    keys: tuple[KeyRow, ...] = Field(default=(), description="keys of this gateway, and what each may do")
    trusted_proxies: tuple[str, ...] = Field(
        default=(), description="networks (CIDR) of gateways in front, whose headers say who asks"
    )
    tenant_headers: tuple[str, ...] = Field(
        default=(), description="headers in which these gateways name the person who asks; the first that is there"
    )
    compress_api: bool = Field(default=False, description="serve POST /v1/compress and GET /v1/retrieve/HASH")

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

    @property
    def upstream_rows(self) -> tuple[UpstreamRow, ...]:
        """All upstreams, in the order in which they are looked at."""
        rows = list(self.upstreams)
        if self.anthropic_upstream is not None:
            rows.append(UpstreamRow(name="anthropic", url=self.anthropic_upstream, apis=("messages",)))
        if self.upstream is not None:
            rows.append(UpstreamRow(name="default", url=self.upstream))
        return tuple(rows)

    def upstream_of(self, dialect: str) -> str | None:
        """Where requests in this API go that name no model."""
        row = self.upstream_row_of(dialect)
        return row.url if row is not None else None

    def upstream_row_of(self, dialect: str) -> UpstreamRow | None:
        """The upstream of requests in this API that name no model."""
        return next((row for row in self.upstream_rows if row.fits(dialect, None)), None)


def check_keys(settings: TeamSettings, presets: Collection[str]) -> None:
    """Raises ValidationError where keys, or gateways in front, cannot be meant so. `presets`: the names of all."""
    faults = list(faults_in(settings.keys, presets, [row.name for row in settings.upstream_rows]))
    if settings.keys and settings.auth == "passthrough":
        faults.append((("keys",), 'they do not count while `auth` is passthrough; set it to "keys" or "both"'))
    if settings.tenant_headers and not settings.trusted_proxies:
        faults.append((("tenant_headers",), "nobody may send them; name networks in `trusted_proxies`"))
    if faults:
        raise refused_at(faults)


def _unreadable_networks(networks: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    for at, network in enumerate(networks):
        try:
            ip_network(network)
        except ValueError:
            yield (at,), f"{network[:64]!r} is no network; write for example 10.0.0.0/8, or one address: 10.0.0.7"


def check_upstreams(settings: TeamSettings, ruled: Sequence[str | None], host: str) -> None:
    """Refuse what cannot be meant of upstreams. `ruled`: the one that each rule names."""
    pairs = {"anthropic": "anthropic_upstream", "default": "upstream"}
    own_names = {name: setting for name, setting in pairs.items() if getattr(settings, setting) is not None}
    named = [*ruled, *(name for key in settings.keys for name in key.upstreams)]
    faults = list(upstream_faults(settings.upstreams, own_names, named, host, settings.auth))
    names = [row.name for row in settings.upstream_rows]
    faults += [
        (("rules", at, "upstream"), unknown("upstream", name, names))
        for at, name in enumerate(ruled)
        if name is not None and name not in names
    ]
    if faults:
        raise refused_at(faults)

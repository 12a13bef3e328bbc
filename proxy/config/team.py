"""The settings of a gateway for a team: where requests go, and who may send them."""

from pydantic import Field

from proxy.config.keys import AuthMode, KeyRow
from proxy.config.sources import Configured
from proxy.config.summarizers import Url
from proxy.config.upstreams import UpstreamRow, VersionedUrl


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
        return next((row.url for row in self.upstream_rows if row.fits(dialect, None)), None)

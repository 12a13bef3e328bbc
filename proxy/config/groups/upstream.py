"""The settings about where requests go."""

import os
from pathlib import Path

from pydantic import Field, field_validator

from policies.dialects import DIALECTS
from proxy.config.addresses import Url
from proxy.config.errors import refused
from proxy.config.sources import Configured
from proxy.config.upstreams import UpstreamRow, VersionedUrl


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
    ca_bundle: Path | None = Field(default=None, description="PEM file to trust instead of the system's")

    @field_validator("ca_bundle")
    @classmethod
    def _readable(cls, value: Path | None) -> Path | None:
        if value is not None and not os.path.isfile(value):  # which takes any name
            raise refused("ca_bundle", f"there is no file {value}; give a PEM file")
        return value

    @property
    def upstream_rows(self) -> tuple[UpstreamRow, ...]:
        """All upstreams, in the order in which they are looked at."""
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

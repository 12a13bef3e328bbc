"""Every setting of Narrows: its groups together, and what must fit between them.

Laws
  Flags, NARROWS_* environment variables and keys of the TOML file are the same names, and win in that order.
  What cannot work is refused while loading, with the setting named and what to do about it; what stands in the file,
  with its line.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any, Self

from pydantic import model_validator
from pydantic_settings import SettingsConfigDict

from proxy.config.errors import refused_at, unknown
from proxy.config.groups.access import AccessGroup
from proxy.config.groups.compaction import CompactionGroup
from proxy.config.groups.keeping import KeepingGroup, StoreGroup
from proxy.config.groups.process import LimitsGroup, ListenGroup, LoggingGroup
from proxy.config.groups.summaries import SummariesGroup
from proxy.config.groups.upstream import UpstreamGroup
from proxy.config.keys import faults_in
from proxy.config.sources import PREFIX, Configured, loaded
from proxy.config.upstreams import upstream_faults

GROUPS: Sequence[type[Configured]] = (
    ListenGroup,
    UpstreamGroup,
    AccessGroup,
    StoreGroup,
    CompactionGroup,
    SummariesGroup,
    KeepingGroup,
    LimitsGroup,
    LoggingGroup,
)
"""In the order in which people read them."""


class Settings(
    LoggingGroup,
    LimitsGroup,
    KeepingGroup,
    SummariesGroup,
    CompactionGroup,
    StoreGroup,
    AccessGroup,
    UpstreamGroup,
    ListenGroup,
):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _upstreams_and_keys_count(self) -> Self:
        _check_upstreams(self, [rule.upstream for rule in self.rules], self.host)
        _check_keys(self, self.all_presets())
        return self

    @model_validator(mode="after")
    def _shadows_are_paid(self) -> Self:
        """Refuses what could not be paid, or would send a key where it does not belong."""
        names = {name: getattr(self, name) for name in ("agree_key_env", "agree_anthropic_key_env")}
        if self.agree_share and not any(row.has_key for row in self.upstreams) and not any(names.values()):
            reason = "name the environment variable with the key that pays for shadow requests; clients' keys do not"
            raise refused_at([(("agree_key_env",), reason)])
        if self.agree_anthropic_key_env and self.anthropic_upstream is None:
            reason = "there is no anthropic_upstream; leave it out: agree_key_env counts for all"
            raise refused_at([(("agree_anthropic_key_env",), reason)])
        for setting, name in names.items():
            if name and not os.environ.get(name):
                raise refused_at([((setting,), f"the environment variable {name} is empty or not set")])
        return self

    @property
    def digest(self) -> str:
        """The same where two processes have the same settings but for where they are; no secret is in it."""
        values = repr([(name, value) for name, value in self if name not in ("config", "host", "port", "store")])
        return sha256(values.encode()).hexdigest()[:12]


def _check_keys(settings: Settings, presets: Collection[str]) -> None:
    """Raises ValidationError where keys, or gateways in front, cannot be meant so. `presets`: the names of all."""
    faults = list(faults_in(settings.keys, presets, [row.name for row in settings.upstream_rows]))
    if settings.keys and settings.auth == "passthrough":
        faults.append((("keys",), 'they do not count while `auth` is passthrough; set it to "keys" or "both"'))
    if settings.tenant_headers and not settings.trusted_proxies:
        faults.append((("tenant_headers",), "nobody may send them; name networks in `trusted_proxies`"))
    if faults:
        raise refused_at(faults)


def _check_upstreams(settings: Settings, ruled: Sequence[str | None], host: str) -> None:
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


def load_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Read flags (values by the names of settings), environment and file. Raises ConfigurationError."""
    return loaded(Settings, flags or {})

"""Every setting of Narrows: its groups together, and what must fit between them.

Laws
  Flags, NARROWS_* environment variables and keys of the TOML file are the same names, and win in that order.
  What cannot work is refused while loading, with the setting named and what to do about it; what stands in the file,
  with its line.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Self

from pydantic import model_validator
from pydantic_settings import SettingsConfigDict

from proxy.config import shadows
from proxy.config.groups.access import AccessGroup
from proxy.config.groups.compaction import CompactionGroup
from proxy.config.groups.keeping import KeepingGroup
from proxy.config.groups.limits import LimitsGroup
from proxy.config.groups.listen import ListenGroup
from proxy.config.groups.logging import LoggingGroup
from proxy.config.groups.store import StoreGroup
from proxy.config.groups.summaries import SummariesGroup
from proxy.config.groups.upstream import UpstreamGroup
from proxy.config.sources import PREFIX, Configured, loaded
from proxy.config.team import TeamSettings, check_keys, check_upstreams

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
    TeamSettings,
    ListenGroup,
):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _upstreams_and_keys_count(self) -> Self:
        check_upstreams(self, [rule.upstream for rule in self.rules], self.host)
        check_keys(self, self.all_presets())
        return self

    @model_validator(mode="after")
    def _shadows_are_paid(self) -> Self:
        share = 0 if any(row.has_key for row in self.upstreams) else self.agree_share
        shadows.check(share, self.agree_key_env, self.agree_anthropic_key_env, self.anthropic_upstream)
        return self

    @property
    def digest(self) -> str:
        """The same where two processes have the same settings but for where they are; no secret is in it."""
        values = repr([(name, value) for name, value in self if name not in ("config", "host", "port", "store")])
        return sha256(values.encode()).hexdigest()[:12]


def load_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Read flags (values by the names of settings), environment and file. Raises ConfigurationError."""
    return loaded(Settings, flags or {})

"""Every setting of Narrows: its groups together, and what must fit between them.

Laws
  Flags, NARROWS_* environment variables and keys of the TOML file are the same names, and win in that order.
  What cannot work is refused while loading, with the setting, what to do about it and, of a file, the line.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Self

from pydantic import model_validator
from pydantic_settings import SettingsConfigDict

from proxy.config.errors import Path as Place
from proxy.config.errors import check, refused_at, unknown
from proxy.config.groups.compaction import CompactionGroup, SummariesGroup
from proxy.config.groups.keeping import KeepingGroup, StoreGroup
from proxy.config.groups.serving import AccessGroup, LimitsGroup, ListenGroup, LoggingGroup, UpstreamGroup
from proxy.config.sources import Configured, loaded
from proxy.config.upstreams import is_public

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
    model_config = SettingsConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _upstreams_and_keys_count(self) -> Self:
        check(_upstream_faults(self))
        check(_key_faults(self))
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


def _upstream_faults(settings: Settings) -> Iterator[tuple[Place, str]]:
    """Faults of upstreams, and their places."""
    pairs = {"anthropic": "anthropic_upstream", "default": "upstream"}
    own_names = {name: setting for name, setting in pairs.items() if getattr(settings, setting) is not None}
    ruled = [rule.upstream for rule in settings.rules]
    mentions = {*ruled, *(name for key in settings.keys for name in key.upstreams)}
    for at, row in enumerate(settings.upstreams):
        above, place = settings.upstreams[:at], ("upstreams", at)
        if row.name in own_names:
            yield (*place, "name"), f"{row.name!r} is the one of `{own_names[row.name]}`; take another name"
        if any(other.name == row.name for other in above):
            yield (*place, "name"), f"there is an upstream {row.name!r} above; give each a name of its own"
        covering = next((number for number, other in enumerate(above) if other.covers(row)), None)
        if covering is not None and row.name not in mentions:
            what = f"it is never reached: upstreams.{covering} fits all that it fits; move it up, or let a rule name it"
            yield place, what
        if row.has_key and settings.auth == "passthrough" and is_public(settings.host):
            yield (
                (*place, "key_env" if row.key_env else "key_file"),
                f'its key would pay for whoever reaches {settings.host}: set auth = "keys" (`narrows keys new NAME` '
                "makes one), or host to 127.0.0.1",
            )
    names = [row.name for row in settings.upstream_rows]
    for at, name in enumerate(ruled):
        if name is not None and name not in names:
            yield ("rules", at, "upstream"), unknown("upstream", name, names)


def _key_faults(settings: Settings) -> Iterator[tuple[Place, str]]:
    """Faults of keys, and of gateways in front."""
    names: Mapping[str, Collection[str]] = {
        "presets": settings.all_presets(),
        "upstreams": [row.name for row in settings.upstream_rows],
    }
    for at, row in enumerate(settings.keys):
        above = settings.keys[:at]
        if any(other.name == row.name for other in above):
            yield ("keys", at, "name"), f"there is a key {row.name!r} above; give each a name of its own"
        if any(other.sha256 == row.sha256 for other in above):
            yield ("keys", at, "sha256"), "a row above has the same key; make one with `narrows keys new`"
        for field, there in names.items():
            for number, name in enumerate(getattr(row, field)):
                if name not in there:
                    yield ("keys", at, field, number), unknown(field.removesuffix("s"), name, there)
    if settings.keys and settings.auth == "passthrough":
        yield ("keys",), 'they do not count while `auth` is passthrough; set it to "keys" or "both"'
    if settings.tenant_headers and not settings.trusted_proxies:
        yield ("tenant_headers",), "nobody may send them; name networks in `trusted_proxies`"


def load_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Read flags (values by the names of settings), environment and file. Raises ConfigurationError."""
    return loaded(Settings, flags or {})

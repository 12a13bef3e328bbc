"""The list `keys`: who may use this gateway, for what, and for how much.

Laws
  No key stands in a file or in a store: a row has its SHA-256.
"""

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, model_validator

from proxy.config.errors import Table, refused
from proxy.config.presets import NAME
from proxy.config.rules import Mode

AuthMode = Literal["passthrough", "keys", "both"]
KEY_PREFIX = "nrw_"
KEY_SHAPE = re.compile(r"nrw_[1-9A-HJ-NP-Za-km-z]{39}")
_LIMITS = ("rpm", "tpm", "concurrency", "usd_per_day")
_THIS_MACHINE = "local"
"""The tenant of clients on this machine that show no key."""


class KeyRow(Table):
    """A key of this gateway: one entry of the list `keys`, or of the store."""

    name: Annotated[str, Field(pattern=NAME)] = Field(description="name of its owner, in logs and figures")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the key, as `narrows keys new` prints it"
    )
    tenant: Annotated[str, Field(pattern=NAME)] | None = Field(
        default=None, description="tenant of its requests; without it, its name"
    )
    upstreams: tuple[str, ...] = Field(default=(), description="names of the upstreams it may use; without them, all")
    models: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="models it may use: names, or patterns with *; without them, all"
    )
    presets: tuple[str, ...] = Field(default=(), description="presets that its requests may choose")
    mode: Mode | None = Field(default=None, description="mode of its requests; without it, that of the settings")
    rpm: Annotated[int, Field(gt=0)] | None = Field(default=None, description="requests a minute")
    tpm: Annotated[int, Field(gt=0)] | None = Field(default=None, description="tokens a minute")
    concurrency: Annotated[int, Field(gt=0)] | None = Field(default=None, description="requests in flight in a process")
    usd_per_day: Annotated[float, Field(gt=0)] | None = Field(default=None, description="dollars a day (UTC)")
    expires: AwareDatetime | None = Field(default=None, description="when it expires, with a time zone")

    @model_validator(mode="after")
    def _is_not_this_machine(self) -> "KeyRow":
        if self.name == _THIS_MACHINE and self.tenant is None:
            raise refused("name", "local is the tenant of this machine; take another name, or give it a tenant")
        return self

    @property
    def limits(self) -> dict[str, float]:
        values = {name: getattr(self, name) for name in _LIMITS}
        return {name: value for name, value in values.items() if value is not None}

    def has_expired(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now

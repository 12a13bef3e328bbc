"""The list `keys`: who may use this gateway, for what, and for how much.

Laws
  No key stands in a file or in a store: a row has its SHA-256.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from proxy.config.errors import Table
from proxy.config.presets import NAME
from proxy.config.rules import Mode

AuthMode = Literal["passthrough", "keys", "both"]


class KeyRow(Table):
    """A key of this gateway: one entry of the list `keys`, or of the store."""

    name: Annotated[str, Field(pattern=NAME)] = Field(description="whose it is, in logs and figures")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = Field(
        description="of the key, as `narrows keys new` says"
    )
    tenant: Annotated[str, Field(pattern=NAME)] | None = Field(default=None, description="else its name")
    upstreams: tuple[str, ...] = Field(default=(), description="the upstreams it may use, by name; else all")
    models: tuple[str, ...] = Field(
        default=(), description="the models it may ask: names, or patterns with *; else all"
    )
    presets: tuple[str, ...] = Field(default=(), description="the presets that its requests may choose")
    mode: Mode | None = Field(default=None, description="else as the settings say")
    rpm: Annotated[int, Field(gt=0)] | None = Field(default=None, description="requests a minute")
    tpm: Annotated[int, Field(gt=0)] | None = Field(default=None, description="tokens a minute")
    concurrency: Annotated[int, Field(gt=0)] | None = Field(default=None, description="requests in flight in a process")
    usd_per_day: Annotated[float, Field(gt=0)] | None = Field(default=None, description="dollars on a day (UTC)")
    expires: datetime | None = Field(default=None, description="when it ends, with a time zone")

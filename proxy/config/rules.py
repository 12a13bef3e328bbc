"""The list `rules`: how which requests are served, where that is not the same for all.

Laws
  The first rule that fits counts, alone: what it leaves out is as the settings say.
  No key stands in a file: a rule names a credential by its SHA-256.
"""

import re
from collections.abc import Collection, Container, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AwareDatetime, Field, field_validator, model_validator

from policies.context import Aim
from policies.keep import Patterns, patterns_of
from policies.model.parameters import MOST
from policies.presets import StaleAction, StaleOptions
from policies.tools.deferral import ToolLists
from proxy.config.errors import Table, refused, unknown
from proxy.config.presets import NAME
from proxy.config.routes import CHATS
from proxy.config.units import Period

Mode = Literal["on", "off", "observe"]

_CONDITIONS = ("path", "key_sha256", "model")
FEWEST_TOKENS = 1_000


def _checked(values: Sequence[str]) -> Patterns:
    try:
        return patterns_of(values)
    except ValueError as error:
        raise refused("pattern", str(error)) from error


KeepPatterns = Annotated[tuple[str, ...], AfterValidator(_checked)]


class Rule(Table):
    """Conditions that a request has to meet, and how it is served."""

    path: str | None = Field(default=None, description="the path of requests; those that ask for counts follow them")
    key_sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = Field(
        default=None, description="the SHA-256 of the client's credential, in hexadecimal digits"
    )
    model: Annotated[str, Field(pattern=r"^[^*]+\*?$")] | None = Field(
        default=None, description="the model that is asked; with * at its end: how its name begins"
    )
    preset: str | None = None
    mode: Mode | None = None
    aim: Aim | None = None
    context_tokens: Annotated[int, Field(strict=True, ge=FEWEST_TOKENS, le=MOST)] | None = None
    summary_stale: StaleAction | None = None
    summary_ttl: Period | None = None
    summary_same_model: Annotated[bool, Field(strict=True)] | None = None
    record: Annotated[bool, Field(strict=True)] | None = None
    upstream: str | None = Field(default=None, description="the name of the upstream that these requests go to")
    keep: KeepPatterns = ()
    tools: ToolLists | None = None

    @field_validator("path")
    @classmethod
    def _served(cls, value: str | None) -> str | None:
        if value is not None and value not in CHATS:
            raise refused("path", unknown("path", value, CHATS))
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.model_fields_set.intersection(_CONDITIONS):
            raise refused("rule", f"say for which requests: one of {', '.join(_CONDITIONS)}")
        then = [name for name in type(self).model_fields if name not in _CONDITIONS]
        if not self.model_fields_set.intersection(then):
            raise refused("rule", f"say what then: one of {', '.join(then)}")
        return self

    @property
    def stale(self) -> StaleOptions:
        return StaleOptions(self.summary_stale, self.summary_ttl, self.summary_same_model)

    def fits(self, dialect: str, keys: Container[str], model: str) -> bool:
        """True where it is about a request in this API, with a credential of one of these digests, to this model."""
        name = self.model or ""
        return (
            (self.path is None or CHATS[self.path] == dialect)
            and (self.key_sha256 is None or self.key_sha256.lower() in keys)
            and (name in ("", model) or (name.endswith("*") and model.startswith(name[:-1])))
        )

    def covers(self, other: "Rule") -> bool:
        """True where it fits every request that the other fits. Each path has an API of its own."""
        return self.fits(CHATS.get(other.path or "", ""), {(other.key_sha256 or "").lower()}, other.model or "")


def unreached(rules: Sequence[Rule]) -> Iterator[tuple[int, int]]:
    """The positions of rules that never count, each with that of the first rule above that covers it."""
    for at, rule in enumerate(rules):
        above = next((earlier for earlier in range(at) if rules[earlier].covers(rule)), None)
        if above is not None:
            yield at, above


def first_fitting(rules: Sequence[Rule], dialect: str, keys: Collection[str], model: str) -> Rule | None:
    """The rule that counts. `keys`: the SHA-256 of the keys of its credential, any of which may match."""
    return next((rule for rule in rules if rule.fits(dialect, keys, model)), None)


# --- the list `keys`: who may use this gateway, for what, and for how much ---
# Law: no key stands in a file or in a store: a row has its SHA-256.

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
    concurrency: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="requests in flight, in all workers"
    )
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

"""A prompt that waits for its client, with all that its ping needs, in memory alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Self

from policies.model.memory import Sent, StepRecord
from policies.money.bills import Labels
from proxy.config import KeyRow
from proxy.memory import Key
from proxy.requests import RequestHead

_MARGIN, _LEAST_MARGIN = 0.1, 10.0
"""How long before its cache expires a prompt is due: this share of the lifetime, and so many seconds at least, but in
short lifetimes half of them."""


def beginning_of(tenant: str, owner: str, head: str) -> Key:
    """Where the store has, as a single step, which conversation an owner began last with this head."""
    return Key(tenant, f"begun {owner} {head}")


def begun(key: Key, at: float) -> StepRecord:
    """The step that says there that it is this conversation."""
    digest = sha256(key.conversation.encode("utf-8", "surrogatepass")).hexdigest()
    sent = Sent(0, digest, 0, "", 0, "", head="", settings="")
    return StepRecord("begun", sent=sent, at=at)


@dataclass(frozen=True, slots=True, eq=False)
class WaitingPrompt:
    """Times are seconds since 1970."""

    key: Key
    labels: Labels
    row: KeyRow | None
    """The key of the gateway that its client has shown."""
    upstream: str
    model: str
    """For a URL that has it in its path."""
    rest: str
    """The target, after /v1."""
    head: RequestHead = field(repr=False)
    more: Mapping[str, str]
    """Headers that went upstream beside its own."""
    body: bytes = field(repr=False)
    """As it went upstream."""
    beginning: Key
    tokens: int
    """By the provider's count."""
    lifetime: float
    record: StepRecord
    """Of the step that it is, from when it was sent for its client."""
    fingerprint: str
    is_quiet: bool
    """True where nothing is stored of that step."""
    sent: float
    """When it was sent last, for its client or as a ping."""
    until: float
    """When nobody is waited for any more."""
    pings: int = 0

    @property
    def due(self) -> float:
        return self.end - min(max(self.lifetime * _MARGIN, _LEAST_MARGIN), self.lifetime / 2)

    @property
    def is_wanted(self) -> bool:
        return self.due <= self.until and self.lifetime <= self.until - self.record.at

    @property
    def end(self) -> float:
        """When its cache expires."""
        return self.sent + self.lifetime

    @property
    def owner(self) -> tuple[str, str]:
        """Whose credential it is, and where that is known."""
        return self.labels.owner, self.upstream

    def again(self, now: float) -> Self:
        """The same after a ping that kept it warm."""
        return replace(self, sent=now, pings=self.pings + 1)

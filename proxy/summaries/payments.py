"""Who pays for summaries, and how much: with which credentials a model may be asked, and what calls may cost.

Laws
  The client's credential is used only where it is a plain API key, or the settings allow any; a key of the gateway's
  own only for those whom the upstream has accepted and, where Narrows is public or there is an allow-list, whom that
  names.
  Plans follow from what does not change (`allowed`): a summary that stands does not fall because the upstream is over
  its limit for a minute.
  What a call may cost is taken from the budget before it is made, in the store that all replicas share; what it did not
  cost is given back after it. Without the store nothing can be taken, and nothing is asked.
  Where a price is not known, the assumed one counts: a dollar for a million tokens that are read, four for those
  written.
  That a budget is used up is noted once for each conversation and day.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxy.config import Settings, SummaryBudget
from proxy.config.upstreams import is_public
from proxy.identity.credential import CredentialStates, is_allowed, owner_of
from proxy.memory import Key, Purse, Store, StoreTrouble
from proxy.memory.audit_log import AuditLog
from proxy.memory.conversation import Conversations, note_first

_PAUSE = 60.0
"""Seconds in which nothing is taken for a conversation whose budget was used up: what runs may give something back."""


@dataclass(frozen=True, slots=True)
class Payment:
    """The credentials that may be used: the client's own, and a key of the gateway's own."""

    client: bool = True
    gateway: bool = True


EVERYTHING, NOTHING = Payment(), Payment(client=False, gateway=False)


@dataclass(frozen=True, slots=True)
class Payments:
    """Decides who pays."""

    settings: Settings
    states: CredentialStates
    secret: bytes = field(repr=False)
    """The key of the hash that names owners."""

    def owner(self, credential: str) -> str:
        """The name of whoever has this credential."""
        return owner_of(self.secret, credential)

    def allowed(self, credential: str, is_plain_key: bool) -> Payment:
        """The payment that the settings allow for a credential."""
        settings = self.settings
        if not settings.summaries:
            return NOTHING
        is_listed = is_allowed(credential, settings.summary_allow)
        return Payment(
            client=is_plain_key or settings.summary_credential == "client-any",
            gateway=is_listed or not (settings.summary_allow or is_public(settings.host)),
        )

    def possible(self, credential: str, is_plain_key: bool, is_here: bool = False) -> Payment:
        """The payment that is possible for it now. `is_here`: its owner is on this machine and asks by hand."""
        allowed, is_accepted = self.allowed(credential, is_plain_key), self.states.is_accepted(self.owner(credential))
        gateway = self.settings.summaries and (is_here or (allowed.gateway and is_accepted))
        return Payment(allowed.client, gateway)


@dataclass(frozen=True, slots=True)
class SpendingLimits:
    """Takes what calls cost from the purses of the store, within the limits of the settings."""

    limits: SummaryBudget
    store: Store
    audit_log: AuditLog
    conversations: Conversations
    clock: Callable[[], float] = time.time

    def is_used_up(self, key: Key) -> bool:
        """True where there was not enough for this conversation a moment ago."""
        live = self.conversations.get(key)
        return live is not None and time.monotonic() < live.no_budget_until

    async def reserve(self, key: Key, dollars: float) -> Sequence[Purse] | None:
        """Take what a call for this conversation may cost; the purses it was taken from, or None where there is not
        enough. Raises StoreTrouble."""
        day, limits = time.strftime("%Y-%m-%d", time.gmtime(self.clock())), self.limits
        purses = {
            "conversation": (Purse(key.tenant, key.conversation), limits.conversation),
            "tenant": (Purse(key.tenant, day=day), limits.tenant),
            "day": (Purse(day=day), limits.day),
        }
        taken_from = list[Purse]()
        for name, (purse, limit) in purses.items():
            try:
                is_taken = await self.store.take(purse, dollars, limit)
            except StoreTrouble:
                await self.settle(taken_from, dollars, 0.0)
                raise
            if not is_taken:
                await self.settle(taken_from, dollars, 0.0)
                live = self.conversations.of(key)
                live.no_budget_until = time.monotonic() + _PAUSE
                if note_first(live, f"summary.budget {day}"):
                    self.audit_log.note(key, "summary.budget", limit=name, dollars=limit)
                return None
            taken_from.append(purse)
        return taken_from

    async def settle(self, purses: Sequence[Purse], estimate: float, dollars: float) -> None:
        """The call has cost so much: give back what it did not cost, or take what it did cost beyond the estimate."""
        for purse in purses:
            try:
                await self.store.take(purse, dollars - estimate)
            except StoreTrouble:
                self.audit_log.telemetry.metrics.store_trouble("take")

"""What the pauses of a session cost, with nothing done and with Narrows.

Law: a request found its cache expired where a cache that never forgets would have had more of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from policies.dialects import DIALECTS
from policies.dialects.pings import NoPingError
from policies.money.caches import CacheRule
from policies.money.prices import Prices, Usage
from proxy.config.units import duration
from proxy.lab.provider import PromptCache, ProviderPrompt
from proxy.lab.replay.bills import Compared, ComparedBill, SessionBill
from proxy.lab.replay.recorded import Session


@dataclass
class PauseCosts:
    """The costs of pauses of a session whose requests have times. `bill`, `baseline` and `ping_bill` are the
    session's bills with Narrows, of doing nothing, and of pings."""

    JSON: ClassVar = (
        *("expired", "bridged", "cost", "share_of_bill=shares.with_"),
        *("share_of_baseline=shares.without", "never_expired_ratio", "pings", "share_of_pings", "pinged_at"),
    )

    bill: SessionBill
    baseline: SessionBill
    ping_bill: SessionBill
    cost: ComparedBill
    """Dollars paid to write again, or read as plain input, what would still have been cached."""
    expired: Compared = field(default_factory=Compared)
    """Requests before which the cache had expired."""
    bridged: int = 0
    """Requests before which only that of doing nothing had."""
    pinged_at: list[float] = field(default_factory=list)
    """When what was sent was sent again to keep it in the cache, in seconds since the session began."""

    @property
    def pings(self) -> int:
        return len(self.pinged_at)

    @property
    def shares(self) -> Compared:
        return Compared(self.cost.with_ / (self.bill.total or 1), self.cost.without / (self.baseline.total or 1))

    @property
    def never_expired_ratio(self) -> float:
        """The bill of doing nothing had nothing ever expired, divided by that bill."""
        return 1.0 - self.shares.without

    @property
    def share_of_pings(self) -> float:
        return self.ping_bill.total / self.bill.total if self.bill.total else 0.0

    def add(self, expired: Compared) -> None:
        """Count a request by the tokens that had expired before it."""
        with_, without = expired.with_ > 0, expired.without > 0
        self.expired = Compared(self.expired.with_ + with_, self.expired.without + without)
        self.bridged += without and not with_


_NO_PING = {
    "form": "vendors name one for Claude in the Messages API, and from GPT-5.6 on in Responses; replay one of these",
    "hosted_tools": "the provider runs tools of its own in it",
    "stored": "it goes on from what the provider stores; replay one that sends its whole history",
}


def why_no_ping(session: Session, body: bytes, keep_warm: float, rule: CacheRule) -> str:
    """A sentence where no ping can keep the prompts of a session cached for so long; else ""."""
    reason = f"its cache lives {duration(rule.seconds)} without any; name a longer time"
    try:
        DIALECTS[session.dialect].ping(body)
        reason = reason if keep_warm < rule.seconds else ""
    except NoPingError as error:
        reason = _NO_PING[str(error)]
    if not session.times:
        reason = "nobody knows when its requests were sent; name times with --pauses FILE"
    return reason and f"--keep-warm sends no ping in {session.name}: {reason}."


class PauseMeter:
    """The prompts of one side of a session, one after the other, in a cache that never forgets."""

    def __init__(self, count: Callable[[str], int], rule: CacheRule, prices: Prices) -> None:
        self._cache, self._rule, self._prices = PromptCache(count), rule, prices

    def lost(self, run: str, prompt: ProviderPrompt, before: int, usage: Usage, *, is_cold: bool) -> tuple[int, float]:
        """The tokens of a prompt that had expired, and the dollars that this cost: all that stands where the request
        before stood (so many tokens, `before`), shortened by now or not. Nothing where nothing had expired. `is_cold`:
        it had, so that all was rewritten, and what never forgets has nothing of it either."""
        warm = self._cache.charge(run, prompt, self._rule)
        if warm.cached <= usage.cached and not is_cold:
            return 0, 0.0
        tokens = max(before, warm.cached) - usage.cached
        written, longer = (max(0, each - tokens) for each in (usage.written, usage.written_longer))
        unexpired = replace(usage, cached=usage.cached + tokens, written=written, written_longer=longer)
        return tokens, self._prices.cost(usage).input - self._prices.cost(unexpired).input

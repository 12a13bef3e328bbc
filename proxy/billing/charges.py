"""What a reply, or a summary, is charged to the limits of a key.

Laws
  Tokens are those of all rounds, as billed. Where nobody said how many, an estimate counts, so that there is no way to
  ask for nothing.
  Where a price is not known, the assumed one counts: a dollar for a million tokens that are read, four for those
  written.
"""

from collections.abc import Sequence

from policies.model.summary_record import SummaryCost
from policies.money.bills import RequestBill
from policies.money.catalog import Overrides, prices_for
from policies.money.prices import Prices, Usage
from proxy.requests import ReplyRound

_BYTES_A_TOKEN = 4
_ASSUMED = Prices()


def charge_of(
    rounds: Sequence[ReplyRound], bill: RequestBill | None, model: str, overrides: Overrides
) -> tuple[int, float]:
    """The tokens and the dollars of a reply that is over. `bill` is None where nothing was billed of it, as of a
    request that Narrows was to leave alone: then `model` counts, and `overrides`, its price before the listed one."""
    rounds = [each for each in rounds if 200 <= each.status < 300]
    if bill is not None and bill.sums.prompt:
        sums = bill.sums
        usage = Usage(sums.prompt, sums.cached, sums.written, sums.output)
        return sums.prompt + sums.output, sums.paid if not sums.unpriced else _ASSUMED.cost(usage).total
    usages = [each.usage or Usage(len(each.request.body) // _BYTES_A_TOKEN, 0, 0, 0) for each in rounds]
    prices = prices_for(model, overrides) if model else _ASSUMED
    return sum(each.prompt + each.completion for each in usages), sum(prices.cost(each).total for each in usages)


def summary_dollars(spent: SummaryCost) -> float:
    """The dollars of a summary."""
    if spent.known_dollars is not None:
        return spent.known_dollars
    return _ASSUMED.cost(Usage(spent.prompt, spent.cached, spent.written, spent.completion)).total

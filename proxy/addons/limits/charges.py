"""What a reply, or a summary, is charged to the limits of a key.

Laws
  Tokens are those of all rounds, as billed. Where nobody said how many, an estimate counts, so that there is no way to
  ask for nothing.
  Where a price is not known, the assumed one counts: that of the model's family, else a dollar for a million tokens
  that are read, four for those written. A model at a local address costs nothing.
"""

from collections.abc import Callable, Sequence

from policies.model.summary_record import SummaryCost
from policies.money.bills import RequestBill
from policies.money.prices import Prices, Usage
from proxy.requests import ReplyRound

PricesOf = Callable[[str, str], Prices]
"""The prices of a model at an upstream."""
_BYTES_A_TOKEN = 4
_ASSUMED = Prices()


def charge_of(
    rounds: Sequence[ReplyRound],
    bill: RequestBill | None,
    model: str,
    prices_of: Callable[[str], Prices],
    answered: int = 0,
) -> tuple[int, float]:
    """The tokens and the dollars of a reply that is over. `bill` is None where nothing was billed of it, as of a
    request that Narrows was to leave alone: then `model` counts.
    `answered`: tokens that the answers have at least, where nobody said how many: the client has left, the upstream
    reports none, or the model goes on."""
    rounds = [each for each in rounds if 200 <= each.status < 300]
    prices = prices_of(model) if model else _ASSUMED
    if bill is not None and bill.sums.prompt:
        sums = bill.sums
        usage = Usage(sums.prompt, sums.cached, sums.written, sums.output)
        dollars = sums.paid if not sums.unpriced else prices.cost(usage).total
        tokens, output = sums.prompt + sums.output, sums.output
    else:
        usages = [each.usage or Usage(len(each.request.body) // _BYTES_A_TOKEN, 0, 0, 0) for each in rounds]
        dollars, output = sum(prices.cost(each).total for each in usages), sum(each.completion for each in usages)
        tokens = sum(each.prompt for each in usages) + output
    more = max(0, answered - output) if rounds else 0
    return tokens + more, dollars + prices.cost(Usage(0, 0, 0, more)).total


def dollars_of(usage: Usage, model: str, prices: PricesOf, upstream: str) -> float:
    """What a model costs with this usage; "" for one that is not known."""
    return (prices(model, upstream) if model else _ASSUMED).cost(usage).total


def summary_dollars(spent: SummaryCost) -> float:
    """The dollars of a summary."""
    if spent.known_dollars is not None:
        return spent.known_dollars
    return _ASSUMED.cost(Usage(spent.prompt, spent.cached, spent.written, spent.completion)).total

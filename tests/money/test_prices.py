"""What a call costs: tiers on input and output, cache reads, and cache writes of either lifetime."""

from dataclasses import replace
from typing import Any

import pytest

from policies.money.catalog import prices_for
from policies.money.prices import Prices, Usage

PRICES = Prices("m", input=10, output=20, read=0.1, write=1.25, tiers=((1_000_000, 2.0),), listed=True)


def test_reads_and_writes_have_their_own_prices() -> None:
    cost = PRICES.cost(Usage(400_000, 200_000, 100_000, 50_000))
    assert (cost.input, cost.output) == (pytest.approx(1 + 0.2 + 1.25), pytest.approx(1))
    assert cost.total == pytest.approx(cost.input + cost.output)


def test_a_tier_is_for_the_whole_request_output_included() -> None:
    """300,000 prompt tokens, 290,000 of them cached, and 4,000 of output at a tier of twice the price: $0.1775."""
    prices = Prices("m", input=1.25, output=10, read=0.1, tiers=((200_000, 2.0),), listed=True)
    usage = Usage(300_000, 290_000, 0, 4_000)
    assert prices.cost(usage).total == pytest.approx(0.1775)
    assert prices.cost(replace(usage, prompt=200_000, cached=190_000)).output == pytest.approx(0.04)


def test_output_may_have_a_tier_of_its_own() -> None:
    """OpenAI, "Pricing": beyond 272,000 prompt tokens GPT-5.4 costs twice as much for input, 1.5 times for output."""
    prices = prices_for("gpt-5.4")
    below, above = (prices.cost(Usage(tokens, 0, 0, 1_000)) for tokens in (272_000, 272_001))
    assert above.output / below.output == pytest.approx(1.5)
    assert above.input / below.input == pytest.approx(2 * 272_001 / 272_000)


def test_a_configured_tier_counts_for_both_unless_output_has_its_own() -> None:
    tiers: dict[str, Any] = {"input": 1, "output": 1, "tiers": [[10, 2.0]]}
    usage = Usage(11, 0, 0, 1_000_000)
    assert prices_for("m", {"m": tiers}).cost(usage).output == pytest.approx(2)
    assert prices_for("m", {"m": tiers | {"output_tiers": [[10, 3.0]]}}).cost(usage).output == pytest.approx(3)


def test_a_write_for_the_longer_time_costs_more_where_the_provider_says_so() -> None:
    marked = replace(PRICES, breakpoints=True, longer=1.6)
    assert marked.cost(Usage(400_000, 0, 300_000, 0, 100_000)).input == pytest.approx(1 + 2.5 + 2)
    claude = prices_for("claude-sonnet-5")
    hour, minutes = (claude.cost(Usage(1_000, 0, 1_000, 0, longer)).input for longer in (1_000, 0))
    assert hour / minutes == pytest.approx(2.0 / 1.25)


def test_no_part_is_negative_where_a_provider_counts_more_parts_than_the_whole() -> None:
    assert PRICES.cost(Usage(10, 8, 8, 0)).input == pytest.approx((0.8 + 10) * 10 / 1e6)

"""W2, C5: the marks of a model, in small windows too, and where a person gives a size to keep below."""

import pytest

from policies.dialects.overflow import LearnedWindow
from policies.money.catalog import prices_for
from policies.money.prices import FLOOR, NO_MARK, RESERVE, Budget, BudgetLimits, Prices


def budget(window: int, reserve: int | None = None, has_floor: bool = True, **limits: float) -> Budget:
    made = BudgetLimits(**limits).budget(Prices("m", window=window), reserve, has_floor=has_floor)  # type: ignore[arg-type]
    assert 0 < made.low < made.high <= made.window
    return made


@pytest.mark.parametrize(
    ("window", "reserve", "high", "floor", "part"),
    [
        (128_000, RESERVE, 107_827, FLOOR, 13_478),
        (65_536, RESERVE, 51_609, FLOOR, 6_451),
        (32_768, 4_096, 25_804, FLOOR, 3_225),
        (16_384, 2_048, 12_902, FLOOR, 1_612),
        (8_192, 1_024, 6_451, 2_150, 806),
        (4_096, 512, 3_225, 1_075, 403),
    ],
)
def test_w2_reserve_floor_and_batches_are_less_in_small_windows(
    window: int, reserve: int, high: int, floor: int, part: int
) -> None:
    made = budget(window)
    assert (made.window, made.reserve, made.high, made.floor) == (window, reserve, high, floor)
    assert made.low == high * 2 // 3
    assert made.bounded(100_000) == part
    assert made.bounded(part - 1) == part - 1
    assert made.mark == "window"


def test_w2_where_the_aim_is_the_context_there_is_no_floor_but_one_that_is_given() -> None:
    assert budget(128_000, has_floor=False).floor == 0
    assert budget(128_000, has_floor=False, floor=700).floor == 700
    assert budget(4_096, floor=700).floor == 700
    assert budget(128_000, floor=0).floor == 0


def test_c5_what_the_request_or_a_person_reserves_counts_in_small_windows_too() -> None:
    assert budget(4_096, 1_500).reserve == 1_500
    own = BudgetLimits(reserve=100).budget(Prices("m", window=4_096), 1_500)
    assert own.reserve == 100
    assert budget(4_096, 9_000).reserve == 2_048  # half the window at most
    assert budget(128_000, 0).reserve == 0


def test_w2_a_size_to_keep_below_is_the_mark_and_the_window_where_it_is_less() -> None:
    made = budget(128_000, context_tokens=9_000)
    assert (made.high, made.low, made.window, made.mark) == (9_000, 6_000, 9_000, "context")
    assert (made.reserve, made.floor, made.bounded(5_000)) == (RESERVE, FLOOR, 1_125)
    assert budget(128_000, context_tokens=6_000).floor == 2_000
    assert budget(128_000, context_tokens=9_000, high=0.5, low=0.25).low == 4_500
    high = budget(128_000).high
    assert budget(128_000, context_tokens=high) == budget(128_000)
    below = budget(128_000, context_tokens=high - 1)
    assert (below.high, below.mark) == (high - 1, "context")


def test_c4_an_unknown_window_sets_no_mark_and_what_is_learned_of_it_does() -> None:
    """Trimming began at 107,827 tokens in windows of a million."""
    unknown = BudgetLimits().budget(Prices("m"))
    assert (unknown.window, unknown.high, unknown.floor) == (128_000, NO_MARK, FLOOR)
    assert BudgetLimits(unknown_window=1, floor=0).budget(Prices("m")).high == NO_MARK
    assert BudgetLimits(window=200_000).budget(Prices("m")) == BudgetLimits().budget(Prices("m", window=200_000))
    assert BudgetLimits(context_tokens=90_000).budget(Prices("m")).high == 90_000
    tiered = BudgetLimits().budget(Prices("m", tiers=((200_000, 2.0),)))
    assert tiered.high == 194_000
    named = LearnedWindow(window=50_000).budget(BudgetLimits(), Prices("m"), None, has_floor=True)
    assert named == BudgetLimits().budget(Prices("m", window=50_000))
    refused = LearnedWindow(prompt=6_000).budget(BudgetLimits(), Prices("m"), None, has_floor=True)
    assert (refused.high, refused.low, refused.floor, refused.mark) == (6_000, 4_000, 2_000, "window")


def test_c5_the_longest_prompt_counts_where_it_is_less_than_the_window() -> None:
    prices = Prices("m", window=1_050_000, longest_prompt=922_000)
    assert BudgetLimits().budget(prices).high == int(922_000 * 0.9)
    assert BudgetLimits().budget(prices, 300_000).high == int(750_000 * 0.9)


def test_c5_a_price_tier_is_a_mark_and_a_size_may_be_less_than_that() -> None:
    prices = prices_for("gpt-5.4")
    (tier, _), *_ = ((limit, factor) for limit, factor in prices.tiers if limit)
    tiered = BudgetLimits().budget(prices)
    assert 0.96 * tier < tiered.high < 0.98 * tier
    assert tiered.mark == "window"
    assert BudgetLimits(context_tokens=int(tier * 0.99)).budget(prices) == tiered
    assert BudgetLimits(context_tokens=100_000).budget(prices).high == 100_000

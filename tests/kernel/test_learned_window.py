"""T5: what is learned of a window, and the budget that follows."""

import pytest

from policies.dialects.overflow import SHARE, LearnedWindow, Overflow
from policies.money.prices import BudgetLimits, Prices

PRICES = Prices(model="m")
LIMITS = BudgetLimits()


def test_t5_the_newest_word_on_the_window_counts() -> None:
    learned = LearnedWindow().after(Overflow(window=16_384), 20_000).after(Overflow(window=32_768), 40_000)
    assert learned == LearnedWindow(32_768)


def test_t5_where_no_window_is_named_a_share_of_what_was_sent_is_the_most() -> None:
    learned = LearnedWindow().after(Overflow(), 20_000)
    assert learned == LearnedWindow(None, int(SHARE * 20_000))
    assert learned.after(Overflow(), 12_000).prompt == int(SHARE * 12_000)
    assert learned.after(Overflow(), 90_000).prompt == learned.prompt
    assert learned.after(Overflow(window=32_768), 40_000) == LearnedWindow(32_768)
    budget = learned.budget(LIMITS, PRICES, None, has_floor=True)
    assert (budget.high, budget.low < budget.high, budget.floor <= budget.high // 3) == (14_000, True, True)


@pytest.mark.parametrize(
    ("answer", "with_answer", "high"),
    [
        (None, True, int((16_384 - 2_048) * 0.9)),
        (2_000, True, int((16_384 - 2_000) * 0.9)),
        (12_000, True, int((16_384 - 12_000) * 0.9)),
        (12_000, False, int(8_192 * 0.9)),
        (16_384, True, int(8_192 * 0.9)),  # no prompt fits beside it: none is made as small as that
    ],
)
def test_t5_an_answer_has_room_where_it_counts(answer: int | None, with_answer: bool, high: int) -> None:
    learned = LearnedWindow(16_384, None, with_answer)
    budget = learned.budget(LIMITS, PRICES, answer, has_floor=True)
    assert (budget.window, budget.high, budget.mark) == (16_384, high, "window")
    assert learned.room(answer) == 16_384 - (answer or 0 if with_answer else 0)


def test_t5_a_learned_window_only_makes_a_budget_smaller() -> None:
    limits = BudgetLimits(window=8_000, context_tokens=4_000)
    usual = limits.budget(PRICES, None)
    assert LearnedWindow(16_384).budget(limits, PRICES, None, has_floor=True) == usual


def test_t5_a_window_that_a_prompt_exceeds_was_never_the_models() -> None:
    learned = LearnedWindow(300, None, True)
    assert learned.above(300) == learned
    assert learned.above(301) == LearnedWindow(None, None, True)
    usual = LIMITS.budget(PRICES, None)
    assert learned.above(301).budget(LIMITS, PRICES, None, has_floor=True) == usual
    assert LearnedWindow(None, 300).above(200) == LearnedWindow(None, 300)
    assert LearnedWindow(None, 300).above(9_000) == LearnedWindow(None, 9_000)

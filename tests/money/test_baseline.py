"""What a request would have cost with nothing done: the rules of the cache, and what the provider did."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.money.bills import CacheTerms, Evidence, Prompt, usage_without, with_marks
from policies.money.caches import ANTHROPIC, PREFIX
from policies.money.prices import Prices, Usage

ANY, MARKS = Prices(listed=True), Prices(breakpoints=True, write=1.25, listed=True)
WARM, COLD = CacheTerms(PREFIX, ANY, is_warm=True), CacheTerms(PREFIX, ANY, is_warm=False)
MARKED = CacheTerms(ANTHROPIC, MARKS, is_warm=True)


def test_by_the_rules_what_stood_before_is_read_in_steps_while_it_is_kept_and_not_below_the_least() -> None:
    assert usage_without(Prompt(3_000, 2_000, 3_000), WARM) == Usage(3_000, 1_920, 0, 0)
    assert usage_without(Prompt(3_000, 2_000, 3_000), COLD) == Usage(3_000, 0, 0, 0)
    assert usage_without(Prompt(1_200, 1_000, 1_200), WARM) == Usage(1_200, 0, 0, 0)


def test_where_only_marks_make_entries_nothing_is_cached_behind_the_last_one() -> None:
    assert usage_without(Prompt(3_000, 2_000, 3_000), MARKED) == Usage(3_000, 2_000, 1_000, 0)
    assert usage_without(Prompt(3_000, 2_000, 1_500), MARKED) == Usage(3_000, 1_500, 0, 0)
    assert usage_without(Prompt(3_000, 2_000, 0), MARKED) == Usage(3_000, 0, 0, 0)
    longer = CacheTerms(ANTHROPIC, MARKS, is_warm=True, is_longer=True)
    assert usage_without(Prompt(3_000, 0, 3_000), longer) == Usage(3_000, 0, 3_000, 0, 3_000)


@pytest.mark.parametrize("was_marked", [False, True])
def test_a_mark_of_ours_is_written_up_to_its_end_and_read_where_the_one_before_had_one(was_marked: bool) -> None:
    cached = 2_000 if was_marked else 0
    usage = usage_without(with_marks(Prompt(3_000, 2_000, 0), was_marked=was_marked), MARKED)
    assert usage == Usage(3_000, cached, 3_000 - cached, 0)


def test_what_the_provider_dropped_or_knew_counts_on_both_sides_but_not_what_we_rewrote() -> None:
    prompt = Prompt(13_000, 12_800, 13_000)

    def cached(before: int, read: int, is_rewritten: bool = False) -> int:
        return usage_without(prompt, WARM, Evidence(before, read, is_rewritten)).cached

    assert cached(6_400, 6_400) == 12_800
    assert cached(6_400, 3_200) == 6_400
    assert cached(6_400, 0) == 0
    assert cached(6_400, 1_280, is_rewritten=True) == 12_800
    assert cached(6_400, 6_600) == 12_800  # within what our counts are good for
    assert cached(6_400, 7_400) == 12_928  # the same request once more


tokens = st.integers(0, 300_000)


@given(tokens, tokens, tokens, tokens, tokens, st.booleans(), st.sampled_from([WARM, COLD, MARKED]))
def test_a_usage_is_one_that_can_be(
    total: int, before: int, boundary: int, sent: int, read: int, is_rewritten: bool, terms: CacheTerms
) -> None:
    prompt = Prompt(total, min(before, total), min(boundary, total))
    usage = usage_without(prompt, terms, Evidence(sent, read, is_rewritten))
    assert min(usage.cached, usage.written) >= 0
    assert usage.cached + usage.written <= usage.prompt == total

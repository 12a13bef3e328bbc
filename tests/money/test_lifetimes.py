"""How long cache entries are to live: the longer lifetime is bought where pauses have paid for it."""

from dataclasses import replace

import pytest

from policies.model.memory import CacheLife
from policies.money.caches import ANTHROPIC, HOUR, OPENAI, PREFIX, lifetimes_of
from policies.money.ledger import Ledger, best_point
from policies.money.lifetimes import PRUDENCE, Lifetimes, Traffic, next_life
from policies.money.prices import Prices
from policies.planning.plan import plan
from tests.kit.talk import conversation_of, says, setup, system, user

PRICES = Prices(read=0.05, write=1.25, breakpoints=True)
AN_HOUR = Lifetimes(HOUR, 2.0)
COLD = CacheLife(is_cold=True, would_be_cold=True)
TOKENS = 100_000


def after(
    life: CacheLife, *, idle: float = 600.0, tokens: int = TOKENS, written: int | None = None, affords: bool = True
) -> CacheLife:
    traffic = Traffic(idle, tokens, tokens, tokens if written is None else written)
    return next_life(life, traffic, PRICES, AN_HOUR, lambda _: affords)


def test_p2_the_longer_lifetime_is_chosen_once_pauses_have_paid_for_it_so_often() -> None:
    life, pauses = COLD, 0
    while not life.is_longer:
        life, pauses = replace(after(life), is_cold=True, would_be_cold=True), pauses + 1
    saved, price = TOKENS * (1.25 - 0.05), TOKENS * (2.0 - 1.25)
    assert pauses * saved >= PRUDENCE * price > (pauses - 1) * saved
    assert life.rent == 0.0


def test_p2_it_is_chosen_where_the_cache_is_cold_alone_and_within_the_guard() -> None:
    rich = replace(COLD, rent=10.0 * TOKENS)
    assert after(rich).is_longer
    assert not after(rich, affords=False).is_longer
    warm = after(replace(rich, is_cold=False), written=1_000)
    assert (warm.is_longer, warm.rent) == (False, rich.rent)


def test_p2_a_pause_longer_than_either_speaks_for_neither() -> None:
    assert after(COLD, idle=HOUR + 1).rent == 0.0
    assert after(COLD, idle=HOUR).rent > 0.0


def test_p2_it_is_given_up_after_as_many_writes_as_one_more_pause_costs() -> None:
    life, requests = CacheLife(is_longer=True), 0
    while life.is_longer:
        life, requests = after(life, idle=10.0, written=2_000), requests + 1
    once = 2_000 * (2.0 - 1.25)
    assert requests * once > TOKENS * (1.25 - 0.05) >= (requests - 1) * once


def test_p2_a_pause_that_it_has_bridged_begins_the_count_anew() -> None:
    nearly = CacheLife(is_longer=True, rent=100_000.0)
    bridged = after(replace(nearly, would_be_cold=True), written=1_000)
    assert bridged.rent == 1_000 * (2.0 - 1.25)
    assert after(nearly, idle=10.0, written=1_000).rent == 100_000.0 + 1_000 * (2.0 - 1.25)


@pytest.mark.parametrize(
    ("rule", "wish", "ours", "seconds"),
    [
        (ANTHROPIC, "own", True, HOUR),
        (ANTHROPIC, "own", False, None),
        (ANTHROPIC, "auto", False, HOUR),
        (ANTHROPIC, "usual", True, None),
        (OPENAI, "own", True, None),
        (OPENAI, "auto", True, 12 * HOUR),
        (PREFIX, "auto", True, None),
    ],
)
def test_p2_which_marks_may_live_longer(rule: object, wish: str, ours: bool, seconds: float | None) -> None:
    lifetimes = lifetimes_of(rule, PRICES, wish, ours=ours)  # type: ignore[arg-type]
    assert (lifetimes.longer if lifetimes else None) == seconds


# --- the account of a history that has paused ---


def history(**pause: bool) -> Ledger:
    """Ten requests of 10,000 tokens each, the last one behind a pause; then what came first may shrink."""
    ledger = Ledger(PRICES)
    for at in range(10):
        ledger.arrive([10_000], **(pause if at == 9 else {}))
        if at < 9:
            ledger.send(len(ledger.sent), ())
    return ledger


def test_a_cold_cache_is_paid_for_on_both_sides_and_a_rewrite_costs_nothing() -> None:
    warm, cold = history(), history(is_cold=True, would_be_cold=True)
    assert cold.baseline - warm.baseline == pytest.approx(90_000 * (1.25 - 0.05))
    for ledger in (warm, cold):
        ledger.saving[1] = 8_000
    assert best_point(warm, 0) is None
    assert best_point(cold, 0) == 1
    paid = cold.paid
    cold.send(len(cold.sent), ())
    assert cold.paid - paid == pytest.approx(100_000 * 1.25)
    assert cold.cached_before(10) == 10  # it is there again


def test_a_pause_that_was_bridged_is_paid_for_by_doing_nothing_alone_and_lets_a_rewrite_begin() -> None:
    warm, bridged = history(), history(would_be_cold=True)
    assert bridged.baseline - warm.baseline == pytest.approx(90_000 * (1.25 - 0.05))
    for ledger in (warm, bridged):
        ledger.saving[5] = 9_000
        ledger.requests = 200  # what it saves each time is worth the rewrite within half of that
    assert best_point(warm, 0) is None
    assert best_point(bridged, 0) == 5
    bridged.send(len(bridged.sent), ())
    assert not bridged.is_bridged


def test_a_write_for_the_longer_lifetime_costs_what_it_costs() -> None:
    ledger = history()
    ledger.write = 2.0
    paid = ledger.paid
    ledger.send(len(ledger.sent), ())
    assert ledger.paid - paid == pytest.approx(90_000 * 0.05 + 10_000 * 2.0)


def test_p2_a_head_that_is_read_counts_as_no_write() -> None:
    """As clients of agents have it: tools and instructions of many tokens before a history of few."""
    session = [system("s"), *(message for at in range(6) for message in (user(f"u{at} " * 50), says(f"a{at} " * 50)))]
    settings = setup(prices=PRICES, cache=ANTHROPIC, head=50_000, lifetimes=AN_HOUR, idle=10.0)
    settings = replace(settings, life=CacheLife(is_longer=True))
    state = plan(conversation_of(*session[:-1]), settings).state
    assert 0 < state.life.rent < 2_000
    cold = replace(settings, life=CacheLife(is_cold=True, is_longer=True))
    assert plan(conversation_of(*session[:-1]), cold).state.life.rent > 50_000 * 0.7

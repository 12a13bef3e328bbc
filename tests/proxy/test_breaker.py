"""What fails is left alone for a while, and each change is reported once."""

import pytest

from proxy.breaker import Breaker, BreakerOptions


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def changes() -> list[bool]:
    return []


@pytest.fixture
def breaker(clock: Clock, changes: list[bool]) -> Breaker:
    return Breaker(BreakerOptions(3, 30.0, ""), 75, changes.append, clock)


def fail(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        breaker.failed()


def test_m8_it_opens_after_failures_in_a_row_and_says_so_once(breaker: Breaker, changes: list[bool]) -> None:
    fail(breaker, 2)
    assert breaker.admits()
    breaker.succeeded()
    fail(breaker, 2)
    assert (breaker.admits(), changes) == (True, [])
    fail(breaker, 3)
    assert (breaker.admits(), breaker.is_paused, changes) == (False, True, [True])


def test_m8_after_the_pause_there_is_one_trial(breaker: Breaker, clock: Clock, changes: list[bool]) -> None:
    fail(breaker, 3)
    clock.now += 29
    assert not breaker.admits()
    clock.now += 1
    assert not breaker.is_paused
    assert [breaker.admits(), breaker.admits()] == [True, False]
    fail(breaker)
    assert not breaker.admits()
    clock.now += 30
    assert breaker.admits()
    breaker.succeeded()
    assert (breaker.admits(), changes) == (True, [True, False])


def test_m8_a_trial_that_reports_nothing_is_followed_by_another(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 30
    assert breaker.admits()
    clock.now += 74
    assert not breaker.admits()
    clock.now += 1
    assert breaker.admits()


def test_m8_once_closed_it_counts_anew(breaker: Breaker, changes: list[bool]) -> None:
    fail(breaker, 3)
    breaker.succeeded()
    fail(breaker, 2)
    assert (breaker.is_paused, changes) == (False, [True, False])


def test_m8_many_failures_at_once_are_not_many_in_a_row(clock: Clock, changes: list[bool]) -> None:
    breaker = Breaker(BreakerOptions(3, 30.0, "", lasting=5.0), 75, changes.append, clock)
    fail(breaker, 100)
    assert breaker.admits()
    clock.now += 5
    breaker.succeeded()
    fail(breaker, 100)
    assert (breaker.admits(), changes) == (True, [])
    clock.now += 5
    fail(breaker)
    assert (breaker.admits(), breaker.pause_left, changes) == (False, 30, [True])

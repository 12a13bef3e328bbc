"""What fails is left alone for a while, and each change is reported once."""

import io
import json
from types import SimpleNamespace

import pytest

from proxy.breaker import Breaker, BreakerOptions, reported_breaker
from proxy.telemetry import Telemetry


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


@pytest.mark.parametrize("is_open", [False, True])
def test_f_a_busy_disk_is_one_line_a_minute_that_says_how_often(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, is_open: bool
) -> None:
    loop, log = SimpleNamespace(calls=[]), io.StringIO()
    loop.call_later = lambda seconds, *call: loop.calls.append((seconds, *call)) or True
    monkeypatch.setattr("proxy.breaker.time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr("proxy.breaker.asyncio.get_running_loop", lambda: loop)
    breaker = reported_breaker("store", Telemetry("info", "json", log))

    def lines() -> list[tuple[str, str, int]]:
        return [
            (each["event"], each["level"], each.get("times", 0))
            for each in map(json.loads, log.getvalue().splitlines())
        ]

    for _ in range(9):
        breaker.failed("too slow")
        clock.now += 6
        breaker.succeeded()
    first = [("store_trouble", "warning", 0), ("store_recovered", "info", 0)]
    assert lines() == first
    effect = json.loads(log.getvalue().splitlines()[0])["effect"]
    assert effect == "replies stay right, planned from the history in each request; new summaries and figures wait"
    if is_open:
        breaker.failed("too slow")
    ((seconds, call, *values),) = loop.calls
    assert seconds == 54  # of the minute, when it opened again
    clock.now += 6
    call(*values)
    last = ("store_trouble", "warning", 9) if is_open else ("store_recovered", "info", 8)
    assert lines() == [*first, last]
    clock.now += 61
    breaker.succeeded()
    breaker.failed("too slow")
    assert lines()[-1] == first[0]


def test_f_without_a_loop_the_next_change_says_how_often(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr("proxy.breaker.time", SimpleNamespace(monotonic=clock))
    log = io.StringIO()
    breaker = reported_breaker("store", Telemetry("info", "json", log))
    for _ in range(3):
        breaker.failed("too slow")
        clock.now += 6
        breaker.succeeded()
    clock.now += 60
    breaker.failed("too slow")
    *others, last = map(json.loads, log.getvalue().splitlines())
    assert (len(others), last["event"], last["times"]) == (2, "store_trouble", 3)

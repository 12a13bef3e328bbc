"""Replays of sessions with times: pauses pass without waiting, caches expire, and what that costs is in both bills."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.lab.demo import recorded
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session, chained, load, timed
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import replay_all
from proxy.lab.replay.times import NONE, RECORDED, RequestTimes, times_of
from tests.kit.forms import to_anthropic

LONG_DAY = recorded("long_day")
CLAUDE = Options(prices=("claude-opus-5-5",))


def paused(session: Session, pauses: dict[int, float]) -> Session:
    """The session with ten seconds before each request, and these pauses before some."""
    now, times = 0.0, list[RequestTimes]()
    for at in range(len(session.turns)):
        now += pauses.get(at, 10.0)
        times.append(RequestTimes(now))
    return replace(session, times=tuple(times))


async def one(session: Session, options: Options = CLAUDE) -> Report:
    (report,) = await replay_all([session], options)
    return report


async def test_p1_a_pause_is_paid_for_by_doing_nothing_and_is_a_checkpoint() -> None:
    steady, late = await one(LONG_DAY), await one(paused(LONG_DAY, {20: 400.0}))
    assert late.faults == 0
    assert late.prefix["checkpoint:cold"] == 1
    assert late.baseline.written > steady.baseline.written
    assert late.baseline.input > steady.baseline.input
    assert late.each_request[20].prefix == "checkpoint:cold"


@pytest.mark.parametrize(("pause", "is_cold"), [(299.0, False), (301.0, True)])
async def test_p1_a_cache_expires_as_its_provider_says(pause: float, is_cold: bool) -> None:
    steady, late = await one(LONG_DAY), await one(paused(LONG_DAY, {20: pause}))
    assert (late.baseline.written > steady.baseline.written) == is_cold


async def test_p1_sessions_one_after_the_other_begin_cold_and_on_time() -> None:
    alone = await one(paused(LONG_DAY, {20: 400.0}))
    twice = await replay_all([LONG_DAY, paused(LONG_DAY, {20: 400.0})], CLAUDE)
    assert twice[1].bill.input == pytest.approx(alone.bill.input)


def messages_of(session: Session) -> Session:
    """The session in the API whose vendor names a ping."""

    body = to_anthropic({"model": session.model, "messages": list(session.messages), "tools": list(session.tools)})
    return replace(
        session,
        dialect="anthropic_messages",
        lead=body.get("system"),
        messages=tuple(body["messages"]),
        tools=tuple(body["tools"]),
    )


async def test_p2_what_is_kept_warm_costs_pings_and_saves_the_pause() -> None:
    session, alone = paused(messages_of(LONG_DAY), {20: 800.0}), replace(CLAUDE, preset="lossless")
    cold, warm = await one(session, alone), await one(session, replace(alone, keep_warm=900.0))
    assert (cold.faults, warm.faults) == (0, 0)
    assert warm.pings.tokens >= warm.pings.cached > 0
    assert warm.pings.written == 0
    assert warm.bill.input < cold.bill.input
    assert warm.baseline.input == pytest.approx(cold.baseline.input)


async def test_p2_marks_live_an_hour_where_pauses_pay_for_it() -> None:
    many = paused(LONG_DAY, dict.fromkeys(range(4, 40, 3), 500.0))
    usual, auto = await one(many), await one(many, replace(CLAUDE, mark_lifetime="auto"))
    assert (usual.faults, auto.faults) == (0, 0)
    assert auto.bill.input < usual.bill.input
    assert auto.prefix["checkpoint:cold"] < usual.prefix["checkpoint:cold"]


# --- the times of a recording ---


def test_times_are_rows_of_seconds_or_of_what_was_sent_alone() -> None:
    assert times_of([0, 1.5], 2) == (RequestTimes(0), RequestTimes(1.5))
    assert times_of([[0, 0.5, 2], [3, None, 4]], 2) == (RequestTimes(0, 0.5, 2), RequestTimes(3, None, 4))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"a": 1}, "it is no list"),
        ([1], "1 rows for 2 requests"),
        ([1, "2"], r"times\.1: it is neither seconds, up to"),
        ([1, 1.7e308], r"times\.1: it is neither seconds, up to"),
        ([1, [float("nan"), 2]], r"times\.1: it is neither seconds, up to"),
        ([-(10**400), 1], r"times\.0: it is neither seconds, up to"),
        ([1, True], r"times\.1: it is neither"),
        ([2, 1], r"times\.1: it was sent before the one before"),
        ([1, [2, 1, 3]], r"times\.1: a reply begins after its request"),
        ([1, [2, 3, 4, 5]], r"times\.1: it is neither"),
    ],
)
def test_times_that_cannot_be_are_refused_by_name(rows: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        times_of(rows, 2)


def saved(folder: Path, name: str, value: object) -> Path:
    file = folder / name
    file.write_text(json.dumps(value))
    return file


def short(more: dict[str, object]) -> dict[str, object]:
    turns: Sequence[dict[str, str]] = [{"role": role, "content": "hi"} for role in ("user", "assistant") * 2]
    return {"model": "gpt-5.4", "messages": turns, **more}


def test_a_session_reads_its_times_or_those_of_a_file(tmp_path: Path) -> None:
    session = load(saved(tmp_path, "one.json", short({"times": [0, [5, 6, 7]], "started_at": 1_800_000_000})))
    assert session.times == (RequestTimes(0), RequestTimes(5, 6, 7))
    assert session.started_at == 1_800_000_000
    assert timed(session, RECORDED) == session
    assert timed(session, NONE).times == ()
    folder = tmp_path / "times"
    folder.mkdir()
    file = saved(folder, "one.json", [0, 9])
    for place in (folder, file):
        assert timed(session, str(place)).times == (RequestTimes(0), RequestTimes(9))
    assert chained([session, session]).times == ()
    longer = short({"messages": [{"role": role, "content": "hi"} for role in ("user", "assistant") * 3]})
    two = load(saved(tmp_path, "two.json", longer))
    with pytest.raises(ValueError, match=r"holds no times of two: times: it has 2 rows for 3"):
        timed(two, str(file))
    with pytest.raises(ValueError, match=r"cannot read .*no\.json"):
        timed(session, str(tmp_path / "no.json"))
    with pytest.raises(ValueError, match=r"times: it has 1 rows for 2 requests"):
        load(saved(tmp_path, "bad.json", short({"times": [0]})))

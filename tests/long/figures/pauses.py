"""`make pauses`: the picture of a session with pauses, of which README.md speaks.

The session is `long_day`, which comes with Narrows, as an agent on Claude has it. Its times are made up: a step of the
agent takes half a minute at most, and its person comes back after 9, 14, 40 and 8 minutes.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import orjson

from policies.money.caches import rule_for
from policies.money.catalog import prices_for
from proxy.drawing.figures import dollars
from proxy.lab import sessions
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session, session_of
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import replay_all
from proxy.lab.replay.times import times_of
from tests.kit.forms import to_anthropic
from tests.long.figures.runs import ROOT
from tests.long.figures.timeline import Panel, timeline

MODEL = "claude-opus-5-5"
PICTURE = Path("policies/pauses.svg")
_STEPS = (12, 31, 9, 22, 28, 17, 26)
"""Seconds from one request of the agent to the next, over and over."""
_PAUSES: Mapping[int, int] = {22: 9, 31: 14, 45: 40, 56: 8}
"""Minutes before the requests with which a person asks for the next thing."""
WAYS: Mapping[str, Options] = {
    "Narrows": Options(),
    'Narrows with keep_warm = "15m", mark_lifetime = "auto"': Options(keep_warm=900, mark_lifetime="auto"),
}


def session() -> Session:
    body = {**to_anthropic(sessions.load("long_day")), "model": MODEL}
    plain = session_of(orjson.dumps(body), "long_day", "long_day")
    count = len(plain.turns)
    gaps = (60 * _PAUSES[at] if at in _PAUSES else _STEPS[at % len(_STEPS)] for at in range(1, count))
    return replace(plain, times=times_of([*accumulate(gaps, initial=0)], count))


def measured() -> Mapping[str, Report]:
    """By way to serve it."""
    return {name: asyncio.run(replay_all([session()], options))[0] for name, options in WAYS.items()}


def drawn(reports: Mapping[str, Report], times: Sequence[float]) -> str:
    return timeline([*_panels(reports, times)], rule_for(MODEL, prices_for(MODEL)).seconds)


def _panels(reports: Mapping[str, Report], times: Sequence[float]) -> Iterator[Panel]:
    for name, report in reports.items():
        assert report.pauses is not None
        costs, each = report.pauses, report.each_request
        if name == next(iter(reports)):
            title = f"Doing nothing: ${dollars(report.baseline.total)}, {costs.shares.without:.0%} of it for pauses"
            prompts = [result.tokens_sent.without for result in each]
            expired = [result.expired_tokens.without for result in each]
            yield Panel(title, [*zip(times, prompts, strict=True)], expired)
        title = f"{name}: ${dollars(report.whole_bill.with_)}, {costs.shares.with_:.0%} for pauses"
        title += f", {costs.share_of_pings:.0%} for {costs.pings} pings" if costs.pings else ""
        prompts = [result.tokens_sent.with_ for result in each]
        expired = [result.expired_tokens.with_ for result in each]
        yield Panel(title, [*zip(times, prompts, strict=True)], expired, costs.pinged_at)


if __name__ == "__main__":
    (ROOT / PICTURE).write_text(drawn(measured(), [each.sent for each in session().times]), encoding="utf-8")

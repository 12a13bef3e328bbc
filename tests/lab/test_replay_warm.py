"""Replays that keep prompts warm: each ping is in the bill, also those for somebody who does not return."""

from dataclasses import replace

import orjson
import pytest

from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session, session_of
from proxy.lab.replay.runs import replay_all
from proxy.lab.replay.times import RequestTimes
from tests.addons.warm.scene import MODEL, said

SENT = (0.0, 400.0, 1_100.0)
"""So that pauses are long enough for one ping, and for two; three more go out before nobody is waited for any more."""


def paused() -> Session:
    messages = [*said(len(SENT)), {"role": "assistant", "content": "Understood."}]
    body = orjson.dumps({"model": MODEL, "system": "Be brief.", "messages": messages})
    return replace(session_of(body, "it", "it"), times=tuple(map(RequestTimes, SENT)))


async def test_p1_pings_are_billed_and_so_are_those_after_the_last_request() -> None:
    (kept,) = await replay_all([paused()], Options(keep_warm=900.0))
    (cold,) = await replay_all([paused()], Options())
    first, second, third = (int(each.tokens_sent.with_) for each in kept.each_request)
    assert kept.pings.tokens == first + 2 * second + 3 * third
    assert kept.pings.cached == kept.pings.tokens, "all were read"
    assert kept.mean_context.with_ == round((first + second + third) / 3), "pings are no requests"
    assert cold.pings.tokens == 0
    assert cold.bill.written > kept.bill.written
    assert kept.bill.input > kept.pings.input
    assert kept.whole_bill.with_ == pytest.approx(kept.bill.total)

"""What does not follow from the history: a cold cache, claimed before bytes are sent; and requests only observed."""

import json

import pytest

from proxy.lab.provider import Received, Say
from tests.kit.recalling import answered, plays, recall, refs
from tests.kit.stage import Stage, ends, moved, working

SESSION = working()
pytestmark = pytest.mark.usefixtures("patient")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(stage: Stage) -> Clock:
    stage.clock = clock = Clock()
    return clock


async def test_a_cold_cache_is_a_checkpoint_and_a_replica_sends_the_same(stage: Stage, clock: Clock) -> None:
    app, replica = await stage.start(), await stage.start()
    warm = [await stage.ask(app, SESSION[:end]) for end in ends(SESSION)[:-1]]
    clock.now += 3_601
    cold = await stage.ask(app, SESSION[:-1])
    same = await stage.ask(replica, SESSION[:-1])
    assert cold.prefix == "checkpoint:cold"
    assert same.sent == cold.sent
    assert len(cold.sent) < len(warm[-1].sent) + len(cold.given) - len(warm[-1].given)


async def test_x11_a_pause_decides_nothing_for_a_credential_that_is_not_known(stage: Stage, clock: Clock) -> None:
    app = await stage.start()
    for end in ends(SESSION)[:-1]:
        await stage.ask(app, SESSION[:end])
    clock.now += 3_601
    other = await stage.ask(app, SESSION[:-1], ("Authorization", "Bearer another"))
    assert (other.status, other.prefix) == (200, "tail-cut")  # as without the pause
    assert (await stage.ask(app, SESSION[:-1])).sent == other.sent  # what was sent stands


async def test_x11_after_a_restart_the_store_knows_who_has_sent_the_conversation(stage: Stage, clock: Clock) -> None:
    before = await stage.start()
    for end in ends(SESSION)[:-1]:
        await stage.ask(before, SESSION[:end])
    await before.close(0)
    clock.now += 3_601
    assert (await stage.ask(await stage.start(), SESSION[:-1])).prefix == "checkpoint:cold"


async def test_a_pause_below_the_limit_is_no_checkpoint(stage: Stage, clock: Clock) -> None:
    app = await stage.start()
    straight = await stage.grow(await stage.start(store="sqlite://"), SESSION)
    paused = []
    for end in ends(SESSION):
        paused.append(await stage.ask(app, SESSION[:end]))
        clock.now += 3_500
    assert [e.sent for e in paused] == [e.sent for e in straight]


async def test_a_reply_of_several_rounds_used_the_cache_in_its_last(stage: Stage, clock: Clock) -> None:
    def late(received: Received) -> Say:
        clock.now += 3_500
        return Say(None, [recall(refs(received)[0])])

    app = await stage.start()
    *before, end = ends(SESSION)[:-1]
    for at in before:
        await stage.ask(app, SESSION[:at])
    stage.provider.answer = plays(late)
    said = [*SESSION[:end]]
    reply = json.loads((await stage.ask(app, said)).reply)["choices"][0]["message"]
    clock.now += 3_500
    for text, prefix in ((reply["content"], "checkpoint:paid"), ("I forgot.", "checkpoint:recall")):  # put back, or not
        later = await stage.ask(app, [*said, *answered({**reply, "content": text})])
        assert later.prefix == prefix


async def test_what_was_claimed_after_a_pause_stays_in_the_next_requests(stage: Stage, clock: Clock) -> None:
    app = await stage.start()
    *before, last = ends(SESSION)
    for end in before[:-1]:
        await stage.ask(app, SESSION[:end])
    clock.now += 4_000
    cold = await stage.ask(app, SESSION[: before[-1]])
    await app.close(0)
    after = await stage.ask(await stage.start(), SESSION[:last])
    assert cold.prefix == "checkpoint:cold"
    assert after.prefix in ("extended", "tail-cut")
    assert moved([cold, after]) == []


async def test_t9_observing_changes_nothing_and_does_not_confuse_what_follows(stage: Stage) -> None:
    app = await stage.start()
    seen = await stage.grow(app, SESSION, ("x-narrows", "observe"))
    assert all(exchange.sent == exchange.given for exchange in seen)
    assert {exchange.mode for exchange in seen} == {"observed"}
    assert int(seen[-1].headers["x-narrows-tokens-after"]) < int(seen[-1].headers["x-narrows-tokens-before"])
    after = await stage.ask(app, SESSION[:-1])
    fresh = await stage.ask(await stage.start(store="sqlite://"), SESSION[:-1])
    assert after.prefix == "checkpoint:replayed"
    assert after.sent == fresh.sent


async def test_t9_observing_a_cold_cache_claims_nothing(stage: Stage, clock: Clock) -> None:
    app = await stage.start()
    *before, end, last = ends(SESSION)
    for at in before:
        await stage.ask(app, SESSION[:at])
    clock.now += 4_000
    seen = await stage.ask(app, SESSION[:end], ("x-narrows", "observe"))
    assert seen.prefix == "checkpoint:cold"
    clock.now += 1
    after = await stage.ask(app, SESSION[:last])
    assert after.prefix in ("client-changed", "checkpoint:cold", "checkpoint:replayed")

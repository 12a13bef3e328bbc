"""S1 and R2 with two Narrows on one Redis: what one decided and recalled, the other knows."""

from uuid import uuid4

import pytest

from policies.presets import PRESETS, Preset
from proxy.lab.provider import Say
from tests.kit.recalling import KEEPING, REPORT, answered, client_of, extends, fetched, hiding, plays, wants
from tests.kit.stage import Stage, ends, moved, working

pytestmark = pytest.mark.usefixtures("patient")
SESSION = working()


@pytest.fixture
def url(redis_url: str) -> str:
    """Keys of this test's own on the shared server."""
    return f"{redis_url}?prefix={uuid4().hex}"


async def test_s1_two_narrows_on_one_redis_send_the_same_bytes(stage: Stage, url: str) -> None:
    alone = await stage.grow(await stage.start(store="sqlite://"), SESSION)
    both = [await stage.start(store=url) for _ in range(2)]
    turns = [await stage.ask(both[number % 2], SESSION[:end]) for number, end in enumerate(ends(SESSION))]
    assert [turn.sent for turn in turns] == [exchange.sent for exchange in alone]
    assert moved(alone) == []
    for turn in turns:  # a request within the write-behind's interval of the one before is the first that this one sees
        assert turn.prefix in ("first", "extended", "tail-cut") or turn.prefix.startswith("checkpoint:")
    assert turns[-1].mode == "compacted"
    again = [await stage.grow(one, SESSION) for one in both]
    assert [turn.sent for turn in again[0]] == [turn.sent for turn in again[1]] == [turn.sent for turn in turns]


async def test_s1_a_cold_checkpoint_of_one_is_kept_by_the_other_and_after_a_restart(
    stage: Stage, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_800_000_000.0]
    stage.clock = lambda: clock[0]
    first, second = [await stage.start(store=url) for _ in range(2)]
    for end in ends(SESSION)[:-1]:
        await stage.ask(first, SESSION[:end])
    await first.close(1)
    clock[0] += 4_000
    cold = await stage.ask(second, SESSION[:-1])
    assert cold.prefix == "checkpoint:cold"
    await second.close(1)
    again = await stage.ask(await stage.start(store=url), SESSION[:-1])
    assert again.sent == cold.sent


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_r2_what_one_recalled_is_put_back_by_the_other(
    stage: Stage, url: str, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setitem(PRESETS, "keeping", Preset(KEEPING))
    one, other = [await stage.start(store=url, preset="keeping") for _ in range(2)]
    said = hiding()
    stage.provider.answer = plays(wants("I look. "), Say("Seen."), Say("Done."))
    async with client_of(one.base_url) as client:
        said += answered((await client.ask(said, stream)).message())
    async with client_of(other.base_url) as client:
        heard = await client.ask(said, stream)
    assert heard.headers["x-narrows-prefix"] == "extended"
    assert fetched(list(stage.provider.requests)[-1]) == [REPORT]
    assert extends(stage.provider.requests[1], stage.provider.requests[2])

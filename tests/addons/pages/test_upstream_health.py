"""How upstreams do: on the live page and in its JSON, for whoever sees all tenants, and in metrics."""

import asyncio
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.addons.access.keys import digest_of, new_key
from proxy.app import App
from proxy.config import ConfigurationError
from proxy.telemetry.metrics import MINUTES, AnswerCounts, UpstreamHealth
from tests.addons.pages.test_conversations import ADMIN
from tests.addons.pages.test_live_pages import HTML, checked, figures
from tests.kit.pausing import pause_breakers
from tests.kit.running import free_port  # noqa: F401 - a fixture
from tests.kit.stage import Stage
from tests.kit.visiting import NOBODY, bearer, page

pytestmark = pytest.mark.usefixtures("patient")
HELLO = [{"role": "user", "content": "hi"}]


async def test_x5_admins_see_how_each_upstream_does_and_holders_of_keys_do_not_learn_that_it_is_there(
    stage: Stage,
    free_port: int,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause_breakers(monkeypatch, "upstream", 60.0)
    key, bobs = new_key(), new_key()
    gone = {"name": "far-away", "url": f"http://127.0.0.1:{free_port}/v1", "models": ["far*"]}
    row = {"name": "alice", "sha256": digest_of(key), "upstreams": ["default"]}
    free = {"name": "bob", "sha256": digest_of(bobs)}
    app = await stage.start(auth="keys", keys=[row, free], upstreams=[gone], admin_token=ADMIN)
    for name, status in (("m", 200), *[("far", 502)] * 5, ("far", 503)):
        answer = await stage.ask(app, HELLO, ("Authorization", f"Bearer {bobs}"), model=name)
        assert answer.status == status
    host = f"127.0.0.1:{free_port}"
    for who in ((NOBODY,), bearer(ADMIN)):
        down, up = (await figures(stage, app, "", *who))["upstreams"]
        assert 0 < down.pop("next_try_seconds") <= 60
        state = {"name": "far-away", "host": host, "is_up": False, "minutes": MINUTES}
        assert down == state | AnswerCounts(none=5)._asdict()
        state = {"name": "default", "is_up": True, "next_try_seconds": None, "well": 1, "none": 0}
        assert {name: up[name] for name in state} == state
        drawn = checked(await page(stage, app, "", *who, HTML)).text
        assert f"far-away {host} cannot be reached; next attempt in " in drawn
        assert "default" in drawn
    for mine in (key, bobs):
        assert (await figures(stage, app, "", *bearer(mine)))["upstreams"] == []
        drawn = checked(await page(stage, app, "", *bearer(mine), HTML)).text
        assert "far-away" not in drawn
        assert host not in drawn
    with pytest.raises(ConfigurationError):
        await app.reload(app.settings.model_copy(update={"models": {"m": {"strange": 1}}}))
    assert gauges(app) == {"far-away": 0, "default": 1}
    await app.reload(app.settings.model_copy(update={"upstreams": ()}))
    for _ in range(500):  # until the last request of those before it has ended
        if gauges(app) == {"default": 1}:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("what was taken out of the settings is still there")


def gauges(app: App) -> dict[str, float]:
    """What `narrows_upstream_up` says of each upstream."""
    lines = re.findall(r'narrows_upstream_up{upstream="(.*)"} (.*)', app.telemetry.metrics.page().decode())
    return {name: float(value) for name, value in lines}


@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from([0, 101, 200, 302, 404, 500, 599, 999])), max_size=40))
def test_only_the_answers_of_the_last_minutes_count_and_no_others_are_remembered(events: list[tuple[int, int]]) -> None:
    now, times = 0, []
    health = UpstreamHealth("u", "u:443", SimpleNamespace(is_open=False, pause_left=0.0), lambda: now)
    for seconds, status in events:
        now += seconds
        times.append((now // 60, status // 100))
        health.note(status)
        assert len(health._minutes) <= MINUTES
    recent = [digit for minute, digit in times if minute > now // 60 - MINUTES]
    well, none = sum(0 < digit < 4 for digit in recent), recent.count(0)
    assert health.answers() == AnswerCounts(well, recent.count(4), sum(digit > 4 for digit in recent), none)

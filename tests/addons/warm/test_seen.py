"""What pauses cost and what is kept warm, as people see it: in the metrics and in `narrows usage`."""

import io
import time

import pytest
from rich.console import Console

from proxy.console.usage import print_usage
from proxy.usage.report import UsageQuery, as_json, read_usage
from tests.addons.pages.test_conversations import opened
from tests.addons.warm.scene import Scene, said
from tests.kit.counted import counted

WORDS = {
    "expired": "pauses: the provider's cache had expired before 1 request, which cost $",
    "bridged": "pauses: pings or a longer lifetime kept the cache before 1 request, which saved about $",
}


@pytest.mark.parametrize(("keep_warm", "outcome"), [(0, "expired"), ("15m", "bridged")])
async def test_p2_a_pause_is_seen_by_what_it_cost_or_what_was_not_paid(
    scene: Scene, keep_warm: str | int, outcome: str
) -> None:
    app = await scene.start(keep_warm=keep_warm)
    await scene.ask(app)
    if keep_warm:
        await scene.wait(app, 800)
    else:
        scene.clock.now += 800
    await scene.ask(app, said(2))
    await scene.ask(app, said(3))
    names = ("first", "expired", "bridged", "read")
    outcomes = {name: counted(app.telemetry, "cache_total", outcome=name) for name in names}
    assert outcomes == {**dict.fromkeys(names, 1), "expired": outcome == "expired", "bridged": outcome == "bridged"}
    cost, saving = (counted(app.telemetry, f"pause_{name}_usd_total") for name in ("cost", "saving"))
    assert (cost > 0, saving > 0) == (outcome == "expired", outcome == "bridged")
    await app.close(0)
    async with opened(f"sqlite:///{scene.stage.path}") as store:
        report = await read_usage(store, UsageQuery.read("day", "", time.time()))
    total = as_json(report)["total"]
    assert (total["requests_expired"], total["requests_bridged"]) == (outcomes["expired"], outcomes["bridged"])
    assert total["pause_cost_usd"] == pytest.approx(cost, abs=1e-6)
    assert total["pause_saving_usd_estimate"] == pytest.approx(saving, abs=1e-6)
    assert (total["pings"], total["ping_cost_usd"] > 0) == ((2, True) if keep_warm else (0, False))
    print_usage(Console(file=(paper := io.StringIO()), width=150), report)
    text = " ".join(paper.getvalue().split())
    assert WORDS[outcome] in text
    assert ("2 pings cost $" in text) == bool(keep_warm)

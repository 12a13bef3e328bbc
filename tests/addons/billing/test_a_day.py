"""A day of three tenants and two presets with a holdout: every figure agrees with a recount of the provider's log."""

from pathlib import Path
from typing import Any

import pytest

from policies.money.bills import BillSums
from proxy.app import App
from proxy.identity.credential import owner_of
from proxy.memory import Key, Store, open_store
from proxy.usage.report import BY
from tests.kit.billed_day import PRESETS, SECRET, answer, have, recount, talks, tenant_of
from tests.kit.counted import counted
from tests.kit.stage import Stage, staged

SHARE = 0.1
PRICES = {"input": 2.5, "cached": 0.25, "output": 15.0}
MODELS = {"gpt-5.4": {"input": 2.5, "output": 15.0, "read": 0.1, "write": 1.0, "tiers": (), "breakpoints": False}}


def summed(rows: list[BillSums]) -> BillSums:
    return sum(rows, BillSums())


async def read_json(stage: Stage, app: App, page: str) -> Any:
    """A page as this machine reads it, which may see the figures of all tenants."""
    async with stage.client.get(
        app.base_url.replace("/v1", f"/narrows/{page}"), headers={"Accept": "application/json"}
    ) as reply:
        assert reply.status == 200
        return await reply.json()


async def test_a_day_of_three_tenants_and_two_presets_agrees_with_the_providers_log_to_the_cent(tmp_path: Path) -> None:
    store_url, traffic = f"sqlite:///{tmp_path}/day.db", talks(tenants=3, each=1, share=SHARE)
    async with staged(tmp_path / "day.db", MODELS, keep=10_000, answer=answer) as stage:
        settings = {"holdout": SHARE, "tenant_secret": SECRET, "request_presets": PRESETS, "models": MODELS}
        app = await stage.start(preset="adaptive", store=store_url, **settings)
        held_out = 0
        for talk in traffic:
            exchanges = await have(stage, app, talk, requests=5)
            arms = {exchange.headers["x-narrows-arm"] for exchange in exchanges}
            held_out += arms == {"holdout"}
            assert len(arms) == 1
            assert arms == {"on"} or all(exchange.given == exchange.sent for exchange in exchanges)
        assert held_out == 6
        page = app.telemetry.metrics.page().decode()
        await app.close()
        truth = recount(stage.provider.requests, traffic, PRICES)
        store: Store = open_store(store_url)
        await store.open()
        days, conversations = await store.day_rows("2026-01-01"), await store.conversation_rows(most=1_000)
        for talk in traffic:
            tenant, count = tenant_of(talk.credential), truth[talk]
            bills = await store.request_bills(Key(tenant, talk.name))
            (row,) = (row for row in conversations if row.conversation == talk.name)
            assert row.sums.paid == pytest.approx(count.dollars, abs=1e-9)
            assert summed([bill.sums for bill in bills]).paid == pytest.approx(count.dollars, abs=1e-9)
            assert row.sums.requests == len(bills) == 5
            assert row.sums.requests + row.sums.rounds == count.requests
            assert (row.sums.cached, row.sums.output) == (count.tokens["cached"], count.tokens["output"])
        for credential in {talk.credential for talk in traffic}:
            for preset in PRESETS:
                whose = [talk for talk in traffic if (talk.credential, talk.preset) == (credential, preset)]
                labels = (tenant_of(credential), owner_of(SECRET.encode(), credential), preset)
                rows = [d.sums for d in days if (d.labels.tenant, d.labels.owner, d.labels.preset) == labels]
                dollars = sum(truth[talk].dollars for talk in whose)
                assert summed(rows).paid == pytest.approx(dollars, abs=1e-9)
                paid = counted(page, "cost_usd_total", tenant=labels[0], preset=preset)
                assert paid == pytest.approx(dollars, abs=1e-9)
        held_rows = [row.sums for row in conversations if row.arm == "holdout"]
        assert summed(held_rows).baseline == pytest.approx(summed(held_rows).paid)
        dollars = sum(count.dollars for count in truth.values())
        again = await stage.start(preset="adaptive", store=store_url, **settings)
        for by in (by for by in BY if by != "tool"):
            usage = await read_json(stage, again, f"usage?by={by}")
            assert usage["total"]["paid_usd"] == pytest.approx(dollars, abs=1e-6)
            assert sum(row["paid_usd"] for row in usage["rows"]) == pytest.approx(dollars, abs=1e-5)
            assert usage["holdout"]["conversations"] == {"compacted": 6, "as_written": 6, "in_neither_arm": 0}
        live = await read_json(stage, again, "")
        assert live["all_days"]["paid"] == pytest.approx(dollars, abs=1e-9)
        assert sum(each["paid"] for each in live["conversations"]) == pytest.approx(dollars, abs=1e-9)
        on = summed([row.sums for row in conversations if row.arm == "on"])
        assert on.recalled > 0
        assert on.saved > 0
        await store.close()

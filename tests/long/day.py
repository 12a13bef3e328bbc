"""`make day`: a day of traffic of three tenants under two presets, a tenth of it held out, through a real Narrows. Its
figures stand beside a recount of the provider's log, and what the holdout measures beside the estimate."""

import asyncio
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from policies.money.bills import BillSums, arm_counts, measured_saving
from proxy.memory import open_store
from tests.kit.billed_day import PRESETS, SECRET, Talk, answer, have, recount, tenant_of
from tests.kit.counted import counted
from tests.kit.stage import staged

PRICES = {"input": 2.5, "cached": 0.25, "output": 15.0}
MODELS = {"gpt-5.4": {"input": 2.5, "output": 15.0, "read": 0.1, "write": 1.0, "tiers": (), "breakpoints": False}}
CENT = 0.01
_AT_ONCE = 4


async def day(each: int, folder: Path) -> bool:
    """So many conversations of each tenant under each preset; whether all figures agree to the cent."""
    random, gate = Random(each), asyncio.Semaphore(_AT_ONCE)
    traffic = [
        Talk(f"key-{t}", preset, f"{t}-{preset}-{n}") for t in range(3) for preset in PRESETS for n in range(each)
    ]
    async with staged(folder / "day.db", MODELS, keep=10**6, answer=answer) as stage:
        settings = {"holdout": 0.1, "tenant_secret": SECRET, "request_presets": PRESETS, "models": MODELS}
        app = await stage.start(preset="adaptive", **settings)

        async def one(talk: Talk, requests: int) -> None:
            async with gate:
                await have(stage, app, talk, requests)

        await asyncio.gather(*(one(talk, min(25, 2 + int(random.expovariate(0.15)))) for talk in traffic))
        page = app.telemetry.metrics.page().decode()
        await app.close()
        truth = recount(stage.provider.requests, traffic, PRICES)
    store = open_store(f"sqlite:///{folder}/day.db")
    await store.open()
    days, conversations = await store.day_rows("2026-01-01"), await store.conversation_rows(most=10**6)
    await store.close()
    agrees = True
    print(f"{'tenant':8} {'preset':12} {'requests':>8} {'log':>10} {'days':>10} {'metrics':>10}")
    for credential, preset in sorted({(talk.credential, talk.preset) for talk in traffic}):
        whose = [talk for talk in traffic if (talk.credential, talk.preset) == (credential, preset)]
        tenant, log = tenant_of(credential), sum(truth[talk].dollars for talk in whose)
        rows = [row.sums for row in days if (row.labels.tenant, row.labels.preset) == (tenant, preset)]
        sums, metrics = sum(rows, BillSums()), counted(page, "cost_usd_total", tenant=tenant, preset=preset)
        print(f"{credential:8} {preset:12} {sums.requests:8,} {log:10.4f} {sums.paid:10.4f} {metrics:10.4f}")
        agrees &= max(abs(sums.paid - log), abs(metrics - log)) < CENT
    for row in conversations:
        (talk,) = (talk for talk in traffic if talk.name == row.conversation)
        agrees &= abs(row.sums.paid - truth[talk].dollars) < CENT
    on = sum((row.sums for row in conversations if row.arm == "on"), BillSums())
    print(f"estimated, of what is compacted: {on.saved / on.baseline:.2%} saved; {arm_counts(conversations)}")
    if (measured := measured_saving(conversations)) is not None:
        print(f"measured: {measured.share:.2%} ({measured.low:.2%} to {measured.high:.2%})")
    return agrees


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        sys.exit(0 if asyncio.run(day(int(sys.argv[1]) if len(sys.argv) > 1 else 40, Path(place))) else 1)

"""A Narrows of `make recorded-day`, in its own process, by a clock that others share: ORIGIN SPEED UPSTREAM STORE."""

import asyncio
import sys

from proxy.app import App
from proxy.config import Settings
from proxy.event_loop import run_fast
from tests.kit.clocks import FastClock

KEEP_WARM, MARK_LIFETIME = 900.0, "auto"
_BUDGET = 1e6
"""Dollars for pings: all conversations are of one tenant here, and of one each in a replay."""


async def main(origin: str, speed: str, upstream: str, store: str) -> None:
    settings = Settings.model_validate(
        {
            "upstreams": [{"name": "default", "url": upstream, "local": False}],
            "store": store,
            "port": 0,
            "log_level": "warning",
            "keep_warm": KEEP_WARM,
            "keep_warm_budget": _BUDGET,
            "mark_lifetime": MARK_LIFETIME,
        }
    )
    async with await App.start(settings, clock=FastClock(float(origin), float(speed))) as app:
        print(app.base_url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    run_fast(main(*sys.argv[1:]))

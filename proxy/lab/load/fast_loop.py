"""The event loop of the processes of a load: the fastest that there is."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any


def fast_run(main: Coroutine[Any, Any, None]) -> None:
    if sys.platform == "win32":
        asyncio.run(main)
        return
    import uvloop

    uvloop.run(main)

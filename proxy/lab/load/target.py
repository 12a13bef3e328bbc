"""What `narrows load --serve` loads: a Narrows in a process of its own, before a sink in this one.

Laws
  It ends with the process that started it, however that ends, because its stdin does.
  It has the settings of `narrows serve`, but nothing of a load goes elsewhere: all its upstreams are the sink, no model
  is asked for summaries, nothing is recorded, and its store is a temporary one, unless one is named here.
"""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from proxy.config import ConfigurationError, Settings, load_settings
from proxy.config.upstreams import UpstreamRow
from proxy.console.arguments import flags
from proxy.console.serve import serve
from proxy.lab.load.sink import running_sink

_ADDRESS = re.compile(rb"http://127\.0\.0\.1:[0-9]+/v1")
_SECONDS = 5.0
"""How long it may take to end."""


def settings_for(sink: str, config: Path | None, store: str) -> Settings:
    """Those of a Narrows in front of this sink. Raises ConfigurationError."""
    settings = load_settings(flags(config=config, store=store))
    rows = settings.upstream_rows or (UpstreamRow(name="default", url=sink, local=False),)
    changes = {
        **{"host": "127.0.0.1", "port": 0, "auth": "passthrough", "keys": (), "summaries": False},
        **{"record": None, "agree_share": 0, "upstream": None, "anthropic_upstream": None},
        **{"upstreams": tuple(row.model_copy(update={"url": sink, "local": row.is_local}) for row in rows)},
        **({} if "log_level" in settings.model_fields_set else {"log_level": "error"}),
    }
    return settings.model_copy(update=changes)


@asynccontextmanager
async def served(events: int, config: Path | None = None, store: str = "") -> AsyncIterator[str]:
    """Its base URL, as long as the context lasts. Raises ValueError where it does not come up."""
    async with running_sink(events=events) as sink, _narrows(sink, str(config or ""), store) as url:
        yield url


@asynccontextmanager
async def _narrows(*words: str) -> AsyncIterator[str]:
    """A process of this module, by its address. A Ctrl-C at the terminal does not reach it."""
    command = (sys.executable, "-m", "proxy.lab.load.target", *words)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            if address := _ADDRESS.search(line):
                yield address[0].decode()
                break
        else:
            raise ValueError("the Narrows to be loaded did not start; what it says stands above")
    finally:
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


def _end_with_stdin() -> None:
    while os.read(0, 1):  # without a lock, which a worker that is forked would have for ever
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main(sink: str, config: str, store: str) -> None:
    Thread(target=_end_with_stdin, daemon=True).start()
    with TemporaryDirectory(prefix="narrows-load-") as folder:
        store = store or f"sqlite:///{folder}/load.db"
        settings = settings_for(sink, Path(config) if config else None, store)
        try:
            serve(settings, lambda: settings)
        except ConfigurationError as error:
            sys.exit(f"narrows: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`narrows serve` loads what serves requests, and nothing of the lab."""

import subprocess
import sys

SERVED = """
import asyncio, json, sys
from proxy import app, cli

def served(settings):
    async def started():
        async with await app.App.start(settings):
            pass
    asyncio.run(started())

app.serve = served
options = {"--upstream": "http://127.0.0.1:9/v1", "--port": "0", "--store": "sqlite://", "--log-level": "error"}
cli.main(["serve", *(word for option in options.items() for word in option)])
print(json.dumps(sorted(sys.modules)))
"""
OF_OTHER_COMMANDS = ("proxy.lab", "typer", "click", "rich.progress", "tests")  # structlog itself draws with rich


def test_serve_loads_nothing_of_the_lab() -> None:
    done = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1]
    assert '"proxy.gateway.' in loaded
    modules = [name.strip(' "[]') for name in loaded.split(",")]
    assert [name for name in modules if name.startswith(OF_OTHER_COMMANDS)] == []

"""`narrows serve` loads what serves requests, and nothing of the lab; `narrows --help` next to nothing."""

import subprocess
import sys
from importlib import import_module

from proxy.console import cli

SERVED = """
import asyncio, json, sys
from proxy import app
from proxy.console import cli
from proxy.console import serve

def served(settings, read):
    async def started():
        async with await app.App.start(settings):
            pass
    asyncio.run(started())

serve.serve = served
options = {"--upstream": "http://127.0.0.1:9/v1", "--port": "0", "--store": "sqlite://", "--log-level": "error"}
try:
    cli.main(["serve", *(word for option in options.items() for word in option)])
finally:
    print(json.dumps(sorted(sys.modules)))
"""
OF_OTHER_COMMANDS = ("proxy.lab", "rich.progress", "tests")  # structlog itself draws with rich
LOADED_LATER = ("genai_prices", "openai", "anthropic", "redis")
OF_NO_LIST = ("proxy.", "policies", "pydantic", "aiohttp", "rich", "genai_prices", "toktok")


def test_serve_loads_nothing_of_the_lab() -> None:
    done = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1]
    assert '"proxy.kernel.' in loaded
    modules = [name.strip(' "[]') for name in loaded.split(",")]
    assert [name for name in modules if name.startswith((*OF_OTHER_COMMANDS, *LOADED_LATER))] == []


def test_the_list_of_commands_is_printed_without_loading_them() -> None:
    script = (
        "import sys; from proxy.console import cli\ntry: cli.main(['--help'])\nfinally: print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    listed, loaded = done.stdout.rstrip().rsplit("\n", 1)
    for name, (module, line) in cli.COMMANDS.items():
        assert f"{name} " in listed
        assert line in listed
        about = getattr(import_module(module, "proxy.console"), name).__doc__ or ""
        assert about.startswith(line + "\n"), "the command says something else"
    needed = ("proxy.console", "proxy.console.cli", "proxy.console.help")
    assert [name for name in loaded.split() if name.startswith(OF_NO_LIST) and name not in needed] == []

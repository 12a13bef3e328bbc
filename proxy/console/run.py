"""`narrows run`: a Narrows for one command, as long as that runs.

Laws
  The terminal is the command's: nothing is printed while it runs, and signals of the keyboard reach it alone.
  The exit code is the command's, 128 and the number where a signal ended it; 127 and 126 where it cannot be started.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from policies.money.bills import BillSums
from proxy.app import App
from proxy.config import Settings
from proxy.config.clients import environment_for, words_for
from proxy.console.arguments import ServedAnthropic, ServedConfig, ServedPreset, ServedStore, ServedUpstream, flags
from proxy.console.env import settings_for_clients
from proxy.console.output import refusing
from proxy.drawing.figures import bill_in_words
from proxy.event_loop import run_fast
from proxy.warmup import warm_up

NO_COMMAND, NO_PROGRAM = 127, 126
"""As shells have it: there is none of this name; there is one that cannot be run."""
_OF_THE_KEYBOARD = ("SIGINT", "SIGQUIT")
_PASSED_ON = ("SIGTERM", "SIGHUP")
_GRACE = 1.0
"""Seconds that replies have that still run when the command has ended."""


class UnstartableError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def run_command(settings: Settings, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run it behind a Narrows with these settings, and return its exit code. Raises ConfigurationError."""
    bill = BillSums()
    with tempfile.NamedTemporaryFile("w", prefix="narrows-run-", suffix=".log", delete=False) as log:
        try:
            check_startable(command[0], environment)
            code, bill = run_fast(_run(settings, command, environment, log))
        except UnstartableError as error:
            print(f"narrows: {error}", file=sys.stderr)
            code = error.code
        except KeyboardInterrupt:  # before the command was there
            code = 128 + signal.SIGINT
        finally:
            log.flush()
            warned = os.path.getsize(log.name) > 0
            if not warned:
                Path(log.name).unlink()
    if bill.requests:
        first, second = bill_in_words(bill)
        print(f"narrows: {first}\n  {second}", file=sys.stderr)
    if warned:
        print(f"narrows: there were warnings; they are in {log.name}", file=sys.stderr)
    return code


def check_startable(program: str, environment: Mapping[str, str]) -> None:
    """Raises UnstartableError."""
    if shutil.which(program, path=environment.get("PATH")) is not None:
        return
    if Path(program).exists() and os.path.dirname(program):
        what = "is a folder" if Path(program).is_dir() else "is not executable; `chmod +x` makes it so"
        raise UnstartableError(NO_PROGRAM, f"{program} cannot be run: it {what}")
    raise UnstartableError(NO_COMMAND, f"there is no command {program}; check its name and PATH")


async def _run(
    settings: Settings, command: Sequence[str], environment: Mapping[str, str], log: IO[str]
) -> tuple[int, BillSums]:
    """The exit code of the command, and the bill of what it asked for. Raises UnstartableError."""
    with redirect_stderr(log):
        app = await App.start(settings)
        warming = asyncio.create_task(warm_up())
        try:
            address = app.base_url.removesuffix("/v1")
            variables = environment_for(address, environment, settings.upstream_of_provider("anthropic") or "")
            code = await _exit_code(words_for(address, command), variables)
        finally:
            warming.cancel()
            await app.close(_GRACE)
        return code, app.telemetry.metrics.billed


async def _exit_code(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start the command, and wait for its end. Raises UnstartableError."""
    process: asyncio.subprocess.Process | None = None
    early: list[int] = []

    def pass_on(number: int) -> None:
        if process is None:
            early.append(number)
            return
        with suppress(ProcessLookupError):
            process.send_signal(number)

    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # on Windows Ctrl-C ends both
        for name in _OF_THE_KEYBOARD:  # the terminal sends them to all, and the command decides
            loop.add_signal_handler(getattr(signal, name), lambda: None)
        for name in _PASSED_ON:
            loop.add_signal_handler(getattr(signal, name), pass_on, getattr(signal, name))
    try:
        process = await asyncio.create_subprocess_exec(*words, env=dict(environment))
    except OSError as error:
        text = (
            f"{words[0]} cannot be run ({error.strerror}); check its first line, and that it is built for this machine"
        )
        raise UnstartableError(NO_PROGRAM, text) from error
    for number in early:
        pass_on(number)
    code = await process.wait()
    return code if code >= 0 else 128 - code


# --- the command ---

_ALONE: Mapping[str, Any] = {"host": "127.0.0.1", "port": 0, "workers": 1}
"""For one command, on this machine, on a port that is free."""


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND [ARGS]...", help="What to run, best behind --.")],
    upstream: ServedUpstream = "",
    anthropic_upstream: ServedAnthropic = "",
    preset: ServedPreset = "",
    config: ServedConfig = None,
    store: ServedStore = "",
) -> None:
    """Run a command whose requests go through a Narrows of its own.

    As in `narrows run -- python agent.py`: on a free port of loopback, for as long as the command runs. What clients
    read is set (OPENAI_BASE_URL, ANTHROPIC_BASE_URL and others; `codex` gets options), the terminal is the command's,
    and so is the exit code. At the end stderr says what was saved. The settings of `narrows serve` count, by variable
    and file; without an upstream there, requests go where the client itself would ask.
    """
    values = flags(upstream=upstream, anthropic_upstream=anthropic_upstream, preset=preset, config=config, store=store)
    with refusing():
        settings = settings_for_clients({**values, **_ALONE}, os.environ)
        settings = settings.model_copy(update={"auth": "passthrough", "keys": ()})  # the command has no key of this one
        if "log_level" not in settings.model_fields_set:
            settings = settings.model_copy(update={"log_level": "warning"})
        code = run_command(settings, command, os.environ)
    raise typer.Exit(code)

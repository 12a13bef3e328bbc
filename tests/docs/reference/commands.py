"""What `narrows COMMAND --help` prints, for all commands."""

import re
from collections.abc import Iterator

from typer.main import get_command
from typer.testing import CliRunner

from proxy.console.cli import command_line

INTRODUCTION = """\
# Commands

What each command prints with `--help`, but for the columns of its report. [The console](../README.md#commands) says
more of the commands that people run, [the lab](../../lab/README.md) of those that measure. The options of
`narrows serve` are the [settings](settings.md)."""


def page() -> str:
    """The page."""
    return "\n\n".join([INTRODUCTION, *_parts()]) + "\n"


def _parts() -> Iterator[str]:
    for name in getattr(get_command(command_line()), "commands"):  # noqa: B009 - typer's own click has no types
        if name != "serve":
            yield f"## narrows {name}"
            yield f"```text\n{_help(name)}\n```"


def _help(command: str) -> str:
    words = [command, "--help"]
    printed = CliRunner().invoke(command_line(), words, env={"COLUMNS": "100"}, prog_name="narrows").stdout
    paragraphs = re.sub(r"^ +-h, --help .*\n", "", printed, flags=re.MULTILINE).strip("\n").split("\n\n")
    return "\n\n".join(each.rstrip() for each in paragraphs if not each.startswith(("  Columns", "  Bars")))

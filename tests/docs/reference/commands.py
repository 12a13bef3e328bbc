"""The arguments and options of all commands, as `--help` prints them."""

import re
from collections.abc import Iterator

from typer.main import get_command
from typer.testing import CliRunner

from proxy.console.cli import command_line

INTRODUCTION = """\
# Commands

Each command prints this with `--help`, and what the columns of its report mean. [The console](../README.md#commands)
says more of the commands that people run, [the lab](../../lab/README.md) of those that measure. The options of
`narrows serve` are the [settings](settings.md)."""


def page() -> str:
    """The page."""
    return "\n\n".join([INTRODUCTION, *_parts()]) + "\n"


def _parts() -> Iterator[str]:
    for name in getattr(get_command(command_line()), "commands"):  # noqa: B009 - typer's own click has no types
        if name != "serve":
            yield f"## narrows {name}"
            yield from _help(name)


def _help(command: str) -> Iterator[str]:
    """Its first line, and its lists of arguments and options."""
    words = [command, "--help"]
    printed = CliRunner().invoke(command_line(), words, env={"COLUMNS": "100"}, prog_name="narrows").stdout
    _, line, *paragraphs = re.sub(r"^ +-h, --help .*\n", "", printed, flags=re.MULTILINE).strip("\n").split("\n\n")
    lists = [each.rstrip() for each in paragraphs if each != "Options:" and not each.startswith(" ")]
    yield " ".join(line.split())
    options = "\n\n".join(lists)
    yield f"```text\n{options}\n```"

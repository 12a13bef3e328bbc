"""Every command and option is described, and no text names one that does not exist."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from proxy.console.cli import command_line
from tests.docs.documents import PAGES, README
from tests.kit.paths import ROOT

PROGRAM: Any = get_command(command_line())  # typer's own click has no types
COMMANDS: Mapping[str, Any] = PROGRAM.commands
OPTIONS: Mapping[str, set[str]] = {
    name: {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    }
    for name, command in (*COMMANDS.items(), ("", PROGRAM))
}
"""The options of each command, and of none. Those of `serve` are the settings."""
DESCRIBED = [
    (command, option)
    for command, options in OPTIONS.items()
    for option in sorted(options)
    if command not in ("serve", "") and not option.startswith("--no-")
]
REFERENCE = PAGES[Path("proxy/console/reference/commands.md")]
QUOTED = re.compile(r"`narrows ([^`]+)`")
"""A command in a document, a comment or a message."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme(command: str) -> None:
    assert f"| `narrows {command}" in README or f"`{command}`" in README


@pytest.mark.parametrize(("command", "option"), DESCRIBED)
def test_every_option_is_described_with_its_command(command: str, option: str) -> None:
    described = REFERENCE[REFERENCE.index(f"\n## narrows {command}\n") :].split("\n## ")[1]
    assert re.search(rf"^  .*{option}\b", described, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns(command: str) -> None:
    shown = CliRunner().invoke(command_line(), [command, "--help"], env={"COLUMNS": "80"}, prog_name="narrows")
    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_no_document_and_no_message_names_a_command_or_option_that_does_not_exist() -> None:
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "proxy").rglob("*.py"))]
    now = [text for page, text in PAGES.items() if page.name != "CHANGELOG.md"]
    quoted = [" ".join(words.split()) for text in (*now, *sources) for words in QUOTED.findall(text)]
    assert len(quoted) > 100
    for words in quoted:
        command = words.split()[0] if words[0] != "-" else ""
        assert command in OPTIONS, words
        options = re.findall(r"(?<!\S)--[a-z][\w-]*", words.partition(" -- ")[0])
        assert set(options) <= OPTIONS[command] | {"--help"}, words

"""Every command and option is described."""

import re

import pytest
from typer.main import get_command

from proxy.cli import command_line
from tests.docs.documents import PROXY, README


def _options() -> list[tuple[str, str]]:
    commands = getattr(get_command(command_line()), "commands")  # noqa: B009 - typer's own click has no types
    return [
        (name, option)
        for name, command in commands.items()
        if name != "serve"  # its options are the settings
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    ]


@pytest.mark.parametrize("command", sorted(getattr(get_command(command_line()), "commands")))  # noqa: B009 - as above
def test_every_command_is_in_the_readme_and_its_options_in_that_of_the_proxy(command: str) -> None:
    assert f"| `narrows {command}" in README
    assert f"**`narrows {command}" in PROXY


@pytest.mark.parametrize(("command", "option"), _options())
def test_every_option_is_described_with_its_command(command: str, option: str) -> None:
    start = PROXY.index(f"**`narrows {command}")
    ends = [at.start() for at in re.finditer(r"\n- \*\*`narrows |\n\n", PROXY) if at.start() > start]
    assert f"`{option}`" in PROXY[start : ends[0]]

"""README.md: what a newcomer reads."""

import os
import re
import tomllib
from functools import cache

import pytest
from typer.testing import CliRunner

from proxy.console.cli import command_line
from tests.docs.documents import CHANGELOG, README
from tests.kit.paths import ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_readme_can_be_read_in_five_minutes() -> None:
    assert README.count("\n") <= 200
    assert len(README.split()) <= 2_000


@cache
def demo() -> str:
    """What `narrows demo` prints."""
    return CliRunner().invoke(command_line(), ["demo", "--html", os.devnull]).stdout


def test_the_figures_of_the_demo_are_those_that_it_prints() -> None:
    printed = [line.split() for line in demo().splitlines()]
    figures = r"([\d,]+) \| ([\d.%]+) \| (\$[\d.]+) \| \**([\d.]+)\** \| ([\d.]+) \|$"
    rows = re.findall(rf"^\|.*\|.*\| {figures}", README, re.MULTILINE)
    assert len(rows) == 6
    for tokens, cached, bill, ratio, whole in rows:
        lines = [line for line in printed if line[-7:-5] == [tokens, cached]]
        assert [bill, ratio, whole] in [[*line[-4:-2], line[-1]] for line in lines], tokens


def test_the_figures_of_the_demos_long_chat_are_those_that_it_prints() -> None:
    printed = demo()
    paragraph = " ".join(README[README.index("Then a chat of ") :].split("\n\n")[0].split())
    moments = re.findall(r"request (\d+) \(([\d,]+) tokens\)", paragraph)
    assert len(moments) == 4
    for request, tokens in moments:
        assert re.search(rf"^request +{request} .*: {tokens} tokens,", printed, re.MULTILINE), request
    ratio = re.search(r"is (0\.\d+) of doing nothing", paragraph)
    assert ratio
    assert f"aim bill: {ratio[1]} of the input bill of doing nothing" in printed


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_every_dependency_earns_its_line(requirement: str) -> None:
    name = re.match(r"[\w-]+", requirement)
    assert name
    assert re.search(rf"\| (?:[\w-]+, )*{name[0]}(?:, [\w-]+)* \|", CONTRIBUTING)


def test_the_changelog_knows_this_version() -> None:
    assert re.search(rf"^## {re.escape(PROJECT['version'])} \(\d{{4}}-\d\d-\d\d\)$", CHANGELOG, re.MULTILINE)

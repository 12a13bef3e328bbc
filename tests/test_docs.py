"""The README is complete: every command, option, setting, header, preset, policy, parameter and dependency is in it."""

import re
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from policies.presets import PRESETS
from proxy.cli import app
from proxy.config import Settings, load_settings
from proxy.config.presets import Recipe
from proxy.config.rules import Rule
from proxy.lab.preset_descriptions import MEANINGS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _options() -> list[tuple[str, str]]:
    commands = getattr(get_command(app), "commands")  # noqa: B009 - typer's own click has no types
    return [
        (name, option)
        for name, command in commands.items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    ]


@pytest.mark.parametrize(("command", "option"), _options())
def test_every_option_is_documented(command: str, option: str) -> None:
    assert f"`narrows {command}" in README
    assert f"`{option}" in README


@pytest.mark.parametrize("setting", Settings.model_fields)
def test_every_setting_is_documented_with_its_meaning(setting: str) -> None:
    description = Settings.model_fields[setting].description
    assert description
    assert f"| `{setting}` |" in README
    assert description.replace("|", "\\|") in README


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_and_its_policies_are_documented(preset: str) -> None:
    assert f"| `{preset}` |" in README
    for policy in PRESETS[preset].policies:
        assert f"| `{getattr(policy, 'func').__name__}` |" in README  # noqa: B009 - a preset's policies are partials


@pytest.mark.parametrize("parameter", MEANINGS)
def test_every_parameter_of_a_policy_is_documented_with_its_meaning(parameter: str) -> None:
    _, means = MEANINGS[parameter]
    assert re.search(rf"^\| `{parameter}` \|.* \| {re.escape(means)} \|$", README, re.MULTILINE)


def test_everything_that_presets_and_rules_may_say_is_shown_and_can_be_loaded(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    shown = "".join(block for block in blocks if "[presets." in block or "[[rules]]" in block)
    (tmp_path / "narrows.toml").write_text(shown)
    settings = load_settings(["--config", str(tmp_path / "narrows.toml")])
    assert settings.presets.keys() == {settings.preset}
    for name in (*Recipe.model_fields, *Rule.model_fields):
        assert re.search(rf"^{name} = |\.{name}\]\]", shown, re.MULTILINE), name


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_every_dependency_earns_its_line(requirement: str) -> None:
    name = re.match(r"[\w-]+", requirement)
    assert name
    assert re.search(rf"\| (?:[\w-]+, )*{name[0]}(?:, [\w-]+)* \|", README)


def test_every_header_is_documented() -> None:
    source = "".join(path.read_text() for path in (ROOT / "proxy").glob("*.py"))
    for header in set(re.findall(r"\"(x-narrows-[a-z-]+)\"", source)):
        assert f"`{header}" in README


def test_nothing_is_left_to_fill_in() -> None:
    assert "<!--" not in README


def test_the_changelog_knows_this_version() -> None:
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()

"""The READMEs of `policies/`, `deploy/` and `tests/`, and the lists of behaviours and faults."""

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.console.cli import command_line
from tests.docs.documents import BEHAVIOURS, DEPLOY, FAULTS, POLICIES, TESTS
from tests.docs.preset_tables import parameter_table, preset_table
from tests.kit.paths import ROOT


def _described_presets() -> list[dict[str, Any]]:
    """What `narrows presets --json` says of the built-in presets."""
    described: list[dict[str, Any]] = json.loads(CliRunner().invoke(command_line(), ["presets", "--json"]).stdout)
    return described


PRESETS = _described_presets()


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset["name"])
def test_every_preset_and_its_policies_are_described(preset: dict[str, Any]) -> None:
    assert f"| `{preset['name']}` |" in POLICIES
    described = POLICIES[POLICIES.index("\n## Policies\n") :].split("\n## ")[1].split("\n\n")[1]
    for policy in preset["policies"]:
        assert f"\n| `{policy['policy']}` |" in described


@pytest.mark.parametrize("table", [parameter_table(), preset_table()], ids=["parameters", "presets"])
def test_every_parameter_of_a_policy_is_described_with_its_bounds_and_its_meaning(table: str) -> None:
    assert table in POLICIES, f"put this into policies/README.md:\n{table}"


@pytest.mark.parametrize("file", ["compose.yaml", "haproxy.cfg", "narrows.toml", "example.env"])
def test_every_file_of_a_deployment_is_described(file: str) -> None:
    assert (ROOT / "deploy" / file).is_file()
    assert file in DEPLOY


@pytest.mark.parametrize("target", re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
def test_every_target_of_make_is_described(target: str) -> None:
    assert f"| `make {target}` |" in TESTS


@pytest.mark.parametrize(
    "folder", [path.name for path in (ROOT / "tests").iterdir() if (path / "__init__.py").exists()]
)
def test_every_folder_of_tests_is_described(folder: str) -> None:
    assert f"`{folder}/`" in TESTS


def _behaviours() -> set[str]:
    """The ids in BEHAVIOURS.md: a letter and a number, in lower case."""
    sections = re.findall(r"^## ([A-Z])\. .*?$(.*?)(?=^## |\Z)", BEHAVIOURS, re.MULTILINE | re.DOTALL)
    return {
        f"{letter.lower()}{number}"
        for letter, section in sections
        for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)
    }


def test_the_behaviours_are_numbered_without_gaps() -> None:
    ids = _behaviours()
    for letter in {id_[0] for id_ in ids}:
        numbers = sorted(int(id_[1:]) for id_ in ids if id_[0] == letter)
        assert numbers == list(range(1, len(numbers) + 1)), letter


def test_every_behaviour_and_law_that_a_test_names_exists() -> None:
    known, unknown = _behaviours(), []
    laws = set(re.findall(r"^  (\d)  ", (ROOT / "policies" / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE))
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"def test_(\w+)", path.read_text(encoding="utf-8")):
            if law := re.match(r"law_((?:\d_)+)", name):
                unknown += [f"{path.name}: {name}" for each in law[1].split("_") if each and each not in laws]
                name = name[law.end() :]
            for id_ in re.match(r"(?:[a-z]\d+_)*", name)[0].split("_"):  # type: ignore[index]  # it always matches
                unknown += [f"{path.name}: {name}"] if id_ and id_ not in known else []
    assert not unknown


def _faults() -> dict[str, str]:
    """The rows of FAULTS.md: what shows each of them, by its number."""
    return dict(re.findall(r"^\| (A?\d+) \| [^|]+ \| ([^|]*) \|$", FAULTS, re.MULTILINE))


def test_every_fault_and_every_attack_has_a_row() -> None:
    assert [*_faults()] == [*(str(number) for number in range(1, 72)), *(f"A{number}" for number in range(1, 49))]


def test_every_fault_has_a_test_that_exists_or_says_why_not() -> None:
    for number, shows in _faults().items():
        names = re.findall(r"`([\w/]+\.py)::(\w+)`", shows)
        assert names or shows.startswith("none"), number
        for file, name in names:
            code = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert re.search(rf"^(?:(?:async )?def {name}\(|{name} = )", code, re.MULTILINE), (number, file, name)

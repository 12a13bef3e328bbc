"""Bill against sight: the table with its bounds, and the picture."""

import re
from collections.abc import Mapping
from xml.etree import ElementTree

import pytest

from policies.rules.recap import Recap
from proxy.lab.arguments import PRESET
from tests.lab.test_figures import SHORT
from tests.long.figures import curve
from tests.long.figures.fixed import FIXED
from tests.long.figures.runs import Job, Run, run_job

NEEDS: Mapping[str, float] = {"actions": 50, "out_of_sight": 10, "edits": 10, "edits_out_of_sight": 1}


def run(preset: str, bill: float, hidden: int) -> Run:
    return Run(
        *("one", "codex", preset, "gpt-5.4", 50, bill, 1.0, bill, 1.0, 1.0, 1, 1, 0, 0, 0),
        needs={**NEEDS, "out_of_sight": hidden},
    )


RUNS = [run(PRESET, 0.7, 10), run("eager", 0.6, 20), run("turns-24", 0.65, 15), run("turns-48", 0.7, 12)]


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of the runs here: the real ones move with what is measured."""
    monkeypatch.setattr(curve, "BOUNDS", {"codex": (0.21, 0.2)})


def test_a_kind_has_the_shares_of_all_its_actions_and_the_bounds_below() -> None:
    head, _, default, bounds, *others = curve.of_all(RUNS).split("\n")
    assert head == "| sessions | preset | gpt-5.4: actions | gpt-5.4: edits | gpt-5.4: bill |"
    assert default == f"| codex (1) | `{PRESET}` | 20.0 % | 10.0 % | 0.70 |"
    assert bounds == "|  | its bounds | 21.0 % | 20.0 % |  |"
    assert len(others) == 3
    assert curve.of_default(RUNS).split("\n")[2:] == ["| codex (1) | 20.0 % | 10.0 % | 0.70 |"]


def test_only_the_default_preset_can_pass_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [*curve.passed(RUNS)]
    monkeypatch.setattr(curve, "BOUNDS", {"codex": (0.19, 0.2)})
    (line,) = curve.passed(RUNS)
    assert line == "codex, gpt-5.4: 20.0 % of actions need what is out of sight, over 0.19"


def test_the_picture_needs_nothing_from_elsewhere_and_names_each_preset() -> None:
    text = curve.drawn(RUNS)
    ElementTree.fromstring(text)  # noqa: S314  # our own text: it is well-formed
    assert {each.preset for each in RUNS} <= {*re.findall(r"<text[^>]*>([^<]*)</text>", text)}
    assert text.count("<circle") == len(RUNS)
    assert "href" not in text
    assert "url(" not in text


def test_fixed_windows_are_measured_as_other_presets_are() -> None:
    recap = {name: next(each for each in preset.policies if isinstance(each, Recap)) for name, preset in FIXED.items()}
    assert {name: each.keep for name, each in recap.items()} == {"turns-24": 24, "turns-48": 48, "turns-96": 96}
    assert [each.preset for each in run_job(Job(SHORT, "gpt-5.4", tuple(FIXED)))] == [*FIXED]

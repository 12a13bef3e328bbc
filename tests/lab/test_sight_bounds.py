"""Bounds on what the default rules hide of what the next action needs, on sessions made by rule; those of recordings
are in tests/long/figures/curve.py."""

import pytest

from tests.kit.edit_sessions import edit_sessions
from tests.long.figures.simulated import simulated

CHOSEN, JUDGED = False, True
BOUNDS = [
    (CHOSEN, "gpt-5.4", 0.055, 0.075),
    (JUDGED, "gpt-5.4", 0.065, 0.09),
    (CHOSEN, "claude-opus-5-5", 0.01, 0.01),
    (JUDGED, "claude-opus-5-5", 0.01, 0.01),
]
"""Of each half, at the prices of a model, the share of actions that may need something out of sight, and of edits."""


@pytest.mark.parametrize(("odd", "prices", "actions", "edits"), BOUNDS)
def test_files_that_are_edited_one_by_one_stay_in_sight(odd: bool, prices: str, actions: float, edits: float) -> None:
    needs = [simulated(each, ["coding-agent"], prices)["coding-agent"].needs for each in edit_sessions(odd)]
    assert sum(each.out_of_sight for each in needs) <= actions * sum(each.actions for each in needs)
    assert sum(each.edits_out_of_sight for each in needs) <= edits * sum(each.edits for each in needs)

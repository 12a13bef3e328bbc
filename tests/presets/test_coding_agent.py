"""The preset `coding-agent` on the eighteen messages of the figure: what is edited next stays in sight."""

import asyncio
from functools import cache

import pytest

from policies.presets import PRESETS
from proxy.lab.quality import Visibility, tally
from proxy.lab.replay.environment import Options
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import replay_all
from tests.kit.figure import EDIT, FIGURE, MESSAGES, changed, characters, compacted, going_on, sent

LARGE = {3, 5, 7, 8, 10}
"""What of the figure is large, but for the file that is read last."""
READ = 17


@cache
def replayed(preset: str, prices: str, cache: str, refetch: float = 0.0) -> Report:
    """The session until the edit that follows is tested, through a real Narrows."""
    options = Options((prices,), cache, preset, refetch=refetch)
    (report,) = asyncio.run(replay_all([going_on()], options))
    return report


def test_what_is_done_goes_and_the_file_that_is_edited_next_stays() -> None:
    found = compacted("coding-agent")
    assert sent(found)[READ - 1] == MESSAGES[READ - 1]
    assert changed(found) == LARGE
    assert characters(sent(found)[:18]) <= 9_000


def test_the_next_edit_sees_all_that_it_quotes() -> None:
    found = compacted("coding-agent")
    seen = Visibility()
    tally(found.conversation, found.plan.edits, going_on().replies()[len(FIGURE.turns)], seen)
    assert (seen.quoted.used, seen.quoted.share_visible) == (1, 1.0)
    assert seen.all.share_visible == seen.rare.share_visible == 1.0
    assert EDIT["old_string"] in sent(found)[READ - 1]["content"]


def test_nothing_goes_that_nothing_newer_made_old() -> None:
    """Until the task is reported done, what was read and written is what the model works with."""
    assert 10 not in changed(compacted("coding-agent", MESSAGES[:13]))


@pytest.mark.parametrize("cache", ["none", "prefix"])
def test_the_bill_is_lower_than_that_of_doing_nothing_and_what_is_used_is_in_sight(cache: str) -> None:
    report = replayed("coding-agent", "gpt-5.4", cache)
    assert report.faults == 0
    assert report.input_bill.ratio < 1
    assert report.used_by_later_turns.quoted.share_visible == 1.0
    assert report.used_by_later_turns.all.share_visible >= 0.98
    assert report.used_by_later_turns.rare.share_visible >= 0.95


def test_where_the_model_fetches_again_what_it_needs_it_is_cheaper_than_structural() -> None:
    ours, theirs = (replayed(preset, "gpt-5.4", "prefix", 1.0) for preset in ("coding-agent", "structural"))
    assert ours.faults == theirs.faults == 0
    assert ours.input_bill.ratio < theirs.input_bill.ratio
    assert ours.used_by_later_turns.all.share_visible > theirs.used_by_later_turns.all.share_visible


def test_no_model_is_asked_for_anything() -> None:
    assert not PRESETS["coding-agent"].summarizes
    assert replayed("coding-agent", "gpt-5.4", "prefix").model_calls.total == 0

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

OUTPUTS = {3, 7}
"""The large outputs of commands in the figure. The rest of it is files and edits, and not old enough."""
READ = 17


@cache
def replayed(preset: str, prices: str, cache: str, refetch: float = 0.0) -> Report:
    """The session until the edit that follows is tested, through a real Narrows."""
    options = Options((prices,), cache, preset, refetch=refetch)
    (report,) = asyncio.run(replay_all([going_on()], options))
    return report


def test_the_output_of_commands_goes_and_the_file_that_is_edited_next_stays() -> None:
    found = compacted("coding-agent")
    assert sent(found)[READ - 1] == MESSAGES[READ - 1]
    assert changed(found) == OUTPUTS
    assert characters(sent(found)[:18]) < 0.75 * characters(MESSAGES)


def test_the_next_edit_sees_all_that_it_quotes() -> None:
    found = compacted("coding-agent")
    seen = Visibility()
    tally(found.conversation, found.plan.edits, going_on().replies()[len(FIGURE.turns)], seen)
    assert (seen.quoted.used, seen.quoted.share_visible) == (1, 1.0)
    assert seen.all.share_visible == seen.rare.share_visible == 1.0
    assert EDIT["old_string"] in sent(found)[READ - 1]["content"]


def test_a_report_and_a_new_wish_make_nothing_old() -> None:
    """What was read and written for the task before may be what the model works with in the next."""
    assert {5, 8, 10}.isdisjoint(changed(compacted("coding-agent")))


@pytest.mark.parametrize("cache", ["none", "prefix"])
def test_the_bill_is_lower_than_that_of_doing_nothing_and_what_is_used_is_in_sight(cache: str) -> None:
    report = replayed("coding-agent", "gpt-5.4", cache)
    assert report.faults == 0
    assert report.input_bill.ratio < 1
    assert report.used_by_later_turns.quoted.share_visible == 1.0
    assert report.used_by_later_turns.all.share_visible >= 0.98
    assert report.used_by_later_turns.rare.share_visible >= 0.95


def test_nothing_has_to_be_fetched_again_where_structural_hides_most_of_what_is_needed() -> None:
    ours, again = (replayed("coding-agent", "gpt-5.4", "prefix", refetch) for refetch in (0.0, 1.0))
    theirs = replayed("structural", "gpt-5.4", "prefix")
    assert ours.faults == again.faults == theirs.faults == 0
    assert again.bill == ours.bill
    assert ours.used_by_later_turns.all.share_visible > 4 * theirs.used_by_later_turns.all.share_visible


def test_no_model_is_asked_for_anything() -> None:
    assert not PRESETS["coding-agent"].summarizes
    assert replayed("coding-agent", "gpt-5.4", "prefix").model_calls.total == 0

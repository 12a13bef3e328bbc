"""When a summary no longer counts, and why."""

from dataclasses import replace

import pytest

from policies.model.conversation import Conversation
from policies.model.edits import Origin
from policies.model.summary_record import (
    NO_SUMMARIES,
    Criteria,
    Reason,
    SummaryCost,
    SummaryRecord,
    SummaryUse,
    UsableSummaries,
    reply_word,
    stale,
    usable_summaries,
)
from tests.kit.talk import conversation_of, runs, says, user

CRITERIA = Criteria("p", "v", ttl=60)
TALK = [user("go"), *(message for i in range(4) for message in runs(f"make {i}", f"made {i}")), says("done")]


def record(conversation: Conversation, last: int, **given: object) -> SummaryRecord:
    blocks = conversation.blocks
    sources = tuple(f"{i}:{conversation.messages[i].digest.hex()[:16]}" for i in range(1, last + 1))
    made = SummaryRecord(
        f"to-{last}", "c", blocks[1].anchor, blocks[last].anchor, sources, "m", "text", 9, 1, 100, "p", "v"
    )
    return replace(made, **given)  # type: ignore[arg-type]


def known(conversation: Conversation, *made: SummaryRecord, now: float = 110) -> UsableSummaries:
    return replace(usable_summaries(conversation, made, CRITERIA, now), records=())


@pytest.mark.parametrize(
    ("making", "now", "reason"),
    [
        (CRITERIA, 160, ""),
        (CRITERIA, 160.1, "age"),
        (replace(CRITERIA, ttl=float("inf")), 1e12, ""),
        (replace(CRITERIA, policy="q"), 110, "policy"),
        (replace(CRITERIA, prompt="w"), 110, "prompt"),
        (replace(CRITERIA, models=("k", "m")), 110, ""),
        (replace(CRITERIA, models=("n",)), 110, "model"),
        (replace(CRITERIA, models=("n",), prompt="w"), 999, "prompt"),
    ],
)
def test_m2_each_reason_for_records_and_for_what_stands(making: Criteria, now: float, reason: Reason) -> None:
    made = record(conversation_of(*TALK), 4)
    origin = Origin(made.id, made.model, made.policy, made.prompt, made.created_at, made.last)
    assert stale(made, making, now) == stale(origin, making, now) == reason


def test_m2_those_that_may_be_used_the_one_that_covers_most_last() -> None:
    conversation = conversation_of(*TALK)
    long, short = record(conversation, 6), record(conversation, 2)
    assert known(conversation, long, short) == UsableSummaries((short, long))
    assert known(conversation) == NO_SUMMARIES


def test_m2_a_source_that_changed() -> None:
    made = record(conversation_of(*TALK), 4)
    changed = conversation_of(*TALK[:2], {**TALK[2], "content": "made something else"}, *TALK[3:])
    assert known(changed, made) == UsableSummaries(stale="source", stale_id="to-4")


def test_m2_a_source_that_moved() -> None:
    made = record(conversation_of(*TALK), 4)
    assert known(conversation_of(TALK[0], *TALK[3:]), made) == UsableSummaries(stale="source", stale_id="to-4")


def test_m2_a_history_that_was_rewound_changes_no_source() -> None:
    made = record(conversation_of(*TALK), 6)
    assert known(conversation_of(*TALK[:4]), made) == NO_SUMMARIES


def test_m2_an_older_one_counts_where_the_newest_does_not() -> None:
    conversation = conversation_of(*TALK)
    old, new = record(conversation, 2), record(conversation, 4, prompt="w")
    assert known(conversation, old, new) == UsableSummaries((old,))


def test_m2_the_reason_is_the_newest_ones() -> None:
    conversation = conversation_of(*TALK)
    made = record(conversation, 2, policy="q"), record(conversation, 4, prompt="w")
    assert known(conversation, *made) == UsableSummaries(stale="prompt", stale_id="to-4")


def test_m4_a_rejected_one_is_tried_again_once_it_is_stale() -> None:
    conversation = conversation_of(*TALK)
    rejected = record(conversation, 4, rejected="short", content="", prompt="w")
    assert known(conversation, rejected) == NO_SUMMARIES


def test_m4_a_rejected_one_is_not_used_and_says_what_was_tried() -> None:
    conversation = conversation_of(*TALK)
    rejected = record(conversation, 4, rejected="short", content="")
    assert known(conversation, rejected) == UsableSummaries(tried=5, rejected=1)
    sound = record(conversation, 2)
    assert known(conversation, sound, rejected) == UsableSummaries((sound,), tried=5, rejected=1)


def test_m4_rejected_ones_are_counted_up_to_one_of_use() -> None:
    conversation = conversation_of(*TALK)
    rejected = [record(conversation, last, rejected="short", content="") for last in (2, 6, 8)]
    assert known(conversation, *rejected).rejected == 3
    assert known(conversation, record(conversation, 4), *rejected).rejected == 2
    assert known(conversation, *rejected, record(conversation, 8)).rejected == 0


def test_m9_all_that_were_made_of_this_history_were_paid_for() -> None:
    conversation = conversation_of(*TALK)
    rejected, stale_one = record(conversation, 2, rejected="short"), record(conversation, 4, prompt="w")
    longer = replace(record(conversation, 4), last="elsewhere")
    people = record(conversation, 4, kind="history")
    usable = usable_summaries(conversation, [rejected, stale_one, longer, people], CRITERIA, 110)
    assert usable.records == (rejected, stale_one)


def test_m9_a_summary_for_people_is_never_used() -> None:
    conversation = conversation_of(*TALK)
    assert known(conversation, record(conversation, 4, kind="history")) == NO_SUMMARIES


def test_m9_what_was_spent_adds_up() -> None:
    assert SummaryCost(1, 2, 3, 4, 5, 0.5) + SummaryCost(1, 1, 1, 1, 1, 1.0) == SummaryCost(2, 3, 4, 5, 6, 1.5)


@pytest.mark.parametrize(
    ("use", "job", "is_wanted", "word"),
    [
        (SummaryUse(), "", False, ""),
        (SummaryUse(), "", True, ""),
        (SummaryUse(), "pending", False, "pending"),
        (SummaryUse(), "failed", False, "failed"),
        (SummaryUse(ready="b"), "", False, "ready"),
        (SummaryUse(stands="a"), "", True, "adopted"),
        (SummaryUse(stands="a", ready="b"), "", False, "ready"),
        (SummaryUse(stands="a", ready="b"), "pending", False, "pending"),
        (SummaryUse(stands="a"), "failed", True, "failed"),
        (SummaryUse(stands="a"), "failed", False, "adopted"),
        (SummaryUse(stands="a", stale="a"), "", False, "adopted"),
        (SummaryUse(stale="a", reason="age"), "pending", True, "stale:age"),
    ],
)
def test_m1_a_reply_says_the_state_of_the_newest(use: SummaryUse, job: str, is_wanted: bool, word: str) -> None:
    assert reply_word(use, job, is_wanted=is_wanted) == word  # type: ignore[arg-type]

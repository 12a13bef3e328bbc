"""Answers of a tool that say a file is unchanged: what they point at stands in the request, there or behind them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from policies.compact import Compacted, compact
from policies.context import Policy
from policies.model.conversation import Conversation
from policies.model.edits import Fold, Replace
from policies.model.memory import Memory, StepRecord
from policies.money.prices import Budget
from policies.planning.plan import plan
from policies.planning.rereads import MOST, REREAD, says_edit_failed, says_unchanged
from policies.planning.state import Plan, PlanSettings
from policies.recall import answer
from policies.rules.digest import Digest
from policies.rules.offload import Offload
from policies.rules.recap import Recap
from policies.rules.trim import Trim
from policies.text.stubs import refs_named
from tests.kit.histories import TOOLS, Json
from tests.kit.talk import PREFIX_PRICES, ROOMY, call, conversation_of, gives, runs, says, setup, user

UNCHANGED = (
    "File unchanged since last read. The content from the earlier Read tool_result in this conversation is still "
    "current — refer to that instead of re-reading."
)
CODE = "".join(f"{n}\tdef value_{n}(): return {n * 7919 % 1000}\n" for n in range(1, 400))
OTHER = "".join(f"{n}\trow_{n} = {n * 31}\n" for n in range(1, 600))
SOON: tuple[Policy, ...] = (Offload(over=40, keep=2, keep_files=2, relevant_tokens=0),)
"""Files become pointers two turns after they were read, and rewrites cost nothing."""
FREE = replace(PREFIX_PRICES, read=1.0)


def reads(text: str, path: str = "src/a.py", id_: str = "call_0", **part: int) -> list[Json]:
    """A call of a tool that reads files, and what it answers."""
    asks: Json = {"role": "assistant", "content": None, "tool_calls": [call(id_, "Read", {"file_path": path, **part})]}
    return [asks, gives(text, id_)]


def works(turns: int) -> list[Json]:
    """Turns in which something else is done."""
    return [message for n in range(turns) for message in runs(f"make {n}", f"done {n}")]


def settings_of(*policies: Policy, **more: Any) -> PlanSettings:
    return setup(*(policies or SOON), prices=FREE, **more)


def sent(conversation: Conversation, planned: Plan, at: int) -> str:
    """A block's text as it is sent; empty where a fold has taken it away."""
    for edit in planned.edits:
        if isinstance(edit, Replace) and edit.at == conversation.blocks[at].anchor:
            return edit.text
        if isinstance(edit, Fold) and conversation.index[edit.first] <= at <= conversation.index[edit.last]:
            return ""
    return conversation.blocks[at].text


def planned_of(*messages: Json, settings: PlanSettings | None = None) -> tuple[Conversation, Plan]:
    conversation = conversation_of(user("go"), *messages)
    return conversation, plan(conversation, settings or settings_of())


@pytest.mark.parametrize(
    "text",
    [
        UNCHANGED,
        UNCHANGED.replace("—", "-"),
        "Wasted call — file unchanged since your last Read. Refer to that earlier tool_result instead.",
        "The file content has not changed since you last read it. Refer to the previous tool result.",
        "[File previously read: src/a.py. Content unchanged since last read.]",
        "STATUS: already read (content unchanged)",
        json.dumps({"status": "unchanged", "message": "The content from the earlier read_file result is current"}),
        "File hasn't been modified since the last read.",
    ],
)
def test_n3_wordings_of_clients_are_recognized(text: str) -> None:
    assert says_unchanged(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "File does not exist.",
        "The file src/a.py has been updated.",
        "1\t# unchanged since the last release\n2\tx = 1\n3\ty = 2\n4\tz = 3\n5\tw = 4\n",
        "unchanged",
        f"unchanged since the last release {'x' * 1_000}",
    ],
)
def test_n3_other_results_are_not_taken_for_such_an_answer(text: str) -> None:
    assert not says_unchanged(text)


@pytest.mark.parametrize("recall", [True, False])
def test_n3_an_answer_that_points_at_a_hidden_result_gets_its_text(recall: bool) -> None:
    history = [*reads(CODE), *works(4), *reads(UNCHANGED)]
    conversation, planned = planned_of(*history, settings=settings_of(recall=recall))
    last = len(conversation.blocks) - 1
    assert CODE not in sent(conversation, planned, 2)
    note = f"[narrows: that earlier result{f', ref {conversation.ref(2)}' if recall else ''}, word for word]"
    assert sent(conversation, planned, last) == f"{UNCHANGED}\n{note}\n{CODE}"
    assert planned.reason in ("", "tail-cut")


def test_n3_an_answer_that_points_at_a_result_in_sight_stays_and_keeps_it_there() -> None:
    history = [*reads(CODE), *works(1), *reads(UNCHANGED)]
    for turns in range(2):
        conversation, planned = planned_of(*history, *works(turns))
        assert (sent(conversation, planned, 2), sent(conversation, planned, 6)) == (CODE, UNCHANGED), turns
    conversation, planned = planned_of(*history, *works(4))  # then both are old
    assert CODE not in sent(conversation, planned, 2)
    assert sent(conversation, planned, 6) == UNCHANGED
    conversation, planned = planned_of(*history, *works(4), *reads(UNCHANGED))
    assert CODE in sent(conversation, planned, len(conversation.blocks) - 1)


def test_n3_the_text_goes_by_age_like_that_of_any_read_and_comes_again() -> None:
    history = [*reads(CODE), *works(4), *reads(UNCHANGED)]
    conversation, planned = planned_of(*history, *works(1))
    at = 12
    assert CODE in sent(conversation, planned, at)
    conversation, planned = planned_of(*history, *works(5))
    old = sent(conversation, planned, at)
    assert CODE not in old
    assert refs_named(old) == {conversation.ref(2)}
    assert answer(conversation, json.dumps({"ref": conversation.ref(2)})).text == CODE
    conversation, planned = planned_of(*history, *works(5), *reads(UNCHANGED))
    assert CODE in sent(conversation, planned, len(conversation.blocks) - 1)


def test_n3_a_text_that_an_answer_got_is_not_given_twice() -> None:
    history = [*reads(CODE), *works(4), *reads(UNCHANGED), *works(1), *reads(UNCHANGED)]
    conversation, planned = planned_of(*history)
    assert sent(conversation, planned, len(conversation.blocks) - 1) == UNCHANGED
    conversation, planned = planned_of(*history, *works(1))  # the first answer is as new as the second
    assert CODE in sent(conversation, planned, 12)


def test_n3_parallel_answers_each_get_their_text() -> None:
    both: Json = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call(f"c{n}", "Read", {"file_path": path}) for n, path in enumerate(("a.py", "b.py", "a.py"))],
    }
    answers = [gives(UNCHANGED, f"c{n}") for n in range(3)]
    history = [*reads(CODE, "a.py"), *reads(OTHER, "b.py"), *works(4), both, *answers]
    conversation, planned = planned_of(*history)
    texts = [sent(conversation, planned, at) for at in range(len(conversation.blocks))[-3:]]
    assert [text.endswith(f"word for word]\n{code}") for text, code in zip(texts, (CODE, OTHER), strict=False)] == [
        True
    ] * 2
    assert texts[2] == UNCHANGED  # the same file once


def test_n3_the_newest_result_of_the_same_path_and_range_counts() -> None:
    newer = CODE.replace("def", "async def")
    parts = [*reads(CODE), *reads(newer, "./src//a.py"), *reads(OTHER, offset=9), *reads(OTHER, "src/b.py")]
    conversation, planned = planned_of(*parts, *works(4), *reads(UNCHANGED))
    assert newer in sent(conversation, planned, len(conversation.blocks) - 1)
    conversation, planned = planned_of(*parts, *works(4), *reads(UNCHANGED, offset=9))
    assert OTHER in sent(conversation, planned, len(conversation.blocks) - 1)
    conversation, planned = planned_of(*parts, *works(4), *reads(UNCHANGED, offset=10))  # nothing is known of it
    assert sent(conversation, planned, len(conversation.blocks) - 1) == UNCHANGED


def test_n3_an_answer_of_another_tool_is_no_such_answer() -> None:
    conversation, planned = planned_of(*reads(CODE), *works(4), *runs("cat src/a.py", UNCHANGED))
    assert sent(conversation, planned, len(conversation.blocks) - 1) == UNCHANGED


def long_code(lines: int) -> str:
    return "".join(f"{n}\tvalue_{n} = {n}\n" for n in range(1, lines))


@pytest.mark.parametrize("recall", [True, False])
def test_n3_what_exceeds_the_limit_is_named_by_its_way_back(recall: bool) -> None:
    code = long_code(8_000)
    roomy = Budget(1_000_000, 1_000, 900_000, 500_000, floor=0)
    conversation, planned = planned_of(
        *reads(code), *works(4), *reads(UNCHANGED), settings=settings_of(budget=roomy, recall=recall)
    )
    got = sent(conversation, planned, len(conversation.blocks) - 1)
    text, _, rest = got.partition("word for word]\n")[2].rpartition("\n[narrows:")
    assert code.startswith(f"{text}")
    assert MOST * 0.9 < len(text) / 4 <= MOST
    if recall:
        part = rest.partition(f"rest: ref {conversation.ref(2)}, ")[2].rstrip("]")
        again = answer(conversation, json.dumps({"ref": conversation.ref(2), "part": part})).text
        assert text + again.partition("\n[narrows:")[0] == code[: len(text) + len(again.partition("\n[narrows:")[0])]
    else:
        assert rest == " read it with another range or command for the rest]"


@pytest.mark.parametrize(("words", "shown"), [(1_500, 80), (2_150, 0)])
def test_n3_no_more_is_given_than_there_is_room_for(words: int, shown: int) -> None:
    tight = Budget(12_000, 100, 3_000, 2_000, floor=0)
    history = [*reads(CODE), *works(4), says("word " * words), user("on"), *reads(UNCHANGED)]
    conversation, planned = planned_of(*history, settings=settings_of(budget=tight))
    text = sent(conversation, planned, len(conversation.blocks) - 1)
    assert tight.high - 200 < planned.after <= tight.high
    assert text.count("\n") > shown
    assert refs_named(text) == {conversation.ref(2)}


def test_law_2_what_was_learned_of_the_counting_hardly_moves_the_cut() -> None:
    tight = Budget(12_000, 100, 3_500, 2_000, floor=0)
    history = [*reads(CODE), *works(4), says("word " * 1_000), user("on"), *reads(UNCHANGED)]
    texts = set()
    for factor in (1.0, 1.01):
        conversation, planned = planned_of(*history, settings=settings_of(budget=tight, factor=factor))
        texts.add(sent(conversation, planned, len(conversation.blocks) - 1))
    assert len(texts) == 1
    assert "value_9()" in texts.pop()


def test_law_2_the_text_is_given_again_by_a_record_and_by_none() -> None:
    history = [*reads(CODE), *works(4), *reads(UNCHANGED)]
    conversation, first = planned_of(*history)
    record = StepRecord(conversation.end_anchor(conversation.steps - 1), first.new, first.reason, recall=True)
    later = conversation_of(user("go"), *history, *works(1))
    settings = settings_of()
    afresh = plan(later, settings)
    on = plan(later, settings, state=first.state)
    known = plan(later, settings, Memory({record.anchor: record}))
    assert CODE in sent(later, afresh, 12)
    assert afresh.edits == on.edits == known.edits
    assert afresh.state.text_in == on.state.text_in == known.state.text_in == {2: 12}


def test_law_2_what_a_record_sent_short_stays_short() -> None:
    history = [*reads(CODE), *works(4), *reads(UNCHANGED)]
    conversation, first = planned_of(*history)
    edits = tuple(edit for edit in first.new if edit.by != REREAD)
    record = StepRecord(conversation.end_anchor(conversation.steps - 1), edits, first.reason, recall=True)
    later = conversation_of(user("go"), *history, *works(1))
    again = plan(later, settings_of(), Memory({record.anchor: record}))
    assert sent(later, again, 12) == UNCHANGED


def test_n3_a_new_answer_gets_its_text_when_a_fold_takes_the_result_away() -> None:
    recap = Recap(keep=4, batch=2, keep_share=0.2)
    history = [*reads(CODE), *reads(OTHER, "src/b.py"), *works(2), *reads(UNCHANGED)]
    settings = settings_of(recap)
    conversation, planned = planned_of(*history, settings=settings)
    assert sent(conversation, planned, 10) == UNCHANGED
    conversation, planned = planned_of(*history, *works(2), settings=settings)
    assert any(isinstance(edit, Fold) for edit in planned.edits)
    assert sent(conversation, planned, 2) == ""
    assert sent(conversation, planned, 10).endswith(CODE)


def test_n3_a_digest_takes_the_text_of_the_earlier_result() -> None:
    digest = Digest(over=100, max_chars=200, source_chars=5_000, by_model=False)
    history = [*reads(CODE), *works(2), *reads(UNCHANGED)]
    conversation, planned = planned_of(*history, settings=settings_of(digest))
    assert CODE in sent(conversation, planned, 8)
    conversation, planned = planned_of(*history, *works(2), settings=settings_of(digest))
    short = sent(conversation, planned, 8)
    assert "def value_" in short
    assert refs_named(short) == {conversation.ref(2)}


def test_c5_the_last_resort_shortens_such_a_text_too() -> None:
    tight = Budget(12_000, 100, 2_600, 1_500, floor=0)
    history = [*reads(CODE), *works(4), *reads(UNCHANGED), *reads(OTHER, "src/b.py")]
    conversation, planned = planned_of(*history, settings=settings_of(*SOON, Trim(keep=5), budget=tight))
    assert planned.after <= tight.high
    assert CODE not in sent(conversation, planned, 12)


def test_law_5_a_text_that_people_want_left_as_it_is_is_never_hidden_and_so_never_given() -> None:
    staying = settings_of(keep=("Read",))
    _, planned = planned_of(*reads(CODE), *works(4), *reads(UNCHANGED), settings=staying)
    assert not [edit for edit in planned.edits if edit.by == REREAD]


def test_r7_without_recall_no_stub_sends_to_a_tool_that_says_a_file_is_unchanged() -> None:
    history = [*reads(CODE), *works(4), *reads(UNCHANGED), *reads(OTHER, "src/b.py"), *works(4)]
    conversation, planned = planned_of(*history, settings=settings_of(recall=False))
    assert "read it again for the rest" in sent(conversation, planned, 2)  # nobody had seen yet how it answers
    assert "read it with another range or command for the rest" in sent(conversation, planned, 14)


def body(messages: Sequence[Json]) -> bytes:
    return json.dumps({"model": "m", "messages": [user("go"), *messages], "tools": TOOLS}).encode()


def shorter(messages: Sequence[Json]) -> Compacted:
    return compact(body(messages), policies=SOON, prices=FREE, budget=ROOMY, recall=True)


def test_s2_each_request_extends_the_one_before_when_an_answer_gets_its_text() -> None:
    before = shorter([*reads(CODE), *works(4)])
    after = shorter([*reads(CODE), *works(4), *reads(UNCHANGED)])
    later = shorter([*reads(CODE), *works(4), *reads(UNCHANGED), *works(1)])
    one, two, three = (json.loads(each.body)["messages"] for each in (before, after, later))
    assert two[: len(one)] == one
    assert three[: len(two)] == two
    assert CODE in two[-1]["content"]


FAILED = "<tool_use_error>String to replace not found in file.\nString: def value_8(): return 1</tool_use_error>"


def edits(answer: str, old: str, path: str = "src/a.py", id_: str = "call_9") -> list[Json]:
    """A call of an editor, and what it answers."""
    asks = call(id_, "Edit", {"file_path": path, "old_string": old, "new_string": "pass"})
    return [{"role": "assistant", "content": None, "tool_calls": [asks]}, gives(answer, id_)]


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        (FAILED, True),
        ("Error: old_string not found in src/a.py", True),
        ("No replacement was performed, old_str `x` did not appear verbatim in /a.py.", True),
        ("Could not find the exact text in src/a.py. The old text must match exactly.", True),
        ("Found 3 matches of the string to replace, but replace_all is false.", True),
        ("Failed to find expected lines in src/a.py", True),
        ("The file src/a.py has been updated successfully.", False),
        ("", False),
        (f"{'row ' * 300} not found", False),
    ],
)
def test_n2_wordings_of_failed_edits_are_recognized(text: str, failed: bool) -> None:
    assert says_edit_failed(text) == failed


@pytest.mark.parametrize("recall", [True, False])
def test_n2_a_failed_edit_gets_the_file_as_it_was_last_read(recall: bool) -> None:
    history = [*reads(CODE), *works(4), *edits(FAILED, "def value_8(): return 1")]
    conversation, planned = planned_of(*history, settings=settings_of(recall=recall))
    assert CODE not in sent(conversation, planned, 2)
    given = sent(conversation, planned, len(conversation.blocks) - 1)
    ref = f", ref {conversation.ref(2)}" if recall else ""
    assert given == f"{FAILED}\n[narrows: the file as last read{ref}, word for word; later edits are not in it]\n{CODE}"
    assert planned.reason in ("", "tail-cut")


def test_n2_of_several_reads_it_gets_the_one_that_shows_what_the_edit_looked_for() -> None:
    first, second = CODE[: len(CODE) // 2], CODE[len(CODE) // 2 :]
    parts = [*reads(first, offset=1), *reads(second, id_="call_1", offset=200)]
    for part, old in ((first, "return 1\n2\tdef value_2()"), (second, "def value_390(): return 0")):
        conversation, planned = planned_of(*parts, *works(4), *edits(FAILED, old))
        assert sent(conversation, planned, len(conversation.blocks) - 1).endswith(part)


def test_n2_an_edit_that_was_made_and_one_of_a_file_in_sight_get_nothing() -> None:
    done = "The file src/a.py has been updated successfully."
    for history in ([*reads(CODE), *works(4), *edits(done, "x")], [*reads(CODE), *edits(FAILED, "x")]):
        conversation, planned = planned_of(*history)
        last = len(conversation.blocks) - 1
        assert sent(conversation, planned, last) == conversation.blocks[last].text

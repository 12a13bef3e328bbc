"""R5: what was recalled is whole as long as it is new, and its reference afterwards."""

import json

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policies.context import Policy
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.money.prices import Budget, Prices
from policies.planning.plan import plan
from policies.planning.state import Plan
from policies.recall import answer
from policies.rules.abridge import Abridge
from policies.rules.clip import Clip
from policies.rules.collapse import Collapse
from policies.rules.dedupe import Dedupe
from policies.rules.offload import Offload
from policies.rules.trim import Trim
from policies.text.stubs import refs_named
from policies.tools import RECALL
from tests import examples
from tests.kit.histories import EAGER, Json, eagerly, recalling, requests
from tests.kit.talk import conversation_of, recalls, runs, says, setup, user

KEEP = 3
WHILE_NEW: tuple[Policy, ...] = (
    Dedupe(over=10),
    Collapse(keep=KEEP),
    Clip(over=1, keep=1, keep_writes=1),
    Offload(over=40, keep=1, keep_files=1, relevant_tokens=5),
    Abridge(over=10, keep=1, keep_code=1, keep_share=0.1),
    Trim(keep=2),
)
FREE = Prices("m", 1, 1, read=1.0, write=1.0, window=100_000, listed=True)
"""Under these prices every rewrite that shortens pays at once."""
LONG = "\n".join(f"{i} lines of output" for i in range(900))
ROWS = "\n".join(f"row {i} of the table" for i in range(1200))
EARLIER = [message for i in range(4) for message in runs(f"make {i}", f"{i} of it\n{ROWS}")]
"""What was saved on these pays for the rewrites that follow."""
START = [user("go"), *runs("cat a", LONG), *EARLIER, *runs("ls", "a")]
REF = conversation_of(*START).ref(2)


def steps_on(before: list[Json], *more: list[Json]) -> list[list[str]]:
    """The answers of the recall tool as they are sent while the session goes on, from the request that brings them."""
    session = [*before, *(message for some in more for message in some), says("done")]
    seen, plan_state = [], None
    for request in requests(session):
        conversation = conversation_of(*request)
        planned = plan(conversation, setup(*WHILE_NEW, prices=FREE), None, plan_state)
        plan_state = planned.state
        if len(request) >= len(before):
            seen.append(sent(conversation, planned, RECALL))
    return seen


def sent(conversation: Conversation, planned: Plan, tool: str) -> list[str]:
    """The outputs of a tool as they are sent."""
    texts = {edit.at: edit.text for edit in planned.edits if isinstance(edit, Replace)}
    outputs = [block for block in conversation.blocks if block.kind == "result" and block.tool == tool]
    return [texts.get(block.anchor, block.text) for block in outputs]


OTHERS = [runs(f"echo {i}", "ok") for i in range(8)]


def test_r5_what_was_recalled_is_whole_in_the_keep_window_and_its_reference_later() -> None:
    before = [*START, *recalls(REF, LONG)]
    seen = steps_on(before, *OTHERS)
    assert seen[:KEEP] == [[LONG]] * KEEP
    assert seen[KEEP:] == [[f"[narrows: output: ref {REF}]"]] * (len(seen) - KEEP)


def test_r5_meanwhile_the_original_is_hidden_under_the_same_reference() -> None:
    conversation = conversation_of(*START, *recalls(REF, LONG), *(m for some in OTHERS for m in some))
    planned = plan(conversation, setup(*WHILE_NEW, prices=FREE))
    assert sent(conversation, planned, "bash")[0].endswith(f"[narrows: rest: ref {REF}]")


@pytest.mark.parametrize("part", ["lines 9-800", "chars 0-15000", "find line"])
def test_r5_a_part_becomes_its_reference_and_the_part(part: str) -> None:
    page = answer(conversation_of(*START), f'{{"ref": "{REF}", "part": "{part}"}}').text
    seen = steps_on([*START, *recalls(REF, page, part)], *OTHERS)
    assert (seen[KEEP - 1], seen[KEEP]) == ([page], [f"[narrows: output: ref {REF}, {part}]"])


def test_r5_the_page_of_a_long_text_becomes_its_reference() -> None:
    start = [user("go"), *runs("cat a", ROWS), *EARLIER, *runs("ls", "a")]
    ref = conversation_of(*start).ref(2)
    page = answer(conversation_of(*start), f'{{"ref": "{ref}"}}').text
    seen = steps_on([*start, *recalls(ref, page)], *OTHERS)
    assert (seen[KEEP - 1], seen[KEEP]) == ([page], [f"[narrows: output: ref {ref}]"])


@pytest.mark.parametrize("between", [0, 1, 5], ids=["at once", "in the window", "after the first has gone"])
def test_r5_of_what_was_recalled_twice_the_newest_copy_stays_whole(between: int) -> None:
    before = [*START, *recalls(REF, LONG)]
    again = recalls(REF, LONG)
    seen = steps_on(before, *OTHERS[:between], again, *OTHERS)
    assert seen[-1] == [f"[narrows: output: ref {REF}]", LONG]
    assert all(LONG in shown for shown in seen[between + 1 :])


def test_r5_recalled_once_more_with_the_word_that_it_is_the_last_is_the_same_again() -> None:
    """And so is the same part spelled in another way."""
    conversation = conversation_of(*START)
    pages = [answer(conversation, json.dumps({"ref": REF, "part": "lines 1-450"}), last).text for last in (False, True)]
    assert pages[0] != pages[1]
    again = recalls(REF, pages[1])
    again[0]["tool_calls"][0]["function"]["arguments"] = json.dumps({"ref": int(REF), "lines": "1-450"})
    seen = steps_on([*START, *recalls(REF, pages[0], "lines 1-450")], again, *OTHERS)
    assert seen[-1] == [f"[narrows: output: ref {REF}, lines 1-450]", pages[1]]


def test_r5_another_part_is_not_another_copy() -> None:
    conversation = conversation_of(*START)
    pages = [
        answer(conversation, f'{{"ref": "{REF}", "part": "{part}"}}').text for part in ("lines 1-450", "lines 451-")
    ]
    before = [*START, *recalls(REF, pages[0], "lines 1-450"), *recalls(REF, pages[1], "lines 451-")]
    seen = steps_on(before, *OTHERS)
    assert seen[-1] == [f"[narrows: output: ref {REF}, lines 1-450]", f"[narrows: output: ref {REF}, lines 451-]"]


def test_r5_the_same_output_of_another_tool_is_not_another_copy() -> None:
    """The original stands in the history as well, word for word: that is not a second recall."""
    assert steps_on([*START, *recalls(REF, LONG)], *OTHERS)[-1] != [LONG]


def test_r6_a_reference_of_nothing_never_becomes_a_stub() -> None:
    nothing = answer(conversation_of(*START), '{"ref": "999999"}').text + " " + "really " * 50
    seen = steps_on([*START, *recalls("999999", nothing)], *OTHERS)
    assert seen[-1] == [nothing]


def test_r5_where_the_request_does_not_fit_it_goes_like_any_result() -> None:
    before = [user("go"), *runs("cat a", LONG), *runs("ls", "a"), *recalls(REF, LONG * 3)]
    tight = Budget(9_000, 200, 8_000, 4_000, floor=0)
    conversation = conversation_of(*before)
    planned = plan(conversation, setup(*WHILE_NEW, prices=FREE, budget=tight))
    (shown,) = sent(conversation, planned, RECALL)
    assert planned.reason == "checkpoint:window"
    assert len(shown) < len(LONG)
    assert shown.endswith(f"[narrows: rest: ref {REF}]")


def test_r6_a_page_that_does_not_fit_is_named_as_it_was_asked_for() -> None:
    """What a reply has just recalled is no part of the history that its further calls are answered from."""
    asked = [user("go"), *runs("cat a", LONG), *runs("ls", "a")]
    page = answer(conversation_of(*asked), json.dumps({"ref": REF, "part": "lines 9-800"}))
    conversation = conversation_of(*asked, *recalls(REF, page.text, "lines 9-800"))
    tight = Budget(4_000, 200, 3_000, 1_500, floor=0)
    planned = plan(conversation, setup(*WHILE_NEW, prices=FREE, budget=tight))
    (shown,) = sent(conversation, planned, RECALL)
    assert shown.endswith(f"[narrows: rest: ref {REF}, lines 9-800]")
    for ref in refs_named(shown):
        assert answer(conversation_of(*asked), json.dumps({"ref": ref, "part": "lines 9-800"})) == page


def test_r6_what_was_answered_to_a_reference_of_nothing_is_not_cut() -> None:
    nothing = answer(conversation_of(*START), '{"ref": "999999"}').text + " really" * 2_000
    conversation = conversation_of(user("go"), *runs("ls", "a"), *recalls("999999", nothing))
    tight = Budget(4_000, 200, 3_000, 1_500, floor=0)
    planned = plan(conversation, setup(*WHILE_NEW, prices=FREE, budget=tight))
    assert sent(conversation, planned, RECALL) == [nothing]


@settings(
    deadline=None,
    max_examples=examples(40),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(recalling(most=6))
def test_r5_only_collapse_touches_what_was_recalled(session: list[Json]) -> None:
    for request in requests(session):
        done = eagerly(request)
        for edit in done.plan.edits:
            at = done.conversation.index[edit.at] if isinstance(edit, Replace) else -1
            if at >= 0 and done.conversation.blocks[at].tool == RECALL:
                assert edit.by == "collapse"
                assert done.conversation.blocks[at].turn < done.conversation.steps - 2
    assert "collapse" in [getattr(policy, "name", "") for policy in EAGER]

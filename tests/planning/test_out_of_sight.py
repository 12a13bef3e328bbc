"""Whether an action needed what Narrows had hidden: the bound on harm that a preset states is watched by it."""

import json
from dataclasses import replace

import pytest
from msgspec import structs

from policies.model.conversation import Conversation
from policies.planning.out_of_sight import was_out_of_sight
from policies.planning.plan import plan
from policies.planning.state import Plan
from policies.rules.offload import Offload
from policies.sight import names_reached, sight_window
from tests.kit.histories import Json
from tests.kit.talk import PREFIX_PRICES, call, calls, conversation_of, gives, recalls, runs, says, setup, user
from tests.planning.test_rereads import CODE, FREE, OTHER, reads, works

SETTINGS = setup(Offload(over=40, keep=2, keep_files=2, relevant_tokens=0), prices=FREE, sight=0.2)
LINE = CODE.split("\n")[210].partition("\t")[2]


def ends_with(*newest: Json, turns: int = 60) -> bool | None:
    """Whether the newest message needed something hidden: a file was read, and so many turns passed."""
    conversation = conversation_of(user("go"), *reads(CODE), *works(turns), *newest)
    assert conversation.steps > 2
    return was_out_of_sight(conversation, plan(conversation, SETTINGS))


def edits(old: str, new: str = "pass") -> list[Json]:
    call = {"name": "Edit", "arguments": json.dumps({"file_path": "b.py", "old_string": old, "new_string": new})}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_0", "type": "function", "function": call}],
        },
        gives("The file was updated."),
    ]


@pytest.mark.parametrize(
    ("newest", "needed"),
    [
        (runs("grep value_211 src", "none"), True),  # a name that only the hidden file had
        (runs("grep value_9999 src", "none"), False),  # nobody had sent that
        (runs("grep value_211 src", "none")[:1], True),  # a call that has no answer yet
        (edits(LINE), True),
        (edits("def value_211(): return 989"), True),  # the name again
        (edits("This line stands nowhere."), False),
        (edits("Half of a pair \ud83d, which stands nowhere."), False),
        ([says("done"), user("and now?")], None),
    ],
)
def test_n1_an_action_needs_what_it_uses_and_nothing_in_sight_holds(newest: list[Json], needed: bool | None) -> None:
    assert ends_with(*newest) is needed


def test_n1_a_line_counts_though_none_of_its_names_does() -> None:
    prose = "".join(f"{n}\tthe {n * 7} of all the things that were said\n" for n in range(1, 400))
    conversation = conversation_of(
        user("go"), *reads(prose), *works(60), *edits("the 1477 of all the things that were said")
    )
    assert was_out_of_sight(conversation, plan(conversation, SETTINGS)) is True


def test_n1_a_recall_of_what_is_there_is_an_action_that_needed_what_was_hidden() -> None:
    ref = conversation_of(user("go"), *reads(CODE), *works(60)).ref(2)
    assert ends_with(*recalls(ref, CODE[:200])) is True
    assert ends_with(*recalls("123456123456", "nothing has that")) is False


def planned_of(*messages: Json) -> tuple[Conversation, Plan]:
    conversation = conversation_of(*messages)
    return conversation, plan(conversation, SETTINGS)


def test_n1_what_stands_in_sight_anywhere_is_not_out_of_sight() -> None:
    newest = runs("grep value_211 src", "none")
    told = [user("Later look at value_211, please."), *reads(CODE), *works(60)]
    assert was_out_of_sight(*planned_of(*told, *newest)) is False
    line = 'print("the total of the year", total_211)'
    arguments = {"file_path": "c.py", "content": f"{line}\n"}
    write = {"role": "assistant", "content": None, "tool_calls": [call("call_0", "Write", arguments)]}
    history = [user("go"), *reads(f"{CODE}{line}\n"), *works(50), write, gives("written"), *works(4)]
    assert was_out_of_sight(*planned_of(*history, *edits(line))) is False  # there it stands as JSON
    assert was_out_of_sight(*planned_of(*history[:3], *works(54), *edits(line))) is True


def test_n1_a_name_in_a_stub_is_in_sight_and_what_was_referred_to_is() -> None:
    conversation, planned = planned_of(user("go"), *reads(CODE), *works(60), *runs("grep value_211 src", "none"))
    (at, edit), *_ = planned.state.edits.items()
    assert was_out_of_sight(conversation, planned) is True
    for other, edits_of_plan in (
        (edit, [replace(edit, text="see value_211")]),
        (replace(edit, lossless=True), planned.edits),
    ):
        state = planned.state.copy()
        state.edits[at] = other
        assert was_out_of_sight(conversation, structs.replace(planned, edits=edits_of_plan, state=state)) is False


def test_n1_what_the_newest_plan_hides_was_in_sight_when_the_model_acted() -> None:
    history = [user("go"), *reads(OTHER, "b.py"), *reads(CODE), *works(60), *runs("grep value_211 src", "none")]
    conversation, planned = planned_of(*history)
    of_code = next(edit for edit in planned.edits if edit.at == conversation.blocks[4].anchor)
    assert was_out_of_sight(conversation, planned) is True
    assert was_out_of_sight(conversation, structs.replace(planned, new=(of_code,))) is False
    assert was_out_of_sight(conversation, structs.replace(planned, new=planned.edits)) is None  # at first sight


def test_n1_round_and_short_numbers_are_looked_up_by_nobody() -> None:
    conversation = conversation_of(
        user("go"), *runs("stat", "size 4711 of 120000 in 211 blocks"), *runs("head -c 4711 -n 120000 -s 211", "")
    )
    sight_window(conversation, conversation.steps - 1, 0.05, FREE)
    assert names_reached(conversation) == {"4711": 1}


def test_n1_names_are_unknown_where_no_window_was_asked_for() -> None:
    conversation = conversation_of(user("go"), *runs("cat first_name", "second_name"), calls("cat second_name"))
    assert names_reached(conversation) is None
    assert was_out_of_sight(conversation, plan(conversation, setup(prices=FREE))) is None


# --- recalls widen the window ---


def window_of(conversation: Conversation) -> int:
    """How many turns the window holds at the newest step."""
    step = conversation.steps - 1
    return step - sight_window(conversation, step, 0.05, PREFIX_PRICES).now[0]


def test_n1_recalls_of_old_texts_widen_the_window() -> None:
    begin = [user("go"), *reads(CODE), *works(120)]
    ref = conversation_of(*begin).ref(2)
    asked = [message for _ in range(20) for message in (*recalls(ref, CODE[:80]), *works(1))]
    others = [message for n in range(20) for message in (*works(1), *works(1))]
    assert window_of(conversation_of(*begin, *asked)) > window_of(conversation_of(*begin, *others)) + 10

"""How far the calls of a model reach back, and the window that follows: it holds what the next step needs."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from policies.dialects import DIALECTS
from policies.model.conversation import Conversation, Message, converse
from policies.money.prices import Prices
from policies.presets import PRESETS
from policies.sight import TOGETHER, sight_window
from tests.kit.histories import Json, body_of
from tests.kit.talk import PREFIX_PRICES, call, conversation_of, gives, recalls, runs, user

SHARE = PRESETS["adaptive"].sight


def step(number: int, tool: str, arguments: Json, result: str) -> list[Json]:
    """A call and its result."""
    id_ = f"call_{number}"
    return [{"role": "assistant", "content": None, "tool_calls": [call(id_, tool, arguments)]}, gives(result, id_)]


def reading_then_editing(files: int, turns: int) -> list[Json]:
    """Files are read one after the other, then edited in the same order: each edit reaches back for so many turns."""
    read = [step(n, "Read", {"file_path": f"src/f_{n}.py"}, f"1\tvalue_of_{n} = 1") for n in range(files)]
    others = [step(100 + n, "Bash", {"command": f"make part_{n}"}, f"done {n}") for n in range(turns - files)]
    edits = [
        step(200 + n, "Edit", {"file_path": f"src/f_{n}.py", "old_string": f"value_of_{n} = 1"}, "updated")
        for n in range(files)
    ]
    return [message for each in (*read, *others, *edits) for message in each]


def widths(messages: Sequence[Json], share: float = SHARE, prices: Prices = PREFIX_PRICES) -> list[int]:
    """The turns inside the window at each step."""
    conversation = conversation_of(user("go"), *messages)
    return [step - sight_window(conversation, step, share, prices).now[0] for step in range(conversation.steps)]


def test_n2_a_shell_that_never_looks_back_has_a_narrow_window() -> None:
    found = widths([message for n in range(80) for message in runs(f"make part_{n}", f"done part_{n}")])
    assert max(found[60:]) <= 8 + TOGETHER


def test_n2_a_model_that_goes_back_for_forty_turns_has_a_wide_one() -> None:
    found = widths(reading_then_editing(40, 40))
    assert min(found[-20:]) >= 39


def test_n2_before_anything_is_known_the_window_is_as_wide_as_is_usual() -> None:
    steps = [step(n, "Edit", {"file_path": f"src/f_{n}.py", "old_string": "x"}, "updated") for n in range(36)]
    assert widths([message for each in steps for message in each])[-1] == 36


def test_n2_a_larger_share_makes_it_narrower() -> None:
    messages = reading_then_editing(30, 40)
    assert widths(messages, 0.25)[-1] < widths(messages, 0.02)[-1]


def test_n2_it_is_narrower_where_a_cached_token_costs_less_since_texts_wait_longer_there() -> None:
    others = (step(500 + n, "Bash", {"command": f"make all_{n}"}, f"done {n}") for n in range(60))
    messages = [*reading_then_editing(8, 40), *(message for each in others for message in each)]
    wide, narrow, narrowest = (
        widths(messages, prices=replace(PREFIX_PRICES, read=read, write=1.25))[-1] for read in (0.25, 0.05, 0.0)
    )
    assert wide > narrow > narrowest


def test_n2_it_only_moves_forward_and_turns_leave_it_together() -> None:
    conversation = conversation_of(user("go"), *reading_then_editing(40, 60))
    windows = [sight_window(conversation, step, SHARE, PREFIX_PRICES) for step in range(conversation.steps)]
    assert all(before.now == after.before for before, after in pairwise(windows))
    moves = [after - before for window in windows for before, after in zip(window.before, window.now, strict=True)]
    assert all(move == 0 or move >= TOGETHER for move in moves)
    assert any(moves)


@pytest.mark.parametrize("cut", [None, 60])
def test_law_2_it_is_the_same_whether_carried_over_or_worked_out_anew(cut: int | None) -> None:
    full = _read([user("go"), *reading_then_editing(30, 50)])
    branch = [*full[:cut], *_read([user("another way"), *reading_then_editing(10, 20)])] if cut else full
    earlier: Conversation | None = None
    for history in (full[:-7], [*full[:-7], *_read([user("more")])], full, branch):
        conversation = converse(history, earlier)
        last = conversation.steps - 1
        now, anew = (sight_window(each, last, SHARE, PREFIX_PRICES) for each in (conversation, converse(history)))
        assert now == anew
        earlier = conversation


def test_law_2_a_recall_counts_for_what_was_there_when_it_was_made() -> None:
    text = "1\tvalue_of_all = 1\n" * 90
    late = step(900, "Read", {"file_path": "a.py"}, text)
    ref = conversation_of(user("go"), *late).ref(2)
    before = reading_then_editing(30, 40)
    asked, unknown = (
        [m for _ in range(60) for m in recalls(each, "nothing has that")] for each in (ref, "123456123456")
    )
    assert widths([*before, *asked, *late, *before]) == widths([*before, *unknown, *late, *before])


def _read(messages: Sequence[Json]) -> list[Message]:
    api = DIALECTS["openai_chat"]
    request = api.split(body_of(list(messages)))
    assert request is not None
    return [api.read(request.raw(at), len) for at in range(len(request.spans))]

"""Folds in Anthropic Messages: a run may begin and end in the middle of a user's message."""

import json
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from policies.compact import compact
from policies.dialects import DIALECTS
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Fold, Replace
from policies.money.prices import Budget
from proxy.lab.provider import find_violation
from tests import examples
from tests.kit.forms import plain, to_anthropic
from tests.kit.histories import CHEAP, EAGER, Json, sessions
from tests.kit.messages import BASH, MARK, body_of, raws, result, says, split, talk_of, text, thinks, user, uses

dialect = DIALECTS["anthropic_messages"]

STUB = "left out"
HOUR = {"type": "ephemeral", "ttl": "1h"}
TALK = [
    user("go"),
    says(thinks("hm"), uses()),
    user(result("a.py"), text("and b?")),
    says(text("I look."), uses("c1"), uses("c2")),
    user(result("x = 1", "c1"), result([text("y"), text("z")], "c2")),
    says("done"),
    user("thanks"),
]


SAID, FILL = says(text(STUB)), user(text("[narrows: the messages after these follow]"))
"""A stub without a reference is the model's; what stands where two of its messages would meet."""


def folded(
    messages: list[Json], *runs: tuple[int, int], edits: tuple[tuple[int, str], ...] = (), **fields: Any
) -> bytes:
    body = body_of(messages, **fields)
    request, talk = split(body), talk_of(body)
    changes: list[Edit] = [Fold(talk.blocks[a].anchor, talk.blocks[b].anchor, STUB, "test") for a, b in runs]
    changes += [Replace(talk.blocks[at].anchor, said, "test") for at, said in edits]
    twice = [*changes, *changes[: len(runs)]]
    new = dialect.splice(request, talk, changes)
    assert dialect.splice(request, talk, twice) == new
    return dialect.joined(request, new)


def left(*args: object, **more: object) -> list[Json]:
    found: list[Json] = json.loads(folded(*args, **more))["messages"]  # type: ignore[arg-type]
    return found


# blocks: 0 go, 1 thought, 2 call, 3 a.py, 4 and b?, 5 I look, 6 call, 7 call, 8 x = 1, 9 y, 10 z, 11 done, 12 thanks
@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ((1, 3), [TALK[0], SAID, user(text("and b?")), *TALK[3:]]),
        ((4, 10), [*TALK[:2], user(result("a.py")), SAID, FILL, *TALK[5:]]),
        ((1, 10), [TALK[0], SAID, FILL, *TALK[5:]]),
        ((5, 10), [*TALK[:3], SAID, FILL, *TALK[5:]]),
        ((4, 11), [*TALK[:2], user(result("a.py")), SAID, TALK[6]]),
        ((4, 4), [*TALK[:2], user(result("a.py")), SAID, FILL, *TALK[3:]]),
    ],
)
def test_a_fold_leaves_what_stands_beside_it(run: tuple[int, int], expected: list[Json]) -> None:
    assert left(TALK, run) == expected


def test_law_1_what_stays_is_what_the_client_wrote() -> None:
    messages = [*TALK[:2], user(result("a.py"), text("and \u00e9?", extra=1.50)), *TALK[3:]]
    before, after = raws(body_of(messages)), raws(folded(messages, (1, 3)))
    assert after[0] == before[0]
    assert after[3:] == before[3:]
    assert after[2] == before[2].replace(json.dumps(result("a.py")).encode() + b", ", b"")


def test_two_folds_may_meet_in_one_message_and_other_edits_still_apply() -> None:
    new = left(TALK, (1, 3), (5, 10))
    assert new == [TALK[0], SAID, user(text("and b?")), SAID, FILL, *TALK[5:]]
    middle = [*TALK[:2], user(result("a.py"), text("one"), text("two")), *TALK[3:]]
    assert left(middle, (1, 3), (5, 11))[1:4] == [SAID, user(text("one")), SAID]
    request, talk = split(body_of(TALK)), talk_of(body_of(TALK))
    folds = [
        Fold(talk.blocks[1].anchor, talk.blocks[3].anchor, "one", "test", ref="123456+3"),
        Fold(talk.blocks[4].anchor, talk.blocks[10].anchor, "two", "test"),
    ]
    assert request is not None
    both = json.loads(dialect.joined(request, dialect.splice(request, talk, folds)))["messages"]
    assert both[2]["content"][0]["content"] == "one"
    assert both[3:] == [says(text("two")), FILL, *TALK[5:]]
    kept = left(TALK, (4, 10), edits=((3, "short"),))
    assert kept[2:4] == [user(result("short")), SAID]
    assert left(TALK, (1, 3), edits=((4, "short"),))[2] == user(text("short"))


def test_v7_a_mark_in_a_fold_moves_to_its_stub_and_one_beside_it_stays() -> None:
    first, second = result("a.py", cache_control=HOUR), text("and b?", cache_control=MARK)
    marked = [*TALK[:2], user(first, second), *TALK[3:]]
    stub = text(STUB, cache_control=HOUR)
    assert left(marked, (1, 3))[1:3] == [says(stub), user(second)]
    assert left(marked, (4, 10))[2:4] == [user(first), SAID]
    assert left(marked, (4, 10))[4]["content"][0]["cache_control"] == MARK
    assert left(marked, (1, 10))[2]["content"][0]["cache_control"] == HOUR
    plainly = [user("go"), says("a"), user("b"), says("c"), user("d")]
    assert left(plainly, (1, 1))[1] == SAID


def test_v6_the_tool_loop_at_hand_begins_with_a_thought_where_there_is_a_budget_for_thinking() -> None:
    thoughts = (thinks("hm"), {"type": "redacted_thinking", "data": "abc=="})
    loop = [user("go"), says(*thoughts, uses()), user(result("a.py"))]
    for name in ("c1", "c2"):
        loop += [says(uses(name)), user(result("x", name))]
    budget = {"type": "enabled", "budget_tokens": 1024}
    thoughtful = says(*thoughts, text(STUB))
    for thinking, *stubs in ((budget, thoughtful), ({"type": "adaptive"}, SAID, FILL), (None, SAID, FILL)):
        fields = {"thinking": thinking} if thinking else {}
        new = folded(loop, (1, 6), **fields)
        assert json.loads(new)["messages"] == [loop[0], *stubs, *loop[5:]]
        assert find_violation(json.loads(new), dialect="anthropic_messages") is None
    thinks_again = [*loop[:5], says(thinks("more"), uses("c2")), loop[6]]
    assert json.loads(folded(thinks_again, (1, 6), thinking=budget))["messages"][1:] == [SAID, FILL, *thinks_again[5:]]


def test_v1_no_users_stub_follows_system_text_in_the_middle() -> None:
    """Such text stands behind a user's message and before an assistant's (mid-conversation system messages)."""
    hint = {"role": "system", "content": "be brief"}
    loop = [
        user("go"),
        hint,
        says(thinks("hm"), uses()),
        user(result("a.py")),
        says(uses("c1")),
        user(result("x", "c1")),
    ]
    assert left(loop, (2, 4)) == [*loop[:2], SAID, FILL, *loop[4:]]
    assert left(loop[:2] + loop[4:], (2, 3)) == [*loop[:2], SAID]
    assert left([*loop[:1], *loop[2:], hint, says("ok")], (4, 5))[3:] == [SAID, FILL, hint, says("ok")]
    budget = {"type": "enabled", "budget_tokens": 1024}
    found = left([*loop[:1], *loop[2:], hint, says("ok")], (4, 5), thinking=budget)
    assert [message["role"] for message in found[-3:]] == ["user", "system", "assistant"]


def served(count: int) -> list[Json]:
    """A session in which a program at the provider calls tools of the client: it ends in a later reply."""
    messages = [user("go")]
    for at in range(count):
        program = {"type": "server_tool_use", "id": f"s{at}", "name": "code_execution", "input": {"code": "await q()"}}
        caller = {"type": "code_execution_20250825", "tool_id": f"s{at}"}
        said = {"type": "code_execution_result", "stdout": "", "stderr": "", "return_code": 0, "content": []}
        ended = {"type": "code_execution_tool_result", "tool_use_id": f"s{at}", "content": said}
        first, again = ({**uses(f"{name}{at}"), "caller": caller} for name in "ab")
        messages += [says(program, first), user(result(f"{at} ok\n" * 60, f"a{at}"))]
        messages += [says(again), user(result(f"{at} ok\n" * 60, f"b{at}"))]
        messages += [says(ended, uses(f"c{at}")), user(result(f"{at} done\n" * 60, f"c{at}"))]
    return messages


@pytest.mark.parametrize("high", range(500, 1500, 200))
def test_law_4_v1_a_fold_never_parts_a_call_at_the_provider_from_its_answer(high: int) -> None:
    body = body_of(served(6), tools=[BASH, {"type": "code_execution_20250825", "name": "code_execution"}])
    budget = Budget(2_000, 100, high, high // 2, floor=0)
    done = compact(body, policies=EAGER, prices=CHEAP, budget=budget, recall=True, dialect="anthropic_messages")
    assert any(isinstance(edit, Fold) for edit in done.plan.edits)
    blocks = [block for message in json.loads(done.body)["messages"] for block in message["content"]]
    said = [block for block in blocks if isinstance(block, dict)]
    opened = [block["id"] for block in said if block["type"] == "server_tool_use"]
    assert opened == [block["tool_use_id"] for block in said if block["type"] == "code_execution_tool_result"]
    assert {block["caller"]["tool_id"] for block in said if "caller" in block} == set(opened)
    assert find_violation(json.loads(done.body), dialect="anthropic_messages") is None


@settings(deadline=None, max_examples=examples(15), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(sessions(most=6), st.data())
def test_v1_whatever_turns_are_folded_the_rest_is_there(session: list[Json], data: st.DataObject) -> None:
    said = [{**message, "content": message["content"] or "nothing"} for message in session]
    messages = to_anthropic(plain({"model": "m", "messages": said}))["messages"]
    talk = talk_of(body_of(messages))
    last = data.draw(st.integers(0, len(talk.ends) - 1))
    first = data.draw(st.integers(0, last))
    run = range(start_of(talk, first), start_of(talk, last + 1))
    if not run:
        return
    after = talk_of(folded(messages, (run[0], run[-1])))
    kept = [block.text_digest for i, block in enumerate(talk.blocks) if i not in run]
    found = [block.text_digest for block in after.blocks if block.text not in (STUB, FILL["content"][0]["text"])]
    assert found == kept
    answered = [block for block in after.blocks if block.kind == "result"]
    assert all(block.answers is not None for block in answered)


def start_of(talk: Conversation, turn: int) -> int:
    return next((i for i, block in enumerate(talk.blocks) if block.turn >= turn), len(talk.blocks))

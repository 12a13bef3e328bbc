"""Anchors, turns, and which call a result answers."""

import json

import pytest
from hypothesis import given, settings

from policies.dialects import DIALECTS
from policies.model.conversation import converse
from tests import examples
from tests.kit import messages as claude
from tests.kit.histories import Json, requests, sessions
from tests.kit.talk import call, calls, conversation_of, gives, letters, runs, says, system, user

openai_chat = DIALECTS["openai_chat"]

TALK = [system("be brief"), user("go"), *runs("ls", "a.py"), *runs("cat a.py", "x = 1"), says("done")]


def anchors(*messages: Json) -> list[str]:
    return [block.anchor for block in conversation_of(*messages).blocks]


@settings(deadline=None, max_examples=examples(40))
@given(sessions())
def test_s4_an_anchor_says_what_was_said_before_and_nothing_later(session: list[Json]) -> None:
    whole = anchors(*session)
    for request in requests(session):
        assert anchors(*request) == whole[: len(anchors(*request))]
    assert len(set(whole)) == len(whole)


def test_s4_ids_and_cache_marks_do_not_move_an_anchor() -> None:
    other = json.loads(json.dumps(TALK).replace("call_0", "toolu_42"))
    other[1]["content"] = [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]
    assert anchors(*other) == anchors(*TALK)


def test_s4_a_changed_text_moves_its_anchor_and_all_later_ones() -> None:
    changed = json.loads(json.dumps(TALK))
    changed[5]["content"] = "x = 2"
    same = [a == b for a, b in zip(anchors(*TALK), anchors(*changed), strict=True)]
    assert same == [True, True, True, True, True, False, False]


def test_s4_a_changed_argument_moves_anchors() -> None:
    changed = json.loads(json.dumps(TALK))
    changed[2]["tool_calls"][0]["function"]["arguments"] = '{"command": "ls -a"}'
    assert [a == b for a, b in zip(anchors(*TALK), anchors(*changed), strict=True)] == [True, True, *[False] * 5]


def test_system_text_moves_no_other_anchor() -> None:
    changed = [system("be long"), *TALK[1:]]
    assert anchors(*changed)[0] != anchors(*TALK)[0]
    assert anchors(*changed)[1:] == anchors(*TALK)[1:]


def test_the_key_is_all_that_was_said_before_the_first_answer() -> None:
    assert conversation_of(*TALK).end_anchor(0) == conversation_of(*TALK[:2]).end_anchor(0)
    assert conversation_of(*TALK).end_anchor(0) != conversation_of(system("be brief"), user("stop")).end_anchor(0)
    assert conversation_of(says("hello")).end_anchor(0) == ""


def test_turns_and_ends() -> None:
    talk = conversation_of(user("a"), *runs("ls", "x"), user("b"), user("c"), says("d"), user("e"))
    assert [block.turn for block in talk.blocks] == [0, 0, 0, 1, 1, 1, 2]
    assert talk.ends == (1, 5, 7)
    assert talk.steps == 3
    assert talk.end_anchor(0) == talk.blocks[0].anchor


@settings(deadline=None, max_examples=examples(40))
@given(sessions())
def test_ends_are_how_much_each_request_carried(session: list[Json]) -> None:
    whole = conversation_of(*session)
    for step, request in enumerate(requests(session)):
        assert whole.ends[step] == len(conversation_of(*request).blocks)
        assert whole.end_anchor(step) == conversation_of(*request).end_anchor(step)
    assert whole.ends[-1] == len(whole.blocks)


def test_v3_ids_repeat_and_a_result_answers_the_nearest_assistant_message() -> None:
    talk = conversation_of(user("go"), *runs("ls", "a"), *runs("ls", "b"))
    assert [block.answers for block in talk.blocks] == [None, None, 1, None, 3]
    assert talk.results == {1: [2], 3: [4]}


def test_v3_orphans_and_late_results_answer_nothing() -> None:
    talk = conversation_of(gives("early"), *runs("ls", "a"), says("x"), gives("late"), gives("odd", "call_9"))
    assert [block.answers for block in talk.blocks] == [None, None, 1, None, None, None]


def test_parallel_results_in_another_order_answer_their_own_calls() -> None:
    talk = conversation_of(user("go"), calls("a", "b"), gives("of b", "call_1"), gives("of a", "call_0"))
    assert [block.answers for block in talk.blocks] == [None, None, None, 2, 1]
    assert [block.tool for block in talk.blocks] == ["", "bash", "bash", "bash", "bash"]


def test_of_two_calls_with_one_id_the_first_is_answered() -> None:
    twice = {"role": "assistant", "tool_calls": [call("x", "bash", {"command": c}) for c in "ab"]}
    assert conversation_of(user("go"), twice, gives("out", "x")).blocks[3].answers == 1


@pytest.mark.parametrize(
    "output", ["<returncode>0</returncode>", "Observation: ok", "done\n(Current directory: /)\nbash-$ ", " <output>x"]
)
def test_text_protocol_output_answers_the_fenced_command(output: str) -> None:
    talk = conversation_of(user("go"), says("Look:\n```bash\nls\n```"), user(output))
    assert talk.blocks[2].answers == 1


@pytest.mark.parametrize("thought", ["", "Thought: look.\n<code>\nprint(look('f1'))\n</code>\n"])
@pytest.mark.parametrize("output", ["Observation:\nExecution logs:\nline 0", "Observation:\nline 0"])
def test_in_smolagents_sessions_an_observation_answers_the_calls_above(thought: str, output: str) -> None:
    """As smolagents 1.26 writes both of its agents' turns: the calls as text, the output as a user message."""
    calls_as_text = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {"name": "f1"}}}]
    talk = conversation_of(user("go"), says(f"{thought}Calling tools:\n{calls_as_text}"), user(output), user("stop"))
    assert [block.answers for block in talk.blocks] == [None, None, 1, None]
    assert talk.is_text_protocol


@pytest.mark.parametrize(
    ("said", "after"),
    [
        ("```bash\nls\n```", "please stop"),
        ("no command", "<returncode>0"),
        ("```ls```\nand?", "<output>x"),
        ("Calling tools:\n[{'id': 1}]", "no"),
    ],
)
def test_what_a_person_writes_answers_nothing(said: str, after: str) -> None:
    assert conversation_of(user("go"), says(said), user(after)).blocks[2].answers is None


def test_leading_system_text_is_the_head() -> None:
    talk = conversation_of(system("a"), {"role": "developer", "content": "b"}, user("c"), system("late"))
    assert talk.head == 2
    assert conversation_of(user("c"), system("late")).head == 0


def test_the_frame_is_carried_once_per_message() -> None:
    talk = conversation_of(user("go"), calls("a", "b", text="two"))
    assert [block.frame for block in talk.blocks] == [4, 4, 0, 0]


def test_outputs_and_askings_are_found_by_content() -> None:
    talk = conversation_of(user("go"), *runs("ls", "a"), *runs("pwd", "a"), *runs("ls", "b"))
    assert talk.outputs_by_text == {"a": [2, 4], "b": [6]}
    assert talk.outputs_by_call["bash", '{"command": "ls"}'] == [2, 6]


def test_nothing_said_is_a_conversation_too() -> None:
    empty = converse([])
    assert (empty.steps, empty.ends, empty.end_anchor(0)) == (1, (0,), "")


def test_x9_many_orphans_are_read_in_one_pass() -> None:
    orphan = openai_chat.read(json.dumps(gives("x", "none")).encode(), letters)
    talk = converse([openai_chat.read(json.dumps(calls("ls")).encode(), letters), *[orphan] * 50_000])
    assert len(talk.blocks) == 50_001


def test_v1_a_call_at_the_provider_is_held_together_with_its_answer_and_given_up_where_nobody_speaks_of_it() -> None:
    opened = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    uses, asked, last = claude.uses("c"), claude.user("go"), claude.says("done")
    answered = [asked, claude.says(opened, uses), claude.user(claude.result("x", "c")), claude.says(found), last]
    assert claude.talk_of(claude.body_of(answered)).no_cut_before == {2, 3, 4}
    lost = [asked, claude.says(opened), claude.says("ok"), asked, claude.says("well"), last]
    assert claude.talk_of(claude.body_of(lost)).no_cut_before == {2}
    again = [asked, claude.says(opened, found), claude.says(opened, found), last]
    assert claude.talk_of(claude.body_of(again)).no_cut_before == {2, 4}

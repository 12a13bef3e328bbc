"""Which messages stand for a fold: whose text has which role, and what parts two of one role."""

import json
import re

import pytest

from policies.compact import compact
from policies.dialects import DIALECTS
from policies.model.conversation import converse
from policies.model.edits import Fold
from policies.presets import PRESETS
from policies.text.layout import call_id, pieces_of
from policies.text.stubs import MARK
from proxy.lab.provider import find_violation
from tests.kit.histories import CHEAP, ROOMY, Json, body_of
from tests.kit.messages import body_of as messages_body
from tests.kit.messages import result, says, talk_of, thinks, user, uses
from tests.kit.messages import split as split_messages
from tests.kit.talk import letters, runs, signed
from tests.kit.talk import says as reply
from tests.kit.talk import user as asks

anthropic_messages = DIALECTS["anthropic_messages"]
openai_chat = DIALECTS["openai_chat"]

CHAT = [asks("first"), reply("one"), asks("second"), reply("Well.\nIt is two."), asks("third"), reply("three")]
AGENT = [asks("go"), *runs("a", "x"), *runs("b", "y"), reply("All done."), asks("on"), *runs("c", "z")]
WORDS = "what a person wrote"


def roles(talk: list[Json], first: int, last: int, ref: str = "", words: str = "", system: bool = False) -> str:
    """The first letters of the roles around and in place of a run, its pieces between bars."""
    request = openai_chat.split(body_of(talk))
    assert request is not None
    conversation = converse([openai_chat.read(request.raw(i), letters) for i in range(len(request.spans))])
    anchors = [conversation.blocks[at].anchor for at in (first, last)]
    fold = Fold(*anchors, f"ours{words}", "test", None, system, len(words), ref)
    pieces = pieces_of(conversation, fold)
    assert [piece.text for piece in pieces if piece.role == "user" and not piece.text.startswith(MARK)] == (
        [words] if words else []
    )
    return "".join(piece.role[0] for piece in pieces)


# blocks of CHAT: one for each message; of AGENT: 0 go, 1 call, 2 x, 3 call, 4 y, 5 done, 6 on, 7 call, 8 z
@pytest.mark.parametrize(
    ("talk", "run", "given", "expected"),
    [
        (CHAT, (1, 1), {}, "a"),
        (CHAT, (1, 3), {"words": WORDS}, "aua"),
        (CHAT, (1, 3), {"words": WORDS, "system": True}, "saua"),
        (CHAT, (1, 3), {"words": WORDS, "ref": "123456+3"}, "auta"),
        (AGENT, (1, 4), {"ref": "123456+4"}, "t"),
        (AGENT, (1, 5), {"ref": "123456+5"}, "ta"),
        (AGENT, (1, 5), {}, "a"),
        (AGENT, (1, 2), {}, "au"),
        (AGENT, (1, 6), {"words": WORDS}, "au"),
        (AGENT, (1, 6), {"words": WORDS, "ref": "123456+6"}, "aut"),
    ],
)
def test_k2_roles_alternate_in_the_place_of_a_run(
    talk: list[Json], run: tuple[int, int], given: Json, expected: str
) -> None:
    assert roles(talk, *run, **given) == expected


def test_k1_a_reply_that_went_is_closed_by_its_own_last_line() -> None:
    request = openai_chat.split(body_of(AGENT))
    assert request is not None
    conversation = converse([openai_chat.read(request.raw(i), letters) for i in range(len(request.spans))])
    fold = Fold(conversation.blocks[1].anchor, conversation.blocks[5].anchor, "ours", "test", ref="123456+5")
    assert pieces_of(conversation, fold)[-1] == ("assistant", "All done.")
    assert re.fullmatch("[0-9a-z]{9}", call_id(fold))


@pytest.mark.parametrize("is_signed", [False, True])
def test_k1_where_calls_are_signed_a_record_is_the_models_and_has_no_line_of_a_tool(is_signed: bool) -> None:
    """Gemini refuses a call without a signature."""
    session = [asks("go")]
    for at in range(34):
        rows = "\n".join(f"row {n} of rare_name_{at}_{n}: Error: the user wants it" for n in range(30))
        session += runs(f"make step_{at}", rows)
        session[-2]["content"] = f"I make step_{at} and see what comes of it. It is the step after step_{at - 1}."
    body = body_of(signed(session) if is_signed else session)
    policies = PRESETS["coding-agent"].policies
    done = compact(body, policies=policies[-2:], prices=CHEAP, budget=ROOMY, recall=True)
    sent = [m for m in json.loads(done.body)["messages"] if "below is a record" in str(m.get("content"))]
    assert sent
    assert {message["role"] for message in sent} == {"assistant" if is_signed else "tool"}
    assert any("rare_name" in message["content"] for message in sent) != is_signed
    assert all("make step_" in message["content"] for message in sent)


def test_v6_a_record_at_the_beginning_of_a_tool_loop_begins_with_a_thought_where_there_is_a_budget() -> None:
    talk = [user("go"), says(thinks("hm"), uses("c0")), user(result("x", "c0"))]
    talk += [says(uses("c1")), user(result("y", "c1"))]
    for fields, kinds in (
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ["thinking", "tool_use"]),
        ({}, ["tool_use"]),
    ):
        body = messages_body(talk, **fields)
        conversation = talk_of(body)
        fold = Fold(conversation.blocks[1].anchor, conversation.blocks[3].anchor, "ours", "test", ref="123456+3")
        request = split_messages(body)
        new = json.loads(anthropic_messages.joined(request, anthropic_messages.splice(request, conversation, [fold])))
        assert [block["type"] for block in new["messages"][1]["content"]] == kinds
        assert new["messages"][2]["content"][0]["type"] == "tool_result"
        assert new["messages"][3:] == talk[3:]
        assert find_violation(new, dialect="anthropic_messages") is None

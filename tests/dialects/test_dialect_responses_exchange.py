"""The recall tool in OpenAI Responses: where it may be, and its exchanges put back where the model saw them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from policies.dialects import DIALECTS
from policies.dialects.common import ChoiceResult, Request
from policies.model.conversation import Conversation, converse
from policies.model.edits import Insert, RecallRound
from policies.model.rawjson import UnreadableError
from policies.restore import DialectRequest, ReplyInProgress, reply_digest, restore
from tests import examples
from tests.kit.responses import NAME, TOOL, Json, call, events, is_valid, message, parsed, play, reasoning, result
from tests.kit.talk import letters, user

responses = DIALECTS["openai_responses"]

LONG = "\n".join(f"{i} lines of output" for i in range(50))
START = [user("go"), reasoning("r"), call("bash", '{"command":"cat a"}', "a"), result(LONG, "a")]
STATELESS = {"model": "m", "store": False}


def body(items: Any, **more: Any) -> bytes:
    return json.dumps({**STATELESS, **more, "input": items}).encode()


def split(raw: bytes) -> Request:
    found = responses.split(raw)
    assert found is not None
    return found


def talk(raw: bytes) -> Conversation:
    request = split(raw)
    return converse([responses.read(request.raw(i), letters) for i in range(len(request.spans))])


def reading(raw: bytes) -> DialectRequest:
    return DialectRequest(DIALECTS["openai_responses"], split(raw), talk(raw), letters)


REF = talk(body(START)).ref(3)


def asks(call_id: str = "r0", **more: Any) -> Json:
    return call(NAME, json.dumps({"ref": REF}), call_id, **more)


def told(call_id: str = "r0", last: bool = False) -> Json:
    said = "\n[narrows: this was the last recall in this reply]" if last else ""
    return result(LONG + said, call_id)


def replied(*rounds: Sequence[Json], allowed: int = 4) -> tuple[list[Json], ChoiceResult]:
    """What the client has of a reply of these rounds, and what is behind it."""
    reader, got = play(*(events(output, f"n{i}") for i, output in enumerate(rounds)), allowed=allowed)
    return parsed(got)[-1]["response"]["output"], reader.result(0)


def put_back(
    returned: Sequence[Json], said: ChoiceResult, then: Sequence[Json] = (user("on"),), valid: bool = True
) -> list[Json]:
    """What stands for the reply once the client has returned it, in a request of items that the SDK's types know."""
    raw = body([*START, *returned, *then])
    after = talk(body(START)).end_anchor(1)
    insert = Insert(after, reply_digest(said.text, said.call_ids), said.rounds, "openai_responses")
    whole = restore(reading(raw), {after: (insert,)}, {})
    assert not whole.lost
    found: list[Json] = json.loads(whole.body)["input"]
    assert (found[: len(START)], found[-len(then) :]) == (START, list(then))
    for item in found if valid else ():
        is_valid(item)
    return found[len(START) : -len(then)]


def test_v6_sealed_reasoning_and_text_go_back_to_the_round_they_came_from() -> None:
    first = [reasoning("one", "a"), message("Let me look. ", "a"), asks("r0")]
    second = [reasoning("two", "b"), asks("r1"), reasoning("three", "c"), asks("r2")]
    last = [reasoning("four", "d"), message("It is done.", "d")]
    got, said = replied(first, second, last)
    assert got == [*first[:2], second[0], second[2], *last]
    wanted = [*first, told("r0"), *second, told("r1"), told("r2"), *last]
    assert put_back(got, said) == wanted
    # what the client strips or merges is restored all the same, but for what it has of the last round
    plain = {"role": "assistant", "content": "Let me look. It is done."}
    assert put_back([plain], said) == [*wanted[:-2], {**plain, "content": "It is done."}]
    strip = [{key: value for key, value in item.items() if key not in ("id", "status")} for item in got]
    assert put_back(strip, said, valid=False)[-2:] == strip[-2:]


def resealed(items: Sequence[Json]) -> list[Json]:
    """The items as a client has them that another event told it of: reasoning is sealed anew in each."""
    return [{**item, "encrypted_content": "anew"} if item["type"] == "reasoning" else item for item in items]


@pytest.mark.parametrize("mixed", [False, True])
def test_v6_an_item_that_the_client_has_in_another_spelling_is_sent_once_and_as_the_model_saw_it(mixed: bool) -> None:
    search = {**SEARCH, "id": "w2", "action": {**SEARCH["action"], "query": "again"}}
    first = [reasoning("one", "a"), SEARCH, message("I look. ", "a"), asks("r0")]
    second = [search, reasoning("two", "b"), asks("r1"), *([call("bash", "{}", "t0")] if mixed else [])]
    last = [] if mixed else [message("Done.", "c")]
    got, said = replied(first, second, *([last] if last else []))
    then = [result("x", "t0")] if mixed else [user("on")]
    wanted = [*first, told("r0"), *second, told("r1"), *last]
    bare = [{k: v for k, v in item.items() if k not in ("action", "annotations")} for item in resealed(got)]
    by_id = {item["id"]: item for item in bare}
    newest = second if mixed else last  # the model has not seen that in a request yet
    expected = [by_id.get(item.get("id"), item) if item in newest else item for item in wanted]
    assert put_back(bare, said, then, valid=False) == expected
    # what is left out is put back, what is moved is there once
    moved = [resealed(got)[at] for at in (2, 4, 3, 5)]
    ids = [item.get("id") or item["call_id"] for item in put_back(moved, said, then)]
    assert sorted(ids) == sorted(item.get("id") or item["call_id"] for item in wanted)


def test_v6_of_equal_items_the_one_that_is_left_out_is_put_back() -> None:
    first, second = [SEARCH, asks("r0")], [{**SEARCH, "id": "w2"}, asks("r1")]
    got, said = replied(first, second, [message("Done.")])
    assert put_back(got[1:], said) == [*first, told("r0"), *second, told("r1"), got[-1]]
    assert put_back([{k: v for k, v in got[0].items() if k != "id"}, *got[1:]], said, valid=False)[4:5] == second[1:]


def test_v6_a_message_put_together_from_two_bears_the_id_alone() -> None:
    first = [message("I look. ", "a"), asks("r0")]
    _, said = replied(first, [message("Done.", "b")])
    found = put_back([message("I look. Done.", "a")], said, valid=False)
    assert found == [{k: v for k, v in first[0].items() if k != "id"}, asks("r0"), told("r0"), message("Done.", "a")]


def test_s1_what_is_sent_in_flight_is_what_is_sent_later() -> None:
    got, said = replied([reasoning("one"), message("I look."), asks()], [message("Done.", "two")])
    raw = body(START)
    flown = restore(reading(raw), {}, {}, ReplyInProgress("I look.", said.rounds))
    assert [answer.succeeded for answer in flown.answers] == [True]
    items = json.loads(flown.body)["input"]
    assert [*items[len(START) :], got[-1]] == put_back(got, said)
    assert flown.body.startswith(raw[:-2])


def test_v5_a_text_as_input_becomes_a_list_for_a_round() -> None:
    _, said = replied([asks()])
    flown = restore(reading(body("go é")), {}, {}, ReplyInProgress("", said.rounds))
    first = {"type": "message", "role": "user", "content": "go é"}
    refusal = "do not retry, another command or range may show it"
    nothing = f"[narrows: nothing in this conversation has the ref {REF}; {refusal}]"
    assert json.loads(flown.body) == {**STATELESS, "input": [first, asks(), result(nothing, "r0")]}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_r4_a_mixed_reply_has_our_call_in_its_place_and_its_answer_behind(place: int) -> None:
    theirs = [call("bash", "{}", "t0"), {"type": "custom_tool_call", "call_id": "t1", "name": "p", "input": "x"}]
    made = [*theirs]
    made.insert(place, asks())
    results = [result("a", "t0"), {"type": "custom_tool_call_output", "call_id": "t1", "output": "b"}]
    output = [reasoning("one"), message("both"), *made]
    got, said = replied(output)
    assert put_back(got, said, results) == [*output, told()]
    # a client that strips reasoning gets it back
    assert put_back(got[1:], said, results) == [*output, told()]


def test_r4_rounds_of_recalls_alone_and_then_a_mixed_one() -> None:
    first = [reasoning("one"), message("I look. "), asks("r0")]
    second = [reasoning("two", "b"), asks("r1"), reasoning("three", "c"), call("bash", "{}", "t0")]
    got, said = replied(first, second)
    assert put_back(got, said, [result("a", "t0")]) == [*first, told("r0"), *second, told("r1")]


def test_r4_what_runs_at_the_provider_stays_in_its_round() -> None:
    made = {"type": "shell_call", "id": "s", "call_id": "t", "action": {"commands": ["ls"]}, "status": "completed"}
    ran = {"type": "shell_call_output", "id": "so", "call_id": "t", "output": []}
    first = [SEARCH, made, ran, asks()]
    got, said = replied(first, [message("done")])
    assert said.call_ids == ("t",)
    assert put_back(got, said) == [*first, told(), message("done")]


def test_r4_text_in_several_parts_is_cut_by_characters() -> None:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in ("one ", "two ", "three")]
    refusal = {"type": "refusal", "refusal": "no"}
    first = {**message(""), "content": [parts[0], refusal]}
    got, said = replied([first, asks()], [{**message("", "two"), "content": parts[1:]}])
    assert put_back(got, said) == [first, asks(), told(), got[-1]]
    merged = {**message("", "two"), "content": [{**parts[0], "text": "one two "}, parts[2]]}
    assert put_back([merged], said)[-1]["content"] == [{**parts[0], "text": "two "}, parts[2]]
    whole = {**message("", "two"), "content": [parts[0], refusal, *parts[1:]]}
    assert put_back([whole], said)[-1]["content"] == [refusal, *parts[1:]]


def test_r6_the_last_answer_says_so_and_a_program_is_answered_as_one() -> None:
    caller = {"type": "program", "caller_id": "p"}
    got, said = replied([asks(caller=caller)], [message("done")], allowed=1)
    assert put_back(got, said)[1] == {**told(last=True), "caller": caller}


def test_r4_an_exchange_that_says_only_its_calls_is_put_back_too() -> None:
    calls = (json.dumps(asks()),)
    assert put_back([message("I look. Done.")], ChoiceResult("I look. Done.", (), (RecallRound(8, calls),)))[:2] == [
        {"type": "message", "role": "assistant", "content": "I look. "},
        asks(),
    ]
    theirs = [call("bash", "{}", "t0"), call("bash", "{}", "t1")]
    said = ChoiceResult("", ("t0", "t1"), (RecallRound(0, calls, (1,)),))
    results = [result("a", "t0"), result("b", "t1")]
    assert put_back(theirs, said, results) == [theirs[0], asks(), theirs[1], told()]


def test_r4_what_does_not_fit_is_not_put_back() -> None:
    exchange = RecallRound(0, (json.dumps(asks()),), (2,), json.dumps([True, True, None]))
    with pytest.raises(UnreadableError):
        responses.recall.put_back([exchange], [["x"]], "", [json.dumps(call("bash", "{}", "t0")).encode()])
    assert responses.recall.put_back([exchange], [["x"]], "", None) == [json.dumps(result("x", "r0")).encode()][:0]


SEARCH = {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}
ITEMS = st.lists(
    st.one_of(
        st.text("ab 漢", min_size=1, max_size=6).map(message),
        st.text("xyz", min_size=1, max_size=4).map(reasoning),
        st.just("ours"),
        st.just(SEARCH),
    ),
    max_size=5,
)


@settings(deadline=None, max_examples=examples(40), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(ITEMS, min_size=1, max_size=3), ITEMS, st.booleans())
def test_law_1_whatever_the_rounds_say_they_are_put_back_as_they_were(
    rounds: list[list[Any]], last: list[Any], mixed: bool
) -> None:
    """Every round that ends in recalls comes back item for item, in its order, and so does the rest."""
    number = 0
    made: list[list[Json]] = []
    for at, output in enumerate([*rounds, last]):
        items: list[Json] = []
        for item in output if at == len(rounds) or "ours" in output else [*output, "ours"]:
            if item != "ours":
                items.append(item)
            elif at < len(rounds) or mixed:
                items.append(asks(f"r{number}"))
                number += 1
        made.append(items)
    if mixed:
        made[-1].append(call("bash", "{}", "t0"))
    got, said = replied(*made)
    assert got == [item for output in made for item in output if item.get("name") != NAME]
    wanted = [[*output, *(told(i["call_id"]) for i in output if i.get("name") == NAME)] for output in made]
    then = [result("a", "t0")] if mixed else [user("on")]
    if said.rounds and got:
        assert put_back(got, said, then, valid=False) == [item for output in wanted for item in output]


TOOLS = [TOOL, {"type": "web_search"}, {"type": "namespace", "name": "n", "description": "", "tools": [TOOL]}]


def with_tool(always: bool = True, items: Any = "go", **more: Any) -> Any:
    """The tools that are sent; None where ours is not added."""
    request = split(body(items, **more))
    added = responses.recall.tool(request, always)
    if added is None:
        return None
    sent = json.loads(responses.joined(request, {}, added))
    assert {**sent, "tools": 0} == {**json.loads(request.body), "tools": 0}
    return sent["tools"]


def test_r8_the_tool_is_a_flat_function_that_is_not_strict() -> None:
    (*theirs, ours) = with_tool(tools=TOOLS)
    assert theirs == TOOLS
    assert (ours["type"], ours["name"], ours["strict"], "ref" in ours["parameters"]["properties"]) == (
        "function",
        NAME,
        False,
        True,
    )
    assert with_tool(False, tools=TOOLS) == [*TOOLS, ours]
    assert (with_tool(), with_tool(tools=[])) == ([ours], [ours])


@pytest.mark.parametrize(
    "more",
    [
        {"store": True},
        {"store": None},
        {"background": True},
        {"tools": [TOOL] * 128},
        {"tools": [{"type": "custom", "name": NAME}]},
        {"tools": None},
        {"tools": [7]},
    ],
)
def test_r7_where_responses_are_stored_or_ours_cannot_stand_there_is_no_tool(more: Json) -> None:
    assert with_tool(**{"tools": [TOOL]} | more) is None
    assert responses.recall.tool(split(b'{"model":"m","input":"x","tools":[{"name":"a"}]}'), True) is None


def test_r7_without_tools_of_the_client_ours_is_there_only_always() -> None:
    assert (with_tool(False), with_tool(False, tools=[])) == (None, None)


@pytest.mark.parametrize(
    ("limit", "spent", "left"), [(1000, 300, 700), (1000, 995, 16), (10, 5, 10), (None, 5, None), ("x", 5, "x")]
)
def test_r6_the_next_round_has_what_is_left_for_the_answer(limit: Any, spent: int, left: Any) -> None:
    raw = body("go", max_output_tokens=limit, x=1e3)
    assert responses.recall.next_round(raw, spent) == body("go", max_output_tokens=left, x=1e3)
    assert responses.recall.next_round(b'{"input":"x"}', 5) == b'{"input":"x"}'

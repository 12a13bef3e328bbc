"""Where the recall tool is in the request, and what is said where it is not."""

import json

import pytest
from hypothesis import given, settings

from policies.compact import compact
from policies.dialects import DIALECTS
from policies.dialects.common import Request
from policies.dialects.openai_chat.request import TOOL
from policies.model.tokens import Counter
from policies.text.stubs import refs_named
from policies.tools import RECALL
from tests import examples
from tests.kit.histories import BASH, CHEAP, EAGER, ROOMY, TIGHT, Json, body_of, eagerly, requests, sessions
from tests.kit.talk import runs, says, user

openai_chat = DIALECTS["openai_chat"]

quick = settings(deadline=None, max_examples=examples(60))
LONG = "\n".join(f"{i} lines of output" for i in range(300))
TALK = [
    user("go"),
    *runs("make", LONG),
    *runs("cat a", LONG[::-1]),
    *runs("ls", "a"),
    *runs("pwd", "/"),
    *runs("date", "x"),
]
OTHERS = [{"type": "function", "function": {"name": f"tool_{i}"}} for i in range(128)]
OURS = {"type": "function", "function": {"name": RECALL}}


def with_tools(written: str) -> bytes:
    return body_of(TALK, tools=[]).replace(b'"tools": []', b'"tools": ' + written.encode())


@pytest.mark.parametrize(
    "body",
    [
        body_of(TALK, tools=OTHERS),
        body_of(TALK, tools=[BASH, OURS]),
        body_of(TALK, tools=None),
        body_of(TALK, tools=[]),
        with_tools("null"),
        with_tools("7"),
        with_tools("[1, 2]"),
        with_tools('{"a": 1}'),
        with_tools('["\\ud83d", {]'.replace("{]", "1]")),
    ],
    ids=["128", "of-that-name", "none", "empty", "null", "a-number", "of-numbers", "an-object", "unreadable"],
)
def test_r7_where_the_tool_cannot_be_it_is_not_and_nothing_names_it(body: bytes) -> None:
    done = compact(body, policies=EAGER, prices=CHEAP, budget=ROOMY, recall=True)
    assert not done.settings.recall
    assert done.tool is None
    assert done.body.count(RECALL.encode()) == body.count(RECALL.encode())
    assert not any(refs_named(edit.text) for edit in done.plan.edits)


def test_r7_127_tools_leave_room_for_ours() -> None:
    done = eagerly(TALK, tools=OTHERS[:127])
    assert json.loads(done.body)["tools"] == [*OTHERS[:127], json.loads(TOOL)]


def test_r7_a_request_without_tools_goes_out_whole_where_it_fits() -> None:
    assert eagerly(TALK).plan.edits
    for body in (body_of(TALK, tools=None), body_of(TALK, tools=[]), with_tools("null")):
        for recall in (True, False):
            assert compact(body, policies=EAGER, prices=CHEAP, budget=ROOMY, recall=recall).body == body
    assert eagerly(TALK, TIGHT, tools=None).plan.edits
    # a plain chat has no tool calls whose results somebody could want back, and is made shorter
    assert not eagerly([user("go"), says("hello")], tools=None).settings.only_to_fit


@pytest.mark.parametrize(
    "choice", ["none", "auto", "required", {"type": "function", "function": {"name": "bash"}}], ids=str
)
def test_r7_whatever_tool_choice_says_the_tool_stays_in_place(choice: object) -> None:
    plain, chosen = eagerly(TALK), eagerly(TALK, tool_choice=choice, parallel_tool_calls=False)
    assert json.loads(chosen.body)["tools"] == json.loads(plain.body)["tools"]
    assert json.loads(chosen.body)["messages"] == json.loads(plain.body)["messages"]
    assert json.loads(chosen.body)["tool_choice"] == choice


@quick
@given(sessions(most=5))
def test_r8_the_tools_are_the_same_bytes_in_every_request(session: list[Json]) -> None:
    seen = set()
    for request in requests(session):
        split = openai_chat.split(eagerly(request).body)
        assert split is not None
        seen.add(split.tool_list)
    (tools,) = seen
    assert tools.endswith(b"," + TOOL + b"]")


def test_r8_the_definition_is_small() -> None:
    assert Counter()(TOOL.decode()) <= 60
    assert json.loads(TOOL)["function"]["name"] == RECALL


def asked_always(body: bytes) -> bytes:
    request = openai_chat.split(body)
    assert isinstance(request, Request)
    return openai_chat.joined(request, {}, openai_chat.recall.tool(request, True))


def test_r7_always_means_also_where_the_client_brings_no_tools() -> None:
    brought: tuple[list[Json] | None, ...] = (None, [])
    for given_tools in brought:
        body = json.loads(asked_always(body_of(TALK, tools=given_tools, seed=1)))
        assert body == {"model": "m", "messages": TALK, "tools": [json.loads(TOOL)], "seed": 1}
    # the older way to call functions knows no tools beside it
    functions = body_of(TALK, tools=None, functions=[{"name": "f"}])
    assert asked_always(functions) == functions
    assert asked_always(with_tools("null")) == with_tools("null")

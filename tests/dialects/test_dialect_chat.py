"""OpenAI chat completions, read and written: round trips of everything a client may send."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings

from policies.dialects import DIALECTS
from policies.dialects.common import Request
from policies.model.conversation import converse
from policies.model.edits import Edit, Fold, Replace
from policies.money.prices import Usage
from policies.tools import RECALL
from tests import examples
from tests.kit.histories import Json, body_of, sessions
from tests.kit.talk import calls, gives, letters, runs, says, system, user

chat = DIALECTS["openai_chat"]

TALK = [system("s"), user("go"), *runs("ls", "a.py"), *runs("cat a.py", "x = 1"), says("done")]
MARK = {"type": "ephemeral"}


def split(body: bytes) -> Request:
    found = chat.split(body)
    assert found is not None
    return found


def spliced(body: bytes, *edits: tuple[int, str]) -> bytes:
    """The body with other texts for blocks, by number."""
    request = split(body)
    talk = converse([chat.read(request.raw(i), letters) for i in range(len(request.spans))])
    changes: list[Edit] = [Replace(talk.blocks[at].anchor, text, "test") for at, text in edits]
    return chat.joined(request, chat.splice(request, talk, changes))


def kinds(message: Json) -> list[tuple[str, str]]:
    return [(part.kind, part.text) for part in chat.read(json.dumps(message).encode(), letters).parts]


@settings(deadline=None, max_examples=examples(50))
@given(sessions(most=5))
def test_law_1_split_finds_every_message_and_joining_nothing_changes_nothing(session: list[Json]) -> None:
    body = body_of(session, tools=[{"type": "function", "function": {"name": "bash"}}], temperature=0.7)
    request = split(body)
    assert [json.loads(request.raw(i)) for i in range(len(request.spans))] == session
    assert chat.joined(request, {}) == body


def test_the_fields_that_matter() -> None:
    request = split(
        body_of(TALK, max_tokens=7, metadata={"conversation_id": "c"}, prompt_cache_key="k", tools=[{"a": 1}])
    )
    assert (request.model, request.reserve, request.conversation) == ("m", 7, "c")
    assert json.loads(request.tool_list) == [{"a": 1}]
    plain = split(body_of(TALK, tools=None, max_completion_tokens=9, max_tokens=7, prompt_cache_key="k"))
    assert (plain.reserve, plain.conversation, plain.tool_list) == (9, "k", b"")
    odd = split(body_of(TALK, max_tokens="x", metadata=[1], prompt_cache_key=7))
    assert (odd.reserve, odd.conversation) == (None, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"model":"m"}',
        b'{"model":"m","messages":{}}',
        b'{"model":"m","messages":[]}',
        b'{"model":"m","messages":["x"]}',
        b'{"model":7,"messages":[{}]}',
        b'{"messages":[{}]}',
        b'{"model":"m","messages":[{}],"model":"n"}',
        b'{"model":"m","messages":[{}]} x',
    ],
)
def test_v3_what_is_not_understood_is_none(body: bytes) -> None:
    assert chat.split(body) is None


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ({"role": "assistant", "content": None}, [("opaque", "")]),
        ({"role": "assistant", "content": ""}, [("assistant", "")]),
        ({"role": "user", "content": []}, [("opaque", "")]),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, "odd"]}, [("user", "a"), ("opaque", '"odd"')]),
        ({"role": "user", "content": [{"type": "text", "text": 7}]}, [("opaque", '{"type":"text","text":7}')]),
        ({"role": "assistant", "content": "a", "refusal": "no"}, [("assistant", "a")]),
        ({"role": "assistant", "content": "a", "reasoning": "r"}, [("opaque", "r"), ("assistant", "a")]),
        ({"role": "assistant", "tool_calls": [{"id": "a"}, 7]}, [("opaque", '{"id":"a"}'), ("opaque", "7")]),
        ({"role": "user", "tool_calls": [], "content": "a"}, [("user", "a")]),
        ({"role": "oracle", "content": "a"}, [("opaque", "a")]),
        ({"role": 7, "content": "a"}, [("opaque", "a")]),
        ({}, [("opaque", "")]),
    ],
)
def test_v5_odd_contents_are_read_as_they_are(message: Json, parts: list[tuple[str, str]]) -> None:
    assert kinds(message) == parts
    body = body_of([user("go"), message, user("on")])
    assert spliced(body) == body


@pytest.mark.parametrize("raw", [b"{", b"\xff", b'{"role":"user","content":' + b"[" * 5000])
def test_a_message_that_cannot_be_read_is_opaque(raw: bytes) -> None:
    assert {part.kind for part in chat.read(raw, letters).parts} == {"opaque"}


def test_c2_an_image_is_not_counted_as_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    (part,) = chat.read(json.dumps({"role": "user", "content": [image]}).encode(), letters).parts
    assert (part.kind, part.tokens) == ("opaque", 765)


def test_v4_a_replaced_text_is_the_only_thing_that_changes() -> None:
    body = body_of(TALK, seed=7)
    assert spliced(body, (3, "short")) == body.replace(b'"a.py"', b'"short"', 1)
    new = json.loads(spliced(body, (2, '{"command": "x"}'), (5, 'quote " and \\ and \n and 漢')))
    assert new["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"command": "x"}'
    assert new["messages"][5]["content"] == 'quote " and \\ and \n and 漢'


def test_v5_one_part_of_several_is_replaced() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two", "extra": 1e3}]
    body = body_of([user("go"), calls("ls"), gives("x") | {"content": parts}])
    assert spliced(body, (3, "2")) == body.replace(b'"two"', b'"2"')


@pytest.mark.parametrize(("first", "last", "behind"), [(2, 3, [4, 5, 6]), (2, 5, [6]), (2, 6, [])])
def test_k1_a_fold_with_a_reference_is_an_answer_of_the_recall_tool(first: int, last: int, behind: list[int]) -> None:
    call, answer, *rest = folded(first, last, "123456+2")[2:]
    (made,) = call["tool_calls"]
    assert (call["role"], call["content"], answer["role"], answer["content"]) == ("assistant", None, "tool", "left out")
    assert made["function"] == {"name": RECALL, "arguments": '{"ref":"123456+2"}'}
    assert re.fullmatch("[a-z0-9]{9}", made["id"])  # the form that Mistral wants
    assert made["id"] == answer["tool_call_id"]
    assert rest == [TALK[i] for i in behind]


@pytest.mark.parametrize(("first", "last", "behind"), [(2, 3, [4, 5, 6]), (2, 5, [6]), (2, 6, [])])
def test_k2_without_one_it_is_the_models_and_roles_alternate(first: int, last: int, behind: list[int]) -> None:
    stub, *rest = folded(first, last, "")[2:]
    assert stub == {"role": "assistant", "content": "left out"}
    fill = [user("[narrows: the messages after these follow]")] if behind else []
    assert rest == fill + [TALK[i] for i in behind]


def folded(first: int, last: int, ref: str) -> list[Any]:
    request = split(body_of(TALK))
    talk = converse([chat.read(request.raw(i), letters) for i in range(len(request.spans))])
    fold = Fold(talk.blocks[first].anchor, talk.blocks[last].anchor, "left out", "test", ref=ref)
    messages: list[Any] = json.loads(chat.joined(request, chat.splice(request, talk, [fold])))["messages"]
    assert messages[:2] == TALK[:2]
    return messages


@pytest.mark.parametrize("style", ["cache_control", "prompt_cache_breakpoint"])
def test_v7_a_mark_is_added_at_the_end_of_the_content(style: Any) -> None:
    marked = chat.marks.add(b'{"role": "user", "content": "a \\u00e9"}', style)
    assert marked is not None
    (part,) = json.loads(marked)["content"]
    assert (part["type"], part["text"], style in part) == ("text", "a é", True)
    assert chat.marks.add(marked, style) is None
    two = chat.marks.add(b'{"content":[{"type":"text","text":"a"},{"type":"text","text":"b" }]}', style)
    assert two is not None
    assert [style in part for part in json.loads(two)["content"]] == [False, True]


@pytest.mark.parametrize(
    "raw",
    [b'{"content":""}', b'{"content":null}', b'{"content":[]}', b'{"content":[{"type":"image_url"}]}', b"{}", b""],
)
def test_v7_what_cannot_carry_a_mark_gets_none(raw: bytes) -> None:
    assert chat.marks.add(raw, "cache_control") is None
    assert chat.marks.add(b'{"content":"a"}', "") is None


def test_v7_marks_are_counted_and_moving_them_is_no_change() -> None:
    bare = b'{"role":"user","content":"go"}'
    marked = b'{"role":"user","content":[{"type":"text","text":"go","cache_control":{"type":"ephemeral"}}]}'
    spoken = json.dumps(user('"cache_control" is a field')).encode()
    assert [chat.read(raw, letters).marks for raw in (bare, marked, spoken)] == [0, 1, 0]
    assert chat.read(bare, letters).digest == chat.read(marked, letters).digest


def test_v7_free_slots_and_the_style_of_the_client() -> None:
    part = {"type": "text", "text": "go", "cache_control": MARK}
    request = split(body_of([{"role": "user", "content": [part, part]}], tools=[{"cache_control": MARK}]))
    messages = [chat.read(request.raw(0), letters)]
    assert (chat.marks.style(request, messages), chat.marks.slots(request, messages)) == ("cache_control", 1)
    bare = split(body_of([user("go")]))
    assert chat.marks.style(bare, [chat.read(bare.raw(0), letters)]) == ""


def test_c2_the_head_is_tools_and_leading_system_text() -> None:
    request = split(body_of(TALK, tools=[]))
    messages = [chat.read(request.raw(i), letters) for i in range(len(request.spans))]
    assert chat.head_tokens(request, messages, letters) == letters("[]") + letters("s") + 4


LONG = {"cached_tokens": 0, "cache_write_tokens": 4, "cache_creation_token_details": {"ephemeral_1h_input_tokens": 3}}
KEPT = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": LONG}
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}}


@pytest.mark.parametrize(
    ("event", "usage"),
    [
        (json.dumps({"usage": USAGE}, indent=2).encode(), Usage(9, 5, 0, 2)),
        (b"data: " + json.dumps({"usage": USAGE}).encode() + b"\n\n", Usage(9, 5, 0, 2)),
        (b'event: x\r\ndata: {"usage":\r\ndata: {"prompt_tokens": 3}}\r\n\r\n', Usage(3, 0, 0, 0)),
        (b'{"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cache_write_tokens":4}}}', Usage(1, 0, 4, 0)),
        (json.dumps({"usage": KEPT}).encode(), Usage(9, 0, 4, 2, 3)),
        (b'{"usage":null}', None),
        (b'data: {"usage": nonsense}\n\n', None),
        (b'{"usage":{"prompt_tokens":"many"}}', None),
        (b"data: [DONE]\n\n", None),
        (b"", None),
    ],
)
def test_the_usage_of_a_reply_is_read_as_it_passes(event: bytes, usage: Usage | None) -> None:
    reader = chat.reply()
    reader.feed(event)
    assert reader.usage == usage


def test_a_later_event_without_usage_does_not_forget_it() -> None:
    reader = chat.reply()
    reader.feed(b'{"usage":{"prompt_tokens":1}}')
    reader.feed(b'data: {"usage":null}\n\n')
    assert reader.usage == Usage(1, 0, 0, 0)


@settings(deadline=None, max_examples=examples(30))
@given(sessions(most=5))
def test_what_an_earlier_request_showed_is_not_looked_for_again(session: list[Json]) -> None:
    earlier = split(body_of(session[:-2]))
    whole, resumed = split(body_of(session)), chat.split(body_of(session), earlier)
    assert resumed is not None
    assert resumed.spans == whole.spans
    assert resumed.shared == len(session) - 2

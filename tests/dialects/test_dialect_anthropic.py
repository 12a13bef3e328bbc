"""Anthropic Messages, read and written: round trips of everything a client may send."""

import json
from typing import Any

import pytest
from hypothesis import Phase, given, settings

from policies.dialects import DIALECTS
from policies.model.conversation import Block, converse
from policies.model.edits import Edit, Replace
from tests import examples
from tests.kit.forms import plain, to_anthropic
from tests.kit.histories import Json, sessions
from tests.kit.messages import BASH, MARK, body_of, result, says, split, talk_of, text, thinks, user, uses
from tests.kit.talk import letters

dialect = DIALECTS["anthropic_messages"]
openai_chat = DIALECTS["openai_chat"]

TALK = [
    user("go"),
    says(thinks("hm"), text("I look."), uses(command="ls")),
    user(result("a.py"), text("and b?")),
    says(uses("c1", command="cat b"), uses("c2", command="cat c")),
    user(result("x = 1", "c1"), result([text("y"), text("z")], "c2")),
    says("done"),
    user("thanks"),
]


def spliced(body: bytes, *edits: tuple[int, str]) -> bytes:
    """The body with other texts for blocks, by number."""
    request, talk = split(body), talk_of(body)
    changes: list[Edit] = [Replace(talk.blocks[at].anchor, text, "test") for at, text in edits]
    return dialect.joined(request, dialect.splice(request, talk, changes))


def parts(message: Json) -> list[tuple[str, str, str]]:
    found = dialect.read(json.dumps(message).encode(), letters).parts
    return [(part.kind, part.text, part.call_id) for part in found]


@settings(deadline=None, max_examples=examples(15), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(sessions(most=5))
def test_law_1_equal_histories_are_the_same_blocks_as_in_chat(session: list[Json]) -> None:
    """No policy can tell the APIs apart; joining nothing changes no byte; what is known is not looked for again."""
    said = [{**message, "content": message["content"] or "nothing"} for message in session]  # here none may be empty
    chat = plain({"model": "m", "messages": said})
    other = to_anthropic(chat)
    body = json.dumps(other, ensure_ascii=False, separators=(",", ":")).encode()
    request = split(body)
    assert [json.loads(request.raw(i)) for i in range(len(request.spans))] == other["messages"]
    assert dialect.joined(request, {}) == body
    ours = [seen(block) for block in talk_of(body).blocks]
    theirs = converse([openai_chat.read(json.dumps(m, ensure_ascii=False).encode(), letters) for m in chat["messages"]])
    assert ours == [seen(block) for block in theirs.blocks[theirs.head :]]
    earlier = split(json.dumps({**other, "messages": other["messages"][:-1]}, ensure_ascii=False).encode())
    resumed = dialect.split(json.dumps(other, ensure_ascii=False).encode(), earlier)
    assert resumed is not None
    assert (resumed.shared, len(resumed.spans)) == (len(request.spans) - 1, len(request.spans))


def seen(block: Block) -> tuple[object, ...]:
    return block.kind, block.text, block.turn, block.tokens, block.anchor, block.tool, block.answers is None


def test_the_fields_that_matter() -> None:
    body = body_of(TALK, max_tokens=7, system=[text("s", cache_control=MARK)], tools=[BASH], stream=True)
    request = split(body)
    assert (request.model, request.reserve, request.streams, request.conversation) == ("m", 7, True, None)
    assert json.loads(request.tool_list) == [BASH]
    assert json.loads(request.instructions) == [text("s", cache_control=MARK)]
    bare = split(body_of(TALK, max_tokens=None, metadata={"user_id": "u"}))
    assert (bare.reserve, bare.tool_list, bare.instructions, bare.conversation) == (None, b"", b"", None)
    assert [dialect.head_tokens(split(body_of(TALK, **head)), (), letters) for head in HEADS] == [
        0,
        0,
        letters("text") + 4,
        letters("one") + letters("two") + 4,
        letters('[{"a": 1}]'),
    ]
    led = split(body_of([{"role": "system", "content": "text"}, *TALK]))
    messages = [dialect.read(led.raw(i), letters) for i in range(3)]
    assert dialect.head_tokens(led, messages, letters) == letters("text") + 4


HEADS: list[Json] = [{}, {"system": None}, {"system": "text"}, {"system": [text("one"), text("two"), {}]}]
HEADS += [{"tools": [{"a": 1}]}]
DEEP = b"[" * 3000 + b"]" * 3000


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
    ],
)
def test_v3_what_is_not_understood_is_none(body: bytes) -> None:
    assert dialect.split(body) is None


SIGNED = json.dumps(thinks("hm"), separators=(",", ":"), sort_keys=True)
SEVEN = '{"text":7,"type":"text"}'
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 100_000}}


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (says(), [("opaque", "", "")]),
        ({"role": "user", "content": ""}, [("user", "", "")]),
        ({"role": "user", "content": None}, [("opaque", "", "")]),
        ({"role": "system", "content": "s"}, [("system", "s", "")]),
        ({"role": "oracle", "content": "s"}, [("opaque", "s", "")]),
        ({}, [("opaque", "", "")]),
        ({"role": "user", "content": "a", "extra": [1]}, [("opaque", "[1]", ""), ("user", "a", "")]),
        (user(text("a"), 7, text(7)), [("user", "a", ""), ("opaque", "7", ""), ("opaque", SEVEN, "")]),
        (user(result("a")), [("result", "a", "c0")]),
        (user(result([])), [("result", "", "c0")]),
        (user({"type": "tool_result", "tool_use_id": "c0"}), [("result", "", "c0")]),
        (user(result([text("a"), {"type": "tool_reference", "tool_name": "x"}])), None),
        (says(result("a")), [("opaque", '{"content":"a","tool_use_id":"c0","type":"tool_result"}', "c0")]),
        (
            user(uses()),
            [("opaque", '{"id":"c0","input":"{\\"command\\":\\"ls\\"}","name":"bash","type":"tool_use"}', "")],
        ),
        (says({**uses(), "input": "text"}), None),
        (says(thinks("hm")), [("opaque", SIGNED, "")]),
    ],
)
def test_v5_odd_contents_are_read_as_they_are(message: Json, found: list[tuple[str, str, str]] | None) -> None:
    kinds = parts(message)
    assert kinds == found if found is not None else {kind for kind, *_ in kinds} <= {"result", "opaque"}
    body = body_of([user("go"), message, user("on")])
    assert spliced(body) == body


def test_v5_what_is_nested_in_a_result_belongs_to_its_call() -> None:
    blocks = talk_of(body_of([user("go"), says(uses()), user(result([IMAGE, text("seen")]), text("on"))])).blocks
    assert [(b.kind, b.turn, b.call_id, b.answers) for b in blocks[2:]] == [
        ("opaque", 0, "c0", None),
        ("result", 0, "c0", 1),
        ("user", 1, "", None),
    ]


def test_v8_system_text_in_the_middle_is_system_text_and_moves_no_anchor() -> None:
    body = body_of([*TALK[:5], {"role": "system", "content": [text("be brief")]}, *TALK[5:]])
    blocks = talk_of(body).blocks
    assert [(block.kind, block.text) for block in blocks if block.kind == "system"] == [("system", "be brief")]
    assert [b.anchor for b in blocks if b.kind != "system"] == [b.anchor for b in talk_of(body_of(TALK)).blocks]
    assert talk_of(body).head == 0


@pytest.mark.parametrize("raw", [b"{", b"\xff", b'{"role":"user","content":' + DEEP])
def test_a_message_that_cannot_be_read_is_opaque(raw: bytes) -> None:
    assert {part.kind for part in dialect.read(raw, letters).parts} == {"opaque"}


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        (IMAGE, 765),
        ({"type": "document", "source": {"type": "url", "url": "https://a"}}, 765),
        ({"type": "document", "source": {"type": "text", "data": "four" * 10}}, 10),
        ({"type": "thinking", "thinking": "four" * 10, "signature": "x" * 5000}, 10),
        ({"type": "thinking", "thinking": "", "signature": "x" * 1600}, 300),
        ({"type": "redacted_thinking", "data": "x" * 1600}, 300),
    ],
)
def test_c2_what_is_no_text_is_not_counted_as_text(block: Json, tokens: int) -> None:
    (part,) = dialect.read(json.dumps(says(block)).encode(), letters).parts
    assert (part.kind, part.tokens) == ("opaque", tokens)


def test_v4_the_input_of_a_tool_is_what_the_client_wrote() -> None:
    raw = b'{ "b" : 1.50, "a":"\\u00e9 \xc3\xa9","c":1e400 }'
    message = b'{"role":"assistant","content":[{"type":"text","text":"t"},{"type":"tool_use","id":"c0","input":%s}]}'
    part = dialect.read(message % raw, letters).parts[1]
    assert (part.kind, part.text) == ("call", raw.decode())
    half = b'{"a":"\\ud83d"}'
    assert dialect.read(message % half, letters).parts[1].text == half.decode()
    odd = b'[7,{"type":"tool_use","input":%s}]' % raw
    assert dialect.read(b'{"role":"assistant","content":' + odd + b"}", letters).parts[1].text == raw.decode()


def test_v4_a_replaced_text_is_the_only_thing_that_changes() -> None:
    body = body_of(TALK, context_management={"edits": [1.50]}, tool_choice={"type": "none"})
    at = {block.text: i for i, block in enumerate(talk_of(body).blocks)}
    assert spliced(body, (at["a.py"], "short")) == body.replace(b'"a.py"', b'"short"', 1)
    assert spliced(body, (at["z"], "2")) == body.replace(b'"z"', b'"2"', 1)
    command = '{"command": "quote \\" and \udc80"}'
    new = spliced(body, (at['{"command": "cat b"}'], command), (at["done"], "d"))
    written = body.replace(b'{"command": "cat b"}', b'{"command": "quote \\" and \\udc80"}').replace(b'"done"', b'"d"')
    assert new == written


def test_v3_a_message_with_a_repeated_key_stays_as_it_is() -> None:
    message = b'{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}'
    body = body_of([user("go")]).replace(b'{"role": "user", "content": "go"}', message)
    assert spliced(body, (0, "short")) == body


def test_s4_marks_spacing_and_the_order_of_fields_move_nothing() -> None:
    bare = says(thinks("hm"), text("go"), {**uses(), "input": {"a": 1, "b": 2}})
    marked = says(thinks("hm"), text("go", cache_control=MARK), {**uses(), "input": {"a": 1, "b": 2}})
    marked["content"] = [dict(reversed(block.items())) for block in marked["content"]]
    turned = says(thinks("hm"), text("go"), {**uses(), "input": {"b": 2, "a": 1}})
    alone, listed = user("go"), user(text("go", cache_control=MARK))
    nested = [user(result(content)) for content in ("a", [text("a")], [text("a", cache_control=MARK)])]
    read = [dialect.read(json.dumps(m, indent=i).encode(), letters) for i, m in enumerate([bare, marked, turned])]
    assert read[0].digest == read[1].digest != read[2].digest
    assert [part.digest() for part in read[0].parts[:2]] == [part.digest() for part in read[1].parts[:2]]
    digests = {dialect.read(json.dumps(m).encode(), letters).digest for m in (alone, listed)}
    assert len(digests) == 1
    assert len({dialect.read(json.dumps(m).encode(), letters).digest for m in nested}) == 1
    failed = user(result("a", is_error=True))
    assert dialect.read(json.dumps(failed).encode(), letters).digest != read[0].digest


def test_v7_marks_are_counted_wherever_they_stand() -> None:
    deep = result([text("a", cache_control=MARK), {"type": "document", "source": {"content": [{"cache_control": 1}]}}])
    messages = [user("go"), says(text('"cache_control"')), user(deep, text("b", cache_control=MARK))]
    for fields, free in MARKED:
        request = split(body_of(messages, **fields))
        read = [dialect.read(request.raw(i), letters) for i in range(3)]
        assert [message.marks for message in read] == [0, 0, 3]
        assert (dialect.marks.style(request, read), dialect.marks.slots(request, read)) == ("cache_control", free)
        assert dialect.marks.style(request, read[:1]) == ("cache_control" if free < 1 else "")


MARKED: list[tuple[Json, int]] = [
    ({}, 1),
    ({"cache_control": None, "system": "cache_control"}, 1),
    ({"cache_control": MARK}, 0),
    ({"system": [text("s", cache_control=MARK)]}, 0),
    ({"system": [text("s", cache_control=MARK)], "tools": [{**BASH, "cache_control": MARK}]}, -1),
]


@pytest.mark.parametrize(
    ("message", "at"),
    [
        (user("go é"), 0),
        (user(result("a"), text("b")), 1),
        (user(text("b"), result("")), 1),
        (says(thinks("hm"), text("b"), uses()), 1),
        (user(IMAGE), 0),
        (user(text("")), None),
        (user(""), None),
        (says(thinks("hm")), None),
        (says(uses()), None),
        (says(), None),
        (user(text("a", cache_control=MARK)), None),
        (user(result([text("a", cache_control=MARK)])), None),
        (user({"type": "odd"}), None),
        ({"role": "user"}, None),
        ({"role": "user", "content": None}, None),
        ({"role": "user", "content": ["a"]}, None),
    ],
)
def test_v7_a_mark_is_added_at_the_end_of_what_can_carry_it(message: Json, at: int | None) -> None:
    raw = json.dumps(message).encode()
    assert dialect.marks.add(raw, "") is None
    assert dialect.marks.add(raw, "prompt_cache_breakpoint") is None
    marked = dialect.marks.add(raw, "cache_control")
    assert (marked is None) == (at is None)
    for new, before in ((marked, b""), (dialect.marks.add(raw + b"," + raw, "cache_control"), raw + b",")):
        if new is not None and at is not None:
            assert new.startswith(before)
            found: Any = json.loads(new[len(before) :])["content"]
            assert [i for i, block in enumerate(found) if "cache_control" in block] == [at]
            read = dialect.read(new[len(before) :], letters)
            assert (read.digest, read.marks) == (dialect.read(raw, letters).digest, 1)

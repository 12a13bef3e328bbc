"""OpenAI Responses, read and written: round trips of everything a client may send."""

import json
from typing import Any

import pytest
from hypothesis import given, settings

from policies.dialects import DIALECTS
from policies.dialects.common import Request
from policies.model.conversation import Block, Conversation, converse
from policies.model.edits import Edit, Fold, Replace
from tests import examples
from tests.kit.forms import to_responses
from tests.kit.histories import Json, body_of, sessions
from tests.kit.responses import TOOL, call, is_valid, message, reasoning, result
from tests.kit.talk import letters, system, user

chat = DIALECTS["openai_chat"]
responses = DIALECTS["openai_responses"]

TALK = [user("go"), reasoning("r1"), call("bash", '{"command": "ls"}', "a"), result("a.py", "a")]
TALK += [reasoning("r2"), call("bash", '{"command": "cat a.py"}', "b"), result("x = 1", "b"), message("done")]
ASK = {"model": "m", "store": False, "tools": [TOOL]}
LONG = "x = 1\n" * 50


def body(items: Any, **more: Any) -> bytes:
    return json.dumps({**ASK, **more, "input": items}).encode()


def split(raw: bytes) -> Request:
    found = responses.split(raw)
    assert found is not None
    return found


def talk(request: Request) -> Conversation:
    return converse([responses.read(request.raw(i), letters) for i in range(len(request.spans))])


def spliced(raw: bytes, *edits: tuple[int, str]) -> bytes:
    """The body with other texts for blocks, by number."""
    request = split(raw)
    blocks = talk(request).blocks
    changes: list[Edit] = [Replace(blocks[at].anchor, text, "test") for at, text in edits]
    return responses.joined(request, responses.splice(request, talk(request), changes))


def folded(items: list[Json], first: int, last: int) -> list[Json]:
    """The items with one in the place of a run of blocks."""
    request = split(body(items))
    blocks = talk(request).blocks
    fold = Fold(blocks[first].anchor, blocks[last].anchor, "left out", "test")
    found: Json = json.loads(responses.joined(request, responses.splice(request, talk(request), [fold])))
    return list(found["input"])


def kinds(item: Any) -> list[tuple[str, str]]:
    return [(part.kind, part.text) for part in responses.read(json.dumps(item).encode(), letters).parts]


def _counts(block: Block) -> bool:
    """An empty text beside calls has no place in Responses, and what is opaque is another thing in each API."""
    return block.kind not in ("system", "opaque") and bool(block.text or block.kind != "assistant")


def _of(block: Block) -> tuple[object, ...]:
    return block.kind, block.text, block.turn, block.tool, block.answers is None


@settings(deadline=None, max_examples=examples(20))
@given(sessions(most=5))
def test_law_1_blocks_are_those_of_chat_and_joining_nothing_changes_nothing(session: list[Json]) -> None:
    """Policies cannot tell the forms apart: kinds, texts, turns and who answers whom are the same."""
    silent = [m["role"] == "assistant" and not m.get("content") and not m.get("tool_calls") for m in session]
    session = [{**m, "content": "said"} if empty else m for m, empty in zip(session, silent, strict=True)]
    raw = json.dumps({**to_responses({"model": "m", "messages": session}), "store": False}).encode()
    request = split(raw)
    assert responses.joined(request, {}) == raw
    made = chat.split(body_of(session))
    assert made is not None
    known = converse([chat.read(made.raw(i), letters) for i in range(len(made.spans))])
    ours, theirs = ([_of(block) for block in each.blocks if _counts(block)] for each in (talk(request), known))
    assert (ours, len(talk(request).ends)) == (theirs, len(known.ends))
    resumed = responses.split(raw, split(raw))
    assert resumed is not None
    assert (resumed.spans, resumed.shared) == (request.spans, len(request.spans))


def test_what_an_earlier_request_showed_is_not_looked_for_again() -> None:
    resumed = responses.split(body(TALK), split(body(TALK[:4])))
    assert resumed is not None
    assert (resumed.shared, resumed.spans) == (4, split(body(TALK)).spans)
    same, other = (responses.split(body("go" + more), split(body("go"))) for more in ("", "ne"))
    assert same is not None
    assert other is not None
    assert (same.shared, other.shared) == (1, 0)


def test_the_fields_that_matter() -> None:
    request = split(body(TALK, max_output_tokens=7, metadata={"conversation_id": "c"}, stream=True, instructions="Be."))
    assert (request.model, request.reserve, request.conversation, request.streams) == ("m", 7, "c", True)
    assert (json.loads(request.tool_list), request.instructions) == ([TOOL], b'"Be."')
    plain = split(body(TALK, prompt_cache_key="k", instructions=None, tools=None))
    assert (plain.conversation, plain.instructions, plain.reserve) == ("k", b"", None)
    ours = b',"truncation":"auto","context_management":[{"type":"compaction","compact_threshold":9}],"x":1e3}'
    raw = body(TALK, user="u")[:-1] + ours
    assert responses.joined(split(raw), {}) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"model":"m"}',
        b'{"model":"m","input":null}',
        b'{"model":"m","input":[]}',
        b'{"model":"m","input":["x"]}',
        b'{"model":"m","input":{}}',
        b'{"model":7,"input":"x"}',
        b'{"input":"x","prompt":{"id":"pmpt_1"}}',
        b'{"model":"m","input":"x","previous_response_id":"resp_1"}',
        b'{"model":"m","input":"x","conversation":"conv_1"}',
        b'{"model":"m","input":"x","conversation":{"id":"conv_1"}}',
        b'{"model":"m","input":"x","input":"y"}',
    ],
)
def test_v3_what_is_not_understood_or_kept_elsewhere_is_none(raw: bytes) -> None:
    assert responses.split(raw) is None


def test_v5_a_text_as_input_stays_one_until_something_stands_beside_it() -> None:
    raw = b'{"input" : "go \\u00e9 \\ud83d" ,"previous_response_id":null,"conversation":null,"model":"m"}'
    request = split(raw)
    assert responses.joined(request, {}) == raw
    assert [(b.kind, b.text) for b in talk(request).blocks] == [("user", "go é \ud83d")]
    said = request.raw(0)
    beside = responses.joined(request, {0: said + b',{"type":"x"}'})
    message = b'{"type":"message","role":"user","content":' + said + b"}"
    assert beside == raw.replace(said, b"[" + message + b',{"type":"x"}]')
    listed, text = (responses.read(each, letters) for each in (message, said))
    assert (listed.digest, listed.part_digests) == (text.digest, text.part_digests)
    assert responses.marks.add(said, "prompt_cache_breakpoint") is None
    assert json.loads(spliced(raw, (0, "on")))["input"] == "on"


SHOT = {"type": "computer_screenshot", "image_url": "data:image/png;base64," + "A" * 1000}
OUTCOME = {"type": "exit", "exit_code": 0}
WROTE = {"stdout": "a", "stderr": "", "outcome": OUTCOME}
A = ("user", "a")


@pytest.mark.parametrize(
    ("item", "role", "parts"),
    [
        ({"role": "user", "content": "a"}, "user", [("user", "a")]),
        ({"type": "message", "role": "developer", "content": "a"}, "developer", [("system", "a")]),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, 7]},
            "user",
            [A, ("opaque", "7")],
        ),
        (message("a"), "assistant", [("assistant", "a")]),
        (message("a", phase="commentary"), "assistant", [("opaque", "commentary"), ("assistant", "a")]),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            "assistant",
            [("opaque", '{"refusal":"no","type":"refusal"}')],
        ),
        (call("f", "{}"), "assistant", [("call", "{}")]),
        (call("f", 7), "assistant", [("opaque", "7")]),  # type: ignore[arg-type]
        (result("a"), "tool", [("result", "a")]),
        (result([{"type": "input_text", "text": "a"}]), "tool", [("result", "a")]),
        (result({"a": 1}), "tool", [("opaque", '{"a":1}')]),
        ({"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "*** x"}, "assistant", [("call", "*** x")]),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": "a"}, "tool", [("result", "a")]),
        (
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            "assistant",
            [("call", '{"commands":["ls"]}')],
        ),
        (
            {"type": "shell_call_output", "call_id": "c", "output": [WROTE]},
            "tool",
            [("result", "a"), ("result", ""), ("opaque", '{"outcome":{"exit_code":0,"type":"exit"}}')],
        ),
        ({"type": "shell_call_output", "id": "x", "call_id": "c", "output": []}, "assistant", [("opaque", "")]),
        (
            {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
            "assistant",
            [("call", '{"type":"delete_file","path":"a"}')],
        ),
        ({"type": "apply_patch_call_output", "call_id": "c", "output": "a"}, "tool", [("result", "a")]),
        ({"type": "apply_patch_call_output", "call_id": "c"}, "tool", [("opaque", "")]),
        ({"type": "item_reference", "id": "x"}, "assistant", [("opaque", '{"type":"item_reference"}')]),
        (
            {"type": "program_output", "result": "r"},
            "assistant",
            [("opaque", '{"result":"r","type":"program_output"}')],
        ),
        ({"type": "additional_tools", "role": "developer", "tools": []}, "developer", None),
        ({"type": "compaction_trigger"}, "user", [("opaque", '{"type":"compaction_trigger"}')]),
        ({"type": "tool_search_output", "execution": "client", "tools": []}, "tool", None),
        ({"type": "tool_search_output", "tools": []}, "assistant", None),
        ({"type": "mcp_approval_response", "approve": True}, "tool", None),
        ({"type": "local_shell_call_output", "id": "c", "output": "a"}, "tool", None),
        ({"type": "something_new", "a": 1}, "assistant", [("opaque", '{"a":1,"type":"something_new"}')]),
        ({"a": 1}, "assistant", [("opaque", '{"a":1}')]),
        ({"role": 7, "content": "a"}, "", [("opaque", "a")]),
        ({"role": "user", "content": None}, "user", [("opaque", "")]),
    ],
)
def test_v5_items_of_every_kind_are_read_as_they_are(item: Json, role: str, parts: list[tuple[str, str]]) -> None:
    raw = body([user("go"), item, user("on")])
    assert spliced(raw) == raw
    found = responses.read(json.dumps(item).encode(), letters)
    assert (found.role, found.partial) == (role, role == "assistant")
    if parts is not None:
        assert kinds(item) == parts


@pytest.mark.parametrize("raw", [b"{", b"\xff", b'"\xff"', b'{"role":"user","content":' + b"[" * 5000])
def test_v3_an_item_that_cannot_be_read_is_opaque(raw: bytes) -> None:
    assert {part.kind for part in responses.read(raw, letters).parts} == {"opaque"}


def test_c2_images_and_sealed_texts_are_not_counted_as_text() -> None:
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64," + "A" * 99_000}]}
    shot = {"type": "computer_call_output", "call_id": "c", "output": SHOT}
    drawn = {"type": "image_generation_call", "id": "i", "result": "A" * 99_000, "status": "completed"}
    file = result([{"type": "input_file", "file_data": "A" * 9_000}])
    found = [responses.read(json.dumps(item).encode(), letters).parts[0] for item in (image, shot, drawn, file)]
    assert [(part.kind, part.tokens) for part in found] == [("opaque", 765)] * 4
    assert [part.call_id for part in found] == ["", "c", "", "c0"]
    sealed = {"type": "compaction", "id": "cmp", "encrypted_content": "A" * 4_600}
    assert [
        responses.read(json.dumps(item).encode(), letters).parts[0].tokens for item in (sealed, reasoning("A"))
    ] == [
        (4_600 * 3 // 4 - 650) // 4,
        0,
    ]


def test_c2_the_head_is_tools_instructions_and_leading_system_text() -> None:
    request = split(body([system("s"), user("go")], instructions="Be \n good."))
    messages = [responses.read(request.raw(i), letters) for i in range(2)]
    tools = letters(request.tool_list.decode())
    assert responses.head_tokens(request, messages, letters) == tools + letters("Be \n good.") + 4 + letters("s") + 4


def test_s4_ids_status_and_the_order_of_fields_move_nothing() -> None:
    for item in (*TALK, {"role": "user", "content": [{"type": "input_text", "text": "go"}]}):
        bare = {"phase": None, **{key: item[key] for key in reversed(item) if key not in ("id", "status")}}
        left, right = (responses.read(json.dumps(each, indent=1).encode(), letters) for each in (item, bare))
        assert (left.digest, left.part_digests) == (right.digest, right.part_digests)
        changed = json.loads(json.dumps(item).replace("a.py", "b.py").replace("r1", "r3").replace("go", "no"))
        if changed != item:
            assert responses.read(json.dumps(changed).encode(), letters).digest != left.digest


def test_v4_a_replaced_text_is_the_only_thing_that_changes() -> None:
    shell = {"type": "shell_call", "call_id": "s", "action": {"commands": [LONG], "timeout_ms": 1e3}}
    wrote = {
        "type": "shell_call_output",
        "call_id": "s",
        "output": [{"stdout": "out", "stderr": "", "outcome": OUTCOME}],
    }
    listed = result([{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two", "x": 1e3}], "l")
    raw = body([*TALK, call("f", "{}", "l"), listed, shell, wrote], seed=7)
    assert spliced(raw, (3, "short")) == raw.replace(b'"a.py"', b'"short"', 1)
    assert spliced(raw, (10, "2")) == raw.replace(b'"two"', b'"2"')
    assert spliced(raw, (12, "cut")) == raw.replace(b'"out"', b'"cut"')
    new = json.loads(spliced(raw, (2, '{"command": "x"}'), (6, 'quote " and \n and 漢'), (11, '{"commands":["y"]}')))
    assert new["input"][2]["arguments"] == '{"command": "x"}'
    assert new["input"][6]["output"] == 'quote " and \n and 漢'
    assert new["input"][10]["action"] == {"commands": ["y"]}


@pytest.mark.parametrize(("first", "last", "left"), [(1, 3, [0, 1, 4, 5, 6, 7]), (1, 6, [0, 1, 7]), (1, 7, [0, 1])])
def test_v6_a_fold_is_one_valid_item_and_takes_reasoning_with_what_it_led_to(
    first: int, last: int, left: list[int]
) -> None:
    stub = {"type": "message", "role": "assistant", "content": "left out"}
    fill = {"type": "message", "role": "user", "content": "[narrows: the messages after these follow]"}
    expected = [TALK[0], stub, *([fill] if len(left) > 2 else []), *(TALK[i] for i in left[2:])]
    assert folded(TALK, first, last) == expected
    (before, after) = folded([*TALK, user("on")], 1, 7)[1:]
    assert (before, after) == (stub, user("on"))
    is_valid(stub)


@pytest.mark.parametrize("together", [True, False])
def test_v1_outputs_answer_their_calls_together_or_one_by_one(together: bool) -> None:
    made, wrote = [call("f", "{}", i) for i in "ab"], [result(i, i) for i in "ba"]
    parts = [*made, *wrote] if together else [made[0], wrote[1], made[1], wrote[0]]
    request = split(body([user("go"), reasoning("r"), *parts, user("on")]))
    blocks = talk(request).blocks
    answered = {block.text: blocks[block.answers].call_id for block in blocks if block.answers is not None}
    assert answered == {"a": "a", "b": "b"}
    assert len(talk(request).ends) == (2 if together else 3)

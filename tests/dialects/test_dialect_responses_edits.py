"""What edits and cache marks make of OpenAI Responses."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings

from policies.dialects import DIALECTS
from policies.dialects.common import Request
from policies.model.conversation import converse
from policies.model.edits import Fold
from policies.money.caches import MarkStyle
from policies.planning.plan import plan
from policies.tools import RECALL
from tests import examples
from tests.kit.forms import to_responses
from tests.kit.histories import CHEAP, EAGER, TIGHT, Json, sessions
from tests.kit.responses import TOOL, call, message, reasoning, result
from tests.kit.talk import letters, setup, user

responses = DIALECTS["openai_responses"]

MARK: Json = {"prompt_cache_breakpoint": {"mode": "explicit"}}
OTHER: Json = {"cache_control": {"type": "ephemeral"}}


def split(items: Sequence[Json], **more: Any) -> Request:
    found = responses.split(json.dumps({"model": "m", "store": False, **more, "input": items}).encode())
    assert found is not None
    return found


def listed(text: str, mark: Json = MARK) -> list[Json]:
    return [{"type": "input_text", "text": text, **mark}]


def thoughtful(session: list[Json]) -> list[Json]:
    """The session as items, with sealed reasoning before each that the model made."""
    items: list[Json] = to_responses({"model": "m", "messages": session})["input"]
    made = [item.get("role") == "assistant" or item["type"] == "function_call" for item in items]
    led = [[reasoning(f"seal {at}", str(at)), item] if made[at] else [item] for at, item in enumerate(items)]
    return [item for pair in led for item in pair]


@settings(deadline=None, max_examples=examples(25), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(sessions(most=8))
def test_v6_reasoning_stays_before_the_item_that_it_led_to_or_goes_with_it(session: list[Json]) -> None:
    """Whatever is cut to fit; and every output that is sent answers a call that is sent, and the other way round."""
    items = thoughtful(session)
    request = split(items)
    talk = converse([responses.read(request.raw(i), letters) for i in range(len(items))])
    planned = plan(talk, setup(*EAGER, prices=CHEAP, budget=TIGHT))
    changed = responses.splice(request, talk, planned.edits)
    sent = json.loads(responses.joined(request, changed))["input"]
    known = {item["encrypted_content"]: items[at + 1]["type"] for at, item in enumerate(items) if _is_sealed(item)}
    for at, item in enumerate(sent):
        if _is_sealed(item):
            assert item in items
            assert sent[at + 1]["type"] == known[item["encrypted_content"]]
    calls, outputs = (
        [item["call_id"] for item in sent if item["type"] == kind] for kind in ("function_call", "function_call_output")
    )
    assert sorted(calls) == sorted(outputs)


def _is_sealed(item: Json) -> bool:
    return item["type"] == "reasoning"


def folded(items: list[Json], first: int, last: int, ref: str = "") -> list[Json]:
    """The items that stand for a run."""
    request = split(items)
    talk = converse([responses.read(request.raw(i), letters) for i in range(len(items))])
    fold = Fold(talk.blocks[first].anchor, talk.blocks[last].anchor, "left out", "test", ref=ref)
    found: list[Json] = json.loads(b"[" + responses.splice(request, talk, [fold])[first] + b"]")
    return found


def test_v1_what_is_called_in_one_reply_and_answered_in_another_is_held_together() -> None:
    """A program at the provider waits for outputs of the client's; what was approved is done in the next reply."""
    run = {"type": "program", "id": "p", "call_id": "p", "code": "f()", "fingerprint": "x"}
    made = [call("f", "{}", name, caller={"type": "program", "caller_id": "p"}) for name in "abc"]
    over = {"type": "program_output", "id": "o", "call_id": "p", "result": "1", "status": "completed"}
    asked = {"type": "mcp_approval_request", "id": "m", "name": "n", "arguments": "{}", "server_label": "s"}
    approved = {"type": "mcp_approval_response", "approval_request_id": "m", "approve": True}
    done = {"type": "mcp_call", "id": "d", "name": "n", "arguments": "{}", "server_label": "s", "output": "x"}
    listing = {"type": "local_shell_call", "id": "l", "call_id": "s", "action": {}, "status": "completed"}
    listed = {"type": "local_shell_call_output", "id": "s", "output": "a"}
    answered = [item for one in made for item in (one, result("x", one["call_id"]))]
    for items, held in (
        ([run, *answered, over, message("ok")], set(range(2, 12))),
        ([asked, approved, {**done, "approval_request_id": "m"}, message("ok")], {2, 3}),
        ([listing, listed, message("ok"), user("on"), message("so")], {2}),
        ([{**listing, "type": "something_new"}, message("ok"), user("on"), message("so"), user("on")], {2, 3, 4}),
    ):
        request = split([user("go"), *items])
        assert converse([responses.read(request.raw(i), letters) for i in range(len(items) + 1)]).no_cut_before == held


@pytest.mark.parametrize("mark", [MARK, OTHER])
@pytest.mark.parametrize("after", ["user", "assistant"])
def test_v7_a_mark_on_a_folded_item_moves_to_its_stub(mark: Json, after: str) -> None:
    """What the assistant says cannot carry a breakpoint: the answer of the recall tool does."""
    following = user("on") if after == "user" else message("I see")
    items = [user("go"), call("bash", "{}"), result(listed("a", mark)), following]
    made, answer = folded(items, 1, 2, ref="123456+2")
    assert (made["type"], made["name"], made["arguments"]) == ("function_call", RECALL, '{"ref":"123456+2"}')
    assert (answer["call_id"], answer["output"]) == (made["call_id"], listed("left out", mark))
    bare = folded([user("go"), call("bash", "{}"), result("a"), following], 1, 2)
    fill = {"type": "message", "role": "user", "content": "[narrows: the messages after these follow]"}
    assert bare == [
        {"type": "message", "role": "assistant", "content": "left out"},
        *([fill] if after == "assistant" else []),
    ]


@pytest.mark.parametrize("style", ["prompt_cache_breakpoint", "cache_control"])
def test_v7_a_mark_is_added_at_the_end_of_what_can_carry_it(style: MarkStyle) -> None:
    for field, item in (("content", user('a "b" é')), ("output", result("a é"))):
        marked = responses.marks.add(json.dumps(item).encode(), style)
        assert marked is not None
        (part,) = json.loads(marked)[field]
        assert (part["type"], part["text"], part[style]) == ("input_text", item[field], {**MARK, **OTHER}[style])
        assert responses.marks.add(marked, style) is None
        before, after = (responses.read(raw, letters) for raw in (json.dumps(item).encode(), marked))
        assert (before.digest, before.part_digests, before.marks, after.marks) == (
            after.digest,
            after.part_digests,
            0,
            1,
        )
    two = {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}
    marked = responses.marks.add(json.dumps(two).encode(), style)
    assert marked is not None
    assert [style in part for part in json.loads(marked)["content"]] == [False, True]


def test_v7_what_the_assistant_says_carries_no_mark_of_openais() -> None:
    said = [message("a"), {"role": "assistant", "content": "a"}]
    for item in said:
        raw = json.dumps(item).encode()
        assert responses.marks.add(raw, "prompt_cache_breakpoint") is None
        marked = responses.marks.add(raw, "cache_control")
        assert marked is not None
        assert json.loads(marked)["content"] == [{**message("a")["content"][0], **OTHER}]


@pytest.mark.parametrize(
    "raw",
    [
        b'{"role":"user","content":""}',
        b'{"role":"user","content":[]}',
        b'{"role":"user","content":[{"type":"input_image"}]}',
        b'{"role":"user","content":[{"type":"input_text","text":""}]}',
        b'{"type":"function_call","arguments":"{}"}',
        b'{"type":"shell_call_output","output":[{"stdout":"a"}]}',
        b'{"role":"user","content":"a","content":"b"}',
        b'"go"',
        b"",
    ],
)
def test_v7_what_cannot_carry_a_mark_gets_none(raw: bytes) -> None:
    assert responses.marks.add(raw, "prompt_cache_breakpoint") is None
    assert responses.marks.add(b'{"role":"user","content":"a"}', "") is None


@pytest.mark.parametrize(
    ("mark", "more", "style", "free"),
    [
        ({}, {}, "", 4),
        (MARK, {}, "prompt_cache_breakpoint", 1),
        (MARK, {"prompt_cache_options": {"mode": "implicit"}}, "prompt_cache_breakpoint", 1),
        (MARK, {"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_breakpoint", 2),
        (OTHER, {}, "cache_control", 2),
        (OTHER, {"tools": [{**TOOL, **OTHER}]}, "cache_control", 1),
    ],
)
def test_v7_free_slots_and_the_style_of_the_client(mark: Json, more: Json, style: str, free: int) -> None:
    """OpenAI sets one mark itself unless it is told not to."""
    items = [{"role": "user", "content": listed("go", mark)}, call("bash", "{}"), result(listed("a", mark))]
    request = split(items, **more)
    messages = [responses.read(request.raw(i), letters) for i in range(len(items))]
    assert (responses.marks.style(request, messages), responses.marks.slots(request, messages)) == (style, free)

"""Anthropic Messages and the policies: where the recall tool is, and that no policy can tell the APIs apart."""

import json
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import Phase, assume, given, settings

from policies.compact import Compacted, compact
from policies.dialects import DIALECTS
from policies.dialects.anthropic_messages.exchange import TOOL
from policies.recall import PARAMETERS
from policies.text.stubs import refs_named
from policies.tools import RECALL
from proxy.lab.provider import Violation, find_violation
from tests import examples
from tests.kit.forms import plain, to_anthropic
from tests.kit.histories import BASH as CHAT_BASH
from tests.kit.histories import CHEAP, EAGER, ROOMY, TIGHT, Json, sessions
from tests.kit.messages import BASH, body_of, result, says, split, user, uses

dialect = DIALECTS["anthropic_messages"]

LONG = "\n".join(f"{i} lines of output" for i in range(300))
TALK = [user("go")]
for _name in ("make", "cat a", "ls", "pwd"):
    TALK += [says(uses(_name[:2], command=_name)), user(result(LONG[: len(_name) * 900], _name[:2]))]
OURS = {"name": RECALL, "input_schema": {"type": "object"}}


def with_tools(written: str, **fields: object) -> bytes:
    return body_of(TALK, tools=[], **fields).replace(b'"tools": []', b'"tools": ' + written.encode())


def eagerly(body: bytes) -> Compacted:
    return compact(body, dialect="anthropic_messages", policies=EAGER, prices=CHEAP, budget=ROOMY, recall=True)


@pytest.mark.parametrize(
    "body",
    [body_of(TALK, tools=[BASH, OURS]), body_of(TALK)]
    + [with_tools(written) for written in ("[]", "null", "7", "[1, 2]", '{"a": 1}', '["\\ud83d"]')],
)
def test_r7_where_the_tool_cannot_be_it_is_not_and_nothing_names_it(body: bytes) -> None:
    done = eagerly(body)
    assert done.tool is None
    assert done.body.count(RECALL.encode()) == body.count(RECALL.encode())
    assert not any(refs_named(edit.text) for edit in done.plan.edits)


@pytest.mark.parametrize(
    ("written", "always", "expected"),
    [
        ('[ {"name": "bash"} ]', False, '[ {"name": "bash"} ,OURS]'),
        ('[{"type": "web_search_20250305", "name": "web_search"}]', False, None),
        ('[{"type": "browser_toolset_20260801"}]', False, None),
        ("[]", True, "[OURS]"),
        ("[ ]", True, "[ OURS]"),
    ],
)
def test_r8_the_tool_is_added_and_every_other_byte_stays(written: str, always: bool, expected: str | None) -> None:
    body = with_tools(written, tool_choice={"type": "none"}, context_management={"edits": [1]})
    request = split(body)
    expected = expected or f"{written[:-1]},OURS]"
    added = dialect.joined(request, {}, dialect.recall.tool(request, always))
    assert added == body.replace(written.encode(), expected.replace("OURS", TOOL.decode()).encode())
    assert json.loads(TOOL) == {"name": RECALL, "description": "Text left out at [narrows: ref N]"} | {
        "input_schema": json.loads(PARAMETERS)
    }


def test_r7_always_brings_the_tool_where_the_client_brings_none() -> None:
    body = body_of(TALK)
    request = split(body)
    assert dialect.recall.tool(request, False) is None
    added = dialect.joined(request, {}, dialect.recall.tool(request, True))
    assert added == body[:-1] + b',"tools":[' + TOOL + b"]}"
    assert dialect.recall.tool(split(with_tools("null")), True) is None


def test_r7_a_stub_of_a_request_with_tools_names_its_reference() -> None:
    done = eagerly(body_of(TALK, tools=[BASH]))
    named = frozenset[str]().union(*(refs_named(edit.text) for edit in done.plan.edits))
    assert named
    assert all(done.conversation.references.places.get(ref) is not None for ref in named)


@settings(deadline=None, max_examples=examples(12), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(sessions(most=8))
def test_law_4_the_same_edits_as_in_chat_and_what_was_valid_stays_valid(session: list[Json]) -> None:
    said = [{**message, "content": message["content"] or "nothing"} for message in session]
    chat = plain({"model": "m", "messages": said, "tools": [CHAT_BASH]})
    body = json.dumps(to_anthropic(chat), ensure_ascii=False, separators=(",", ":")).encode()
    assume(violation(body) is None)  # a text may be blank
    free = replace(CHEAP, read=1.0)  # then the tokens of the framing, which is another, decide nothing
    done = partial(compact, policies=EAGER, prices=free, budget=ROOMY, recall=True)
    ours, theirs = done(body, dialect="anthropic_messages"), done(json.dumps(chat).encode())
    assert ours.plan.edits == theirs.plan.edits
    check_valid(ours.body)
    tight = compact(body, dialect="anthropic_messages", policies=EAGER, prices=CHEAP, budget=TIGHT)
    check_valid(tight.body)


def check_valid(body: bytes) -> None:
    assert violation(body) is None
    assert all(message["content"] for message in json.loads(body)["messages"])


def violation(body: bytes) -> Violation | None:
    return find_violation({"max_tokens": 9, **json.loads(body)}, dialect="anthropic_messages")

"""A reply of Anthropic Messages that is not streamed, with recall calls in it; and errors."""

import json

import pytest

from policies.dialects import DIALECTS
from policies.dialects.common import Fault
from policies.model.edits import RecallRound
from policies.money.prices import Usage
from policies.tools import RECALL
from tests.kit.messages import asks, exchange, feed, play, text, thinks, uses, whole

dialect = DIALECTS["anthropic_messages"]

ASKS = whole(thinks("hm"), text("Let me look. "), asks(), reason="tool_use", cache_creation_input_tokens=90)
SAYS = whole(text("found"), name="two", output=9, cache_read_input_tokens=90)


def test_r3_the_rounds_are_one_reply() -> None:
    reader, (got,) = play([ASKS], [SAYS])
    found = json.loads(got)
    assert found == {
        **json.loads(SAYS),
        "id": "msg_one",
        "model": "m-one",
        "content": [thinks("hm"), text("Let me look. "), text("found")],
        "usage": {"input_tokens": 10, "output_tokens": 16, "cache_read_input_tokens": 90},
    }
    assert RECALL.encode() not in got
    assert (reader.usage, reader.completion, list(reader.over)) == (Usage(100, 90, 0, 9), 16, [0])
    assert reader.result(0).text == "Let me look. found"
    fields = json.dumps([thinks("hm"), {"type": "text", "text": 13}], separators=(",", ":"))
    assert reader.result(0).rounds == (RecallRound(13, (json.dumps(asks(), separators=(",", ":")),), fields=fields),)


def test_law_1_blocks_are_handed_on_as_they_are_written() -> None:
    odd = b'{ "type":"text", "text":"caf\\u00e9", "n":1.50 }'
    first = ASKS.replace(json.dumps(thinks("hm")).encode(), odd)
    second = SAYS.replace(json.dumps(text("found")).encode(), odd)
    _, (got,) = play([first], [second])
    assert got.count(odd) == 2
    reader = dialect.reply(4)
    (got,) = reader.feed(SAYS)
    assert got is SAYS
    assert list(reader.over) == [0]


@pytest.mark.parametrize("reason", ["tool_use", "end_turn", None])
def test_r4_in_a_mixed_turn_the_clients_calls_go_out(reason: str) -> None:
    body = whole(text("Both."), uses("a"), asks("b"), uses("c"), reason=reason)
    reader, (got,) = play([body], allowed=0)
    assert json.loads(got) == {**json.loads(body), "content": [text("Both."), uses("a"), uses("c")]}
    assert (reader.result(0).call_ids, exchange(reader).places) == (("a", "c"), (1,))


def test_r6_without_a_round_left_the_reply_ends_as_too_long() -> None:
    reader, (got,) = play([ASKS], [ASKS.replace(b"msg_one", b"msg_two")], allowed=1)
    found = json.loads(got)
    assert (found["stop_reason"], found["id"], len(found["content"])) == ("max_tokens", "msg_one", 4)
    assert [one.last for one in reader.result(0).rounds] == [True]
    cut, (got,) = play([whole(text("a"), asks(), reason="refusal")])
    assert (json.loads(got)["stop_reason"], json.loads(got)["content"]) == ("refusal", [text("a")])
    assert cut.result(0).rounds == ()


def test_an_error_in_the_place_of_a_round_passes() -> None:
    reader = dialect.reply(2)
    feed(reader, [ASKS])
    reader.resume(0)
    error = b'{"type":"error","error":{"type":"api_error","message":"no"}}'
    assert reader.feed(error) == [error]
    assert list(reader.over) == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_t3_a_fault_is_said_as_the_api_says_it(status: int, kind: str) -> None:
    body = dialect.failure(Fault(status, "no\nway", "code", "messages"))
    details = {"error_code": "code", "param": "messages"}
    assert json.loads(body) == {"type": "error", "error": {"type": kind, "message": "no\nway", "details": details}}
    assert b"\n" not in body
    assert dialect.reply().last_event(body) == b"event: error\ndata: " + body + b"\n\n"
    assert "param" not in json.loads(dialect.failure(Fault(status, "no", "code")))["error"]["details"]

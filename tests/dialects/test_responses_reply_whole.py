"""A reply of OpenAI Responses that is not streamed, with recall calls in it; and the usage of either."""

import json
from typing import Any

import pytest
from openai.types.responses import Response

from policies.dialects.openai_responses.reply import ResponsesReply
from policies.money.prices import Usage
from tests.kit.responses import call, event, events, feed, message, play, reasoning, response, usage


def whole(*output: Any, **more: Any) -> bytes:
    return json.dumps(response(output, **more)).encode()


def joined(*rounds: bytes) -> Any:
    """What the client gets; the official SDK's types know it."""
    (body,) = play(*([each] for each in rounds))[1]
    Response.model_validate_json(body)
    return json.loads(body)


def test_r3_rounds_are_one_response() -> None:
    first = whole(reasoning("one"), message("Let me look."), call(), usage=usage(10, 4, 3))
    found = joined(first, whole(message("found", "two"), name="two", usage=usage(30, 6, 1)))
    assert (found["id"], found["model"], found["status"]) == ("resp_one", "m-one", "completed")
    assert found["output"] == [reasoning("one"), message("Let me look."), message("found", "two")]
    assert found["usage"] == usage(30, 10, 4)
    assert [tool["name"] for tool in found["tools"]] == ["bash"]


@pytest.mark.parametrize("given", [call("bash", "{}", "t"), call(namespace="theirs")])
def test_r3_without_recalls_the_body_passes_but_for_our_tool(given: Any) -> None:
    body = whole(message("hello"), given)
    tool = b', {"type": "function", "name": "narrows_recall", "parameters": {}, "strict": false}'
    assert ResponsesReply(4).feed(body) == [body.replace(tool, b"")]
    (same,) = ResponsesReply().feed(body)
    assert same is body
    bare = body.replace(b'"tools": [', b'"tools_": [')
    (same,) = ResponsesReply(4).feed(bare)
    assert same is bare


def test_r3_what_our_tool_stands_alone_in_becomes_an_empty_list() -> None:
    body = b'{"id":"r","output":[],"tools":[ {"name":"narrows_recall"} ],"x":"narrows_recall"}'
    assert ResponsesReply(4).feed(body) == [b'{"id":"r","output":[],"tools":[],"x":"narrows_recall"}']
    twice = b'{"output":[],"tools":[{"name":"narrows_recall","name":"b"}]}'
    assert ResponsesReply(4).feed(twice) == [twice]


def test_r4_a_mixed_reply_keeps_the_clients_calls() -> None:
    body = whole(call("bash", "{}", "t0"), call(), usage=usage(1, 2))
    reader, (got,) = play([body])
    assert json.loads(got)["output"] == [call("bash", "{}", "t0")]
    assert json.loads(got)["usage"] == usage(1, 2)
    assert reader.result(0).rounds[0].places == (1,)


def test_r6_with_no_round_left_the_body_is_incomplete() -> None:
    reader, got = play([whole(call())], [whole(message("I"), call(), name="two")], allowed=1)
    found = json.loads(got[-1])
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (found["output"], list(reader.over)) == ([message("I")], [0])


@pytest.mark.parametrize("status", ["failed", "incomplete", "cancelled"])
def test_t3_a_call_in_a_response_that_broke_off_is_dropped(status: str) -> None:
    reader, (got,) = play([whole(message("I"), call(), status=status)])
    assert (json.loads(got)["output"], json.loads(got)["status"]) == ([message("I")], status)
    assert (list(reader.pending), reader.result(0).rounds) == ([], ())


LONG = {"ttl_12h_tokens": 3, "ttl_30m_tokens": 1}
KEPT = {
    "input_tokens": 9,
    "output_tokens": 2,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 4, "cache_write_tokens_details": LONG},
}
USAGE = {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 3}}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (json.dumps({"usage": USAGE}, indent=2).encode(), Usage(9, 5, 3, 2)),
        (event({"type": "response.completed", "response": {"usage": USAGE}}), Usage(9, 5, 3, 2)),
        (b'{"usage":{"input_tokens":1,"input_tokens_details":null}}', Usage(1, 0, 0, 0)),
        (json.dumps({"usage": KEPT}).encode(), Usage(9, 0, 4, 2, 3)),
        (b'{"usage":null}', None),
        (b'{"usage":{"input_tokens":"many"}}', None),
        (b'data: {"type":"response.completed","response":{"usage": nonsense}}\n\n', None),
    ],
)
def test_c3_the_usage_of_a_reply_is_read_as_it_passes(given: bytes, found: Usage | None) -> None:
    reader = ResponsesReply()
    assert reader.feed(given) == [given]
    assert reader.usage == found


def test_c3_a_stream_says_its_usage_at_the_end() -> None:
    reader = ResponsesReply()
    feed(reader, events([message("hello")], usage=usage(7, 2)))
    assert (reader.usage, reader.completion, list(reader.over)) == (Usage(7, 0, 0, 2), 2, [])

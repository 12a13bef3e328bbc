"""A streamed reply of OpenAI Responses with recall calls in it: what the client gets, and what is remembered.

The judge of streams is the official SDK: its types, and its own accumulation.
"""

import json
from typing import Any

import pytest

from policies.dialects.openai_responses.reply import ResponsesReply
from policies.model.edits import RecallRound
from tests.kit.responses import (
    NAME,
    REF,
    accumulated,
    call,
    event,
    events,
    feed,
    message,
    parsed,
    play,
    reasoning,
    usage,
)

ASKS = events([call()], usage=usage(10, 4, 3))
SAYS = events([message("found", "two")], "two", usage=usage(30, 6, 1))


def test_r3_a_recall_call_and_the_seam_are_not_seen() -> None:
    reader, got = play(ASKS, SAYS)
    whole = accumulated(got)
    assert (whole["id"], whole["created_at"], whole["model"]) == ("resp_one", 3, "m-one")
    assert (whole["status"], whole["output"]) == ("completed", [message("found", "two")])
    assert NAME.encode() not in b"".join(got)
    assert [tool["name"] for tool in whole["tools"]] == ["bash"]
    assert whole["usage"] == usage(30, 10, 4)
    assert (list(reader.pending), list(reader.over), reader.completion) == ([], [0], 10)
    assert (reader.result(0).text, reader.result(0).call_ids) == ("found", ())
    (exchange,) = reader.result(0).rounds
    assert exchange == RecallRound(0, exchange.calls)
    assert json.loads(exchange.calls[0]) == call()
    assert reader.result(1).rounds == ()


def test_r3_text_and_reasoning_flow_at_once_and_are_counted_by_round() -> None:
    first = [reasoning("sealed"), message("Let me look 🙂."), call()]
    stream = events(first)
    reader = ResponsesReply(2)
    for given in stream:
        ours = NAME.encode() in given and b"output_item" in given
        got = reader.feed(given)
        if b'"output_index": 2' in given or b"response.completed" in given or ours:
            assert got == []
        elif b'"response": ' not in given:
            assert got[0] is given
    assert list(reader.pending) == [0]
    reader.resume(0)
    feed(reader, SAYS)
    assert reader.result(0).text == "Let me look 🙂.found"
    (exchange,) = reader.result(0).rounds
    assert exchange.text == len("Let me look 🙂.")
    kept = json.loads(exchange.fields)
    assert kept[0] == reasoning("sealed")
    assert kept[1]["content"] == [{"type": "output_text", "text": 14, "annotations": []}]
    whole = accumulated(play(stream, SAYS)[1])
    assert whole["output"] == [*first[:2], message("found", "two")]


def test_v6_sealed_reasoning_of_every_round_reaches_the_client_unchanged() -> None:
    rounds = [events([reasoning(f"{i}/+=\\u", f"r{i}"), call(call_id=f"c{i}")], f"n{i}") for i in range(3)]
    reader, got = play(*rounds, events([reasoning("last", "r3"), message("done", "r3")], "n3"))
    seals = [item["encrypted_content"] for item in accumulated(got)["output"][:4]]
    assert seals == ["0/+=\\u", "1/+=\\u", "2/+=\\u", "last"]
    assert [json.loads(each.fields)[0]["encrypted_content"] for each in reader.result(0).rounds] == seals[:3]


def test_r3_reasoning_that_nobody_could_read_again_is_not_remembered() -> None:
    """The provider stores nothing, so an id alone says nothing to it."""
    bare = {"id": "rs_a", "type": "reasoning", "summary": [], "encrypted_content": None}
    spoken = {"id": "rs_b", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    reader, _ = play(events([bare, spoken, call()]))
    assert json.loads(reader.result(0).rounds[0].fields) == [spoken]
    reader, _ = play(events([bare, call()]))
    assert reader.result(0).rounds[0].fields == ""


@pytest.mark.parametrize("place", [0, 1, 2])
def test_r4_a_mixed_reply_is_over_and_shows_the_clients_calls_alone(place: int) -> None:
    theirs = [call("bash", "{}", "t0"), call("bash", "{}", "t1")]
    made = [*theirs]
    made.insert(place, call())
    reader, got = play(events([reasoning("s"), *made], usage=usage(1, 2)))
    whole = accumulated(got)
    assert whole["output"] == [reasoning("s"), *theirs]
    assert whole["usage"] == usage(1, 2)
    assert (list(reader.pending), list(reader.over)) == ([], [0])
    said = reader.result(0)
    assert (said.call_ids, said.rounds[0].places) == (("t0", "t1"), (place,))
    layout: list[Any] = [True, True]
    layout.insert(place, None)
    assert json.loads(said.rounds[0].fields) == [reasoning("s"), *layout]


@pytest.mark.parametrize(
    ("item", "mixed"),
    [
        ({"type": "custom_tool_call", "id": "i", "call_id": "t", "name": "patch", "input": "*** Begin"}, True),
        ({"type": "computer_call", "id": "i", "call_id": "t", "status": "completed"}, True),
        ({"type": "mcp_approval_request", "id": "i", "arguments": "{}", "name": "n", "server_label": "s"}, True),
        ({"type": "tool_search_call", "id": "i", "call_id": "t", "execution": "client", "arguments": {}}, True),
        ({"type": "tool_search_call", "id": "i", "call_id": "t", "execution": "server", "arguments": {}}, False),
        ({"type": "web_search_call", "id": "i", "status": "completed"}, False),
        ({"type": "something_new", "id": "i", "call_id": "t"}, False),
    ],
)
def test_r4_what_the_client_has_to_answer_ends_the_reply(item: dict[str, Any], mixed: bool) -> None:
    reader = ResponsesReply(4)
    feed(reader, events([item, call()]))
    assert (list(reader.pending), bool(reader.result(0).rounds[0].places)) == ([] if mixed else [0], mixed)


def test_r4_a_shell_of_the_providers_is_answered_there() -> None:
    made = {"type": "shell_call", "id": "s", "call_id": "t", "action": {"commands": ["ls"]}, "status": "completed"}
    output = {"type": "shell_call_output", "id": "so", "call_id": "t", "output": []}
    reader = ResponsesReply(4)
    feed(reader, events([made, output, call()]))
    assert list(reader.pending) == [0]
    reader = ResponsesReply(4)
    feed(reader, events([made, call()]))
    assert list(reader.over) == [0]


def test_r3_items_that_overlap_keep_their_places() -> None:
    stream = events([message("I"), call(), call("bash", "{}", "t0")])
    early = next(at for at, each in enumerate(stream) if b'"output_index": 1' in each)
    late = next(at for at, each in enumerate(stream) if b".done" in each and b"output_item" in each)
    stream.insert(early + 1, stream.pop(late))
    places = [each["output_index"] for each in parsed(feed(ResponsesReply(4), stream)) if "output_index" in each]
    assert places == sorted(places)
    assert set(places) == {0, 1}


def test_r6_with_no_round_left_the_reply_is_incomplete() -> None:
    reader, got = play(ASKS, events([message("I"), call()], "two", usage=usage(3, 4)), allowed=1)
    whole = accumulated(got)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert parsed(got)[-1]["type"] == "response.incomplete"
    assert whole["output"] == [message("I")]
    assert [each.last for each in reader.result(0).rounds] == [True]


def test_r3_a_call_that_was_cut_off_ends_with_the_reply() -> None:
    cut = {"incomplete_details": {"reason": "max_output_tokens"}}
    torn = call(arguments='{"ref":"4829', status="incomplete")
    reader, got = play(events([message("I"), torn], end="incomplete", **cut))
    assert (accumulated(got)["output"], reader.result(0).rounds) == ([message("I")], ())
    mixed = [call("bash", "{}", "t0"), call(call_id="c1"), torn]
    reader, got = play(events(mixed, end="incomplete", **cut))
    assert accumulated(got)["incomplete_details"] == cut["incomplete_details"]
    assert [json.loads(each)["call_id"] for each in reader.result(0).rounds[0].calls] == ["c1"]
    assert reader.result(0).rounds[0].places == (1,)


def test_t3_a_response_that_failed_is_not_over() -> None:
    why = {"code": "server_error", "message": "no"}
    reader, got = play(ASKS, events([message("I")], "two", end="failed", error=why))
    whole = accumulated(got)
    assert (whole["id"], whole["error"], whole["output"]) == ("resp_one", why, [message("I")])
    assert list(reader.over) == []


def test_t3_an_error_amid_the_second_round_goes_on_counting() -> None:
    error = {"type": "error", "code": "x", "message": "no", "param": None, "sequence_number": 2}
    _, got = play(ASKS, [*SAYS[:2], event(error)])
    assert parsed(got)[-1] == error
    assert [each["sequence_number"] for each in parsed(got)] == [0, 1, 2]


def test_r3_a_call_without_a_name_waits_until_it_has_one() -> None:
    def late(name: str) -> list[bytes]:
        bare = [call(name, "{}"), message("after")]
        return [each.replace(f'"{name}"'.encode(), b'""') if b".added" in each else each for each in events(bare)]

    stream = late("bash")
    reader = ResponsesReply(4)
    got = feed(reader, stream[:6])
    assert len(got) == 2
    got += feed(reader, stream[6:7])
    assert got[2:] == stream[2:7]
    assert accumulated([*got, *feed(reader, stream[7:])])["output"] == [call("bash", "{}"), message("after")]
    _, got = play(late(NAME), SAYS)
    assert accumulated(got)["output"] == [message("after"), message("found", "two")]


def test_a_namesake_in_a_namespace_is_the_clients() -> None:
    _, got = play(events([call(namespace="theirs")]))
    assert accumulated(got)["output"] == [call(namespace="theirs")]


@pytest.mark.parametrize("call_id", ["", None, 7])
def test_r4_a_call_without_an_id_gets_the_same_one_wherever_it_is_made(call_id: Any) -> None:
    made = [json.loads(play(events([call(call_id=call_id)]))[0].result(0).rounds[0].calls[0]) for _ in range(2)]
    assert made[0] == made[1]
    assert made[0]["call_id"].startswith("call_")


def test_r6_arguments_that_are_none_become_empty_ones() -> None:
    reader, _ = play(events([call(arguments="nonsense")]))
    assert json.loads(reader.result(0).rounds[0].calls[0])["arguments"] == "{}"


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"\n",
        b": keep-alive\n\n",
        b"data: nonsense\n\n",
        b"data: \xff\n\n",
        b"data: 7\n\n",
        b"event: ping\ndata: {}\n\n",
        b'data: {"type":"response.new","sequence_number":0}\n\n',
        b'data: {"type":"response.created","response":7}\n\n',
        b'data: {"type":"response.completed"}\n\n',
        b'data: {"type":"response.output_text.delta","output_index":0,"delta":7}\n\n',
        b'data: {"type":"response.output_item.added","output_index":"x","item":{}}\n\n',
        b'data: {"type":"response.output_item.added","output_index":0,"item":7}\n\n',
        b'data: {"type":"response.output_item.added","output_index":0,"item":{}}\n\n',
        b'data: {"type":"error","message":"no","sequence_number":0}\n\n',
        b'data: {"error":{"message":"no"}}\n\n',
        b'data: {"a":' + b"[" * 5000 + b"]" * 5000 + b"}\n\n",
        b"[1]",
        b"{",
        b'{"error":{"message":"no"}}',
        b'{"output":7}',
        b'{"output":[7]}',
        b'{"id":"r","output":[]}',
        b"data: [DONE]\n\n",
    ],
)
def test_r3_what_is_no_recall_passes_as_the_very_bytes(odd: bytes) -> None:
    (got,) = ResponsesReply(4).feed(odd)
    assert got is odd
    (got,) = ResponsesReply().feed(odd)
    assert got is odd


def test_r3_a_reply_without_recalls_passes_but_for_our_tool() -> None:
    stream = events([reasoning("s"), message("hello"), call("bash", "{}", "t0")], usage=usage(1, 2))
    got = feed(ResponsesReply(4), stream)
    ours = b', {"type": "function", "name": "narrows_recall", "parameters": {}, "strict": false}'
    assert got == [each.replace(ours, b"") for each in stream]
    assert [a is b for a, b in zip(got, stream, strict=True)] == [b'"tools"' not in each for each in stream]
    assert feed(ResponsesReply(), stream) == stream


@pytest.mark.parametrize("style", ["crlf", "lines", "bare", "bom"])
def test_an_event_is_read_however_it_is_framed(style: str) -> None:
    def styled(given: bytes) -> bytes:
        if style == "crlf":
            return given.replace(b"\n", b"\r\n")
        if style == "bare":
            return given[given.index(b"data:") :]
        return given.replace(b', "status"', b',\ndata: "status"') if style == "lines" else b"\xef\xbb\xbf" + given

    reader, got = play([styled(each) for each in ASKS], [styled(each) for each in SAYS])
    assert reader.result(0).rounds
    assert [each["type"] for each in parsed(got)] == [each["type"] for each in parsed(SAYS)]
    assert [each["sequence_number"] for each in parsed(got[2:])] == list(range(2, len(got)))


@pytest.mark.parametrize("kind", ["x\ndata: {}", "\ud800", 7])
def test_r3_a_type_that_cannot_stand_on_a_line_names_no_event(kind: object) -> None:
    odd = f"event: x\ndata: {json.dumps({'type': kind, 'sequence_number': 9})}\n\n".encode()
    _, got = play(ASKS, [SAYS[0], odd, *SAYS[1:]])
    (relayed,) = [each for each in got if parsed([each])[0]["type"] == kind]
    assert relayed.startswith(b"data: ")
    assert relayed.count(b"\n") == 2


def test_some_servers_leave_the_output_out_at_the_end_or_say_it_only_there() -> None:
    bare = [each if b"response.completed" not in each else each.replace(b'"output": [', b'"gone": [') for each in ASKS]
    reader, _ = play(bare, SAYS)
    assert json.loads(reader.result(0).rounds[0].calls[0])["arguments"] == REF
    reader, got = play([ASKS[0], ASKS[-1]], [SAYS[0], SAYS[-1]])
    assert (parsed(got)[-1]["response"]["output"], reader.result(0).text) == ([message("found", "two")], "found")


def test_r3_the_text_so_far_is_known_amid_the_stream() -> None:
    reader = ResponsesReply(4)
    stream = events([message("hello world")])
    feed(reader, [each for each in stream if b".delta" in each or b".added" in each][:3])
    assert reader.result(0).text == "hello"


def test_r3_a_done_between_rounds_is_not_seen() -> None:
    done = b"data: [DONE]\n\n"
    _, got = play([*ASKS, done], [*SAYS, done])
    assert got.count(done) == 1


@pytest.mark.parametrize("allowed", [None, 4])
def test_t3_a_stream_that_breaks_off_says_why(allowed: int | None) -> None:
    said = {"error": {"message": "gone", "type": "server_error", "code": "upstream_lost", "param": None}}
    reader = ResponsesReply(allowed)
    (found,) = parsed([reader.last_event(json.dumps(said).encode())])
    assert found == {"type": "error", "code": "upstream_lost", "message": "gone", "param": None, "sequence_number": 0}
    before = parsed(feed(reader, [*events([message("I"), call()])[:10], b": keep-alive\n\n"])[:-1])
    (odd,) = parsed([reader.last_event(b'{"error":"no"}')])
    assert (odd["message"], odd["sequence_number"]) == ("no", before[-1]["sequence_number"] + 1)


def test_t3_a_stream_that_breaks_off_between_rounds_goes_on_counting() -> None:
    reader, got = play(ASKS, SAYS[:4])
    (found,) = parsed([reader.last_event(b'{"error":{"message":"gone"}}')])
    assert [each["sequence_number"] for each in [*parsed(got), found]] == list(range(len(got) + 1))

"""R3: what a client sees of a reply in which something was recalled is one sound reply, and it flows."""

import asyncio
import json
import random
from itertools import pairwise
from typing import Any

import pytest

from policies.model.tokens import Counter
from policies.tools import RECALL
from proxy.lab.provider import Answer, Received, Say, Send, Wire
from tests.kit.recalling import (
    BOTH,
    REPORT,
    TOOLS,
    Client,
    answered,
    call,
    extends,
    fetched,
    hiding,
    plays,
    recall,
    refs,
    wants,
)
from tests.kit.running import Start
from tests.kit.stage import Stage
from tests.kit.upstream import chunk, completion, event, json_answer, stream_head, whole

pytestmark = pytest.mark.usefixtures("patient")
PROSE = "Voilà: 漢字, 👩‍👩‍👧 and\r\nmore. "
DATE = call("a", "bash", command="date")


def wires() -> list[Any]:
    """Streams cut at every byte, at none, and at random ones; in other framings, too."""
    chance = random.Random(4711)
    cuts = [sorted(chance.sample(range(1, 4_000), chance.choice([1, 5, 50, 900]))) for _ in range(12)]
    framed = [Wire(newline=b"\r\n"), Wire(before_event=b": ping\n\n"), Wire(before_event=b"event: x\r\nid: 7\r\n")]
    odd = [Wire(cuts=range(1, 4_000), newline=framing.newline, before_event=framing.before_event) for framing in framed]
    made = [Wire(), Wire(cuts=range(1, 4_000)), *odd, *(Wire(cuts=some) for some in cuts)]
    return [pytest.param(wire, id=f"wire {n}") for n, wire in enumerate(made)]


@pytest.mark.parametrize("wire", wires())
async def test_r3_split_anywhere_it_is_one_stream(stage: Stage, client: Client, wire: Wire) -> None:
    stage.provider.answer = plays(
        wants(PROSE, wire=wire),
        wants("", "lines 3", wire=wire),
        Say("And so I act. ", [DATE, call("b", "look", at="λ.py")], wire=wire),
    )
    heard = await client.ask(hiding(), stream=True, stream_options={"include_usage": True})
    assert (heard.text, heard.calls, heard.finish) == (f"{PROSE}And so I act. ", ["bash", "look"], "tool_calls")
    assert [c["function"]["arguments"] for c in heard.message()["tool_calls"]] == [
        '{"command": "date"}',
        json.dumps({"at": "λ.py"}),
    ]
    assert fetched(stage.provider.requests[-1]) == [REPORT, REPORT.splitlines(keepends=True)[2]]


@pytest.mark.parametrize("asked", [True, False])
@BOTH
async def test_r3_completion_tokens_are_summed_and_the_prompt_is_the_last(
    stage: Stage, client: Client, stream: bool, asked: bool
) -> None:
    stage.provider.answer = plays(wants(PROSE), wants("Hm. ", "lines 3"), Say("Seen."))
    options: Any = {"stream_options": {"include_usage": asked}} if stream else {}
    heard = await client.ask(hiding(), stream, **options)
    usages = [request.usage for request in stage.provider.requests]
    reported = heard.chunks[-1].usage if stream else heard.completion.usage
    if stream and not asked:
        assert b'"usage"' not in heard.raw
        return
    assert reported is not None
    spent = sum(usage.completion for usage in usages if usage)
    assert reported.completion_tokens == spent
    assert usages[-1] is not None
    assert reported.prompt_tokens == usages[-1].prompt
    assert reported.total_tokens == spent + usages[-1].prompt
    assert reported.prompt_tokens_details is not None
    assert reported.prompt_tokens_details.cached_tokens == usages[-1].cached > 0


async def test_r3_text_arrives_before_the_next_round_is_answered(stage: Stage, client: Client) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    stage.provider.answer = plays(
        wants("One. "),
        wants("Two. ", "lines 3", wire=Wire(gate=gates[0].wait)),
        Say("Three.", wire=Wire(gate=gates[1].wait)),
    )
    asked: Any = {"model": "m", "messages": hiding(), "tools": TOOLS, "stream": True}
    text = ""
    texts = ["One. ", "One. Two. ", "One. Two. Three."]
    async with asyncio.timeout(10):
        stream: Any = await client.sdk.chat.completions.create(**asked)
        async for piece in stream:
            text += piece.choices[0].delta.content or ""
            if text in texts[:2] and not gates[texts.index(text)].is_set():
                while len(stage.provider.requests) < texts.index(text) + 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                gates[texts.index(text)].set()
    assert text == texts[-1]


@BOTH
async def test_r3_what_the_model_says_after_its_calls_of_both_kinds(stage: Stage, client: Client, stream: bool) -> None:
    stage.provider.answer = plays(
        lambda r: Say("Both. ", [recall(refs(r)[0]), DATE, recall(refs(r)[0], "lines 1", "z")])
    )
    said = hiding()
    heard = await client.ask(said, stream)
    assert (heard.calls, heard.finish, heard.text) == (["bash"], "tool_calls", "Both. ")
    await client.ask(said + answered(heard.message(), "noon"), stream)
    assert extends(*stage.provider.requests)
    assert [len(text) for text in fetched(stage.provider.requests[-1])] == [len(REPORT), len(REPORT.split("\n")[0]) + 1]


@BOTH
@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
async def test_r3_the_next_round_may_say_what_is_left(stage: Stage, client: Client, stream: bool, limit: str) -> None:
    count = Counter()
    stage.provider.answer = plays(wants(PROSE), wants("Hm. ", "lines 3"), Say("Seen."))
    await client.ask(hiding(), stream, **{limit: 20})
    asked = [request.json[limit] for request in stage.provider.requests]
    assert asked == [20, 20 - count(PROSE), max(1, 20 - count(PROSE + "Hm. "))]


# --- several choices ---


@BOTH
async def test_r3_two_choices_that_both_recall(stage: Stage, client: Client, stream: bool) -> None:
    stage.provider.answer = plays(wants("Look. "), Say("Left."), Say("Right. ", [DATE]))
    options: Any = {"stream_options": {"include_usage": True}} if stream else {}
    heard = await client.ask(hiding(), stream, n=2, **options)
    choices = heard.completion.choices
    assert [choice.message.content for choice in choices] == ["Look. Left.", "Look. Right. "]
    assert [choice.finish_reason for choice in choices] == ["stop", "tool_calls"]
    assert [len(choice.message.tool_calls or ()) for choice in choices] == [0, 1]
    assert [request.json.get("n") for request in stage.provider.requests] == [2, 1, 1]
    assert [len(fetched(request)) for request in stage.provider.requests] == [0, 1, 1]


def two(received: Received, *messages: dict[str, Any]) -> Send:
    """Two choices that say different things, streamed in turns."""
    ends = ["tool_calls" if "tool_calls" in message else "stop" for message in messages]
    if not received.json.get("stream"):
        whole_ = [{"index": i, "message": m, "finish_reason": ends[i]} for i, m in enumerate(messages)]
        return Send(body=json.dumps({**completion(), "choices": whole_}).encode())
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    pieces: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": "W"}, {"content": "ell. "}]
    deltas = [(i, piece, None) for piece in pieces for i in (0, 1)]
    deltas += [
        (i, {"tool_calls": [{"index": n, **c} for n, c in enumerate(m["tool_calls"])]}, None)
        for i, m in enumerate(messages)
        if "tool_calls" in m
    ]
    deltas += [(i, {}, ends[i]) for i in (1, 0)]
    events = [event({**head, "choices": [{"index": i, "delta": d, "finish_reason": f}]}) for i, d, f in deltas]
    return Send(body=b"".join(events) + b"data: [DONE]\n\n", headers=(("Content-Type", "text/event-stream"),))


@pytest.mark.parametrize("ours", [0, 1])
@BOTH
async def test_r3_one_of_two_choices_recalls(stage: Stage, client: Client, stream: bool, ours: int) -> None:
    def split(received: Received) -> Answer:
        message = {"role": "assistant", "content": "Well. "}
        calling = {**message, "tool_calls": [recall(refs(received)[0])]}
        return two(received, *([calling, message] if ours == 0 else [message, calling]))

    stage.provider.answer = plays(split, Say("Seen."))
    heard = await client.ask(hiding(), stream, n=2)
    texts = ["Well. ", "Well. "]
    texts[ours] += "Seen."
    assert [choice.message.content for choice in heard.completion.choices] == texts
    assert [choice.finish_reason for choice in heard.completion.choices] == ["stop", "stop"]
    assert len(stage.provider.requests) == 2


@BOTH
async def test_r4_whichever_choice_the_client_takes_its_exchange_comes_back(
    stage: Stage, client: Client, stream: bool
) -> None:
    stage.provider.answer = plays(wants("Look. "), wants("Left. ", "lines 1"), Say("L."), Say("Right."))
    said = hiding()
    heard = await client.ask(said, stream, n=2)
    for choice, count in ((0, 2), (1, 1)):
        await client.ask(said + answered(heard.message(choice)))
        assert len(fetched(stage.provider.requests[-1])) == count
        assert stage.provider.requests[-1].violation is None


# --- no recall: the very bytes ---


ODD = [
    b"\xef\xbb\xbfdata: " + json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}).encode(),
    b": a comment",
    b"event: message\r\nid: 7\r\n"
    b'data: {"id": "c", "choices": [{"delta": {"content": "narrows_recall("},\r\ndata: "index": 0}]}',
    b'data:{"choices":[{"index":0,"delta":{"content":"{\\"tool_calls\\":[{\\"name\\":\\"narrows_recall\\"}]}"}}],"x":1e3}',
    b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a", "type": "function", '
    b'"function": {"name": "narrows_recall_2", "arguments": "{}"}}]}}]}',
    b"data: not json at all",
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 9}}',
    b"data: [DONE]",
]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("seed", range(4))
async def test_r3_without_a_recall_a_stream_is_the_very_bytes(narrows: Start, newline: bytes, seed: int) -> None:
    said = b"".join(piece.replace(b"\r\n", newline) + 2 * newline for piece in ODD)
    chance = random.Random(seed)
    cuts = [0, *sorted(chance.sample(range(1, len(said)), 40 * seed)), len(said)]
    pieces = b"".join(chunk(said[a:b]) for a, b in pairwise(cuts))
    setup = await narrows(stream_head() + pieces + chunk(b""), real=True)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "stream": True}
    async with setup.client.post(f"{setup.url}/chat/completions", json=body) as reply:
        assert await reply.read() == said
    assert RECALL.encode() in setup.upstream.seen[0].body


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(completion('{"tool_calls": [{"name": "narrows_recall"}]}'), indent=3).encode(),
        json.dumps(completion("I used narrows_recall.", tool_calls=[DATE])).encode(),
        json.dumps(completion("", tool_calls=None, refusal="No narrows_recall."), separators=(",", ":")).encode(),
        b'{"choices": "none"}',
        b"no json",
        b"",
    ],
)
async def test_r3_without_a_recall_a_whole_reply_is_the_very_bytes(narrows: Start, body: bytes) -> None:
    setup = await narrows(whole(body, "Content-Type: application/json"), real=True)
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    async with setup.client.post(f"{setup.url}/chat/completions", json=asked) as reply:
        assert await reply.read() == body


@pytest.mark.parametrize("limit", [2_000])
@BOTH
async def test_r3_a_reply_larger_than_a_request_may_be_is_passed_on(narrows: Start, stream: bool, limit: int) -> None:
    said = json.dumps(completion("x" * 3 * limit)).encode()
    answer = json_answer(completion("x" * 3 * limit))
    if stream:
        said = 40 * event({"id": "c", "choices": [{"index": 0, "delta": {"content": "x" * 100}}]}) + b"data: [DONE]\n\n"
        answer = stream_head() + chunk(said) + chunk(b"")
    setup = await narrows(answer, real=True, body_limit=limit)
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "stream": stream}
    async with setup.client.post(f"{setup.url}/chat/completions", json=asked) as reply:
        assert await reply.read() == said


@pytest.mark.parametrize("kind", ["text/plain", "application/x-ndjson", ""])
async def test_r3_a_call_in_a_reply_of_another_media_type_stays_inside(stage: Stage, client: Client, kind: str) -> None:
    def mislabelled(received: Received) -> Answer:
        said = completion("", tool_calls=[recall(refs(received)[0])])
        return Send(body=json.dumps(said).encode(), headers=(("Content-Type", kind),) if kind else ())

    stage.provider.answer = plays(mislabelled, Say("Seen."))
    body: Any = {"model": "m", "messages": hiding(), "tools": TOOLS}
    async with stage.client.post(f"{client.sdk.base_url}chat/completions", json=body) as reply:
        assert RECALL.encode() not in await reply.read()


@BOTH
async def test_r3_a_reply_that_ends_with_nothing_said_can_be_sent_back(
    stage: Stage, client: Client, stream: bool
) -> None:
    stage.provider.answer = plays(wants(None), Say(""))
    heard = await client.ask(hiding(), stream)
    assert heard.text == ""
    await client.ask(hiding() + answered(heard.message()), stream)
    assert stage.provider.requests[-1].violation is None

"""The recall loop alone, without sockets: what it hands on, what it holds back, and when it asks again."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from policies.dialects import Reply
from policies.dialects.openai_chat.reply import ChatReply
from proxy.errors import FailedError, RefusedError
from proxy.identity.who import Identity
from proxy.kernel.reply import RecallLoop, SentRequest
from proxy.requests import ClientRequest, RequestOptions, UpstreamRequest
from proxy.upstreams.upstream import CutError
from tests.kit.replies import DONE, chunk, entry, made

FIRST = UpstreamRequest(
    ClientRequest("openai_chat", b"{}", Identity("", "t", ""), None, RequestOptions("on")), b"first", {}
)
CALL = [chunk({"content": "Let me see. "}), chunk(made(entry())), chunk({}, "tool_calls"), DONE]
ANSWER = [chunk({"content": "It is 42."}, name="two"), chunk({}, "stop", name="two"), DONE]


@dataclass
class Scripted:
    """A reply of the upstream, cut into chunks as the test likes."""

    chunks_: Sequence[bytes]
    status: int = 200
    kind: str = "text/event-stream"
    received_encoding: str = ""
    delimited: bool = True

    def all_here(self) -> None:
        """It comes piece by piece."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for piece in self.chunks_:
            yield piece


@dataclass
class Rounds:
    """Makes the request of each next round, and notes what it is told."""

    fault: Exception | None = None
    remembered: list[int] = field(default_factory=list)
    learned: list[tuple[bytes, int]] = field(default_factory=list)

    async def next_round(self, upstream_request: UpstreamRequest, reply: Reply, choice: int, /) -> UpstreamRequest:
        if self.fault is not None:
            raise self.fault
        return UpstreamRequest(upstream_request.client_request, b"second", {})

    async def remember_recalls(self, upstream_request: UpstreamRequest, reply: Reply, choice: int, /) -> None:
        assert upstream_request is FIRST
        self.remembered.append(choice)

    def learn(self, upstream_request: UpstreamRequest, reply: Reply, status: int, /) -> None:
        self.learned.append((upstream_request.body, status))


def loop_over(compaction: Rounds, *replies: Scripted, allowed: int = 4) -> tuple[RecallLoop, list[bytes]]:
    """The loop, and the bodies that it sends."""
    sent: list[bytes] = []

    @asynccontextmanager
    async def send(upstream_request: UpstreamRequest, round_: int) -> AsyncIterator[Any]:
        assert round_ == len(sent) + 1
        sent.append(upstream_request.body)
        yield SentRequest(upstream_request, replies[round_ - 1])  # type: ignore[arg-type]  # as much as is read

    return RecallLoop(compaction, send, FIRST, ChatReply(allowed), None, []), sent  # type: ignore[arg-type]


async def received(loop: RecallLoop, first: Any) -> list[bytes]:
    return [piece async for piece in loop.events(first)]


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_r3_a_recall_call_is_held_back_and_the_next_round_continues_the_stream(size: int) -> None:
    whole = b"".join(CALL)
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    compaction = Rounds()
    loop, sent = loop_over(compaction, Scripted(ANSWER))
    stream = b"".join(await received(loop, Scripted(pieces)))
    assert b"narrows_recall" not in stream
    assert stream.index(b"Let me see. ") < stream.index(b"It is 42.") < stream.index(b"[DONE]")
    assert stream.count(b"[DONE]") == 1
    assert (sent, len(loop.ended), loop.status) == ([b"second"], 1, 200)
    assert (compaction.remembered, compaction.learned) == ([0], [(b"first", 200)])


async def test_r3_without_a_recall_the_stream_is_what_came() -> None:
    loop, sent = loop_over(Rounds())
    assert b"".join(await received(loop, Scripted(ANSWER))) == b"".join(ANSWER)
    assert (sent, len(loop.ended)) == ([], 0)


async def test_r3_an_event_goes_on_before_the_next_one_has_come() -> None:
    loop, _ = loop_over(Rounds())
    stream = loop.events(Scripted(ANSWER))  # type: ignore[arg-type]  # as much of a reply as the loop reads
    assert await anext(stream) == ANSWER[0]
    await stream.aclose()


async def test_f_a_round_that_is_refused_is_an_error_in_the_words_of_the_upstream() -> None:
    refusal = Scripted([b'{"error": {"message": "too long"}}'], status=400, kind="application/json")
    loop, _ = loop_over(Rounds(), refusal)
    with pytest.raises(RefusedError) as caught:
        await received(loop, Scripted(CALL))
    assert (caught.value.status, caught.value.code) == (502, "upstream_refused")


async def test_f_a_round_that_cannot_be_made_is_our_error() -> None:
    loop, sent = loop_over(Rounds(fault=LookupError("planted")))
    with pytest.raises(FailedError):
        await received(loop, Scripted(CALL))
    assert sent == []


async def test_t3_a_stream_that_ends_in_the_middle_is_no_end() -> None:
    loop, _ = loop_over(Rounds())
    with pytest.raises(CutError):
        await received(loop, Scripted(ANSWER[:1], delimited=False))


async def test_r3_a_json_reply_is_read_whole_and_asked_on() -> None:
    def body(**message: Any) -> bytes:
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
        if "tool_calls" in message:
            choice["finish_reason"] = "tool_calls"
        return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode()

    call = {"id": "c0", "type": "function", "function": {"name": "narrows_recall", "arguments": '{"ref":"482913"}'}}
    loop, sent = loop_over(Rounds(), Scripted([body(content="It is 42.")], kind="application/json"))
    first: Any = Scripted([body(content=None, tool_calls=[call])], kind="application/json")
    head, result = await loop.whole(first)
    assert head is first
    assert b"It is 42." in result
    assert b"narrows_recall" not in result
    assert sent == [b"second"]

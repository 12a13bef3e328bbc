"""However a stream is cut, what the client gets and what is read of the reply is as if each event came alone."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.dialects import DIALECTS, Reply
from proxy.sse import Copy, Events
from tests import examples
from tests.kit import messages, replies, responses

WORDS = st.text(st.sampled_from('ab "\\{}\n:é🙂\u2028'), min_size=1, max_size=30)
PARTS = st.lists(st.tuples(st.sampled_from(["text", "call", "recall", "odd"]), WORDS), min_size=1, max_size=4)
ODD = [
    b": ping\n\n",
    b"\n",
    b"data: x\n\n",
    b'data: {"a":1},{"b":2}\n\n',
    b'data: {"choices":[]}\n\n',
    b"event: ping\n\n",
]
NULL = {"usage": None}


def chat_events(parts: Sequence[tuple[str, str]]) -> list[bytes]:
    """A streamed reply of OpenAI chat completions, its calls in pieces."""
    events = [replies.chunk({"role": "assistant", "content": ""}, **NULL)]
    calls = 0
    for kind, word in parts:
        if kind == "text":
            events += [replies.chunk({"content": piece}, **NULL) for piece in word]
        elif kind == "odd":
            events += [replies.chunk({"content": word, "reasoning": word}), replies.chunk({"content": word}, at=1)]
        else:
            name = replies.NAME if kind == "recall" else ("bash", "narrows_", "", "n")[len(word) % 4]
            events.append(replies.chunk(replies.made(replies.entry(name, "", calls, f"c{calls}"))))
            pieces = [replies.entry(None, piece, calls, None) for piece in ('{"ref":', ' "482913"', "}")]
            events += [replies.chunk(replies.made(entry)) for entry in pieces]
            calls += 1
    end = replies.chunk({}, "tool_calls" if calls else "stop")
    return [*events, end, replies.chunk(None, **replies.usage(9, 4)), replies.DONE]


def message_events(parts: Sequence[tuple[str, str]]) -> list[bytes]:
    """A streamed reply of Anthropic Messages."""
    blocks = {"text": messages.text, "odd": messages.thinks}
    written = [
        blocks[kind](word) if kind in blocks else messages.asks(f"r{i}") if kind == "recall" else messages.uses(f"c{i}")
        for i, (kind, word) in enumerate(parts)
    ]
    return messages.stream(
        *written, reason="tool_use" if {"call", "recall"} & {kind for kind, _ in parts} else "end_turn"
    )


def response_events(parts: Sequence[tuple[str, str]]) -> list[bytes]:
    """A streamed reply of OpenAI Responses."""
    items = {
        "text": lambda word, i: responses.message(word, f"m{i}"),
        "odd": lambda word, i: responses.reasoning(word, f"r{i}"),
        "call": lambda word, i: responses.call("bash", '{"command": "ls"}', f"c{i}"),
        "recall": lambda word, i: responses.call(call_id=f"c{i}"),
    }
    output: list[Any] = [items[kind](word, i) for i, (kind, word) in enumerate(parts)]
    return responses.events(output, usage=responses.usage(9, 4))


APIS = {"openai_chat": chat_events, "anthropic_messages": message_events, "openai_responses": response_events}


def read(reply: Reply) -> list[object]:
    """All that is read of a reply."""
    choices = [reply.result(choice) for choice in (0, 1)]
    return [choices, list(reply.pending), list(reply.over), reply.usage, reply.completion, reply.last_event(b"{}")]


def one_by_one(reply: Reply, stream: bytes) -> bytes:
    events = Events()
    return b"".join(piece for event in events.feed(stream) for piece in reply.feed(event)) + events.rest


def in_chunks(reply: Reply, chunks: Sequence[bytes]) -> bytes:
    pieces: list[bytes] = []

    def receive(events: bytes) -> list[bytes] | None:
        received = reply.feed_all(events)
        pieces.extend(received or ())
        return received

    copy = Copy(lambda event: pieces.extend(reply.feed(event)), "text/event-stream", "", 2**20, receive)
    for chunk in chunks:
        copy.feed(chunk)
    assert copy.trouble == ""
    return b"".join(pieces) + copy.rest


@pytest.mark.parametrize("rounds", [None, 0, 2])
@pytest.mark.parametrize("api", APIS)
@settings(deadline=None, max_examples=examples(300))
@given(data=st.data())
def test_r3_however_it_is_cut_a_stream_is_the_same(api: str, rounds: int | None, data: st.DataObject) -> None:
    events = APIS[api](data.draw(PARTS))
    for at, odd in data.draw(st.lists(st.tuples(st.integers(0, 60), st.sampled_from(ODD)), max_size=2)):
        events.insert(at, odd)
    end = data.draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"]))
    events = [event.replace(b"\n", end) for event in events]
    stream = b"".join(events)
    at_events = st.sampled_from([len(b"".join(events[:n])) for n in range(len(events))])
    cuts = data.draw(st.lists(at_events | st.integers(0, len(stream)), max_size=40))
    # the LF of a CRLF that was cut in two is an event of its own
    cuts = [cut + (stream[cut - 1 : cut + 1] == b"\r\n") for cut in cuts]
    chunks = [stream[a:b] for a, b in pairwise([0, *sorted(cuts), len(stream)])]
    alone, cut = (DIALECTS[api].reply(rounds) for _ in range(2))
    assert in_chunks(cut, chunks) == one_by_one(alone, stream)
    assert read(cut) == read(alone)


@pytest.mark.parametrize("api", APIS)
def test_r3_what_passes_at_once_is_the_very_object_that_came(api: str) -> None:
    reply, events = DIALECTS[api].reply(2), APIS[api]([("text", "abcdefgh" * 20), ("call", "")])
    opening = next(n for n, event in enumerate(events) if b"abcdefgh"[:5] in event or b'"content": "a"' in event) + 1
    assert reply.feed_all(b"".join(events[:opening]))
    (piece,) = reply.feed_all(events[opening]) or []
    assert piece is events[opening]

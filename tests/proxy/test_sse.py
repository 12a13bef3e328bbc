"""Events keep their raw bytes however the stream is split; encodings are decoded in bounded pieces."""

import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.sse import ENCODINGS, Copy, Events, TooLargeError, UndecodableError, data, decoded
from tests import examples
from tests.kit.upstream import COMPRESS

PIECES = [
    b"data: a",
    b"data:b",
    b"data",
    b": ping",
    b"event: x",
    b"id",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\r\n\r\n",
]
STREAMS = st.lists(st.sampled_from(PIECES) | st.binary(max_size=4)).map(b"".join)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def fed(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    events = Events()
    return [event for piece in pieces for event in events.feed(piece)], events.rest


@given(STREAMS, st.lists(st.integers(0, 500)))
def test_t2_events_and_rest_are_the_bytes_that_were_fed(stream: bytes, places: list[int]) -> None:
    events, rest = fed(cut(stream, places))
    assert b"".join(events) + rest == stream


@given(STREAMS, st.lists(st.integers(0, 500)))
def test_t2_no_split_changes_what_is_said(stream: bytes, places: list[int]) -> None:
    def said(events: list[bytes]) -> list[bytes]:
        return [text for event in events if (text := data(event)) is not None]

    assert said(fed(cut(stream, places))[0]) == said(fed([stream])[0])


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_t2_every_line_end_byte_by_byte(end: bytes) -> None:
    stream = b"\xef\xbb\xbfdata: one" + end + b"data: more" + end * 2 + b": ping" + end * 2 + b"data:two" + end * 2
    events, _ = fed([stream[i : i + 1] for i in range(len(stream))])
    assert [data(event) for event in events if data(event)] == [b"one\nmore", b"two"]


def test_t2_a_large_event_in_small_pieces_is_one_event() -> None:
    stream = b"data: " + b"x" * 2**20 + b"\n\n"
    events, rest = fed([stream[i : i + 7] for i in range(0, len(stream), 7)])
    assert (events, rest) == ([stream], b"")


def test_data_as_the_standard_reads_it() -> None:
    assert data(b"data:  two\ndata\ndata:x\n\n") == b" two\n\nx"
    assert data(b"event: y\nid: 1\n: data: no\ndatax: no\n\n") is None


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(max_examples=examples(30))
@given(text=st.binary(max_size=2000), places=st.lists(st.integers(0, 3000)))
def test_t6_an_encoding_is_undone_however_it_is_split(encoding: str, text: bytes, places: list[int]) -> None:
    undo = ENCODINGS[encoding]()
    encoded = COMPRESS[encoding.removeprefix("x-")](text)
    assert b"".join(piece for part in cut(encoded, places) for piece in undo(part)) == text
    assert decoded(encoded, encoding, len(text)) == text


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_t6_a_bomb_stops_at_the_limit(encoding: str) -> None:
    bomb = COMPRESS[encoding.removeprefix("x-")](bytes(2**25))
    assert len(bomb) < 2**16
    with pytest.raises(TooLargeError):
        decoded(bomb, encoding, 2**20)
    taken = 0
    for piece in ENCODINGS[encoding]()(bomb):
        taken = max(taken, len(piece))
    assert taken <= 2**24


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_t6_garbage_is_told_from_an_encoding(encoding: str) -> None:
    with pytest.raises(UndecodableError):
        decoded(b"this is no such thing, is it?", encoding, 1000)


def test_t6_a_thousand_and_more_members_are_refused() -> None:
    with pytest.raises(UndecodableError):
        decoded(gzip.compress(b"") * 5000, "gzip", 1000)


def test_t6_bare_deflate_is_read_too() -> None:
    bare = zlib.compressobj(wbits=-15)
    assert decoded(bare.compress(b"hello") + bare.flush(), "deflate", 10) == b"hello"


def test_a_copy_shows_events_and_knows_the_end() -> None:
    shown: list[bytes] = []
    copy = Copy(shown.append, "text/event-stream", "", 100)
    copy.feed(b"data: 1\n\nda")
    assert (shown, copy.amid, copy.close()) == ([b"data: 1\n\n"], True, False)
    copy.feed(b"ta: [DONE]\n\n")
    assert (shown[1:], copy.amid, copy.close()) == ([b"data: [DONE]\n\n"], False, True)


def test_a_copy_shows_json_whole_and_undone() -> None:
    shown: list[bytes] = []
    copy = Copy(shown.append, "application/json", "gzip", 100)
    encoded = gzip.compress(b'{"a": 1}')
    copy.feed(encoded[:9])
    copy.feed(encoded[9:])
    assert copy.close()
    assert shown == [b'{"a": 1}']


@pytest.mark.parametrize(
    ("encoding", "content", "trouble"),
    [
        ("gzip", b"no gzip", "UndecodableError"),
        ("", b"x" * 101, "TooLargeError"),
        ("compress", b"", "unknown"),
    ],
)
def test_a_copy_that_cannot_be_read_is_no_reason_to_break_a_reply(encoding: str, content: bytes, trouble: str) -> None:
    shown: list[bytes] = []
    copy = Copy(shown.append, "application/json", encoding, 100)
    copy.feed(content)
    copy.feed(content)
    assert copy.close()
    assert copy.trouble.startswith(trouble)
    assert shown == []

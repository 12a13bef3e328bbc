"""Usage that is asked for in the place of a client: what is added to its request, and taken out of its stream."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.dialects.openai_chat.reply import asking_for_usage, without_usage

USAGE = b'{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":0}}'
OPTION = {"include_usage": True}


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (b'{"stream":true,"messages":[]}', OPTION),
        (b'\xef\xbb\xbf {"stream": true}', None),
        (b' {"stream": true}', OPTION),
        (b'{"stream":true,"stream_options":null}', OPTION),
        (b'{"stream":true,"stream_options":{}}', OPTION),
        (b'{"stream":true,"stream_options":{"include_obfuscation":false}}', {**OPTION, "include_obfuscation": False}),
        (b'{"stream":true,"stream_options":{"include_usage":false}}', OPTION),
        (b'{"stream":true,"stream_options":{"include_usage":true}}', None),
        (b'{"stream":true,"stream_options":{"include_usage":"yes"}}', None),
        (b'{"stream":true,"stream_options":7}', None),
        (b'{"stream":false}', None),
        (b'{"messages":[]}', None),
        (b"words", None),
        (b'{"stream":true,"stream":true}', None),
    ],
)
def test_usage_is_asked_for_only_where_a_stream_has_not_asked(body: bytes, options: object) -> None:
    asking = asking_for_usage(body)
    if options is None:
        assert asking is None
        return
    assert asking is not None
    assert json.loads(asking) == {**json.loads(body), "stream_options": options}
    assert asking == asking_for_usage(body)
    assert asking_for_usage(asking) is None


BLANK = st.sampled_from([b"", b" ", b"  "])


@given(
    text=st.text(),
    usage=st.sampled_from([USAGE, b"null"]),
    at=st.integers(0, 3),
    before=BLANK,
    behind=BLANK,
    frame=st.sampled_from([(b"data: ", b"\n\n"), (b"data:", b"\r\n\r\n"), (b"event: x\ndata: ", b"\n\n")]),
    escapes=st.booleans(),
)
def test_law_1_every_other_byte_stays(
    text: str, usage: bytes, at: int, before: bytes, behind: bytes, frame: tuple[bytes, bytes], escapes: bool
) -> None:
    choice = {"index": 0, "delta": {"content": text, "usage": 1}, "finish_reason": None}
    members = [("id", "c1"), ("choices", [choice]), ("text", '"usage":' + text)]
    pieces = [
        json.dumps(name).encode() + b": " + json.dumps(value, ensure_ascii=escapes).encode("utf-8", "surrogatepass")
        for name, value in members
    ]
    with_usage = [*pieces[:at], before + b'"usage"' + behind + b":" + behind + usage, *pieces[at:]]
    head, end = frame
    shown = without_usage(head + b"{" + b",".join(with_usage) + b"}" + end)
    assert shown.replace(b" ", b"") == (head + b"{" + b",".join(pieces) + b"}" + end).replace(b" ", b"")


def test_the_chunk_that_brings_usage_alone_goes_and_others_without_it_stay() -> None:
    assert without_usage(b'data: {"id":"c1","choices":[],"usage":' + USAGE + b"}\n\n") == b""
    assert without_usage(b'data: {"choices":[],"prompt_filter_results":[1],"usage":null}\n\n') == (
        b'data: {"choices":[],"prompt_filter_results":[1]}\n\n'
    )
    for event in (
        b"data: [DONE]\n\n",
        b': "usage"\n\n',
        b'data: {"choices":[{"delta":{"content":"\\"usage\\""}}]}\n\n',
    ):
        assert without_usage(event) is event
    lines = b'data: {"choices":[{"index":0}],\ndata: "usage":null}\n\n'
    assert without_usage(lines) == b'data: {"choices":[{"index":0}]}\n\n'


def test_an_escaped_name_leaves_whole_json() -> None:
    shown = without_usage(b'data: {"choices":[{"delta":{"usage":"a"}}],"us\\u0061ge":null}\n\n')
    assert json.loads(shown.removeprefix(b"data: ")) == {"choices": [{"delta": {"usage": "a"}}]}


def test_a_chunk_of_usage_that_says_more_loses_its_usage_alone() -> None:
    shown = without_usage(b'data: {"choices":[],"error":{"message":"overloaded"},"usage":' + USAGE + b"}\n\n")
    assert shown == b'data: {"choices":[],"error":{"message":"overloaded"}}\n\n'

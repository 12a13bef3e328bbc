"""Whatever file a person names, a command ends with one sentence: what is wrong with it, what is needed, what to do."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.console import cli
from proxy.lab import sessions
from proxy.lab.explain import explained
from proxy.lab.generators.loops import generated
from proxy.lab.replay.recorded import requests, session_of
from proxy.lab.request_file import request_in
from tests import examples

SHIPPED = sessions.load("write_once")
MESSAGE = {"role": "user", "content": "hi"}
FIELDS = (
    *("messages", "input", "model", "tools", "system", "role", "content", "type", "text", "tool_calls", "id"),
    *("function", "name", "arguments", "tool_call_id", "tool_use_id", "call_id", "output", "cache_control"),
)
WORDS = (*("user", "assistant", "tool", "text", "tool_use", "tool_result", "function_call", "{}", "gpt-5.4"), "\ud800")
LEAVES = st.sampled_from([None, True, 0, -1.5, 10**30, float("nan"), "", *WORDS])
VALUES = st.recursive(
    LEAVES, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), each, max_size=4)
)


def read(content: bytes) -> None:
    """Read it for `replay` and for `explain`: either it can be worked with, or one sentence says why not."""
    try:
        for body in requests(session_of(content, "it", "it.json"), "gpt-5.4", marks=True):
            orjson.dumps(body)
    except ValueError as error:
        check_sentence(str(error))
    try:
        body, values = request_in(content, "it.json")
    except ValueError as error:
        check_sentence(str(error))
    else:
        if values.get("model"):
            explained(body, "adaptive")


def check_sentence(words: str) -> None:
    assert words.startswith("it.json ")
    assert not any(name in words for name in ("Error", "Traceback", "object has no attribute", "indices must be"))


@settings(deadline=None, max_examples=examples(400))
@given(VALUES | st.fixed_dictionaries({"messages": st.lists(VALUES, max_size=4)}, optional={"tools": VALUES}))
def test_any_json_is_read_or_refused_in_a_sentence(value: Any) -> None:
    read(json.dumps(value).encode())


@settings(deadline=None, max_examples=examples(400))
@given(st.binary(max_size=50))
def test_any_bytes_are_read_or_refused_in_a_sentence(content: bytes) -> None:
    read(content)


@settings(deadline=None, max_examples=examples(400))
@given(st.sampled_from([SHIPPED, generated("claude-loop", 1, 3)]), st.data())
def test_a_session_with_one_thing_broken_is_read_or_refused_in_a_sentence(session: Any, data: st.DataObject) -> None:
    place = broken = json.loads(json.dumps(session))
    while True:
        at = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inside = place[at]
        if not (isinstance(inside, dict | list) and inside) or (place is not broken and data.draw(st.booleans())):
            break
        place = inside
    if data.draw(st.booleans()):
        del place[at]
    else:
        place[at] = data.draw(VALUES)
    read(json.dumps(broken).encode())


@pytest.mark.parametrize("command", ["explain", "replay"])
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "it is empty"),
        (b"\x80\x02\x95PK\x03", "nor any text in UTF-8"),
        (b"[project]\nname = 'x'\n", "it is not JSON (line 1, column 2"),
        (b"{", "it is not JSON"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"a": 1}\n{"a": 2}\n', "JSON Lines"),
        (b'{"type": "user", "message": {}}', "it holds no `messages`"),
        (json.dumps([MESSAGE]).encode(), "around it"),
        (b'[{"title": "x", "mapping": {}}]', "export of the ChatGPT app"),
        (b'{"object": "chat.completion", "choices": []}', "it is a reply of a model"),
        (b'{"model": "m", "messages": []}', "its `messages` is empty"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "x"}, null]}', "messages[1] is not a JSON object"),
        (b"5", "it is not a JSON object"),
        (b'{"model": "m", "messages": [NaN]}', "NaN"),
    ],
)
def test_a_wrong_file_is_one_clear_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, content: bytes, fault: str
) -> None:
    file = tmp_path / "it.json"
    file.write_bytes(content)
    with pytest.raises(SystemExit) as leaving:
        cli.main([command, str(file)])
    out, err = capsys.readouterr()
    assert (leaving.value.code, out, err.count("\n")) == (2, "", 1)
    assert fault in err
    assert "`narrows generate chat` prints one" in err


def test_a_file_that_windows_wrote_is_read() -> None:
    text = json.dumps(SHIPPED)
    for content in (text.encode("utf-8-sig"), text.encode("utf-16")):
        body, values = request_in(content, "it.json")
        assert (json.loads(body.decode()), values) == (SHIPPED, SHIPPED)
        read(content)

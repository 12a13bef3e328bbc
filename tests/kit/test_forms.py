"""The conversion between the forms loses nothing: whatever a suite shows in one form it shows of the same session."""

import json

import pytest

from proxy.lab import sessions
from tests.kit.forms import BACK, FORMS, plain
from tests.kit.histories import Json
from tests.kit.paths import TRANSCRIPTS

PIXELS = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
LINKED = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
WORDS = {"type": "text", "text": "Look at these."}


def _call(id_: str) -> Json:
    return {"id": id_, "type": "function", "function": {"name": "look", "arguments": '{"at":"λ.py","n":1.5}'}}


def _result(id_: str, content: object) -> Json:
    return {"role": "tool", "tool_call_id": id_, "content": content}


MIXED: Json = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You look."},
        {"role": "user", "content": [WORDS, PIXELS, LINKED]},
        {"role": "assistant", "content": None, "tool_calls": [_call("a"), _call("b")]},
        _result("a", "seen"),
        _result("b", [{"type": "text", "text": "this"}, PIXELS]),
        {"role": "user", "content": "Again."},
        {"role": "assistant", "content": "I look.", "tool_calls": [_call("a")]},
        _result("a", "seen"),
        {"role": "assistant", "content": "Done."},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
}


def recordings() -> list[Json]:
    """The shipped sessions, and the recorded ones where they are at hand."""
    paths = [path for path in sorted(TRANSCRIPTS.glob("*.json")) if not path.name.endswith(".usage.json")]
    return [MIXED, *map(sessions.load, sessions.names()), *(json.loads(path.read_bytes()) for path in paths)]


@pytest.mark.parametrize("form", FORMS)
def test_there_and_back_is_the_same_session(form: str) -> None:
    for session in map(plain, recordings()):
        assert BACK[form](json.loads(json.dumps(FORMS[form](session)))) == session


@pytest.mark.parametrize("form", ["anthropic_messages", "openai_responses"])
def test_each_call_has_an_id_of_its_own_there(form: str) -> None:
    for session in map(plain, recordings()):
        entries = FORMS[form](session).get("messages") or FORMS[form](session)["input"]
        blocks = [
            block
            for entry in entries
            for block in ([entry] if form == "openai_responses" else entry["content"])
            if isinstance(block, dict) and block["type"] in ("tool_use", "function_call")
        ]
        ids = [block.get("call_id") or block["id"] for block in blocks]
        assert len(ids) == len(set(ids))

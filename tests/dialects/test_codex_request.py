"""What a real client sends: every kind of item that Codex CLI knows, in its own spelling."""

import json
from pathlib import Path

from policies.dialects import DIALECTS
from policies.model.tokens import Counter

RESPONSES = DIALECTS["openai_responses"]
BODY = (Path(__file__).parents[1] / "golden" / "clients" / "codex.json").read_bytes().rstrip()
READ = {
    ("message", "developer"): ("developer", ["system"]),
    ("message", "user"): ("user", ["user"]),
    ("message", "assistant"): ("assistant", ["assistant"]),
    ("reasoning", ""): ("assistant", ["opaque"]),
    ("function_call", ""): ("assistant", ["call"]),
    ("function_call_output", ""): ("tool", ["result"]),
    ("custom_tool_call", ""): ("assistant", ["call"]),
    ("custom_tool_call_output", ""): ("tool", ["result"]),
    ("web_search_call", ""): ("assistant", ["opaque"]),
    ("tool_search_call", ""): ("assistant", ["opaque"]),
    ("tool_search_output", ""): ("tool", ["opaque"]),
    ("compaction", ""): ("assistant", ["opaque"]),
}
"""Items by type and role: the role as policies know it, and the kinds of what they may look at."""


def test_v5_v6_every_item_of_codex_is_what_it_is() -> None:
    request = RESPONSES.split(BODY)
    assert request is not None
    items = json.loads(BODY)["input"]
    assert len(request.spans) == len(items)
    for at, item in enumerate(items):
        message = RESPONSES.read(request.raw(at), Counter())
        kinds = [part.kind for part in message.parts if part.path != ("phase",)]
        shown = READ[item["type"], item.get("role", "")]
        pictured = isinstance(item.get("output"), list)
        assert (message.role, sorted(set(kinds))) == (shown if not pictured else ("tool", ["opaque"])), item
        assert message.partial == (shown[0] == "assistant"), item
    assert {(item["type"], item.get("role", "")) for item in items} == READ.keys()


def test_s3_r7_codex_gets_the_recall_tool_and_keeps_its_bytes() -> None:
    request = RESPONSES.split(BODY)
    assert request is not None
    assert request.conversation == json.loads(BODY)["prompt_cache_key"]
    added = RESPONSES.recall.tool(request, False)
    assert added is not None
    at, tool = added
    assert RESPONSES.joined(request, {}, added) == BODY[:at] + tool + BODY[at:]
    assert json.loads(BODY[:at] + tool + BODY[at:])["tools"][:-1] == json.loads(BODY)["tools"]

"""The messages of a reply, as an official SDK's client returns them; none of a reply that is not whole."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.dialects import DIALECTS
from policies.tools.file_changes import ToolCall, changes_of
from proxy.app import App
from proxy.lab.provider import Say
from tests import examples
from tests.kit.apis import Api, plays
from tests.kit.histories import Json
from tests.kit.recalling import BOTH, call
from tests.kit.speaking import speaking
from tests.kit.stage import Stage


def bare(entry: Any) -> Any:
    """Without what an SDK adds or leaves out: nothing, and the places of calls."""
    if isinstance(entry, list):
        return [bare(each) for each in entry]
    if not isinstance(entry, dict):
        return entry
    return {name: bare(value) for name, value in entry.items() if value is not None and name != "index"}


@BOTH
async def test_m10_a_reply_is_logged_as_its_client_returns_it(stage: Stage, app: App, api: Api, stream: bool) -> None:
    calls = [call("a", "bash", command='echo "λ\n"'), call("b", "look", at=["x"])]
    turns = [
        Say("Both of them, 👩‍👩‍👧.", calls, thinking=("I think.", "And then again.")),
        Say(None, calls),
        Say("Done."),
    ]
    stage.provider.answer = plays(*turns)
    async with speaking(api, app.base_url) as speaker:
        for _ in turns:
            heard = await speaker.ask([{"role": "user", "content": "Go."}], stream, **api.thinks)
            messages = [json.loads(raw) for raw in DIALECTS[api.dialect].messages_in(heard.raw)]
            assert bare(messages) == bare(api.entries_of(heard.reply))
            for end in (0, len(heard.raw) // 2):
                assert DIALECTS[api.dialect].messages_in(heard.raw[:end]) == []


@pytest.mark.parametrize(
    ("dialect", "reply"),
    [
        ("openai_chat", {"choices": [{"index": n, "finish_reason": "stop", "message": {}} for n in range(2)]}),
        ("openai_chat", {"choices": [{"finish_reason": None, "message": {"content": "a"}}]}),
        ("openai_chat", {"error": {}}),
        ("anthropic_messages", {"content": [{"type": "text", "text": "a"}], "stop_reason": None}),
        ("openai_responses", {"status": "failed", "output": [{"type": "message"}]}),
    ],
)
def test_t3_what_is_not_whole_or_not_one_reply_has_no_messages(dialect: str, reply: Json) -> None:
    assert DIALECTS[dialect].messages_in(json.dumps(reply).encode()) == []
    events = [{"choices": [{"index": 1, "delta": {"content": "a"}, "finish_reason": "stop"}]}, {"error": {}}]
    stream = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events)
    assert DIALECTS["openai_chat"].messages_in(stream) == []


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "a b\n", "\n", "-- x\n", "@@ -1 +1 @@\n"]), max_size=40)


@settings(deadline=None, max_examples=examples(60))
@given(old=LINES, new=LINES, many=st.booleans())
def test_m10_a_diff_of_a_file_makes_the_new_one_of_the_old_one(old: list[str], new: list[str], many: bool) -> None:
    old, new = (old * 30, new * 30) if many else (old, new)
    writes = [json.dumps({"path": "a.txt", "content": "".join(lines)}) for lines in (old, new)]
    changes, unseen = changes_of([ToolCall(at, "write_file", text) for at, text in enumerate(writes)])
    assert (unseen, [change.knows for change in changes]) == ([], ["nothing", "all"])
    left, made, at = [*old], list[str](), 0
    for line in changes[1].diff.splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            start = int(line.split()[1].partition(",")[0][1:])
            length = int(line.split()[1].partition(",")[2] or 1)
            made += left[at : start - bool(length)]
            at = start - bool(length)
        else:
            assert line[0] == "+" or left[at] == line[1:]
            made += [line[1:]] if line[0] != "-" else []
            at += line[0] != "+"
    assert [*made, *left[at:]] == new


def test_m10_a_long_file_that_is_edited_often_is_followed_up_to_a_bound() -> None:
    text = "".join(f"line {at}\n" for at in range(100_000))
    edits = [json.dumps({"path": "a.py", "old_string": f"line {at}\n", "new_string": "x\n"}) for at in range(100)]
    calls = [
        ToolCall(0, "read_file", '{"path": "a.py"}', text),
        *(ToolCall(at, "edit_file", e) for at, e in enumerate(edits)),
    ]
    changes, _ = changes_of(calls)
    knows = [change.knows for change in changes]
    assert knows == sorted(knows, reverse=True)  # "read", then "part"
    assert 5 < knows.count("read") < 50
    assert all("+x\n" in change.diff for change in changes)

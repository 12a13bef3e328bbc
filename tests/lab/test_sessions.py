"""The shipped sessions: shape, size, what a strict provider asks for, and truth to themselves."""

import ast
import json
from collections import Counter
from importlib.resources import files
from typing import Any

import pytest

from policies.model.tokens import Counter as TokenCounter
from proxy.lab import sessions

Message = dict[str, Any]
NAMES = ("follow_up", "long_day", "write_once")
LARGE = 1_500


@pytest.fixture(params=NAMES)
def session(request: pytest.FixtureRequest) -> dict[str, Any]:
    return sessions.load(request.param)


@pytest.fixture
def write_once() -> list[Message]:
    messages: list[Message] = sessions.load("write_once")["messages"]
    return messages


@pytest.fixture
def long_day() -> list[Message]:
    messages: list[Message] = sessions.load("long_day")["messages"]
    return messages


def calls_of(message: Message) -> list[Message]:
    return list(message.get("tool_calls", ()))


def arguments_of(message: Message) -> list[str]:
    return [call["function"]["arguments"] for call in calls_of(message)]


def texts(message: Message) -> list[tuple[str, str]]:
    """Every text of a message beside the kind it counts for."""
    return [(message["role"], message["content"]), *(("arguments", text) for text in arguments_of(message))]


def said_before(messages: list[Message], end: int) -> list[str]:
    """What stood in tool results and in the strings of arguments before message `end`."""
    said: list[str] = []
    for message in messages[:end]:
        if message["role"] == "tool":
            said.append(message["content"])
        for text in arguments_of(message):
            said.extend(value for value in json.loads(text).values() if isinstance(value, str))
    return said


def assert_answered(messages: list[Message]) -> None:
    """Each call is answered by the messages right after it, in order, and nothing else is answered."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert waiting, "a result without a call"
            assert message["tool_call_id"] == waiting.pop(0)
        else:
            assert not waiting, "a call without a result"
            waiting = [call["id"] for call in calls_of(message)]
    assert not waiting


def test_all_sessions_are_listed() -> None:
    assert tuple(sessions.names()) == NAMES


def test_an_unknown_session_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="no_such_day"):
        sessions.load("no_such_day")


@pytest.mark.parametrize("name", NAMES)
def test_there_is_one_message_a_line(name: str) -> None:
    text = (files("proxy.lab.sessions") / f"{name}.json").read_text(encoding="utf-8")
    lines = text.splitlines()
    messages = [json.loads(line.rstrip(",")) for line in lines if line.startswith('{"role"')]
    assert messages == sessions.load(name)["messages"]


def test_the_body_has_the_form_of_chat_completions(session: dict[str, Any]) -> None:
    assert list(session) == ["model", "messages", "tools"]
    assert session["model"] == "gpt-5.4"
    roles = [message["role"] for message in session["messages"]]
    assert (roles[:2] if "system" in roles else ["system", *roles[:1]]) == ["system", "user"]
    assert set(roles) | {"system"} == {"system", "user", "assistant", "tool"}
    assert all(isinstance(message["content"], str) and message["content"] for message in session["messages"])


def test_every_call_is_answered_at_once(session: dict[str, Any]) -> None:
    assert_answered(session["messages"])
    ids = [call["id"] for message in session["messages"] for call in calls_of(message)]
    assert len(ids) == len(set(ids))


def test_arguments_are_what_the_tools_declare(session: dict[str, Any]) -> None:
    declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in session["tools"]}
    assert set(declared) == {"read_file", "write_file", "edit_file", "bash", "grep", "list_dir"}
    types = {"string": str, "integer": int}
    for message in session["messages"]:
        for call in calls_of(message):
            schema = declared[call["function"]["name"]]
            arguments = json.loads(call["function"]["arguments"])
            assert set(schema["required"]) <= set(arguments) <= set(schema["properties"])
            for key, value in arguments.items():
                assert isinstance(value, types[schema["properties"][key]["type"]])


def test_an_edit_quotes_what_was_there_to_be_read(session: dict[str, Any]) -> None:
    messages = session["messages"]
    edits = 0
    for i, message in enumerate(messages):
        for call in calls_of(message):
            if call["function"]["name"] == "edit_file":
                old = json.loads(call["function"]["arguments"])["old_string"]
                assert any(old in text for text in said_before(messages, i)), (i, old)
                edits += 1
    assert edits


def test_written_python_files_parse(session: dict[str, Any]) -> None:
    for message in session["messages"]:
        for call in calls_of(message):
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "write_file" and arguments["path"].endswith(".py"):
                ast.parse(arguments["content"])


def test_whole_python_files_that_were_read_parse(session: dict[str, Any]) -> None:
    results = {m["tool_call_id"]: m["content"] for m in session["messages"] if m["role"] == "tool"}
    parsed = 0
    for message in session["messages"]:
        for call in calls_of(message):
            arguments = json.loads(call["function"]["arguments"])
            whole = call["function"]["name"] == "read_file" and set(arguments) == {"path"}
            if whole and arguments["path"].endswith(".py"):
                ast.parse(results[call["id"]])
                parsed += 1
    assert parsed >= 2


# ---- write_once


def test_write_once_has_the_size_of_the_figure(write_once: list[Message]) -> None:
    assert len(write_once) == 18
    size = sum(len(text) for message in write_once for _, text in texts(message))
    assert 48_300 <= size <= 49_100


def test_write_once_is_two_reads_a_traceback_a_patch_and_a_rewrite(write_once: list[Message]) -> None:
    tools = [call["function"]["name"] for message in write_once for call in calls_of(message)]
    assert tools == ["read_file", "read_file", "bash", "edit_file", "write_file", "bash", "bash"]
    assert 23_500 <= sum(len(write_once[i]["content"]) for i in (3, 5, 7)) <= 24_500
    assert 2_500 <= len(arguments_of(write_once[8])[0]) <= 2_750
    assert 14_100 <= len(json.loads(arguments_of(write_once[10])[0])["content"]) <= 14_500


def test_write_once_has_hardly_any_prose(write_once: list[Message]) -> None:
    acknowledged = [message["content"] for message in write_once if message["role"] == "tool"][3:5]
    prose = [message["content"] for message in write_once if message["role"] in ("user", "assistant")]
    assert all(len(text) <= 105 for text in (*prose, *acknowledged))


def test_write_once_patches_the_file_that_it_read(write_once: list[Message]) -> None:
    patch = json.loads(arguments_of(write_once[8])[0])
    source = write_once[3]["content"]
    assert json.loads(arguments_of(write_once[2])[0])["path"] == patch["path"]
    assert source.count(patch["old_string"]) == 1
    ast.parse(source.replace(patch["old_string"], patch["new_string"]))


def test_write_once_code_does_what_its_outputs_say(write_once: list[Message]) -> None:
    """The listed tests are those of the file that was read: one fails at first, none at the end."""
    tree = ast.parse(write_once[5]["content"])
    functions = {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}
    for i, failed in ((7, 1), (13, 0)):
        output = write_once[i]["content"]
        lines = [line for line in output.splitlines() if line.startswith("tests/") and "::" in line]
        listed = [line.split("::")[1].split("[")[0].split()[0] for line in lines]
        assert set(listed) == functions
        assert sum(" FAILED " in line for line in lines) == failed
        assert f"{len(lines) - failed} passed" in output


def test_write_once_ends_with_an_unanswered_wish(write_once: list[Message]) -> None:
    assert write_once[-1]["role"] == "user"
    assert sum(message["role"] == "assistant" for message in write_once) == 8


# ---- long_day


def test_long_day_is_long(long_day: list[Message]) -> None:
    assert 150 <= len(long_day) <= 175
    roles = Counter(message["role"] for message in long_day)
    assert roles["assistant"] >= 70
    assert roles["user"] == 5
    assert long_day[-1]["role"] == "assistant"


def test_long_day_has_the_proportions_of_real_sessions(long_day: list[Message]) -> None:
    count = TokenCounter("o200k_base")
    tokens: Counter[str] = Counter()
    for message in long_day:
        for kind, text in texts(message):
            tokens[kind] += count(text)
    total = tokens.total()
    assert 45_000 <= total <= 60_000
    assert 0.40 <= tokens["tool"] / total <= 0.62
    assert 0.10 <= tokens["arguments"] / total <= 0.22
    assert 0.18 <= tokens["assistant"] / total <= 0.30


def test_long_day_repeats_itself_now_and_then(long_day: list[Message]) -> None:
    results = Counter(message["content"] for message in long_day if message["role"] == "tool")
    large = [text for text in results if len(text) >= LARGE]
    assert max(results.values()) >= 2
    assert len(large) >= 10
    reads = Counter(
        json.loads(text)["path"]
        for message in long_day
        for call, text in zip(calls_of(message), arguments_of(message), strict=True)
        if call["function"]["name"] == "read_file"
    )
    assert reads["waypost/store.py"] >= 2
    assert reads["waypost/carriers.py"] >= 2


def test_long_day_has_calls_in_parallel(long_day: list[Message]) -> None:
    assert max(len(calls_of(message)) for message in long_day) >= 3

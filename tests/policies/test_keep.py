"""Patterns for what is to stay as it is: what each names, and what none may cost."""

import json

import pytest

from policies.compact import compact
from policies.dialects import DIALECTS
from policies.keep import LONGEST_PATTERN, MOST_PATTERNS, Protection, names, patterns_of
from policies.model.conversation import converse
from policies.tools import paths_of
from tests.kit.histories import Json, body_of
from tests.kit.talk import call, conversation_of, gives, letters, runs, says, user

openai_chat = DIALECTS["openai_chat"]


def never(items: int) -> None:
    """Planning is not stopped."""


ODD = "a\ud800b"


def made(tool: str, arguments: Json) -> Json:
    return {**says(""), "content": None, "tool_calls": [call("call_0", tool, arguments)]}


@pytest.mark.parametrize(
    ("pattern", "tool", "arguments", "is_named"),
    [
        ("read_file", "read_file", {}, True),
        ("read_file", "read_files", {}, False),
        ("Read_File", "read_file", {}, False),
        ("read_file", "bash", {"command": "echo text about read_file"}, True),  # a word of a command line
        ("read_file", "think", {"thought": "read_file"}, False),
        ("mcp__db__*", "mcp__db__query", {}, True),
        ("mcp__db__*", "x_mcp__db__query", {}, False),
        ("query", "db/query", {}, True),
        ("r*d_*", "read_file", {}, True),
        ("r*d_file_*", "read_file", {}, False),
        ("read_?ile", "read_file", {}, False),
        ("*.sql", "read_file", {"path": "db/schema.sql"}, True),
        ("*.sql", "read_file", {"filePath": "/repo/db/schema.sql"}, True),
        ("schema.sql", "read_file", {"file_path": "/repo/db/schema.sql"}, True),
        ("db/*.sql", "read_file", {"path": "/repo/db/schema.sql"}, True),
        ("db/*.sql", "read_file", {"path": "C:\\repo\\db\\schema.sql"}, True),
        ("b/*.sql", "read_file", {"path": "/repo/db/schema.sql"}, False),
        ("/repo/*", "read_file", {"path": "/repo/db/schema.sql"}, True),
        ("*.sql", "read_many", {"paths": ["a.py", "b.sql"]}, True),
        ("*.sql", "edit", {"edits": [{"path": "b.sql", "old": "x"}]}, True),
        ("*.sql", "move_file", {"source": "a.sql", "destination": "b"}, True),
        ("*.sql", "grep", {"pattern": "create", "path": "b.sql"}, True),
        ("*.sql", "bash", {"command": "cd db && psql -q -f 1.sql | head -5"}, True),
        ("db/1.sql", "bash", {"command": "cd db && cat 1.sql"}, True),
        ("*.sql", "bash", {"cmd": ["bash", "-lc", "sed -n 1,9p 'my file.sql'"]}, True),
        ("*.sql", "bash", {"command": "python -c 'print(1)' # b.sql"}, False),
        ("*.sql", "apply", {"patch": "*** Update File: b.sql\n@@"}, True),
        ("*.sql", "write_note", {"text": "see b.sql"}, False),
        ("text:ACME-42", "write_note", {"text": "for ACME-42 only"}, True),
        ("text: ACME-42 ", "write_note", {"text": "for ACME-42 only"}, True),
        ("text:acme-42", "write_note", {"text": "for ACME-42 only"}, False),
        ("text:A.*42", "write_note", {"text": "for ACME-42 only"}, False),
        ("ACME-42", "write_note", {"text": "ACME-42"}, False),
        ("*", ODD, {"path": "x" * 2_000}, True),
        ("*.sql", "read_file", {"path": "x" * 2_000 + ".sql"}, False),  # nobody's path
        ("[id]/*", "read_file", {"path": "app/[id]/page.tsx"}, True),
        ("src/**/*.py", "read_file", {"path": "src/a.py"}, True),
        ("src/**/*.py", "read_file", {"path": "/repo/src/b/c/a.py"}, True),
        ("src/**/*.py", "read_file", {"path": "lib/a.py"}, False),
    ],
)
def test_what_a_pattern_names(pattern: str, tool: str, arguments: Json, is_named: bool) -> None:
    talk = conversation_of(user("go"), made(tool, arguments), gives("output"), user("on"))
    patterns = patterns_of([pattern])
    assert names(patterns, talk, 1) is is_named
    of_text = pattern.startswith("text:")
    assert Protection(patterns, pause=never).keeps(talk, 2) is (is_named and not of_text), (
        "the result of a call goes with it, but for its text"
    )
    assert Protection(patterns, pause=never).keeps_turn(talk, 0) is is_named


def test_a_text_names_the_block_that_holds_it_whoever_wrote_that() -> None:
    patterns = patterns_of(["text:漢字 λόγος", f"text:{ODD}cd"])
    spoken = "as 漢字 λόγος says"
    talk = conversation_of(user("go"), says(spoken), user(spoken), says("no"), *runs("ls", spoken), user(f"{ODD}cd"))
    assert [Protection(patterns, pause=never).keeps(talk, at) for at in range(len(talk.blocks))] == [
        False,
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    assert [Protection(patterns, pause=never).keeps_turn(talk, turn) for turn in range(3)] == [True, True, True]
    assert not any(
        Protection(patterns_of(["user", "*.sql"]), pause=never).keeps(talk, at) for at in range(len(talk.blocks))
    )


def test_a_name_of_a_participant_is_no_tool() -> None:
    talk = conversation_of({**user("go"), "name": "read_file"}, says("yes"), user("on"))
    assert not Protection(("read_file",), pause=never).keeps(talk, 0)


def test_system_text_belongs_to_no_turn() -> None:
    talk = conversation_of({"role": "system", "content": "ACME-42"}, user("go"), says("yes"), user("on"))
    assert Protection(("text:ACME-42",), pause=never).keeps(talk, 0)
    assert not Protection(("text:ACME-42",), pause=never).keeps_turn(talk, 0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["text:abc"], "a text needs 4 characters or more"),
        (["text:   a "], "a text needs 4 characters or more"),
        ([""], "names nothing"),
        (["x" * (LONGEST_PATTERN + 1)], f"give at most {LONGEST_PATTERN}"),
        ([f"a{i}" for i in range(MOST_PATTERNS + 1)], f"give at most {MOST_PATTERNS}"),
    ],
)
def test_what_cannot_be_meant_is_refused(values: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        patterns_of(values)
    with pytest.raises(ValueError, match=words):
        compact(body_of([user("hi")]), keep=values)


def test_order_doubles_and_space_do_not_count() -> None:
    assert patterns_of(["b", " a", "b "]) == patterns_of(["a", "b"]) == ("a", "b")


def test_x9_a_long_text_counts_as_much_work() -> None:
    """So planning can be stopped there; of paths few are compared, and none that is longer than any is."""
    items: list[int] = []
    paths = [f"{i}/" + "a/" * 100 for i in range(1_000)]
    talk = conversation_of(user("go"), made("read", {"paths": [*paths, "b.sql"]}), gives("a" * 10**6), user("on"))
    assert not any(
        Protection(("*.sql", "text:aaab"), pause=items.append).keeps(talk, at) for at in range(len(talk.blocks))
    )
    assert items[2] > 20
    assert len(paths_of(talk.blocks[1].text)) <= 100


def test_each_block_is_looked_at_once_while_a_history_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr("policies.keep.names", lambda patterns, talk, at: looked.append(at) or at % 5 == 0)
    messages, earlier = [user("go")], None
    for n in range(40):
        messages += [*runs(f"make {n}", "ok"), user("on")]
        talk = converse([openai_chat.read(json.dumps(each).encode(), letters) for each in messages], earlier)
        for _ in range(2):
            Protection(("p",), pause=never).tokens_in(talk, range(talk.steps - 1))
        earlier = talk
    assert len(looked) <= 2 * len(messages)
    assert Protection(("p",), pause=never).tokens_in(talk, range(talk.steps - 1)) == Protection(
        ("p",), pause=never
    ).tokens_in(converse(talk.messages), range(talk.steps - 1))

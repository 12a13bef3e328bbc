"""What kind of output: by what the call says first, by the name of the tool next, by its look last."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from policies.tools import arguments_of, kind_of, shell_command, writes

SESSIONS = Path(__file__).parents[3] / "shared" / "transcripts"


def shell(command: str) -> str:
    return json.dumps({"command": command})


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("cat a.py", "file"),
        ("cd /repo && sed -n 1,20p a.py", "file"),
        ("PAGER=cat head -5 x", "file"),
        ("sudo cat x", "file"),
        ("/usr/bin/nl a.py", "file"),
        ("grep -rn x .", "search"),
        ("git grep x", "search"),
        ("rg x | head", "search"),
        ("ls -la", "listing"),
        ("find . -name x", "listing"),
        ("curl http://x", "web"),
        ("jq . a.json", "data"),
        ("pytest -q", "command"),
        ("sed -i s/a/b/ f.py", "command"),
        ("cat > a.py << 'EOF'\nx\nEOF", "command"),
        ("", "command"),
    ],
)
def test_m10_a_shell_call_is_what_its_program_does(command: str, kind: str) -> None:
    assert kind_of("any_name", shell(command), "") == kind


@pytest.mark.parametrize("key", ["command", "cmd", "script"])
def test_a_renamed_tool_is_known_by_its_schema(key: str) -> None:
    assert kind_of("zx81", json.dumps({key: "grep -n x a.py"}), "") == "search"
    assert kind_of("zx81", json.dumps({key: ["cat", "a.py"]}), "") == "file"


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ("read_file", "file"),
        ("web_fetch", "web"),
        ("grep_search", "search"),
        ("list_dir", "listing"),
        ("get_user_details", "data"),
        ("run_query", "data"),
    ],
)
def test_a_tool_without_a_command_is_known_by_its_name(tool: str, kind: str) -> None:
    assert kind_of(tool, '{"path": "a"}', "") == kind


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ('{"a": 1}', "data"),
        ("\n [1, 2]", "data"),
        ("\n".join(f"a.py:{i}: x" for i in range(5)), "search"),
        ("\n".join(f"  {i}\tx = 1" for i in range(5)), "file"),
        ("import os\nimport re\ndef f():\n  pass\nclass A:\n", "file"),
        ("ok", "command"),
    ],
)
def test_an_unknown_tool_is_known_by_its_output(output: str, kind: str) -> None:
    assert kind_of("zx81", "not json", output) == kind


@pytest.mark.parametrize(
    "command",
    [
        "cat > a.py <<'EOF'\nx\nEOF",
        "sed -i 's/a/b/' f",
        "sed -n -E -i s/a/b/ f",
        "echo x >> notes.txt",
        "echo x | tee f",
        "python -c \"open('f', 'w').write('x')\"",
        "git apply x.diff",
        "apply_patch <<X",
    ],
)
def test_a_command_that_writes(command: str) -> None:
    assert writes("bash", shell(command))


@pytest.mark.parametrize(
    "command", ["cat a.py", "pytest 2>&1", "ls > /dev/null", "sed -n 1p f", "python -c \"open('f')\""]
)
def test_a_command_that_does_not_write(command: str) -> None:
    assert not writes("bash", shell(command))


def test_a_tool_that_writes_is_known_by_name_or_fields() -> None:
    assert writes("write_file", "{}")
    assert writes("zx81", '{"old_str": "a"}')
    assert not writes("read_file", '{"path": "a"}')


@pytest.mark.parametrize(
    "arguments", ["", "null", "[1]", '"x"', "{", '{"a": NaN}', "[" * 5000, '{"command": 7}', "\ud800"]
)
def test_arguments_that_are_no_object_say_nothing(arguments: str) -> None:
    assert shell_command(arguments) == ""
    assert arguments_of(arguments) in ({}, {"command": 7})
    assert kind_of("zx81", arguments, "") == "command"


@pytest.mark.parametrize(
    "piece",
    ["sed -sed ", "open(", "<< ", "> a", ">.", "cd a;", "set -e\n", "A=b ", "\n", " ", "1 ", "a/", "-i -", ">", "'\"w"],
)
def test_x9_hostile_commands_and_outputs_end(piece: str) -> None:
    """Half a megabyte each: what backtracks over all of it from every place would take hours."""
    text = (piece * 500_000)[:500_000]
    assert kind_of("zx81", shell(text), text) in ("command", "file", "search", "listing", "web", "data")
    writes("zx81", shell("sed " + text))
    kind_of("zx81", "{}", text)


@pytest.mark.skipif(not SESSIONS.is_dir(), reason="the recorded sessions of the workspace are not here")
def test_tools_of_recorded_sessions_are_known() -> None:
    kinds: Counter[str] = Counter()
    for path in random.Random(4).sample(sorted(SESSIONS.glob("mini-*[0-9].json")), 3):
        for message in json.loads(path.read_text())["messages"]:
            for call in message.get("tool_calls") or ():
                kinds[kind_of(call["function"]["name"], call["function"]["arguments"], "")] += 1
    assert {"file", "search", "listing", "command"} <= {*kinds}

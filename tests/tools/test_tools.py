"""What kind of tool it is: what a person says, what the call says, the look, the schema; names as a hint."""

import json
from collections.abc import Mapping

import pytest

from policies.tools import Toolbox, arguments_of, kind_of, known_by, path_of, rewrites, shell_command, writes
from tests.kit.paths import TRANSCRIPTS

SESSIONS = TRANSCRIPTS
LINES = "".join(f"{n:5}\tx = {n}\n" for n in range(10, 20))
NAMES = "src/a.py\nsrc/b.py\nsrc/lib/\nREADME.md\n"
HITS = "".join(f"src/a.py:{n}: x\n" for n in (3, 9, 12, 40))
DONE = "The file has been updated."

SKILL = "/r/.claude/skills/a/SKILL.md"
CODE_MODE = """const r = await tools.exec_command({"cmd":"cd /r && sed -n '1,9p' src/a.rs","workdir":"/r"});
text(r.output);"""

Told = tuple[str, str, dict[str, object], str, str, bool, str]
AGENTS: list[Told] = [
    # agent, tool, arguments, output; kind, whether it writes, and the file
    ("Claude Code", "Read", {"file_path": "/r/a.py", "offset": 10, "limit": 10}, LINES, "file", False, "/r/a.py"),
    ("Claude Code", "Read", {"file_path": "/r/a.json"}, '{"a": 1}', "file", False, "/r/a.json"),
    ("Claude Code", "Grep", {"pattern": "x", "path": "src", "output_mode": "content"}, HITS, "search", False, ""),
    ("Claude Code", "Grep", {"pattern": "log.*Error", "glob": "*.js", "offset": 5}, "", "search", False, ""),
    ("Claude Code", "Grep", {"pattern": "def x", "path": "src/a.py", "-C": 9}, HITS, "file", False, "src/a.py"),
    ("Claude Code", "Glob", {"pattern": "src/**/*.{js,ts}"}, NAMES, "listing", False, ""),
    ("Claude Code", "Write", {"file_path": "a.py", "content": "x"}, DONE, "command", True, "a.py"),
    ("Claude Code", "Edit", {"file_path": "a.py", "old_string": "x", "new_string": ""}, LINES, "file", True, "a.py"),
    ("Claude Code", "MultiEdit", {"file_path": "a.py", "edits": [{"old_string": "x"}]}, DONE, "command", True, "a.py"),
    ("Claude Code", "NotebookEdit", {"notebook_path": "n.ipynb", "new_source": "x"}, "", "command", True, "n.ipynb"),
    ("Claude Code", "Bash", {"command": "git diff", "description": "Show"}, "", "command", False, ""),
    ("Claude Code", "WebFetch", {"url": "https://a.b", "prompt": "what"}, "It says", "web", False, ""),
    ("Claude Code", "TodoWrite", {"todos": [{"content": "x"}]}, "", "command", False, ""),
    ("Claude Code", "Task", {"description": "d", "prompt": "p", "subagent_type": "t"}, "Done.", "report", False, ""),
    ("Claude Code", "Read", {"file_path": "/r/.claude/skills/a/SKILL.md"}, "# A", "instructions", False, SKILL),
    ("Claude Code", "Write", {"file_path": "CLAUDE.md", "content": "x"}, DONE, "command", True, "CLAUDE.md"),
    ("Claude Code", "Grep", {"pattern": "x", "path": "AGENTS.md"}, HITS, "search", False, ""),
    ("opencode", "read", {"filePath": "/r/a.py"}, "00010| x\n", "file", False, "/r/a.py"),
    ("opencode", "read", {"path": "src", "offset": 1, "limit": 80}, NAMES, "listing", False, "src"),
    ("opencode", "edit", {"filePath": "a.ts", "oldString": "x", "newString": "y"}, DONE, "command", True, "a.ts"),
    ("opencode", "grep", {"pattern": "x", "include": "*.ts"}, "Found 1 matches", "search", False, ""),
    ("opencode", "webfetch", {"url": "http://a.b", "format": "text"}, "", "web", False, ""),
    ("opencode", "bash", {"command": "ls src", "workdir": "/r", "timeout": 9}, NAMES, "listing", False, ""),
    (
        "Codex CLI",
        "shell",
        {"command": ["bash", "-lc", "sed -n 1,9p a.rs"], "workdir": "/r"},
        "",
        "file",
        False,
        "a.rs",
    ),
    ("Codex CLI", "exec_command", {"cmd": "rg -n x src", "yield_time_ms": 9}, HITS, "search", False, ""),
    ("Codex CLI", "exec", {"input": CODE_MODE}, "Script completed", "file", False, "/r/src/a.rs"),
    (
        "Codex CLI",
        "exec",
        {"input": "x = tools.shell_command({command: 'cat SKILL.md'})"},
        "",
        "instructions",
        False,
        "SKILL.md",
    ),
    ("Codex CLI", "exec", {"input": "tools.exec_command({cmd: `cargo test`})"}, "src/a.rs:1: x", "command", False, ""),
    ("Codex CLI", "write_stdin", {"session_id": 1, "chars": "y\n"}, "ok", "command", False, ""),
    ("Codex CLI", "read_file", {"file_path": "a.rs", "offset": 1, "mode": "slice"}, "L1: x", "file", False, "a.rs"),
    ("Codex CLI", "list_dir", {"dir_path": "/r", "offset": 1, "limit": 9, "depth": 2}, "", "listing", False, ""),
    ("Codex CLI", "grep_files", {"pattern": "x", "include": "*.rs", "path": "/r"}, NAMES, "search", False, ""),
    (
        "Codex CLI",
        "apply_patch",
        {"input": "*** Begin Patch\n*** Update File: a.rs\n@@\n-x\n+y\n*** End Patch"},
        "Success.",
        "command",
        True,
        "a.rs",
    ),
    ("Gemini CLI", "list_directory", {"dir_path": "src", "ignore": ["*.o"]}, "[DIR] lib", "listing", False, ""),
    ("Gemini CLI", "read_file", {"file_path": "a.go", "limit": 9}, "package a", "file", False, "a.go"),
    ("Gemini CLI", "write_file", {"file_path": "a.go", "content": "x"}, "", "command", True, "a.go"),
    ("Cursor", "read_file", {"target_file": "a", "start_line_one_indexed": 1}, "x", "file", False, "a"),
    ("Cursor", "list_dir", {"relative_workspace_path": "src"}, NAMES, "listing", False, "src"),
    ("Cursor", "grep_search", {"query": "x", "include_pattern": "*.py"}, HITS, "search", False, ""),
    ("Cursor", "codebase_search", {"query": "where?", "target_directories": []}, "x", "search", False, ""),
    ("Cursor", "edit_file", {"target_file": "a", "instructions": "i", "code_edit": "c"}, "", "command", True, "a"),
    ("Cursor", "run_terminal_cmd", {"command": "make", "is_background": False}, "", "command", False, ""),
    ("Cline", "search_files", {"path": "src", "regex": "x", "file_pattern": "*.ts"}, "", "search", False, ""),
    ("Cline", "list_files", {"path": "src", "recursive": True}, "", "listing", False, ""),
    ("Cline", "replace_in_file", {"path": "a.ts", "diff": "<<<<"}, "", "command", True, "a.ts"),
    ("OpenHands", "str_replace_editor", {"command": "view", "path": "/r/src"}, NAMES, "listing", False, "/r/src"),
    ("OpenHands", "str_replace_editor", {"command": "view", "path": "/r/a.c"}, LINES, "file", False, "/r/a.c"),
    (
        "OpenHands",
        "str_replace_editor",
        {"command": "insert", "path": "/r/a.c", "insert_line": 3, "new_str": "x"},
        DONE,
        "command",
        True,
        "/r/a.c",
    ),
    ("OpenHands", "execute_bash", {"command": "cd /r && make"}, "", "command", False, ""),
    ("OpenHands", "execute_ipython_cell", {"code": "print(1)"}, "1", "command", False, ""),
    ("OpenHands", "execute_ipython_cell", {"code": "open('a','w').write('')"}, "", "command", True, ""),
    ("OpenHands", "think", {"thought": "I see"}, "Your thought has been logged.", "command", False, ""),
    ("SWE-agent", "open", {"path": "a.py", "line_number": 9}, "[File: a.py]\n8:x\n9:x\n", "file", False, "a.py"),
    ("SWE-agent", "edit", {"search": "x", "replace": "y"}, "Text replaced.", "command", True, ""),
    ("SWE-agent", "find_file", {"file_name": "a.py", "dir": "src"}, 'Found 1 matches for "a.py"', "listing", False, ""),
    ("SWE-agent", "search_dir", {"search_term": "x", "dir": "src"}, "", "search", False, ""),
    ("mini-swe-agent", "bash", {"command": "nl -ba a.py | sed -n '1,9p'"}, LINES, "file", False, "a.py"),
    (
        "aider",
        "replace_lines",
        {"explanation": "e", "edits": [{"path": "a.py", "original_lines": ["x"], "updated_lines": []}]},
        "",
        "command",
        True,
        "a.py",
    ),
    ("browser", "browser_go", {"url": "https://a.b/"}, "", "web", False, ""),
    ("browser", "browser_click", {"element": 4}, "".join(f'[{n}] link "x"\n' for n in range(9)), "web", False, ""),
    ("a shop", "get_order", {"order_id": "7"}, '{"order_id": "7", "items": []}', "data", False, ""),
    ("a database", "run_query", {"query": "SELECT a FROM b"}, "a\n1", "data", False, ""),
    ("Responses", "shell", {"commands": ["cat a.py", "ls"], "timeout_ms": 9}, "", "file", False, "a.py"),
    ("Responses", "apply_patch", {"type": "update_file", "path": "a.py", "diff": "@@"}, "", "command", True, "a.py"),
]


@pytest.mark.parametrize(("agent", "tool", "said", "output", "kind", "changes", "path"), AGENTS)
def test_m10_a_call_of_a_common_agent_is_known_whatever_its_tool_is_called(
    agent: str, tool: str, said: Mapping[str, object], output: str, kind: str, changes: bool, path: str
) -> None:
    arguments = json.dumps(said)
    for name in (tool, "tool_1"):
        assert kind_of(name, arguments, output) == kind, (agent, name)
        assert writes(name, arguments) == changes, (agent, name)
        assert path_of(name, arguments) == path, (agent, name)


REPORTS: list[tuple[str, dict[str, object]]] = [
    ("Agent", {"description": "d", "prompt": "p"}),
    ("TaskOutput", {"task_id": "a1", "block": True}),
    ("task", {"description": "d", "prompt": "p"}),
    ("task", {"agent": "architect", "tasks": [{"id": "a"}]}),
    ("subagent", {"action": "await", "id": "a"}),
    ("spawn_agent", {"message": "m"}),
    ("wait", {"ids": ["a"], "timeout_ms": 9}),
    ("codebase_investigator", {"objective": "o"}),
    ("invoke_agent", {"agent_name": "generalist", "prompt": "p"}),
    ("runSubagent", {"prompt": "p"}),
]


@pytest.mark.parametrize(("tool", "said"), REPORTS)
def test_n2_what_a_subagent_reports_is_a_kind_of_its_own(tool: str, said: Mapping[str, object]) -> None:
    assert kind_of(tool, json.dumps(said), "## What I found\nsrc/a.py\n") == "report"


@pytest.mark.parametrize(
    ("tool", "said", "output"),
    [
        ("TaskCreate", {"subject": "s", "description": "d"}, "Task #1 created"),
        ("TaskOutput", {"task_id": "b1"}, "<task_id>b1</task_id>\n<task_type>local_bash</task_type>"),
        ("wait", {"cell_id": "1", "yield_time_ms": 9}, "Script completed"),
        ("wait", {"ids": ["i-1"]}, "The instances run."),
        ("manage_agents", {"agent_type": "bug"}, "3 agents"),
        ("issue_agent", {"agent_type": "bug", "id": 7}, "assigned"),
    ],
)
def test_n2_a_tool_with_such_a_name_may_return_something_else(
    tool: str, said: Mapping[str, object], output: str
) -> None:
    assert kind_of(tool, json.dumps(said), output) == "command"


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("Skill", {"skill": "a"}),
        ("activate_skill", {"name": "a"}),
        ("read", {"filePath": "/r/AGENTS.md"}),
        ("read_file", {"target_file": ".cursorrules"}),
        ("read_file", {"path": ".github/copilot-instructions.md"}),
        ("read_file", {"path": "C:\\r\\.cursor\\rules\\style.mdc"}),
        ("bash", {"command": "cat CLAUDE.md"}),
        ("shell", {"command": ["bash", "-lc", "sed -n '1,260p' ~/.codex/skills/a/SKILL.md; cat x/AGENTS.md"]}),
        ("shell_command", {"command": "Get-Content -Raw .codex\\skills\\a\\references\\b.md"}),
    ],
)
def test_n2_instructions_read_from_files_are_a_kind_of_their_own(tool: str, said: Mapping[str, object]) -> None:
    assert kind_of(tool, json.dumps(said), "# Do this\nand that\n") == "instructions"


@pytest.mark.parametrize(
    "command", ["cat AGENTS.md src/a.py", "cat docs/skills.md", "wc -l AGENTS.md", "cat > AGENTS.md"]
)
def test_n2_what_is_more_or_something_else_is_not(command: str) -> None:
    assert kind_of("bash", json.dumps({"command": command}), "") != "instructions"


def test_what_a_person_says_comes_first_by_name_then_by_the_longest_pattern() -> None:
    box = Toolbox(configured={"mcp__*": "data", "mcp__web__*": "web", "mcp__web__read": "file", "Read": "search"})
    said = '{"command": "ls"}'
    assert [box.kind(name, said, "{}") for name in ("mcp__x", "mcp__web__y", "mcp__web__read", "Read", "other")] == [
        "data",
        "web",
        "file",
        "search",
        "listing",
    ]


def test_the_look_comes_before_the_schema_and_the_schema_before_the_name() -> None:
    box = Toolbox(schemas={"grep": "web"})
    assert box.kind("grep", '{"id": 1}', '{"a": 1}') == "data"
    assert box.kind("grep", '{"id": 1}', "fine") == "web"
    assert kind_of("grep", '{"id": 1}', "fine") == "search"


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ("read_file", "file"),
        ("web_fetch", "web"),
        ("google_web_search", "web"),
        ("websearch", "web"),
        ("GrepSearch", "search"),
        ("list_dir", "listing"),
        ("get_user_details", "data"),
        ("run_query", "data"),
        ("rg", "search"),
        ("web-search", "web"),
        ("cat", "file"),
        ("run_tests", "command"),
        ("category_thread", "command"),
    ],
)
def test_a_name_is_a_hint_by_its_words(tool: str, kind: str) -> None:
    assert kind_of(tool, '{"id": "a"}', "") == kind


@pytest.mark.parametrize(
    ("tool", "kind"), [("fd", "listing"), ("nix-search", "data"), ("nix_search", "data"), ("gh", "data")]
)
def test_m10_the_tools_of_a_program_have_its_kind_whatever_they_are_asked(tool: str, kind: str) -> None:
    for arguments in ('{"pattern": "x"}', '{"query": "x"}', '{"command": "pr list"}', "{}", "not json"):
        assert kind_of(tool, arguments, "some text") == kind


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ('{"a": 1}', "data"),
        ("\n [1, 2]", "data"),
        ("[File: a.py (9 lines total)]\n1:a\n2:b\n3:c\n4:d\n", "file"),
        (HITS, "search"),
        (LINES, "file"),
        ("import os\nimport re\ndef f():\n  pass\nclass A:\n", "file"),
        ("12:x\n40:y\n41:z\n90:z\n", "command"),
        (NAMES, "listing"),
        ("total 8\ndrwxr-xr-x 2 a a 4096 May  1 10:00 src\n-rw-r--r-- 1 a a  9 May  1 10:00 a\n", "listing"),
        ("├── a\n│   ├── b\n│   └── c\n└── d\n", "listing"),
        ("<!DOCTYPE html><html>", "web"),
        ('- button "Go" [ref=e1]\n' * 4, "web"),
        ("ok", "command"),
        ("3 passed\n4 failed\n", "command"),
    ],
)
def test_an_unknown_tool_is_known_by_its_output(output: str, kind: str) -> None:
    assert kind_of("zx81", "not json", output) == kind


def test_a_tool_that_writes_is_known_by_name_where_its_arguments_do_not_tell() -> None:
    assert writes("write_file", "{}")
    assert writes("create", '{"filename": "a.py"}')
    assert writes("insert", '{"text": "x"}')
    assert writes("zx81", '{"old_str": "a"}')
    assert not writes("read_file", '{"path": "a"}')
    assert not writes("str_replace_editor", '{"command": "view", "path": "a"}')
    assert not writes("get_credit", '{"path": "a"}')


@pytest.mark.parametrize(
    ("tool", "said", "whole"),
    [
        ("zx81", {"path": "a", "content": "x"}, True),
        ("zx81", {"command": "create", "path": "a", "file_text": "x"}, True),
        ("create", {"filename": "a"}, True),
        ("zx81", {"input": "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch"}, True),
        ("zx81", {"command": "cat > a <<'EOF'\nx\nEOF"}, True),
        ("zx81", {"path": "a", "content": "x", "append": True}, False),
        ("zx81", {"path": "a", "content": "x", "start": 3, "end": 4}, False),
        ("zx81", {"path": "a", "content": "x", "mode": "w", "description": "new", "overwrite": True}, True),
        ("zx81", {"path": "a", "content": "x", "mode": "append"}, False),
        ("zx81", {"path": "a", "content": "x", "position": 3}, False),
        ("zx81", {"path": "a", "content": "x", "range": [1, 3]}, False),
        ("zx81", {"path": "a", "content": "x", "overwrite": False}, False),
        ("zx81", {"command": "insert", "path": "a", "insert_line": 1, "new_str": "x"}, False),
        ("zx81", {"path": "a", "old_string": "x", "new_string": "y"}, False),
        ("zx81", {"input": "*** Begin Patch\n*** Update File: a\n*** End Patch"}, False),
        ("send_message", {"content": "x"}, False),
        ("read", {"path": "a"}, False),
    ],
)
def test_a_call_that_says_the_whole_of_a_file(tool: str, said: Mapping[str, object], whole: bool) -> None:
    assert rewrites(tool, json.dumps(said)) == whole


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("bash", {"command": "cd /srv/app && make  test\nmake lint"}, "cd /srv/app && make test make lint"),
        ("bash", {"command": f"cd /srv/app && make {'x' * 80}"}, f"make {'x' * 55}"),
        ("bash", {"command": f"cd /srv/app\nmake {'x' * 80}"}, f"make {'x' * 55}"),
        ("bash", {"command": f"cat <<'EOF' > src/a.py\n{'x' * 80}\nEOF"}, "cat <<'EOF' > src/a.py"),
        ("bash", {"command": f"@'\n{'x' * 80}\n'@ | Set-Content src/a.py"}, "@' ... src/a.py"),
        ("Read", {"file_path": "/srv/app/src/a.py"}, "/srv/app/src/a.py"),
        ("Read", {"file_path": "/srv/app/src/a.py", "offset": 120}, "/srv/app/src/a.py:120"),
        ("Edit", {"file_path": "a.py", "old_string": "offset = 3", "new_string": "x"}, "a.py"),
        (
            "exec",
            {"input": 'patch = "*** Begin Patch\\n*** Add File: b.py\\n+1\\n*** Update File: c.py\\n*** End Patch"'},
            "patch of b.py, c.py",
        ),
        (
            "apply_patch",
            {
                "input": "\n".join(
                    ["*** Begin Patch", *(f"*** Add File: f{n}.py\n+1" for n in range(22)), "*** End Patch"]
                )
            },
            f"patch of {', '.join(f'f{n}.py' for n in range(20))} (+2 more)",
        ),
        ("get_order", {"id": "4711"}, "4711"),
        ("get_order", {"id": "4711", "of": "A"}, '{"id": "4711", "of": "A"}'),
    ],
)
def test_n4_a_model_knows_a_call_by_its_command_its_files_or_what_it_was_asked(
    tool: str, arguments: Mapping[str, object], words: str
) -> None:
    assert known_by(tool, json.dumps(arguments), 60) == words


def test_a_path_has_one_spelling_and_is_not_guessed() -> None:
    assert path_of("read", '{"path": "./src/../a.py"}') == "a.py"
    assert path_of("apply_patch", "*** Begin Patch\n*** Update File: a.py\n*** End Patch") == "a.py"
    assert path_of("zx81", '{"patch": "--- a/x.c\\n+++ b/x.c\\n--- a/y.c\\n+++ b/y.c\\n"}') == ""
    assert path_of("zx81", '{"files": [{"path": "a"}, {"path": "b"}]}') == ""
    assert path_of("zx81", '{"path": "*.py"}') == ""


@pytest.mark.parametrize(
    "arguments", ["", "null", "[1]", '"x"', "{", '{"a": NaN}', "[" * 5000, '{"command": 7}', "\ud800"]
)
def test_arguments_that_are_no_object_say_nothing(arguments: str) -> None:
    assert shell_command(arguments) == ""
    assert arguments_of(arguments) in ({}, {"command": 7})
    assert kind_of("zx81", arguments, "") == "command"
    assert not writes("zx81", arguments)
    assert path_of("zx81", arguments) == ""


@pytest.mark.parametrize("key", ["command", "path", "query", "pattern", "patch", "code"])
def test_x9_hostile_arguments_end(key: str) -> None:
    """What backtracks over all of it from every place would take hours."""
    for piece in ("select ", "*** Add File: a\n", "+++ a\n", "**/", '{"a":', "open(", "a.b/", "\u2028"):
        text = (piece * 100_000)[:100_000]
        arguments = json.dumps({key: text})
        assert kind_of("zx81", arguments, text)
        assert writes("zx81", arguments) in (True, False)
        assert path_of("zx81", arguments) in ("", "a")


@pytest.mark.skipif(not SESSIONS.is_dir(), reason="the recorded sessions of the workspace are not here")
def test_m10_calls_of_recorded_sessions_are_the_same_under_another_name() -> None:
    told = 0
    for path in sorted(SESSIONS.glob("[mo]*[0-9].json")):
        for message in json.loads(path.read_text())["messages"]:
            for call in message.get("tool_calls") or ():
                name, said = call["function"]["name"], call["function"]["arguments"]
                assert kind_of(name, said, "") == kind_of("tool_1", said, "")
                assert writes(name, said) == writes("tool_1", said)
                told += bool(path_of(name, said))
    assert told > 150

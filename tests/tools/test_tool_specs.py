"""The tools of a request, as each API defines them, and what their definitions tell."""

import json

import pytest

from policies.dialects import DIALECTS
from policies.dialects.tool_lists import Request, tool_kinds
from policies.dialects.tool_lists import tools as tools_of
from policies.tools import ToolSpec, kind_by_schema, kinds_by_schema

READ = {"type": "object", "properties": {"path": {"type": "string"}, "start_line": {"type": "integer"}}}
SPEC = ToolSpec("zx81", "Does it.", READ)
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
FORMS = {
    "openai_chat": (
        MESSAGES,
        {"type": "function", "function": {"name": "zx81", "description": "Does it.", "parameters": READ}},
    ),
    "openai_responses": (
        {"input": "hi"},
        {"type": "function", "name": "zx81", "description": "Does it.", "parameters": READ},
    ),
    "anthropic_messages": (MESSAGES, {"name": "zx81", "description": "Does it.", "input_schema": READ}),
}


def asked(api: str, tools: object) -> Request:
    body = json.dumps({"model": "m", **FORMS[api][0], "tools": tools}).encode()
    request = DIALECTS[api].split(body, None, False)  # without the limits of what the proxy works on
    assert request is not None
    return request


def kinds(api: str, *tools: object) -> dict[str, str]:
    return dict(tool_kinds(asked(api, list(tools))))


@pytest.mark.parametrize("api", FORMS)
def test_every_api_says_its_tools(api: str) -> None:
    tool = FORMS[api][1]
    request = asked(api, [tool, {"type": "odd"}, "no tool", {**tool, "function": 7, "name": None}])
    assert tools_of(request)[:2] == (SPEC, ToolSpec("odd", "", {}))
    assert kinds(api, tool) == {"zx81": "file"}
    for nothing in ([], None, {}, "x", 3):
        assert tools_of(asked(api, nothing)) == ()


def test_tools_that_the_provider_brings_are_known_by_their_type() -> None:
    chat = {"type": "custom", "custom": {"name": "search_web", "description": "Searches the web."}}
    assert kinds("openai_chat", chat) == {"search_web": "web"}
    assert kinds(
        "openai_responses",
        {"type": "web_search_preview"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "file_search", "vector_store_ids": ["v"]},
        {"type": "local_shell"},
        {"type": "custom", "name": "apply_patch", "format": {"type": "text"}},
        {"type": "namespace", "name": "crm", "tools": [{**FORMS["openai_responses"][1], "name": "inner"}]},
        {"type": "image_generation"},
    ) == {
        "web_search_preview": "web",
        "code_interpreter": "command",
        "file_search": "search",
        "local_shell": "command",
        "apply_patch": "command",
        "inner": "file",
    }
    assert kinds(
        "anthropic_messages",
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 9, "display_height_px": 9},
    ) == {"bash": "command", "str_replace_based_edit_tool": "file", "web_fetch": "web", "computer": "command"}


@pytest.mark.parametrize(
    ("description", "parameters", "kind"),
    [
        ("", "command timeout", "command"),
        ("An editor of files", "command path view_range old_str", "file"),
        ("", "file_path old_string new_string", "command"),
        ("", "filePath content", "command"),
        ("", "pattern include path", "search"),
        ("Finds files by a glob pattern.", "pattern path", "listing"),
        ("", "url format", "web"),
        ("", "sql", "data"),
        ("", "dirPath", "listing"),
        ("", "target_file should_read_entire_file", "file"),
        ("", "query", "search"),
        ("Searches the web.", "query", "web"),
        ("Looks a record up in the database.", "query", "data"),
        ("Lists the files of a directory.", "path", "listing"),
        ("Reads a file. Never use it to run a command.", "path", "file"),
        ("Runs the tests in a file.", "path", "command"),
        ("Fetches up to 20 addresses of the internet that the prompt names.", "prompt", "web"),
        ("", "paths", "file"),
        ("Starts a helper.", "prompt", None),
        ("", "", None),
    ],
)
def test_m10_a_tool_is_known_by_its_definition(description: str, parameters: str, kind: str | None) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in parameters.split()}}
    assert kind_by_schema("tool_1", description, schema) == kind


def test_what_is_no_schema_says_nothing() -> None:
    assert kind_by_schema("tool_1", "", {"properties": [1]}) is None
    assert kinds_by_schema([ToolSpec("tool_1", "", {"properties": {"x": 1}}), ToolSpec("", "", {})]) == {}
    request = DIALECTS["openai_chat"].split(
        b'{"model":"m","messages":[{"role":"user"}],"tools":[{"function":{"name":]}'
    )
    assert request is None or tools_of(request) == ()


def test_x9_as_many_tools_as_are_allowed_and_a_huge_schema_end() -> None:
    many = [{**FORMS["anthropic_messages"][1], "name": f"t{n}", "description": "reads " * 100} for n in range(2_000)]
    assert len(kinds("anthropic_messages", *many)) == 1_000
    huge = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}}
    assert kinds("anthropic_messages", {"name": "t", "description": "reads " * 100_000, "input_schema": huge}) == {}

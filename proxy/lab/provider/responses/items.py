"""What an item of the input must look like by itself."""

from collections.abc import Callable, Mapping
from typing import Any

from proxy.lab.provider.responses.prompt import CALLS, OUTPUTS, kind_of
from proxy.lab.provider.rules import (
    BREAKPOINT,
    Json,
    Violation,
    Violations,
    bad,
    holds_object,
    missing,
    too_long,
    unknown,
    wrong_type,
)

LONGEST = 64
"""Characters of an id."""
PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
"""How the ids of items begin."""
_ALWAYS = frozenset({"type", "id", "status"})
FIELDS: Mapping[str, frozenset[str]] = {
    # the fields of the official SDK's types, for the items that have no others
    "message": _ALWAYS | {"role", "content", "phase"},
    "function_call": _ALWAYS | {"call_id", "name", "arguments", "namespace", "caller", "async"},
    "function_call_output": _ALWAYS | {"call_id", "output", "name", "namespace", "caller"},
    "custom_tool_call": _ALWAYS | {"call_id", "name", "input", "namespace", "caller"},
    "custom_tool_call_output": _ALWAYS | {"call_id", "output", "name", "namespace", "caller"},
    "reasoning": _ALWAYS | {"summary", "content", "encrypted_content"},
}
PARTS: Mapping[str, frozenset[str]] = {
    "input_text": frozenset({"type", "text", BREAKPOINT}),
    "output_text": frozenset({"type", "text", "annotations", "logprobs"}),
    "refusal": frozenset({"type", "refusal"}),
}
GIVEN = ("input_text", "input_image", "input_file", "input_audio")
SAID = ("output_text", "refusal")
ROLES = {"user": GIVEN, "system": GIVEN, "developer": GIVEN, "assistant": SAID}
"""Of what the messages of each role consist."""


def item_faults(item: object, at: str) -> Violations:
    """What is wrong with an item."""
    if not isinstance(item, dict):
        yield wrong_type(at, "an object")
        return
    if not isinstance(item.get("type", ""), str):
        yield wrong_type(f"{at}.type", "a string")
        return
    kind = kind_of(item)
    if kind in FIELDS:
        yield from (unknown(f"{at}.{name}") for name in item.keys() - FIELDS[kind])
    yield from _names(item, kind, at)
    if kind in KINDS:
        yield from KINDS[kind](item, at)


def _names(item: Json, kind: str, at: str) -> Violations:
    prefix = PREFIXES.get(kind, "")
    for name in ("id", "call_id"):
        value = item.get(name)
        if isinstance(value, str) and len(value) > LONGEST:
            yield too_long(f"{at}.{name}", LONGEST, len(value))
    own = item.get("id")
    if isinstance(own, str) and not own.startswith(prefix):
        said = f"Invalid '{at}.id': '{own}'. Expected an ID that begins with '{prefix}'."
        yield Violation(said, f"{at}.id", "invalid_value")


def _message(item: Json, at: str) -> Violations:
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        yield bad(f"{at}.role", f"expected one of {', '.join(ROLES)}")
    elif content is None:
        yield missing(f"{at}.content")
    elif not isinstance(content, str):
        yield from _parts(content, ROLES[role], f"{at}.content")


def _parts(parts: Any, allowed: tuple[str, ...], at: str) -> Violations:
    if not isinstance(parts, list):
        yield wrong_type(at, "a string or an array of parts")
        return
    for i, part in enumerate(parts):
        if not isinstance(part, dict):
            yield wrong_type(f"{at}[{i}]", "an object")
        elif part.get("type") not in allowed:
            said = f"Invalid value: '{part.get('type')}'. Supported values are: {', '.join(map(repr, allowed))}."
            yield Violation(said, f"{at}[{i}]", "invalid_value")
        elif part["type"] in PARTS:
            yield from _part(part, f"{at}[{i}]")


def _part(part: Json, at: str) -> Violations:
    text = "refusal" if part["type"] == "refusal" else "text"
    if not isinstance(part.get(text), str):
        yield missing(f"{at}.{text}")
    yield from (unknown(f"{at}.{name}") for name in part.keys() - PARTS[part["type"]])


def _call(item: Json, at: str) -> Violations:
    key = CALLS[kind_of(item)]
    for name in ("call_id", "name", key):
        if item.get(name) is None:
            yield missing(f"{at}.{name}")
        elif not isinstance(item[name], str):
            yield wrong_type(f"{at}.{name}", "a string")
    if kind_of(item) == "function_call" and not holds_object(item[key]):
        yield bad(f"{at}.{key}", "it must be the text of a JSON object")


def _output(item: Json, at: str) -> Violations:
    if not isinstance(item.get("call_id"), str):
        yield missing(f"{at}.call_id")
    if item.get("output") is None:
        yield missing(f"{at}.output")
    elif not isinstance(item["output"], str):
        yield from _parts(item["output"], GIVEN, f"{at}.output")


def _reasoning(item: Json, at: str) -> Violations:
    if not isinstance(item.get("summary"), list):
        yield missing(f"{at}.summary")


KINDS: Mapping[str, Callable[[Json, str], Violations]] = {
    "message": _message,
    "reasoning": _reasoning,
    **dict.fromkeys(CALLS, _call),
    **dict.fromkeys(OUTPUTS, _output),
}

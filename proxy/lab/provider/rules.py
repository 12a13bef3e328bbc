"""What a strict provider answers with 400: what its APIs have in common.

Laws
  A request is judged by its body and by how its model's cache is marked, and by nothing else.
  The first violation in the order of an API's checks is the one reported; a check may rely on those before it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from policies.money.caches import CacheRule
from proxy.lab.provider import jsontext

Json = Mapping[str, Any]

MAX_TOOLS = 128
MAX_MARKS = 4
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
BREAKPOINT = "prompt_cache_breakpoint"


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a request was refused. `param` and `code` are said where the API has a place for them."""

    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400


Violations = Iterator[Violation]
Check = Callable[[Json, CacheRule], Violations]


def first(checks: Iterable[Check], body: object, rule: CacheRule) -> Violation | None:
    """The first reason to refuse the request, if there is one."""
    if not isinstance(body, Mapping):
        return Violation("The body must be a JSON object.")
    return next((found for check in checks for found in check(body, rule)), None)


# --- values ---


def is_number(value: object) -> bool:
    """Whether it is a number: a boolean is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: object) -> bool:
    """Whether it is a positive integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_flag(value: object) -> bool:
    """Whether it is true or false."""
    return isinstance(value, bool)


def is_object(value: object) -> bool:
    """Whether it is an object."""
    return isinstance(value, dict)


def is_text(value: object) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def is_list(value: object) -> bool:
    """Whether it is an array."""
    return isinstance(value, list)


def holds_object(text: str) -> bool:
    """Whether it is the text of a JSON object."""
    try:
        return isinstance(jsontext.read(text), dict)
    except jsontext.NotJSONError:
        return False


def mapping(value: object) -> Mapping[str, Any]:
    """The object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


# --- in the words of OpenAI's APIs ---


def missing(param: str) -> Violation:
    """A parameter is not there."""
    return Violation(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def bad(param: str, why: str) -> Violation:
    """A parameter says what it may not say."""
    return Violation(f"Invalid value for '{param}': {why}.", param, "invalid_value")


def wrong_type(param: str, expected: str) -> Violation:
    """A parameter is of another type."""
    return Violation(f"Invalid type for '{param}': expected {expected}.", param, "invalid_type")


def unknown(param: str) -> Violation:
    """There is no such parameter."""
    return Violation(f"Unknown parameter: '{param}'.", param, "unknown_parameter")


def empty(param: str, what: str) -> Violation:
    """A list has nothing in it."""
    return Violation(f"'{param}' must hold at least one {what}.", param, "empty_array")


def too_long(param: str, most: int, length: int) -> Violation:
    """A string is longer than it may be."""
    why = f"Expected a string with maximum length {most}, but got a string with length {length} instead"
    return Violation(f"Invalid '{param}': string too long. {why}.", param, "string_above_max_length")


def model_named(body: Json, _: CacheRule) -> Violations:
    """A model is named."""
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield missing("model")


Fits = tuple[Callable[[object], bool], str]
"""What a field must be, and how that is said."""


def misfits(body: Json, fields: Mapping[str, Fits]) -> Violations:
    """Fields that are there and of another type."""
    for name, (fits, expected) in fields.items():
        if body.get(name) is not None and not fits(body[name]):
            yield wrong_type(name, expected)


def tools_named(tools: object, name_of: Callable[[Any], str | None]) -> Violations:
    """Each tool has a legal name of its own; `name_of` says None where a tool is none."""
    if not isinstance(tools, list) or not tools:
        yield wrong_type("tools", "an array of at least one object")
    elif len(tools) > MAX_TOOLS:
        said = f"'tools' holds {len(tools)} tools; {MAX_TOOLS} are allowed."
        yield Violation(said, "tools", "array_above_max_length")
    else:
        yield from _names(tools, name_of)


def _names(tools: list[object], name_of: Callable[[Any], str | None]) -> Violations:
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        at = f"tools[{i}]"
        name = name_of(tool)
        if name is None:
            yield wrong_type(at, "an object with a 'type' and a named 'function' or 'custom' tool")
        elif not TOOL_NAME.fullmatch(name):
            yield bad(at, f"the name does not match ^{TOOL_NAME.pattern}$")
        elif name in seen:
            yield bad(at, f"'{name}' is the name of an earlier tool")
        seen.add(name or "")


def breakpoint_formed(at: str, holder: Json) -> Violations:
    """A breakpoint that may stand where it does."""
    if mapping(holder[BREAKPOINT]).get("mode") != "explicit":
        yield bad(at, "the mode must be 'explicit'")
    if holder.get("text") == "":
        yield bad(at, "an empty text cannot be marked")


def cache_options(body: Json, rule: CacheRule) -> Violations:
    """`prompt_cache_options` are for models whose cache knows breakpoints."""
    options = body.get("prompt_cache_options")
    if options is not None and rule.mark != BREAKPOINT:
        yield unknown("prompt_cache_options")
    elif options is not None and options.get("mode", "implicit") not in ("implicit", "explicit"):
        yield bad("prompt_cache_options.mode", "expected one of implicit, explicit")


def error_body(
    message: str, param: str | None = None, code: str | None = None, kind: str = "invalid_request_error"
) -> bytes:
    """A reply in the error shape of OpenAI's APIs."""
    return jsontext.write({"error": {"message": message, "type": kind, "param": param, "code": code}})


def refused(violation: Violation) -> bytes:
    """The error reply of OpenAI's APIs."""
    return error_body(violation.message, violation.param, violation.code)

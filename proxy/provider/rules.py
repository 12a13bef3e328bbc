"""What a strict chat-completions provider answers with 400.

Laws
  A request is judged by its body and by how its model's cache is marked, and by nothing else.
  The first violation in the order of `CHECKS` is the one reported; a check may rely on those before it.
  A tool-call id names a call within one assistant message only: real clients use it again in a later one.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.provider import jsontext
from proxy.provider.cache import PREFIX, CacheRule

Json = Mapping[str, Any]

MAX_TOOLS = 128
MAX_MARKS = 4
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a request was refused, as OpenAI's error object says it."""

    message: str
    param: str | None = None
    code: str | None = None

    def body(self) -> bytes:
        """The whole error reply."""
        return error_body(self.message, self.param, self.code)


def error_body(
    message: str, param: str | None = None, code: str | None = None, kind: str = "invalid_request_error"
) -> bytes:
    """A reply in the error shape of the API."""
    return jsontext.write({"error": {"message": message, "type": kind, "param": param, "code": code}})


Found = Iterator[Violation]
Check = Callable[[Json, CacheRule], Found]


def violations(body: object, rule: CacheRule = PREFIX) -> Violation | None:
    """The first reason to refuse the request, if there is one."""
    if not isinstance(body, Mapping):
        return Violation("The body must be a JSON object.")
    return next((found for check in CHECKS for found in check(body, rule)), None)


def _model(body: Json, _: CacheRule) -> Found:
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield _missing("model")


def _messages(body: Json, _: CacheRule) -> Found:
    messages = body.get("messages")
    if messages is None:
        yield _missing("messages")
    elif not isinstance(messages, list):
        yield _wrong_type("messages", "an array of objects")
    elif not messages:
        yield Violation("'messages' must hold at least one message.", "messages", "empty_array")


def _missing(param: str) -> Violation:
    return Violation(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def _bad(param: str, why: str) -> Violation:
    return Violation(f"Invalid value for '{param}': {why}.", param, "invalid_value")


def _wrong_type(param: str, expected: str) -> Violation:
    return Violation(f"Invalid type for '{param}': expected {expected}.", param, "invalid_type")


# --- each message by itself ---


def _shapes(body: Json, _: CacheRule) -> Found:
    for i, message in enumerate(body["messages"]):
        at = f"messages[{i}]"
        if not isinstance(message, dict):
            yield _wrong_type(at, "an object")
        else:
            yield from ROLES.get(str(message.get("role")), _unknown_role)(message, at)


def _unknown_role(message: Json, at: str) -> Found:
    yield _bad(f"{at}.role", f"expected one of {', '.join(ROLES)}")


def _said(message: Json, at: str) -> Found:
    """What a person, a developer or a tool says: text or parts, never nothing."""
    yield from _content(message.get("content"), f"{at}.content")


def _content(content: object, at: str) -> Found:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        yield _wrong_type(at, "a string or an array of content parts")
    elif not content:
        yield Violation(f"'{at}' must hold at least one part.", at, "empty_array")
    else:
        for i, part in enumerate(content):
            yield from _part(part, f"{at}[{i}]")


def _part(part: object, at: str) -> Found:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        yield _wrong_type(at, "an object with a 'type'")
    elif part["type"] == "text" and not isinstance(part.get("text"), str):
        yield _wrong_type(f"{at}.text", "a string")


def _result(message: Json, at: str) -> Found:
    if not isinstance(message.get("tool_call_id"), str):
        yield _missing(f"{at}.tool_call_id")
    yield from _said(message, at)


SPEAKS = ("content", "tool_calls", "function_call", "refusal", "audio")
"""What an assistant message may consist of."""


def _assistant(message: Json, at: str) -> Found:
    if all(message.get(key) is None for key in SPEAKS):
        yield _bad(f"{at}.content", "one of content and tool calls is required")
    if message.get("content") is not None:
        yield from _content(message["content"], f"{at}.content")
    if message.get("tool_calls") is not None:
        yield from _calls(message["tool_calls"], f"{at}.tool_calls")


def _calls(calls: object, at: str) -> Found:
    if not isinstance(calls, list):
        yield _wrong_type(at, "an array of objects")
        return
    if not calls:
        yield Violation(f"'{at}' must hold at least one call.", at, "empty_array")
    seen: set[str] = set()
    for i, call in enumerate(calls):
        yield from _call(call, f"{at}[{i}]")
        if call["id"] in seen:
            yield _bad(f"{at}[{i}].id", f"'{call['id']}' is the id of an earlier call of the same message")
        seen.add(call["id"])


def _call(call: object, at: str) -> Found:
    if not isinstance(call, dict):
        yield _wrong_type(at, "an object")
    elif not isinstance(call.get("id"), str) or not call["id"]:
        yield _missing(f"{at}.id")
    elif str(call.get("type")) not in CALLS:
        yield _bad(f"{at}.type", f"expected one of {', '.join(CALLS)}")
    else:
        yield from CALLS[call["type"]](call.get(call["type"]), f"{at}.{call['type']}")


def _function(function: object, at: str) -> Found:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        yield _missing(f"{at}.name")
        return
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        yield _wrong_type(f"{at}.arguments", "a string")
    elif not _is_object(arguments):
        yield _bad(f"{at}.arguments", "it must be the text of a JSON object")


def _is_object(text: str) -> bool:
    try:
        return isinstance(jsontext.read(text), dict)
    except jsontext.NotJSONError:
        return False


def _custom(custom: object, at: str) -> Found:
    if not isinstance(custom, dict) or not all(isinstance(custom.get(key), str) for key in ("name", "input")):
        yield _wrong_type(at, "an object with a 'name' and an 'input'")


CALLS: Mapping[str, Callable[[object, str], Found]] = {"function": _function, "custom": _custom}

ROLES: Mapping[str, Callable[[Json, str], Found]] = {
    "system": _said,
    "developer": _said,
    "user": _said,
    "assistant": _assistant,
    "tool": _result,
}


# --- the messages in their order ---


def _order(body: Json, _: CacheRule) -> Found:
    """Each result answers a call of the nearest assistant message, each call is answered, and once."""
    waiting: dict[str, str] = {}
    answered: set[str] = set()
    for i, message in enumerate(body["messages"]):
        at = f"messages[{i}]"
        if message["role"] == "tool":
            yield from _answer(message["tool_call_id"], at, waiting, answered)
            continue
        yield from _unanswered(waiting)
        calls = message.get("tool_calls") or () if message["role"] == "assistant" else ()
        waiting, answered = {call["id"]: at for call in calls}, set()
    yield from _unanswered(waiting)


def _answer(call_id: str, at: str, waiting: dict[str, str], answered: set[str]) -> Found:
    if call_id in answered:
        yield _bad(f"{at}.tool_call_id", f"the call '{call_id}' is answered already")
    elif call_id not in waiting:
        why = f"a 'tool' message must answer one of the 'tool_calls' before it, and none of them is '{call_id}'"
        yield _bad(f"{at}.tool_call_id", why)
    waiting.pop(call_id, None)
    answered.add(call_id)


def _unanswered(waiting: Mapping[str, str]) -> Found:
    for call_id, at in waiting.items():
        why = f"each of them must be followed by a 'tool' message that answers it, and '{call_id}' is not"
        yield _bad(f"{at}.tool_calls", why)


# --- tools ---


def _tools(body: Json, _: CacheRule) -> Found:
    tools = body.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        yield _wrong_type("tools", "an array of at least one object")
    elif len(tools) > MAX_TOOLS:
        yield Violation(
            f"'tools' holds {len(tools)} tools; {MAX_TOOLS} are allowed.", "tools", "array_above_max_length"
        )
    else:
        yield from _tool_names(tools)


def _tool_names(tools: list[object]) -> Found:
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        at = f"tools[{i}]"
        name = tool_name(tool)
        if name is None:
            yield _wrong_type(at, "an object with a 'type' and a named 'function' or 'custom' tool")
        elif not TOOL_NAME.fullmatch(name):
            yield _bad(at, f"the name does not match ^{TOOL_NAME.pattern}$")
        elif name in seen:
            yield _bad(at, f"'{name}' is the name of an earlier tool")
        seen.add(name or "")


def tool_name(tool: Any) -> str | None:
    """The name of a tool's definition."""
    known = isinstance(tool, dict) and str(tool.get("type")) in CALLS
    name = _mapping(tool.get(tool["type"])).get("name") if known else None
    return name if isinstance(name, str) else None


def _tool_choice(body: Json, _: CacheRule) -> Found:
    if body.get("tool_choice") is not None and not body.get("tools"):
        yield Violation("'tool_choice' is only allowed when 'tools' are given.", "tool_choice")


# --- cache marks ---

Marked = tuple[str, str, Json]
"""Where a mark may stand: the address, the role (`part:ROLE` for a content part, else whose), the object."""


def _places(body: Json) -> Iterator[Marked]:
    for i, tool in enumerate(body.get("tools") or ()):
        yield f"tools[{i}]", "tools", tool
        yield f"tools[{i}].{tool['type']}", "tools", tool[tool["type"]]
    for i, message in enumerate(body["messages"]):
        yield f"messages[{i}]", message["role"], message
        if isinstance(message.get("content"), list):
            for j, part in enumerate(message["content"]):
                yield f"messages[{i}].content[{j}]", f"part:{message['role']}", part


def _cache_control(body: Json, _: CacheRule) -> Found:
    marks = [(f"{at}.cache_control", holder) for at, _, holder in _places(body) if _marked(holder, "cache_control")]
    for at, holder in marks:
        if "type" not in _mapping(holder["cache_control"]):
            yield _wrong_type(at, "an object with a 'type'")
        if "" in (holder.get("text"), holder.get("content")):
            yield _bad(at, "an empty text cannot be marked")
    if len(marks) > MAX_MARKS:
        yield _bad(marks[MAX_MARKS][0], f"{len(marks)} blocks are marked, and {MAX_MARKS} may be")


def _marked(holder: Json, mark: str) -> bool:
    return holder.get(mark) is not None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


BREAKPOINT = "prompt_cache_breakpoint"
BREAKPOINT_PLACES = ("part:system", "part:developer", "part:user", "part:tool")


def _breakpoints(body: Json, rule: CacheRule) -> Found:
    for at, place, holder in _places(body):
        if _marked(holder, BREAKPOINT):
            known = rule.mark == BREAKPOINT and place in BREAKPOINT_PLACES
            yield from (_breakpoint(f"{at}.{BREAKPOINT}", holder) if known else (_unknown(f"{at}.{BREAKPOINT}"),))


def _breakpoint(at: str, holder: Json) -> Found:
    if _mapping(holder[BREAKPOINT]).get("mode") != "explicit":
        yield _bad(at, "the mode must be 'explicit'")
    if holder.get("text") == "":
        yield _bad(at, "an empty text cannot be marked")


def _unknown(param: str) -> Violation:
    return Violation(f"Unknown parameter: '{param}'.", param, "unknown_parameter")


def _cache_options(body: Json, rule: CacheRule) -> Found:
    options = body.get("prompt_cache_options")
    if options is not None and rule.mark != BREAKPOINT:
        yield _unknown("prompt_cache_options")
    elif options is not None and options.get("mode", "implicit") not in ("implicit", "explicit"):
        yield _bad("prompt_cache_options.mode", "expected one of implicit, explicit")


# --- the rest of the body ---


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


PLAIN: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "temperature": (_is_number, "a number"),
    "top_p": (_is_number, "a number"),
    "max_tokens": (_is_count, "a positive integer"),
    "max_completion_tokens": (_is_count, "a positive integer"),
    "n": (_is_count, "a positive integer"),
    "stream": (lambda value: isinstance(value, bool), "a boolean"),
    "stream_options": (lambda value: isinstance(value, dict), "an object"),
    "prompt_cache_options": (lambda value: isinstance(value, dict), "an object"),
}


def _plain_fields(body: Json, _: CacheRule) -> Found:
    for name, (fits, expected) in PLAIN.items():
        if body.get(name) is not None and not fits(body[name]):
            yield _wrong_type(name, expected)
    if body.get("stream_options") is not None and not body.get("stream"):
        yield Violation("'stream_options' is only allowed when 'stream' is true.", "stream_options")


CHECKS: tuple[Check, ...] = (
    _model,
    _messages,
    _plain_fields,
    _shapes,
    _order,
    _tools,
    _tool_choice,
    _cache_control,
    _breakpoints,
    _cache_options,
)

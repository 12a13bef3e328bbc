"""Cache marks as OpenAI's APIs and those that follow them write them. No state, and nothing here raises."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from policies.dialects.base import Request
from policies.dialects.common import parsed
from policies.model.conversation import Message
from policies.money.marks import MarkStyle

MARKS: tuple[MarkStyle, ...] = ("cache_control", "prompt_cache_breakpoint")
MARK_VALUES: Mapping[MarkStyle, bytes] = {
    "cache_control": b'"cache_control":{"type":"ephemeral"}',
    "prompt_cache_breakpoint": b'"prompt_cache_breakpoint":{"mode":"explicit"}',
}


def quoted(mark: str) -> bytes:
    """How a field of this name begins."""
    return f'"{mark}"'.encode()


def marks_on(holders: Sequence[object]) -> list[MarkStyle]:
    """The marks on these objects themselves."""
    return [mark for held in holders if isinstance(held, dict) for mark in MARKS if held.get(mark) is not None]


def style_of(request: Request, messages: Sequence[Message], of: Callable[[object], list[MarkStyle]]) -> MarkStyle:
    """The kind of cache mark that the client itself uses, in its messages or its tools; `of` finds those of one."""
    used = tool_marks(request.tool_list, of)
    for i, message in enumerate(messages):
        if message.marks:
            used += of(parsed(request.raw(i)))
    return next((mark for mark in MARKS if mark in used), "")


def tool_marks(tools: bytes, of: Callable[[object], list[MarkStyle]]) -> list[MarkStyle]:
    """The marks in a list of tools; `of` finds those of one tool."""
    if not any(quoted(mark) in tools for mark in MARKS):
        return []
    try:
        found = msgspec.json.decode(tools)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [mark for tool in found for mark in of(tool)] if isinstance(found, list) else []

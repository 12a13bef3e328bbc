"""Cache marks in OpenAI Responses: `prompt_cache_breakpoint` on parts that are input, and what other servers take."""

from collections.abc import Sequence

from policies.dialects.base import Request
from policies.dialects.common import member, parsed
from policies.dialects.marking import MARK_VALUES, quoted, style_of, tool_marks
from policies.dialects.openai_responses.items import marks_of, role_of
from policies.model.conversation import Message
from policies.model.rawjson import Span, UnreadableError, items, members
from policies.money.marks import MarkStyle

_MOST = 4
"""Marks that a request can write (SDK types, response_create_params, prompt_cache_options)."""


def mark_style(request: Request, messages: Sequence[Message]) -> MarkStyle:
    """The kind of cache mark that the client itself uses here, in its items or its tools."""
    return style_of(request, messages, marks_of)


def free_slots(request: Request, messages: Sequence[Message]) -> int:
    """How many more marks the provider takes in this request: one of four is the provider's own, but where the client
    forbids that."""
    used = sum(message.marks for message in messages) + len(tool_marks(request.tool_list, marks_of))
    return _MOST - used - _is_implicit(request, messages)


def _is_implicit(request: Request, messages: Sequence[Message]) -> bool:
    """Whether the provider sets a mark of its own."""
    if mark_style(request, messages) != "prompt_cache_breakpoint":
        return False
    options = member(request.body, members(request.body), "prompt_cache_options")
    return not (isinstance(options, dict) and options.get("mode") == "explicit")


def marked(raw: bytes, style: MarkStyle) -> bytes | None:
    """The item with a mark on the end of its content; None where it has one or cannot carry one."""
    if not style or raw[:1] != b"{" or quoted(style) in raw:
        return None
    try:
        fields = members(raw)
        start, end = fields["content"] if "content" in fields else fields["output"]
        role = role_of(parsed(raw))
        if role == "assistant" and style == "prompt_cache_breakpoint":
            return None
        if raw[start : start + 1] == b'"':
            return _listed(raw, (start, end), role, style)
        first, last = items(raw, start, end)[-1]
        text = members(raw, first, last)["text"]
    except (UnreadableError, KeyError, IndexError):
        return None
    if text[1] - text[0] <= 2:
        return None
    return raw[: last - 1] + b"," + MARK_VALUES[style] + raw[last - 1 :]


def _listed(raw: bytes, span: Span, role: str, style: MarkStyle) -> bytes | None:
    """The item with its text as the one part of a list, which carries the mark."""
    start, end = span
    if end - start <= 2:
        return None
    kind = b'"output_text","annotations":[]' if role == "assistant" else b'"input_text"'
    part = b'{"type":' + kind + b',"text":' + raw[start:end] + b"," + MARK_VALUES[style] + b"}"
    return raw[:start] + b"[" + part + b"]" + raw[end:]

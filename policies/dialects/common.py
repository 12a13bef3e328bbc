"""What the APIs have in common: JSON that is read with care and written back byte for byte.

Laws: nothing here raises on what a client wrote; what cannot be read is opaque.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from policies.context import TokenCounter
from policies.dialects.base import Added, Consent, Fault, Request
from policies.model.conversation import Block, Conversation
from policies.model.edits import Edit, Fold, Replace
from policies.model.rawjson import Change, Path, Span, UnreadableError, members, replaced, spliced
from policies.tools import Kinds, ToolSpec, kinds_by_schema

IMAGE = 765
"""Tokens of an image of middling size: it is never counted as text."""
REMEMBERED = 100_000
"""Bytes of a list of tools that is remembered: with tools of the usual size nothing is done twice."""
_ASKED = 1_000
"""Tools whose definitions are looked at."""
_DEEP = 3
"""How many lists of tools may stand one in another."""
VOLATILE = frozenset({"id", "message_id", "created", "created_at", "updated_at", "timestamp"})
"""What says nothing to the model and may be another in the next request: it is passed on, and moves no anchor."""


def member(body: bytes, spans: Mapping[str, Span], key: str) -> object:
    """What a short member of an object says; None where it is not there, too long to be one, or unreadable."""
    if key not in spans:
        return None
    start, end = spans[key]
    if end - start > 10_000:
        return None
    try:
        return msgspec.json.decode(body[start:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def parsed(raw: bytes) -> Mapping[str, object]:
    """The message; where its text is not to be read, its role and all the rest as one opaque field."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found: dict[str, object] = msgspec.json.decode(raw)
        return found
    with suppress(ValueError, RecursionError):  # lone surrogates, numbers beyond any float
        tolerated: dict[str, object] = json.loads(raw)
        return tolerated
    try:
        role = member(raw, members(raw), "role")
    except UnreadableError:
        role = ""
    return {"role": role, "": raw.decode("utf-8", "replace")}


def as_json(value: object) -> bytes:
    """Compact JSON; a lone surrogate, which UTF-8 does not know, as an escape."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, RecursionError):
        return json.dumps(value, separators=(",", ":")).encode()


def consent(request: Request) -> Consent:
    """Whoever takes a history takes an edited one, too."""
    return Consent()


def joined(
    request: Request, changed: Mapping[int, bytes], added: Added | None = None, beside: Change | None = None
) -> bytes:
    """The body with the changed messages in their places, what is added, and what is said beside them, every other byte
    as it came. The first message stays."""
    changes = [((added[0], added[0]), added[1])] if added else []
    changes += [beside] if beside else []
    for message, raw in changed.items():
        start, end = request.spans[message]
        changes.append(((start if raw else request.spans[message - 1][1], end), raw))
    return spliced(request.body, changes)


def written(
    request: Request,
    conversation: Conversation,
    edits: Sequence[Edit],
    value: Callable[[Block, str], bytes],
    folded: Callable[[Request, Conversation, Fold], Mapping[int, bytes]],
) -> dict[int, bytes]:
    """The new bytes of each message that the edits touch, empty bytes where a message goes, in an API in which folds
    stand for whole messages. `value` writes the text of a block, `folded` what becomes of a fold's messages."""
    texts: dict[int, dict[Path, bytes]] = {}
    changed: dict[int, bytes] = {}
    for edit in edits:
        if isinstance(edit, Replace):
            block = conversation.blocks[conversation.index[edit.at]]
            texts.setdefault(block.message, {})[block.path[1:]] = value(block, edit.text)
        else:
            changed.update(folded(request, conversation, edit))
    for message, values in texts.items():
        with suppress(UnreadableError):  # a key is repeated: the message stays as it is
            changed[message] = replaced(request.raw(message), values)
    return changed


def failure(fault: Fault) -> bytes:
    """The body of an error reply in the words of OpenAI's APIs."""
    kind = "server_error" if fault.status >= 500 else "invalid_request_error"
    said = {"message": fault.message, "type": kind, "param": fault.param, "code": fault.code}
    return as_json({"error": said})


def tool_tokens(tools: bytes, count: TokenCounter) -> int:
    """Tokens of a list of tool definitions."""
    return (_remembered if len(tools) < REMEMBERED else _counted)(tools, count)


def _counted(tools: bytes, count: TokenCounter) -> int:
    return count(tools.decode("utf-8", "replace")) if tools else 0


# a pure function of its arguments, so remembering changes nothing but the time it takes
_remembered = lru_cache(maxsize=256)(_counted)


def tool_names(tools: bytes, inside: str = "") -> tuple[str, ...] | None:
    """What each tool is called, "" where it has no name; None where the list cannot be read. `inside` is the member of
    a tool that names it, where it does not do so itself."""
    return (_known if len(tools) < REMEMBERED else _names)(tools, inside)


def _names(tools: bytes, inside: str) -> tuple[str, ...] | None:
    if tools in (b"", b"null"):
        return ()
    try:
        found = msgspec.json.decode(tools, type=list[dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    named = (tool.get(inside) if inside else tool for tool in found)
    return tuple(str(each.get("name") or "") if isinstance(each, dict) else "" for each in named)


# likewise
_known = lru_cache(maxsize=256)(_names)


def tools(request: Request) -> Sequence[ToolSpec]:
    """The tools that the request defines, those in a group each for itself, the first thousand."""
    return _specs(request.tool_list)


def tool_kinds(request: Request) -> Kinds:
    """The kinds of the tools whose definitions tell them."""
    found = request.tool_list
    return (_kinds_known if len(found) < REMEMBERED else _kinds)(found)


def _specs(tools: bytes) -> tuple[ToolSpec, ...]:
    try:
        found = msgspec.json.decode(tools) if tools else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    return tuple(islice(_defined(found, _DEEP), _ASKED))


def _defined(found: object, depth: int) -> Iterator[ToolSpec]:
    for tool in _objects(found):
        if depth and isinstance(tool.get("tools"), list):
            yield from _defined(tool["tools"], depth - 1)
        else:
            yield _spec(tool)


def _objects(found: object) -> Iterable[Mapping[str, Any]]:
    return (each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    """A tool, whichever way it is said: chat completions say all but its type one level down."""
    inner = tool.get(str(tool.get("type")))
    said = inner if isinstance(inner, dict) else tool
    parameters = said.get("parameters") or said.get("input_schema")
    return ToolSpec(
        str(said.get("name") or tool.get("type") or ""),
        str(said.get("description") or ""),
        parameters if isinstance(parameters, dict) else {},
    )


def _kinds(tools: bytes) -> Kinds:
    return kinds_by_schema(_specs(tools))


# likewise
_kinds_known = lru_cache(maxsize=256)(_kinds)

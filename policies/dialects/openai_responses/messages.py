"""One item of OpenAI Responses, which stands for a message or a part of one, read into parts.

Laws: only fields that are known are looked at, and only text that may be cut alone is anything but opaque; what the
provider seals (reasoning, compaction) is one opaque part, and is counted by what it holds, not by how it is written.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256

import msgspec

from policies.context import TokenCounter
from policies.dialects.common import IMAGE, VOLATILE, as_json, message_of, parsed, sorted_json
from policies.dialects.openai import MARKS, marks_on
from policies.model.conversation import Kind, Message, Part
from policies.model.rawjson import Path
from policies.money.marks import MarkStyle

Item = Mapping[str, object]

_PASSING = VOLATILE | {"status"}
_KINDS: Mapping[str, Kind] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXTS = frozenset({"input_text", "output_text", "text"})
_MEDIA = frozenset({"input_image", "input_file", "input_audio", "computer_screenshot", "image_generation_call"})
CALLS: Mapping[str, str] = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
"""The calls that a client answers and whose arguments can be read, and where these stand."""
_TOOLS: Mapping[str, str] = {"shell_call": "shell", "apply_patch_call": "apply_patch"}
"""What tools are called that have a kind of call of their own."""
AS_JSON = frozenset({"action", "operation"})
"""Arguments that are JSON, and not text."""
_ANSWERS = frozenset({"function_call_output", "custom_tool_call_output", "apply_patch_call_output"})
_SETTINGS = frozenset({"additional_tools", "configuration_update"})
"""The tools and the settings of the request, which hold until the next such item."""
_ASKS = frozenset({"compaction_trigger"})
_READ: Mapping[str, frozenset[str]] = {
    "message": frozenset({"type", "role", "content", *MARKS}),
    **{call: frozenset({"type", "call_id", "name", "namespace", field, *MARKS}) for call, field in CALLS.items()},
    **{kind: frozenset({"type", "call_id", "name", "namespace", "output", *MARKS}) for kind in _ANSWERS},
    "shell_call_output": frozenset({"type", "call_id", "output", "max_output_length", *MARKS}),
}
_SEAL = 650
"""Bytes of a sealed text that are its envelope (Codex, context_manager/history.rs, estimate_reasoning_length)."""
_BYTES = 4
"""Bytes of it that are a token, about (as there)."""


def type_of(item: Item) -> str:
    """The kind of an item; a message need not have one."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    return "message" if "role" in item else ""


def read(raw: bytes, count: TokenCounter) -> Message:
    """The whole `input` may be a text, which is the user's."""
    item = _item_of(raw)
    kind = type_of(item)
    role = role_of(item)
    parts = list(_parts(item, kind, role, raw, count))
    return message_of(raw, role, parts, digest(item, raw), len(marks_of(item)), partial=role == "assistant")


def _item_of(raw: bytes) -> Item:
    if raw[:1] != b'"':
        return parsed(raw)
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return {"role": "user", "content": msgspec.json.decode(raw, type=str)}
    with suppress(ValueError):  # half a surrogate pair
        return {"role": "user", "content": json.loads(raw)}
    return {"role": "user", "": raw.decode("utf-8", "replace")}


def role_of(item: Item) -> str:
    """Whose an item is, in the roles of chat completions."""
    kind = type_of(item)
    if kind == "message":
        role = item.get("role")
        return role if isinstance(role, str) else ""
    if kind in _SETTINGS:
        return "developer"
    if kind in _ASKS:
        return "user"
    return "tool" if _is_answer(item) else "assistant"


def _is_answer(item: Item) -> bool:
    """Whether it is the client's answer to a call. Some tools run at the provider, and their output comes in the
    reply."""
    kind = type_of(item)
    if kind == "tool_search_output":
        return item.get("execution") == "client"
    if kind == "shell_call_output":  # a shell of the provider's gives its outputs ids
        return not item.get("id")
    return kind == "mcp_approval_response" or (kind.endswith("_output") and kind != "program_output")


def _parts(item: Item, kind: str, role: str, raw: bytes, count: TokenCounter) -> Iterator[Part]:
    if kind not in _READ:
        yield _whole(item, kind, role, count)
        return
    yield from _others(item, _READ[kind], count)
    if kind == "message":
        yield from _contents(item.get("content"), "content", _KINDS.get(role, "opaque"), "", raw, count)
    elif kind in CALLS:
        yield _call(item, kind, count)
    elif kind == "shell_call_output":
        yield from _shell_outputs(item, count)
    else:
        yield from _contents(item.get("output"), "output", "result", _text(item, "call_id"), raw, count)


def _whole(item: Item, kind: str, role: str, count: TokenCounter) -> Part:
    """An item as one part. An answer of the client's belongs to the turn of the call."""
    text = sorted_json(_lasting(item)).decode()
    size = _size(item, kind, text, count)
    return Part("system" if role == "developer" else "opaque", text, (), size, "", *_ties(item, kind, role))


def _ties(item: Item, kind: str, role: str) -> tuple[str, str]:
    """The ids of the calls that an item answers and opens: one that was approved is made in the next reply."""
    if kind == "mcp_approval_request":
        return "", _text(item, "id")
    if kind == "mcp_call":
        return _text(item, "approval_request_id"), ""
    if kind == "local_shell_call_output":  # has it as `id` (SDK types)
        return _text(item, "call_id") or _text(item, "id"), ""
    call_id = _text(item, "call_id")
    return (call_id, "") if role == "tool" or kind.endswith("_output") else ("", call_id)


def _size(item: Item, kind: str, text: str, count: TokenCounter) -> int:
    output = item.get("output")
    if kind in _MEDIA or (isinstance(output, dict) and output.get("type") in _MEDIA):
        return IMAGE
    sealed = item.get("encrypted_content")
    if isinstance(sealed, str):
        return max(0, len(sealed) * 3 // 4 - _SEAL) // _BYTES
    return count(text)


def _others(item: Item, read: frozenset[str], count: TokenCounter) -> Iterator[Part]:
    """Fields that are not read."""
    for key, value in item.items():
        if key not in read and key not in _PASSING and value is not None:
            text = value if isinstance(value, str) else sorted_json(value).decode()
            yield Part("opaque", text, (key,), count(text))


def _contents(content: object, field: str, kind: Kind, call_id: str, raw: bytes, count: TokenCounter) -> Iterator[Part]:
    if isinstance(content, str):
        path: Path = () if raw[:1] == b'"' else (field,)
        yield Part(kind, content, path, count(content), "", call_id)
    elif isinstance(content, list):
        for at, part in enumerate(content):
            yield _content_part(part, (field, at), kind, call_id, count)
    elif content is not None:
        text = sorted_json(content).decode()
        yield Part("opaque", text, (field,), count(text), "", call_id)


def _content_part(part: object, path: Path, kind: Kind, call_id: str, count: TokenCounter) -> Part:
    fields = part if isinstance(part, dict) else {}
    if fields.get("type") in _TEXTS and isinstance(fields.get("text"), str):
        return Part(kind, fields["text"], (*path, "text"), count(fields["text"]), "", call_id)
    text = sorted_json({k: v for k, v in fields.items() if k not in MARKS} if fields else part).decode()
    return Part("opaque", text, path, IMAGE if fields.get("type") in _MEDIA else count(text), "", call_id)


def _arguments(item: Item, kind: str) -> str | None:
    """The arguments of a call as a text; None where they cannot be read."""
    value = item.get(CALLS[kind])
    if CALLS[kind] in AS_JSON:
        return as_json(value).decode() if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _call(item: Item, kind: str, count: TokenCounter) -> Part:
    field, text = CALLS[kind], _arguments(item, kind)
    tool = _TOOLS.get(kind) or _text(item, "name")
    if text is None:
        text = sorted_json(item.get(field)).decode()
        return Part("opaque", text, (field,), count(text))
    caller = item.get("caller")  # a program that runs at the provider, and goes on with the output
    opens = _text(caller, "caller_id") if isinstance(caller, dict) else ""
    return Part("call", text, (field,), count(text) + count(tool), tool, _text(item, "call_id"), opens=opens)


def _shell_outputs(item: Item, count: TokenCounter) -> Iterator[Part]:
    """What each command wrote to either stream; how it ended is opaque."""
    call_id, output = _text(item, "call_id"), item.get("output")
    for at, entry in enumerate(output if isinstance(output, list) else ()):
        rest = dict(entry) if isinstance(entry, dict) else {"": entry}
        for stream in ("stdout", "stderr"):
            if isinstance(rest.get(stream), str):
                text = rest.pop(stream)
                yield Part("result", text, ("output", at, stream), count(text), "", call_id)
        text = sorted_json(rest).decode()
        yield Part("opaque", text, ("output", at), count(text), "", call_id)


def called(item: Item) -> str | None:
    """The id of a call that can be read; None where the item is none."""
    kind = type_of(item)
    return _text(item, "call_id") if kind in CALLS and _arguments(item, kind) is not None else None


def texts_of(item: Item) -> Iterator[str]:
    """The texts of a message."""
    content = item.get("content")
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") in _TEXTS and isinstance(part.get("text"), str):
            yield part["text"]


def _text(item: Item, key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""


def _lasting(item: Item) -> Item:
    """The fields of an item that are the same in every request that holds it. Clients leave out those that are null."""
    return {k: v for k, v in item.items() if k not in _PASSING and k not in MARKS and v is not None}


def marks_of(item: object) -> list[MarkStyle]:
    """The marks on an item, or a tool, and on what it holds one level down."""
    if not isinstance(item, dict):
        return []
    lists = (inner for key in ("content", "output", "tools") if isinstance(inner := item.get(key), list))
    return marks_on([item, *(part for parts in lists for part in parts)])


def digest(item: Item, raw: bytes = b"") -> bytes:
    """Of the item without spacing and order of fields, without what differs from request to request, and without its
    cache marks and the list that only a mark needs."""
    bare = {key: _bare(value) for key, value in _lasting(item).items()}
    if type_of(item) == "message":
        bare.pop("type", None)
    try:
        return sha256(sorted_json(bare)).digest()
    except (RecursionError, TypeError):
        return sha256(raw).digest()


def _bare(value: object) -> object:
    if not isinstance(value, list):
        return value
    parts = [_bare_part(part) if isinstance(part, dict) else part for part in value]
    only = parts[0] if len(parts) == 1 else None
    plain = isinstance(only, dict) and only.keys() == {"type", "text"} and only["type"] in _TEXTS
    return only["text"] if isinstance(only, dict) and plain else parts


def _bare_part(part: Item) -> Item:
    return {k: v for k, v in part.items() if k not in MARKS and not (k in ("annotations", "logprobs") and not v)}

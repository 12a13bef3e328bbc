"""The request of OpenAI Responses: its items, which stand for messages or parts of them, read into parts; edits and
cache marks written into them; and a request for a text, as some of OpenAI's models are offered here alone.

Laws: only fields that are known are looked at, and only text that may be cut alone is anything but opaque; what the
provider seals (reasoning, compaction) is one opaque part, and is counted by what it holds, not by how it is written; a
body whose history is the provider's is not worked on.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from policies.context import TokenCounter
from policies.dialects.common import (
    IMAGE,
    VOLATILE,
    Added,
    Request,
    as_json,
    edited,
    list_at,
    member,
    message_of,
    object_at,
    objects,
    opaque_fields,
    parsed,
    sorted_json,
    text_at,
)
from policies.dialects.common import joined as joined_list
from policies.dialects.dialect import JsonObject, Writing, is_completion_limited, limit, text_of
from policies.dialects.openai import BREAKPOINT, MARKS, ROLES, marks_on, style_of, tool_marks, with_mark
from policies.model.conversation import Block, Conversation, Kind, Message, Part
from policies.model.edits import Edit
from policies.model.rawjson import Change, Path
from policies.money.caches import MarkStyle
from policies.text.layout import Piece
from policies.text.summary_checks import End
from policies.tools import RECALL, SEARCH

Item = Mapping[str, object]

_PASSING = VOLATILE | {"status"}
_TEXTS = frozenset({"input_text", "output_text", "text"})
_MEDIA = frozenset({"input_image", "input_file", "input_audio", "computer_screenshot", "image_generation_call"})
CALLS: Mapping[str, str] = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
"""The calls that a client answers and whose arguments can be read, and where these stand."""
TOOL_NAMES: Mapping[str, str] = {"shell_call": "shell", "apply_patch_call": "apply_patch"}
AS_JSON = frozenset({"action", "operation"})
"""Arguments that are JSON, and not text."""
_ANSWERS = frozenset({"function_call_output", "custom_tool_call_output", "apply_patch_call_output"})
OF_SEARCH = b'{"execution":"client","type":"tool_search_output",'
"""How an answer of ours to a search begins: clients that search by themselves write theirs in another order."""
_SETTINGS = frozenset({"additional_tools", "configuration_update"})
"""The tools and the settings of the request, which hold until the next such item."""
_READ: Mapping[str, frozenset[str]] = {
    "message": frozenset({"type", "status", "role", "content", *MARKS}),
    **{call: frozenset({"type", "status", "call_id", "name", "namespace", at, *MARKS}) for call, at in CALLS.items()},
    **{kind: frozenset({"type", "status", "call_id", "name", "namespace", "output", *MARKS}) for kind in _ANSWERS},
    "shell_call_output": frozenset({"type", "status", "call_id", "output", "max_output_length", *MARKS}),
}


def type_of(item: Item) -> str:
    kind = item.get("type")
    return kind if isinstance(kind, str) else "message" if "role" in item else ""


def read(raw: bytes, count: TokenCounter) -> Message:
    """The whole `input` may be a text, which is the user's."""
    item: Item
    try:
        item = parsed(raw) if raw[:1] != b'"' else {"role": "user", "content": json.loads(raw)}
    except ValueError:
        item = {"role": "user", "": raw.decode("utf-8", "replace")}
    kind, role = type_of(item), role_of(item)
    parts = list(opaque_fields(item, _READ[kind], count, sorted_json)) if kind in _READ else []
    if kind == "message":
        parts += _contents(item.get("content"), "content", ROLES.get(role, "opaque"), "", raw, count)
    elif kind in CALLS:
        parts.append(_call(item, kind, count))
    elif kind == "shell_call_output":
        parts += _shell_outputs(item, count)
    elif kind in _ANSWERS:
        parts += _contents(item.get("output"), "output", "result", text_at(item, "call_id"), raw, count)
    else:
        parts.append(_whole(item, kind, role, count, SEARCH if raw.startswith(OF_SEARCH) else ""))
    return message_of(raw, role, parts, digest(item, raw), len(marks_of(item)), partial=role == "assistant")


def role_of(item: Item) -> str:
    """Whose an item is, in the roles of chat completions. Some tools run at the provider, and their output comes in the
    reply; the other outputs are the client's answers to calls."""
    kind = type_of(item)
    if kind == "message":
        return text_at(item, "role")
    if kind in _SETTINGS:
        return "developer"
    if kind == "compaction_trigger":
        return "user"
    if kind == "tool_search_output":
        is_answer = item.get("execution") == "client"
    elif kind == "shell_call_output":  # a shell of the provider's gives its outputs ids
        is_answer = not item.get("id")
    else:
        is_answer = kind == "mcp_approval_response" or (kind.endswith("_output") and kind != "program_output")
    return "tool" if is_answer else "assistant"


def _whole(item: Item, kind: str, role: str, count: TokenCounter, tool: str) -> Part:
    """An item as one part. An answer of the client's belongs to the turn of the call."""
    text, sealed = sorted_json(_lasting(item)).decode(), item.get("encrypted_content")
    if kind in _MEDIA or text_at(item.get("output"), "type") in _MEDIA:
        size = IMAGE
    elif isinstance(sealed, str):
        # 650 bytes are an envelope, then some 4 are a token (Codex, history.rs, estimate_reasoning_length)
        size = max(0, len(sealed) * 3 // 4 - 650) // 4
    else:
        size = count(text)
    call_id, opens = text_at(item, "call_id"), ""
    if kind == "mcp_approval_request":  # a call that was approved is made in the next reply
        call_id, opens = "", text_at(item, "id")
    elif kind == "mcp_call":
        call_id = text_at(item, "approval_request_id")
    elif kind == "local_shell_call_output":  # has it as `id` (SDK types)
        call_id = call_id or text_at(item, "id")
    elif role != "tool" and not kind.endswith("_output"):
        call_id, opens = "", call_id
    return Part("system" if role == "developer" else "opaque", text, (), size, tool, call_id, opens=opens)


def _contents(content: object, field: str, kind: Kind, call_id: str, raw: bytes, count: TokenCounter) -> Iterator[Part]:
    if isinstance(content, str):
        path: Path = () if raw[:1] == b'"' else (field,)
        yield Part(kind, content, path, count(content), "", call_id)
    elif isinstance(content, list):
        for at, part in enumerate(content):
            fields = part if isinstance(part, dict) else {}
            if text_at(part, "type") in _TEXTS and isinstance(fields.get("text"), str):
                yield Part(kind, fields["text"], (field, at, "text"), count(fields["text"]), "", call_id)
                continue
            text = sorted_json({k: v for k, v in fields.items() if k not in MARKS} if fields else part).decode()
            tokens = IMAGE if text_at(part, "type") in _MEDIA else count(text)
            yield Part("opaque", text, (field, at), tokens, "", call_id)
    elif content is not None:
        yield _opaque(content, (field,), count, call_id)


def _opaque(value: object, path: Path, count: TokenCounter, call_id: str = "") -> Part:
    text = sorted_json(value).decode()
    return Part("opaque", text, path, count(text), "", call_id)


def _arguments(item: Item, kind: str) -> str | None:
    """The arguments of a call as a text; None where they cannot be read."""
    value = item.get(CALLS[kind])
    if CALLS[kind] in AS_JSON:
        return as_json(value).decode() if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _call(item: Item, kind: str, count: TokenCounter) -> Part:
    field, text = CALLS[kind], _arguments(item, kind)
    tool = TOOL_NAMES.get(kind) or text_at(item, "name")
    if text is None:
        return _opaque(item.get(field), (field,), count)
    opens = text_at(item.get("caller"), "caller_id")  # a program that runs at the provider, and goes on with the output
    return Part("call", text, (field,), count(text) + count(tool), tool, text_at(item, "call_id"), opens=opens)


def _shell_outputs(item: Item, count: TokenCounter) -> Iterator[Part]:
    """The texts that each command wrote to either stream; how it ended is opaque."""
    call_id = text_at(item, "call_id")
    for at, entry in enumerate(list_at(item, "output")):
        rest = dict(entry) if isinstance(entry, dict) else {"": entry}
        for stream in ("stdout", "stderr"):
            if isinstance(rest.get(stream), str):
                text = str(rest.pop(stream))
                yield Part("result", text, ("output", at, stream), count(text), "", call_id)
        yield _opaque(rest, ("output", at), count, call_id)


def called(item: Item) -> str | None:
    """The id of a call that can be read; None where the item is none."""
    kind = type_of(item)
    return text_at(item, "call_id") if kind in CALLS and _arguments(item, kind) is not None else None


def texts_of(item: Item) -> Iterator[str]:
    if isinstance(item.get("content"), str):
        yield text_at(item, "content")
    for part in objects(item.get("content")):
        if text_at(part, "type") in _TEXTS and isinstance(part.get("text"), str):
            yield text_at(part, "text")


def _lasting(item: Item) -> Item:
    """The fields of an item that are the same in every request that holds it. Clients leave out those that are null."""
    return {k: v for k, v in item.items() if k not in _PASSING and k not in MARKS and v is not None}


def marks_of(item: object) -> list[MarkStyle]:
    """The marks on an item, or a tool, and on what it holds one level down."""
    if not isinstance(item, dict):
        return []
    return marks_on([item, *(part for key in ("content", "output", "tools") for part in list_at(item, key))])


def digest(item: Item, raw: bytes = b"") -> bytes:
    """Of the item without spacing, order of fields, passing fields, cache marks and the list that only a mark needs."""
    bare = {key: _bare(value) for key, value in _lasting(item).items()}
    if type_of(item) == "message":
        bare.pop("type", None)
    if bare.get("namespace") == bare.get("name"):  # of a function that a search of ours has loaded
        bare.pop("namespace", None)
    try:
        return sha256(sorted_json(bare)).digest()
    except (RecursionError, TypeError):
        return sha256(raw).digest()


def _bare(value: object) -> object:
    if not isinstance(value, list):
        return value
    parts = [
        {k: v for k, v in part.items() if k not in MARKS and (v or k not in ("annotations", "logprobs"))}
        if isinstance(part, dict)
        else part
        for part in value
    ]
    only = parts[0] if len(parts) == 1 else None
    plain = isinstance(only, dict) and only.keys() == {"type", "text"} and text_at(only, "type") in _TEXTS
    return only["text"] if isinstance(only, dict) and plain else parts


# --- edits and cache marks ---


def splice(request: Request, conversation: Conversation, edits: Sequence[Edit]) -> dict[int, bytes]:
    def value(block: Block, text: str) -> bytes:
        is_json = block.kind == "call" and block.path[-1] in AS_JSON
        return text.encode() if is_json else as_json(text)

    def stub(piece: Piece) -> bytes:
        return as_json({"type": "message", "role": piece.role, "content": piece.text})

    def exchange(name: str, arguments: str, text: str) -> bytes:
        call = {"type": "function_call", "call_id": name, "name": RECALL, "arguments": arguments}
        return as_json(call) + b"," + as_json({"type": "function_call_output", "call_id": name, "output": text})

    return edited(request, conversation, edits, stub, exchange, value, marked, marks_of)


def mark_style(request: Request, messages: Sequence[Message]) -> MarkStyle:
    return style_of(request, messages, marks_of)


def slots(request: Request, messages: Sequence[Message]) -> int:
    """A request can write 4 (SDK types); one is the provider's, unless the client forbids that."""
    used = sum(message.marks for message in messages) + len(tool_marks(request.tool_list, marks_of))
    if mark_style(request, messages) == BREAKPOINT:
        options = member(request.body, request.members, "prompt_cache_options")
        used += text_at(options, "mode") != "explicit"
    return 4 - used


def marked(raw: bytes, style: MarkStyle) -> bytes | None:
    if not raw.startswith(b"{"):  # the whole input is a text
        return None

    def kind(role: bytes) -> bytes:
        return b'"output_text","annotations":[]' if role == b'"assistant"' else b'"input_text"'

    return with_mark(raw, style, kind, fields=("content", "output"))


def joined(
    request: Request, changed: Mapping[int, bytes], added: Added | None = None, beside: Sequence[Change] = ()
) -> bytes:
    """An `input` that is a text becomes a list where items follow it."""
    text = request.raw(0)
    new = changed.get(0, b"")
    if text.startswith(b'"') and new.startswith(text) and len(new) > len(text):
        first = b'{"type":"message","role":"user","content":' + text + b"}"
        changed = {0: b"[" + first + new[len(text) :] + b"]"}
    return joined_list(request, changed, added, beside)


# --- a text asked for ---

_CUT: Mapping[str, End] = {"max_output_tokens": "length", "content_filter": "refusal"}


class _WrittenItem(msgspec.Struct):
    type: str = "message"
    content: list[dict[str, Any]] | None = None


def writing_body(model: str, instructions: str, text: str, most: int) -> JsonObject:
    """The provider is asked not to store the reply."""
    return {
        "model": model,
        "input": text,
        "instructions": instructions,
        "max_output_tokens": limit(most, model, is_completion_limited(model)),
        "store": False,
    }


def written_answer(reply: JsonObject) -> tuple[str, End]:
    output = msgspec.convert(reply.get("output"), list[_WrittenItem])
    parts = [part for item in output if item.type == "message" for part in item.content or ()]
    text = text_of([part for part in parts if part.get("type") == "output_text"])
    if reply.get("status", "completed") != "completed":
        return text, _CUT.get(str(object_at(reply, "incomplete_details").get("reason")), "other")
    if any(part.get("type") == "refusal" for item in output for part in item.content or ()):
        return text, "refusal"
    if any(item.type.endswith("_call") for item in output):
        return text, "calls"
    return text, "reasoning" if output and not text else "stop"


WRITING = Writing(bodies=lambda *assignment: (writing_body(*assignment),), answer=written_answer)

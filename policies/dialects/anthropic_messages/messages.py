"""A message of Anthropic Messages, read into parts.

Laws: only fields that are known are looked at, the rest is opaque; reading never fails; cache marks and the order of a
block's fields move no digest, the order inside the input of a tool does (it is what the model wrote).
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Literal

import msgspec

from policies.context import TokenCounter
from policies.dialects.common import (
    IMAGE,
    as_json,
    message_of,
    object_at,
    objects,
    opaque_fields,
    parsed,
    sorted_json,
    text_at,
)
from policies.model.conversation import Kind, Message, Part
from policies.model.rawjson import Path, UnreadableError, find

MARK: Literal["cache_control"] = "cache_control"
QUOTED = b'"cache_control"'
_ROLES: Mapping[str, Kind] = {"system": "system", "user": "user", "assistant": "assistant"}
_READ = frozenset({"role", "content"})
_DEEP = 4
"""How many lists of blocks stand in one another: a result, a document in it, and what the document is made of."""
_MEDIA = frozenset({"image", "document", "container_upload"})
_OPENING = frozenset({"server_tool_use", "mcp_tool_use"})
"""Calls that are made at the provider: the answer is a block of a later message where the reply broke off between."""
SEALED = {"thinking": ("thinking", "signature"), "redacted_thinking": ("", "data")}
"""Thoughts of the model: the field in which they can be read, and the one in which they are encrypted or signed."""

Json = Mapping[str, object]


_KINDS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
"""Content by which a body is recognized."""


def looks_like(fields: Json) -> bool:
    blocks = (block for message in objects(fields.get("messages")) for block in objects(message.get("content")))
    has_blocks = any(str(block.get("type")) in _KINDS for block in blocks)
    has_schemas = any("input_schema" in tool for tool in objects(fields.get("tools")))
    return "system" in fields or has_schemas or has_blocks


class _Inputs(msgspec.Struct):
    class _Block(msgspec.Struct):
        input: msgspec.Raw = msgspec.Raw(b"{}")

    content: list[_Block]


def read(raw: bytes, count: TokenCounter) -> Message:
    message = parsed(raw)
    role, content = text_at(message, "role"), message.get("content")
    try:
        parts = [*opaque_fields(message, _READ, count), *_Reader(raw, role, count).contents(content)]
        # a client moves its marks from one request to the next, and that changes no prompt
        bare_message = {**message, "content": _bare_list(content, _DEEP)} if isinstance(content, list) else message
        digest = sha256(sorted_json(bare_message)).digest()
    except RecursionError:  # nested deeper than can be written
        text = raw.decode("utf-8", "replace")
        parts, digest = [Part("opaque", text, (), count(text))], sha256(raw).digest()
    return message_of(raw, role, parts, digest, len(marks_of(message)) if QUOTED in raw else 0)


class _Reader:
    """Reads the blocks of one message."""

    def __init__(self, raw: bytes, role: str, count: TokenCounter) -> None:
        self._raw = raw
        self._role = role
        self._kind = _ROLES.get(role, "opaque")
        self._count = count
        self._inputs: Sequence[bytes] | None = None

    def contents(self, content: object) -> Iterator[Part]:
        if isinstance(content, str):
            yield self._text(self._kind, content, ("content",))
        for at, block in enumerate(content if isinstance(content, list) else ()):
            kind = text_at(block, "type")
            if not isinstance(block, dict):
                yield self._opaque(block, ("content", at))
            elif kind == "text" and isinstance(block.get("text"), str):
                yield self._text(self._kind, block["text"], ("content", at, "text"))
            elif kind == "tool_use" and self._role == "assistant" and isinstance(block.get("input"), dict):
                yield self._call(block, at)
            elif kind == "tool_result" and self._role == "user":
                yield from self._result(block, at)
            else:
                opened = str(block.get("id") or "") if kind in _OPENING else ""
                yield self._opaque(block, ("content", at), str(block.get("tool_use_id") or ""), opened)

    def _text(self, kind: Kind, text: str, path: Path, call_id: str = "") -> Part:
        return Part(kind, text, path, self._count(text), "", call_id)

    def _opaque(self, block: object, path: Path, call_id: str = "", opens: str = "") -> Part:
        text = sorted_json(bare(block)).decode()
        return Part("opaque", text, path, _weight(block, text, self._count), call_id=call_id, opens=opens)

    def _call(self, block: Json, at: int) -> Part:
        """The input as the client wrote it."""
        text = self._input(at).decode("utf-8", "replace")
        tool = str(block.get("name") or "")
        tokens = self._count(text) + self._count(tool)
        # a program that runs at the provider, and goes on with the result
        opens = str(object_at(block, "caller").get("tool_id") or "")
        return Part("call", text, ("content", at, "input"), tokens, tool, str(block.get("id") or ""), opens=opens)

    def _input(self, at: int) -> bytes:
        if self._inputs is None:
            try:
                inputs = msgspec.json.decode(self._raw, type=_Inputs)
                self._inputs = [bytes(block.input) for block in inputs.content]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # a block is no object, or half a pair
                self._inputs = ()
        if self._inputs:
            return self._inputs[at]
        try:
            return self._raw[slice(*find(self._raw, ("content", at, "input")))]
        except (UnreadableError, LookupError):  # a key is repeated
            return b"{}"

    def _result(self, block: Json, at: int) -> Iterator[Part]:
        call_id, content = str(block.get("tool_use_id") or ""), block.get("content")
        if not isinstance(content, list) or not content:
            yield self._text("result", content if isinstance(content, str) else "", ("content", at, "content"), call_id)
            return
        for i, inner in enumerate(content):
            path: Path = ("content", at, "content", i)
            if isinstance(inner, dict) and inner.get("type") == "text" and isinstance(inner.get("text"), str):
                yield self._text("result", inner["text"], (*path, "text"), call_id)
            else:
                yield self._opaque(inner, path, call_id)


def _weight(block: object, text: str, count: TokenCounter) -> int:
    """About the tokens of an opaque block. What is encrypted is no text: base64 carries 3 bytes in 4 characters, and a
    token of text has some 4 of them."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str):
        return count(text)
    if kind in SEALED:
        open_, sealed = (block.get(key) for key in SEALED[kind])
        if isinstance(open_, str) and open_:
            return count(open_)
        return len(sealed) * 3 // 16 if isinstance(sealed, str) else 0
    if kind in _MEDIA:
        source = object_at(block, "source")
        data = source.get("data") if source.get("type") == "text" else None
        return count(data) if isinstance(data, str) else IMAGE
    return count(text)


def _bare_list(content: Sequence[object], depth: int) -> object:
    """A list of blocks without cache marks; the text itself where only a mark needs the list."""
    blocks = [bare(block, depth) for block in content]
    only = blocks[0] if len(blocks) == 1 else None
    return only["text"] if isinstance(only, dict) and only.keys() == {"type", "text"} else blocks


def bare(block: object, depth: int = _DEEP) -> object:
    """A block without its cache mark and those of what it holds; the input of a tool as one text."""
    if not isinstance(block, dict):
        return block
    fields = {key: value for key, value in block.items() if key != MARK}
    content, source = fields.get("content"), fields.get("source")
    if isinstance(content, list) and depth:
        fields["content"] = _bare_list(content, depth - 1)
    if isinstance(source, dict) and depth:
        fields["source"] = bare(source, depth - 1)
    if "input" in fields:
        fields["input"] = as_json(fields["input"]).decode()
    return fields


def block_of(raw: bytes) -> Json:
    """A block that is an object. Raises UnreadableError where it is none."""
    block = parsed(raw)
    if not isinstance(block, dict):
        raise UnreadableError("a block is no object")
    return block


def marks_of(holder: object, depth: int = 2 * _DEEP) -> list[object]:
    """The cache marks on a message, a block or a tool and on what it holds, in order."""
    if isinstance(holder, list) and depth:
        return [mark for inner in holder for mark in marks_of(inner, depth - 1)]
    if not isinstance(holder, dict):
        return []
    inside = [mark for key in ("source", "content") for mark in marks_of(holder.get(key), depth)]
    own = holder.get(MARK)
    return inside if own is None else [*inside, own]

"""A message of Anthropic Messages: its content blocks, read into parts.

Laws: looks only at fields it knows and leaves the rest opaque; never fails; a cache mark and the order of a block's
fields say nothing, the order inside the input of a tool does (it is what the model wrote).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Literal

import msgspec

from policies.context import TokenCounter
from policies.dialects.common import IMAGE, VOLATILE, as_json, parsed
from policies.model.conversation import Kind, Message, Part
from policies.model.rawjson import Path, UnreadableError, find

FRAMING = 4
"""Tokens around each message: what chat completions count, so that no policy can tell the APIs apart."""
MARK: Literal["cache_control"] = "cache_control"
QUOTED = b'"cache_control"'
_ROLES: Mapping[str, Kind] = {"system": "system", "user": "user", "assistant": "assistant"}
_KNOWN = frozenset({"role", "content"})
_DEEP = 4
"""How many lists of blocks stand in one another: a result, a document in it, and what the document is made of."""
_MEDIA = frozenset({"image", "document", "container_upload"})
_OPENING = frozenset({"server_tool_use", "mcp_tool_use"})
"""Calls that are made at the provider: the answer is a block of a later message where the reply broke off between."""
SEALED = {"thinking": ("thinking", "signature"), "redacted_thinking": ("", "data")}
"""What the model said to itself: where it can be read, and where it is encrypted."""

Json = Mapping[str, object]


class _Inputs(msgspec.Struct):
    class _Block(msgspec.Struct):
        input: msgspec.Raw = msgspec.Raw(b"{}")

    content: list[_Block]


_inputs = msgspec.json.Decoder(_Inputs)


def read(raw: bytes, count: TokenCounter) -> Message:
    """Read one raw message into parts. Never fails: what is not understood is one opaque part."""
    said = parsed(raw)
    role = said.get("role")
    role = role if isinstance(role, str) else ""
    try:
        parts = [*_opaque_fields(said, count), *_Reader(raw, role, count).contents(said.get("content"))]
        digest = sha256(written(_bare_message(said))).digest()
    except RecursionError:  # nested deeper than can be written
        parts, digest = [Part("opaque", text := raw.decode("utf-8", "replace"), (), count(text))], sha256(raw).digest()
    if not parts:
        parts = [Part("opaque", "", (), 0)]
    digests = tuple(part.digest() for part in parts)
    marks = len(marks_of(said)) if QUOTED in raw else 0
    return Message(role, tuple(parts), digests, digest, FRAMING, marks, sha256(raw).digest())


def _opaque_fields(said: Json, count: TokenCounter) -> list[Part]:
    found = []
    for key, value in said.items():
        if key not in _KNOWN and key not in VOLATILE and value is not None:
            text = value if isinstance(value, str) else as_json(value).decode()
            found.append(Part("opaque", text, (key,), count(text)))
    return found


class _Reader:
    """Reads the blocks of one message."""

    def __init__(self, raw: bytes, role: str, count: TokenCounter) -> None:
        self._raw = raw
        self._role = role
        self._kind = _ROLES.get(role, "opaque")
        self._count = count
        self._written: Sequence[bytes] | None = None

    def contents(self, content: object) -> Iterator[Part]:
        if isinstance(content, str):
            yield self._text(self._kind, content, ("content",))
        elif isinstance(content, list):
            for at, block in enumerate(content):
                yield from self._block(block, at)

    def _block(self, block: object, at: int) -> Iterator[Part]:
        kind = block.get("type") if isinstance(block, dict) else None
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
        text = written(bare(block)).decode()
        return Part("opaque", text, path, _weight(block, text, self._count), "", call_id, opens)

    def _call(self, block: Json, at: int) -> Part:
        """The input as the client wrote it."""
        text = self._input(at).decode("utf-8", "replace")
        tool = str(block.get("name") or "")
        tokens = self._count(text) + self._count(tool)
        caller = block.get("caller")  # a program that runs at the provider, and goes on with the result
        opens = str(caller.get("tool_id") or "") if isinstance(caller, dict) else ""
        return Part("call", text, ("content", at, "input"), tokens, tool, str(block.get("id") or ""), opens)

    def _input(self, at: int) -> bytes:
        if self._written is None:
            try:
                self._written = [bytes(block.input) for block in _inputs.decode(self._raw).content]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # other blocks are none, or half a pair
                self._written = ()
        if self._written:
            return self._written[at]
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
        source = block.get("source")
        data = source.get("data") if isinstance(source, dict) and source.get("type") == "text" else None
        return count(data) if isinstance(data, str) else IMAGE
    return count(text)


def _bare_message(said: Json) -> Json:
    """What a message says, without its cache marks, and without the lists that only a mark needs: a client moves its
    marks from one request to the next, and that changes no prompt."""
    content = said.get("content")
    return {**said, "content": _bare_list(content, _DEEP)} if isinstance(content, list) else said


def _bare_list(content: Sequence[object], depth: int) -> object:
    found = [bare(block, depth) for block in content]
    only = found[0] if len(found) == 1 else None
    return only["text"] if isinstance(only, dict) and only.keys() == {"type", "text"} else found


def bare(block: object, depth: int = _DEEP) -> object:
    """A block without its cache mark and those of what it holds; the input of a tool as one text."""
    if not isinstance(block, dict):
        return block
    found = {key: value for key, value in block.items() if key != MARK}
    content, source = found.get("content"), found.get("source")
    if isinstance(content, list) and depth:
        found["content"] = _bare_list(content, depth - 1)
    if isinstance(source, dict) and depth:
        found["source"] = bare(source, depth - 1)
    if "input" in found:
        found["input"] = as_json(found["input"]).decode()
    return found


def block_of(raw: bytes) -> Json:
    """A block that is an object. Raises UnreadableError where it is none."""
    found = parsed(raw)
    if not isinstance(found, dict):
        raise UnreadableError("a block is no object")
    return found


def written(value: object) -> bytes:
    """JSON in which the order of fields says nothing."""
    try:
        return msgspec.json.encode(value, order="sorted")
    except (UnicodeEncodeError, RecursionError):
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def marks_of(holder: object, depth: int = 2 * _DEEP) -> list[object]:
    """The cache marks on a message, a block or a tool and on what it holds, in order."""
    if isinstance(holder, list) and depth:
        return [mark for inner in holder for mark in marks_of(inner, depth - 1)]
    if not isinstance(holder, dict):
        return []
    inside = [mark for key in ("source", "content") for mark in marks_of(holder.get(key), depth)]
    own = holder.get(MARK)
    return inside if own is None else [*inside, own]

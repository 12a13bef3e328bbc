"""The request of Anthropic Messages: its messages read into parts, edits and cache marks written into them, what it
must say beside an edited history; and a request for a text.

Laws
  Only fields that are known are looked at, the rest is opaque; reading never fails; cache marks and the order of a
  block's fields move no digest, the order inside the input of a tool does (it is what the model wrote).
  What was not edited is never re-serialized; what stands beside a fold in the same message stays, as a message of its
  own; a cache mark on a folded block moves to its stub.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import takewhile
from typing import Any, Literal

import msgspec

from policies.context import TokenCounter
from policies.dialects.common import (
    IMAGE,
    Consent,
    Request,
    as_json,
    decoded,
    has_newest_marked,
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
from policies.dialects.dialect import JsonObject, Writing, limit, text_of
from policies.dialects.tool_lists import remembered
from policies.model.conversation import Block, Conversation, Kind, Message, Part
from policies.model.edits import Edit, Fold, Replace
from policies.model.rawjson import Change, Path, UnreadableError, find, items, members, replaced
from policies.money.caches import MarkStyle
from policies.text.layout import Piece, call_id, pieces_of
from policies.text.summary_checks import End
from policies.tools import RECALL

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
    """About the tokens of an opaque block. Base64 carries 3 bytes in 4 characters, and a token of text has some 4."""
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


# --- edits and cache marks ---

_VALUE = QUOTED + b':{"type":"ephemeral"}'
_MARKABLE = frozenset({"text", "tool_result", "image", "document"})
"""Content that can carry a mark of ours: thinking cannot, and kinds that are not known may not."""


@dataclass(frozen=True, slots=True)
class _Run:
    fold: Fold
    first: int
    last: int


def splice(request: Request, conversation: Conversation, edits: Sequence[Edit]) -> dict[int, bytes]:
    texts: dict[int, dict[Path, bytes]] = {}
    runs: list[_Run] = []
    for edit in edits:
        if isinstance(edit, Replace):
            block = conversation.blocks[conversation.index[edit.at]]
            # the input of a tool is JSON, all else is text
            is_call = block.kind == "call"
            value = edit.text.encode("utf-8", "backslashreplace") if is_call else as_json(edit.text)
            texts.setdefault(block.message, {})[block.path[1:]] = value
        else:
            runs.append(_Run(edit, conversation.index[edit.first], conversation.index[edit.last]))
    changed: dict[int, bytes] = {}
    for message, values in texts.items():
        with suppress(UnreadableError, LookupError):  # a key is repeated: the message stays as it is
            changed[message] = replaced(request.raw(message), values)
    return changed | _Folds(request, conversation, sorted(runs, key=lambda run: run.first), changed).messages()


class _Folds:
    """Puts folds into the messages, which other edits have changed already."""

    def __init__(
        self, request: Request, conversation: Conversation, runs: Sequence[_Run], changed: Mapping[int, bytes]
    ) -> None:
        self._request = request
        self._conversation = conversation
        self._messages = conversation.messages
        self._blocks = conversation.blocks
        self._runs = runs
        self._firsts = [run.first for run in runs]
        self._changed = changed

    def messages(self) -> dict[int, bytes]:
        gone: dict[int, bytes] = {}
        for run in self._runs:
            gone |= dict.fromkeys(range(self._blocks[run.first].message, self._blocks[run.last].message + 1), b"")
        edges = {self._blocks[at].message for run in self._runs for at in (run.first, run.last)}
        return gone | {message: b",".join(self._pieces(message)) for message in edges}

    def _pieces(self, message: int) -> Iterator[bytes]:
        """The messages that take the place of one in which a run begins or ends: those that stand for runs, and the
        blocks beside them. What follows results of ours in the same user's message joins them."""
        beside: list[int] = []
        results = b""
        for at in range(self._start(message), self._start(message + 1)):
            before = bisect_right(self._firsts, at)
            run = self._runs[before - 1] if before and at <= self._runs[before - 1].last else None
            if run is None:
                beside.append(at)
                continue
            if beside:
                yield self._part(message, beside, results)
                beside, results = [], b""
            first, last = (self._blocks[edge].message for edge in (run.first, run.last))
            # the last message, where some of that stays
            place = last if first and run.last + 1 < self._start(last + 1) else first
            if at == max(run.first, self._start(place)):
                if results:  # of a run that ends right before this one
                    yield _message("user", results)
                *whole, (role, results) = self._stubs(run)
                yield from (_message(*each) for each in whole)
                if not (role == "user" and at <= run.last < self._start(message + 1) - 1):
                    yield _message(role, results)
                    results = b""
        if beside:
            yield self._part(message, beside, results)

    def _start(self, message: int) -> int:
        return bisect_left(self._blocks, message, key=lambda block: block.message)

    def _part(self, message: int, blocks: Sequence[int], results: bytes) -> bytes:
        """A message with only some of its content, as it stands in the list, behind results of ours."""
        raw = self._changed.get(message, self._request.raw(message))
        entries = items(raw, *find(raw, ("content",)))
        content = [raw[slice(*entries[i])] for i in self._places(blocks)]
        content = [results, *content] if results else content
        return raw[: entries[0][0]] + b",".join(content) + raw[entries[-1][1] :]

    def _places(self, blocks: Iterable[int]) -> Sequence[int]:
        """Where blocks stand in the content of their message; one in a field of its own does not."""
        paths = (self._blocks[at].path for at in blocks)
        return sorted({path[2] for path in paths if len(path) > 2 and isinstance(path[2], int)})

    def _stubs(self, run: _Run) -> list[tuple[str, bytes]]:
        """The role and content of each message for a run. The first begins with a thought where it has to."""
        before_system = run.last + 1 < len(self._blocks) and self._role(run.last + 1) == "system"
        joins = self._has_budget and not before_system and not self._begins_with_thought(run.last + 1)
        pieces = pieces_of(self._conversation, run.fold, system=False, joins=joins)
        thought, mark = self._thought(run, pieces), next(self._marks(run), None)
        stubs: list[tuple[str, bytes]] = []
        for piece in pieces:
            role, block = piece.role, {"type": "text", "text": piece.text}
            if piece.role == "tool":
                name = call_id(run.fold)
                call = {"type": "tool_use", "id": name, "name": RECALL, "input": {"ref": run.fold.ref}}
                stubs.append(("assistant", thought + as_json(call)))
                role, block = "user", {"type": "tool_result", "tool_use_id": name, "content": piece.text}
            marked = {MARK: mark} if mark and piece is pieces[-1] else {}
            stubs.append((role, (thought if role == "assistant" else b"") + as_json(block | marked)))
            thought = b""
        return stubs

    def _role(self, at: int) -> str:
        return self._messages[self._blocks[at].message].role

    def _thought(self, run: _Run, pieces: Sequence[Piece]) -> bytes:
        """The last thought of the model in a run, in front of other blocks. With a budget for thinking the first
        message of a tool loop has to begin with a thought (extended thinking), and an assistant's that joins one with
        thoughts does anyway."""
        begins_loop = pieces[0].role == "tool" and not (run.first and self._blocks[run.first - 1].from_tool)
        ends = run.last + 1 == len(self._blocks)
        joins = pieces[-1].role == "assistant" and not ends and self._role(run.last + 1) == "assistant"
        if not (self._has_budget and (begins_loop or joins)):
            return b""
        first = next((at for at in range(run.last, run.first - 1, -1) if self._begins_with_thought(at)), None)
        if first is None:
            return b""
        message = self._blocks[first].message
        raw = self._request.raw(message)
        entries = items(raw, *find(raw, ("content",)))
        thoughts = takewhile(lambda at: _is_thought(self._blocks[at]), range(first, self._start(message + 1)))
        return b"".join(raw[slice(*entries[i])] + b"," for i in self._places(thoughts))

    def _begins_with_thought(self, at: int) -> bool:
        if at == len(self._blocks):
            return False
        block = self._blocks[at]
        return block.path[1:] == ("content", 0) and self._role(at) == "assistant" and _is_thought(block)

    @cached_property
    def _has_budget(self) -> bool:
        return text_at(member(self._request.body, self._request.members, "thinking"), "type") == "enabled"

    def _marks(self, run: _Run) -> Iterator[object]:
        messages = range(self._blocks[run.first].message, self._blocks[run.last].message + 1)
        for message in (m for m in messages if self._messages[m].marks):
            content = list_at(parsed(self._request.raw(message)), "content")
            blocks = range(max(run.first, self._start(message)), min(run.last + 1, self._start(message + 1)))
            yield from marks_of([content[place] for place in self._places(blocks)])


def _message(role: str, content: bytes) -> bytes:
    return b'{"role":"' + role.encode() + b'","content":[' + content + b"]}"


def _is_thought(block: Block) -> bool:
    return block.kind == "opaque" and text_at(parsed(block.text.encode("utf-8", "surrogatepass")), "type") in SEALED


def mark_style(request: Request, messages: Sequence[Message]) -> MarkStyle:
    return MARK if any(message.marks for message in reversed(messages)) or _marks_beside(request) else ""


def at_end(request: Request, messages: Sequence[Message]) -> bool:
    return has_newest_marked(messages) or _is_automatic(request)


def slots(request: Request, messages: Sequence[Message]) -> int:
    """Anthropic takes 4 in one request, wherever they stand (prompt caching)."""
    return 4 - sum(message.marks for message in messages) - _marks_beside(request)


def _marks_beside(request: Request) -> int:
    """The marks that no message carries: on tools and system text, and the one that asks for a mark on whatever comes
    last, which takes a slot of its own (automatic caching)."""
    return _marks_on(request.tool_list) + _marks_on(request.instructions) + _is_automatic(request)


@remembered
def _marks_on(holders: bytes) -> int:
    return sum(len(marks_of(holder)) for holder in objects(decoded(holders))) if QUOTED in holders else 0


def _is_automatic(request: Request) -> bool:
    return member(request.body, request.members, MARK) is not None


def marked(raw: bytes, style: MarkStyle) -> bytes | None:
    """A mark stands at the end of what the model is shown before its calls; of several messages, in the last."""
    if style != MARK:
        return None
    try:
        start, end = members(raw, items(b"[" + raw + b"]")[-1][0] - 1)["content"]
        if raw.startswith(b'"', start) and end - start > 2:
            block = b'{"type":"text","text":' + raw[start:end] + b"," + _VALUE + b"}"
            return raw[:start] + b"[" + block + b"]" + raw[end:]
        for first, last in reversed(items(raw, start, end)):
            fields = block_of(raw[first:last])
            if fields.get("type") == "tool_use":
                continue
            if fields.get("type") not in _MARKABLE or fields.get("text") == "" or marks_of(fields):
                return None
            return raw[: last - 1] + b"," + _VALUE + raw[last - 1 :]
    except (UnreadableError, LookupError):
        pass
    return None


# --- thoughts that are bound to the prompt before them, and how a request says that theirs may be dropped ---
# Newer models of Claude take a thinking block back only where nothing before it has changed since (Claude docs,
# "Preserved thinking", prefix checks); else the request is refused, or, where it asks for that, the block is dropped.
# Every edit changes what stands before later thoughts. So a request that may be edited asks for it: from the first one
# on, so that it is the same all through a conversation; where nothing was edited there is nothing to drop

_BOUND = re.compile(
    r"claude-(?:(?:fable|mythos)-(?:5[-.][1-9](?!\d)|[6-9](?!\d))|(?:opus|sonnet|haiku)-(?:5[-.][5-9](?!\d)|[6-9](?!\d)))"
)
"""By name: fable and mythos from 5.1, the others from 5.5."""
_DROP = b'{"prefix_mismatch_behavior":"drop_block"}'


def is_bound(model: str) -> bool:
    return _BOUND.search(model.lower()) is not None


def consent(request: Request) -> Consent | None:
    """None where the request holds thoughts and cannot say that they may be dropped."""
    if not is_bound(request.model):
        return Consent()
    try:
        return Consent(_changes(request), {"anthropic-beta": "thinking-binding-controls-2026-08-01"})
    except (UnreadableError, msgspec.DecodeError, UnicodeDecodeError, LookupError):
        start, end = request.spans[0][0], request.spans[-1][1]
        has_thoughts = any(request.body.find(word, start, end) >= 0 for word in (b'"thinking"', b'"redacted_thinking"'))
        return None if has_thoughts else Consent()


def _changes(request: Request) -> list[Change]:
    """The change that asks for it; none where the client does. Raises LookupError where it wants something else."""
    body, fields = request.body, request.members
    if "thinking" not in fields:  # these models think all the same
        end = body.rindex(b"}")
        return [((end, end), b',"thinking":{"type":"adaptive","block_binding":' + _DROP + b"}")]
    start, end = fields["thinking"]
    thinking = msgspec.json.decode(body[start:end], type=dict[str, object])
    if thinking.get("type") not in ("adaptive", "enabled"):
        raise LookupError
    if "block_binding" not in thinking:
        return [((end - 1, end - 1), b',"block_binding":' + _DROP)]
    span, binding = members(body, start, end)["block_binding"], thinking["block_binding"]
    if text_at(binding, "prefix_mismatch_behavior") == "drop_block":
        return []
    if binding:
        raise LookupError
    return [(span, _DROP)]


# --- a text asked for ---

_ENDS: Mapping[str, End] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "calls",
    "refusal": "refusal",
}


def writing_body(model: str, instructions: str, text: str, most: int) -> JsonObject:
    return {
        "max_tokens": limit(most, model),
        "messages": [{"role": "user", "content": text}],
        "model": model,
        "system": instructions,
    }


def written_answer(reply: JsonObject) -> tuple[str, End]:
    blocks = msgspec.convert(reply.get("content"), list[dict[str, Any]])
    text = text_of([block for block in blocks if block.get("type") == "text"])
    if any(block.get("type") in ("tool_use", "server_tool_use") for block in blocks):
        return text, "calls"
    end = _ENDS.get(str(reply.get("stop_reason")), "other")
    return text, "reasoning" if end == "stop" and blocks and not text else end


WRITING = Writing(bodies=lambda *assignment: (writing_body(*assignment),), answer=written_answer)

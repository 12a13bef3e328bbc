"""The request of Anthropic Messages: its messages found, and edits and cache marks written into them.

Laws: what was not edited is never re-serialized; what stands beside a fold in the same message stays, as a message of
its own; a cache mark on a folded block moves to its stub.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from policies.dialects.anthropic_messages.messages import MARK, QUOTED, SEALED, block_of, marks_of
from policies.dialects.base import Request
from policies.dialects.common import (
    as_json,
    decoded,
    has_newest_marked,
    list_at,
    member,
    objects,
    parsed,
    text_at,
)
from policies.dialects.tool_lists import remembered
from policies.model.conversation import Block, Conversation, Message
from policies.model.edits import Edit, Fold, Replace
from policies.model.rawjson import Path, UnreadableError, find, items, members, replaced
from policies.money.marks import MarkStyle
from policies.text.layout import Piece, call_id, pieces_of
from policies.tools import RECALL

_VALUE = QUOTED + b':{"type":"ephemeral"}'
_MARKABLE = frozenset({"text", "tool_result", "image", "document"})
"""Content that can carry a mark of ours: thinking cannot, and kinds that are not known may not."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A fold in its place: the blocks that it stands for."""

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
        """What a message becomes in which a run begins or ends: the messages that stand for runs, and the blocks
        beside them. What follows results of ours in the same user's message joins them."""
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
            if at == max(run.first, self._start(self._place(run))):
                if results:  # of a run that ends right before this one
                    yield _message("user", results)
                *whole, (role, results) = self._stubs(run)
                yield from (_message(*each) for each in whole)
                if not (role == "user" and at <= run.last < self._start(message + 1) - 1):
                    yield _message(role, results)
                    results = b""
        if beside:
            yield self._part(message, beside, results)

    def _place(self, run: _Run) -> int:
        """The message in whose place a run's messages stand: the last one, where some of that stays."""
        first, last = (self._blocks[at].message for at in (run.first, run.last))
        return last if first and run.last + 1 < self._start(last + 1) else first

    def _start(self, message: int) -> int:
        """The first block of a message."""
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
        """The messages that stand for a run: the role and the content of each. The first of the model's begins with a
        thought where it has to."""
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
        """Whether a message of the model begins with this block, and it is a thought."""
        if at == len(self._blocks):
            return False
        block = self._blocks[at]
        return block.path[1:] == ("content", 0) and self._role(at) == "assistant" and _is_thought(block)

    @cached_property
    def _has_budget(self) -> bool:
        return text_at(member(self._request.body, self._request.members, "thinking"), "type") == "enabled"

    def _marks(self, run: _Run) -> Iterator[object]:
        """The cache marks on the blocks of a run."""
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
    """The marks on tools, or on the blocks of system text."""
    return sum(len(marks_of(holder)) for holder in objects(decoded(holders))) if QUOTED in holders else 0


def _is_automatic(request: Request) -> bool:
    """Whether the provider is asked to mark the last block itself."""
    return member(request.body, request.members, MARK) is not None


def marked(raw: bytes, style: MarkStyle) -> bytes | None:
    """A mark stands at the end of what the model is shown before its calls; of several messages in the place of one, in
    the last."""
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

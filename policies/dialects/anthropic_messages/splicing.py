"""Edits and marks written into the messages of Anthropic Messages.

Laws: what was not edited is never re-serialised; what stands beside a fold in the same message stays, as a message of
its own; a cache mark on a folded block moves to its stub.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from policies.dialects.anthropic_messages.blocks import MARK, QUOTED, SEALED, block_of, marks_of
from policies.dialects.base import Request
from policies.dialects.common import as_json, member, parsed
from policies.model.conversation import Block, Conversation
from policies.model.edits import Edit, Fold, Replace
from policies.model.rawjson import Path, UnreadableError, find, items, members, replaced
from policies.money.marks import MarkStyle

_VALUE = QUOTED + b':{"type":"ephemeral"}'
_MARKABLE = frozenset({"text", "tool_result", "image", "document"})
"""Content that can carry a mark of ours: thinking cannot, and what is not known may not."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A fold in its place: the blocks that it stands for."""

    fold: Fold
    first: int
    last: int


def splice(request: Request, conversation: Conversation, edits: Sequence[Edit]) -> dict[int, bytes]:
    """The new bytes of each message that the edits touch; empty bytes where a message goes."""
    texts: dict[int, dict[Path, bytes]] = {}
    runs: dict[int, _Run] = {}
    for edit in edits:
        if isinstance(edit, Replace):
            block = conversation.blocks[conversation.index[edit.at]]
            texts.setdefault(block.message, {})[block.path[1:]] = _value(block, edit.text)
        else:
            first = conversation.index[edit.first]
            runs[first] = _Run(edit, first, conversation.index[edit.last])
    raws = {message: _replaced(request.raw(message), values) for message, values in texts.items()}
    changed = {message: raw for message, raw in raws.items() if raw is not None}
    return changed | _Folds(request, conversation, [run for _, run in sorted(runs.items())], changed).messages()


def _value(block: Block, text: str) -> bytes:
    """The input of a tool is JSON, all else is text."""
    return text.encode("utf-8", "backslashreplace") if block.kind == "call" else as_json(text)


def _replaced(raw: bytes, values: Mapping[Path, bytes]) -> bytes | None:
    """The message with these values; None where a key is repeated: it stays as it is."""
    with suppress(UnreadableError, LookupError):
        return replaced(raw, values)
    return None


class _Folds:
    """Puts folds into the messages, which other edits have changed already."""

    def __init__(
        self, request: Request, conversation: Conversation, runs: Sequence[_Run], changed: Mapping[int, bytes]
    ) -> None:
        self._request = request
        self._conversation = conversation
        self._blocks = conversation.blocks
        self._runs = runs
        self._firsts = [run.first for run in runs]
        self._changed = changed

    def messages(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for run in self._runs:
            found |= dict.fromkeys(range(self._blocks[run.first].message, self._blocks[run.last].message + 1), b"")
        edges = {self._blocks[at].message for run in self._runs for at in (run.first, run.last)}
        return found | {message: b",".join(self._pieces(message)) for message in edges}

    def _pieces(self, message: int) -> Iterator[bytes]:
        """What a message becomes in which a run begins or ends: stubs, and the blocks beside them."""
        kept: list[int] = []
        for at in range(self._start(message), self._start(message + 1)):
            run = self._run(at)
            if run is None:
                kept.append(at)
                continue
            if kept:
                yield self._part(message, kept)
                kept = []
            if at == run.first:
                yield self._stub(run)
        if kept:
            yield self._part(message, kept)

    def _run(self, at: int) -> _Run | None:
        """The run in which a block stands."""
        before = bisect_right(self._firsts, at)
        return self._runs[before - 1] if before and at <= self._runs[before - 1].last else None

    def _start(self, message: int) -> int:
        return bisect_left(self._blocks, message, key=lambda block: block.message)

    def _part(self, message: int, kept: Sequence[int]) -> bytes:
        """A message with only some of its content, as it stands in the list."""
        raw = self._changed.get(message, self._request.raw(message))
        entries = items(raw, *find(raw, ("content",)))
        places = self._places(kept)
        return raw[: entries[0][0]] + b",".join(raw[slice(*entries[i])] for i in places) + raw[entries[-1][1] :]

    def _places(self, blocks: Iterable[int]) -> Sequence[int]:
        """Where blocks stand in the content of their message; in a field of its own none does."""
        paths = (self._blocks[at].path for at in blocks)
        return sorted({path[2] for path in paths if len(path) > 2 and isinstance(path[2], int)})

    def _stub(self, run: _Run) -> bytes:
        """The message that stands for a run. Before a person's words it is the assistant's, so that roles alternate in
        a plain chat; behind system text, too, which no user's message may follow (mid-conversation system messages);
        and where it has to begin with a thought."""
        following = self._blocks[run.last + 1] if run.last + 1 < len(self._blocks) else None
        heard = following is not None and not following.from_tool
        asked = heard and following is not None and self._role(following) == "user"
        guided = self._is_behind_system(run)
        thought = b"" if asked else self._thought(run, guided)
        mark = next(self._marks(run), None)
        text = as_json({"type": "text", "text": run.fold.text} | ({MARK: mark} if mark else {}))
        role = b"assistant" if asked or guided or thought else b"user"
        content = b"[" + thought + text + b"]" if thought or mark else as_json(run.fold.text)
        return b'{"role":"' + role + b'","content":' + content + b"}"

    def _role(self, block: Block) -> str:
        return self._conversation.messages[block.message].role

    def _is_behind_system(self, run: _Run) -> bool:
        return run.first > 0 and self._role(self._blocks[run.first - 1]) == "system"

    def _thought(self, run: _Run, guided: bool) -> bytes:
        """What the model thought last in a run, where it goes on behind it: in front of other blocks. With a budget for
        thinking the first message of a tool loop has to begin with a thought (extended thinking), and an assistant's
        that joins one with thoughts does anyway."""
        following = run.last + 1
        if following == len(self._blocks) or not self._is_the_models(following):
            return b""
        if not guided and (self._begins(following) or not self._has_budget):
            return b""
        begun = next((at for at in range(run.last, run.first - 1, -1) if self._begins(at)), None)
        if begun is None:
            return b""
        message = self._blocks[begun].message
        raw = self._request.raw(message)
        entries = items(raw, *find(raw, ("content",)))
        places = self._places(takewhile(self._is_thought, range(begun, self._start(message + 1))))
        return b"".join(raw[slice(*entries[i])] + b"," for i in places)

    def _is_the_models(self, at: int) -> bool:
        return self._role(self._blocks[at]) == "assistant"

    def _begins(self, at: int) -> bool:
        """Whether a message begins with this block, and it is a thought."""
        return self._blocks[at].path[1:] == ("content", 0) and self._is_the_models(at) and self._is_thought(at)

    def _is_thought(self, at: int) -> bool:
        block = self._blocks[at]
        return block.kind == "opaque" and _type_of(block.text) in SEALED

    @cached_property
    def _has_budget(self) -> bool:
        body = self._request.body
        thinking = member(body, members(body), "thinking")
        return isinstance(thinking, dict) and thinking.get("type") == "enabled"

    def _marks(self, run: _Run) -> Iterator[object]:
        """The cache marks on the blocks of a run."""
        messages = range(self._blocks[run.first].message, self._blocks[run.last].message + 1)
        for message in (m for m in messages if self._conversation.messages[m].marks):
            content = parsed(self._request.raw(message)).get("content")
            there = range(max(run.first, self._start(message)), min(run.last + 1, self._start(message + 1)))
            if isinstance(content, list):
                yield from marks_of([content[place] for place in self._places(there)])


def _type_of(block: str) -> str:
    try:
        return str(block_of(block.encode("utf-8", "surrogatepass")).get("type"))
    except UnreadableError:
        return ""


def marked(raw: bytes, style: MarkStyle) -> bytes | None:
    """The message with a mark at the end of what the model is shown before its calls; None where it has one there or
    cannot carry one. Of several messages in the place of one, the last."""
    if style != MARK:
        return None
    try:
        start, end = items(b"[" + raw + b"]")[-1]
        message = raw[start - 1 : end - 1]
        new = _marked(message)
    except (UnreadableError, LookupError):
        return None
    return None if new is None else raw[: start - 1] + new


def _marked(message: bytes) -> bytes | None:
    start, end = members(message)["content"]
    if message[start : start + 1] == b'"' and end - start > 2:
        block = b'{"type":"text","text":' + message[start:end] + b"," + _VALUE + b"}"
        return message[:start] + b"[" + block + b"]" + message[end:]
    for first, last in reversed(items(message, start, end)):
        found = block_of(message[first:last])
        if found.get("type") == "tool_use":
            continue
        if found.get("type") not in _MARKABLE or found.get("text") == "" or marks_of(found):
            return None
        return message[: last - 1] + b"," + _VALUE + message[last - 1 :]
    return None

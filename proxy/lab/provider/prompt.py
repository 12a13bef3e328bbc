"""A request as the sequence of content blocks that its provider's cache sees.

Laws
  Tools come first, then the messages in their order. A cache mark is not content: the same text with a mark
  or without, as a string or as a list of one part, is the same block.
  Blocks are equal when their digests are; two prompts share a prefix as far as their chains of digests do.
  What the same people say is the same blocks in every API: each API tells it in the words of `Spoken`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any, Generic, Protocol, TypeVar

from proxy.lab.provider import jsontext

Json = Mapping[str, Any]
Count = Callable[[str], int]
V = TypeVar("V")

MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})
LASTING = "lasting"
"""What a mark is besides that asks for the longer time."""
_LONGER = ("1h", "12h")
FRAME = 4
"""Tokens that surround each message."""
IMAGE, AUDIO, FILE = 765, 500, 1_000
"""What a part that is not text counts as, whatever its bytes; OpenAI takes 765 for 1024x1024 pixels."""


class Bounded(Generic[V]):
    """A mapping that forgets what was used longest ago once its values together outweigh `capacity`."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._weight = 0
        self._items: OrderedDict[bytes, tuple[V, int]] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        return key in self._items

    def get(self, key: bytes) -> V | None:
        """The value, which is now the one used last."""
        if key not in self._items:
            return None
        self._items.move_to_end(key)
        return self._items[key][0]

    def put(self, key: bytes, value: V, weight: int) -> None:
        """Keep the value, and forget others where there is no room."""
        self._weight += weight - self._items.pop(key, (None, 0))[1]
        self._items[key] = (value, weight)
        while self._weight > self._capacity:
            self._weight -= self._items.popitem(last=False)[1][1]


@dataclass(frozen=True, slots=True)
class Block:
    """A content block. `head` must agree before the text can: role, kind, ids, names, unknown fields."""

    digest: bytes
    head: bytes
    text: str
    lead: int
    """Tokens before the text."""
    tokens: int
    run: str
    """Blocks that follow each other in a run (parallel calls, their results) are one position looked back."""
    marks: frozenset[str]
    markable: bool = True
    """Whether a mark on the request as a whole may come to stand here."""

    def shared(self, other: "Block", count: Count) -> int:
        """Tokens at the beginning of two different blocks that are the same."""
        if self.head != other.head:
            return 0
        return self.lead + count(self.text[: _agreeing(self.text, other.text)])


def _agreeing(a: str, b: str) -> int:
    """How many leading characters agree; by halving, so that C compares the long texts."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


@dataclass(frozen=True)
class Prompt:
    """The blocks of one request, and where a provider may place a boundary by itself."""

    blocks: tuple[Block, ...]
    endings: tuple[int, ...]
    """How many blocks stand before the end of each message that may be a boundary, in order."""
    opening: int
    """The same for the leading system messages; 0 where there are none."""
    implicit: bool
    """Whether the client leaves boundaries to the provider."""
    lasting: bool
    """Whether all that is written is to be kept for the longer time."""

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Tokens of the first k blocks."""
        return tuple(accumulate((block.tokens for block in self.blocks), initial=0))

    @property
    def tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.ends[-1]

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """The look-back position of each prefix: a run of calls, or of results, is one."""
        runs = ["", *(block.run for block in self.blocks)]
        fresh = (not run or run != before for before, run in pairwise(runs))
        return tuple(accumulate(fresh, initial=0))

    def marked(self, mark: str) -> list[int]:
        """How many blocks stand up to the end of each one that carries the mark."""
        return [i for i, block in enumerate(self.blocks, 1) if mark in block.marks]

    def chain(self, owner: str) -> tuple[bytes, ...]:
        """A digest of each prefix, the empty one first; nothing is shared between owners."""
        seed = sha256(owner.encode("utf-8", "surrogatepass")).digest()
        digests = (block.digest for block in self.blocks)
        return tuple(accumulate(digests, lambda before, next_: sha256(before + next_).digest(), initial=seed))


@dataclass(frozen=True, slots=True)
class Leaf:
    """One content part or call of a message. `beside` is compared with it, `counted` is counted with it."""

    kind: str
    text: str = ""
    beside: object = None
    counted: tuple[str, ...] = ()
    tokens: int = 0
    run: str = ""
    marks: frozenset[str] = frozenset()
    markable: bool = True


@dataclass(frozen=True, slots=True)
class Spoken:
    """What one voice says at a time: `extras` is whatever else the message holds, `call_id` what it answers."""

    role: str
    leaves: tuple[Leaf, ...]
    call_id: str | None = None
    extras: Json = field(default_factory=dict)
    marks: frozenset[str] = frozenset()
    """On the message as a whole: they stand at its end."""
    joins: bool = False
    """Whether neighbours of the same role are one message."""


class Grammar(Protocol):
    """How an API says what a prompt consists of."""

    def entries(self, body: Json, /) -> Iterable[Json]:
        """The raw messages or items, in order; what leads the prompt is the first of them."""

    def spoken(self, entry: Json, /) -> Iterable[Spoken]:
        """What is said in one of them."""

    def tool(self, tool: Json, /) -> Leaf:
        """A tool's definition; the same in every API."""

    def top_mark(self, body: Json, /) -> frozenset[str]:
        """The mark on the request as a whole; empty where there is none."""


_Told = tuple[str, bool, tuple[Block, ...]]
"""The role of a message, whether the next one may join it, and its blocks."""
_Read = Callable[[Json, str], tuple[_Told, ...]]


class PromptReader:
    """Reads requests. Each message is taken apart and counted once, then known by the digest of its JSON."""

    def __init__(self, count: Count, grammar: Grammar, capacity: int = 64_000_000) -> None:
        self._count = count
        self._grammar = grammar
        self._read: Bounded[tuple[_Told, ...]] = Bounded(capacity)

    def __call__(self, body: Json) -> Prompt:
        """The prompt of a request that is without violations."""
        blocks = [block for tool in body.get("tools") or () for block in self._recall(tool, self._tool, "tools")[0][2]]
        roles, ends = list[str](), list[int]()
        joinable = ""
        for entry in self._grammar.entries(body):
            for role, joins, new in self._recall(entry, self._entry, joinable):
                if role != joinable:
                    roles.append(role)
                    ends.append(0)
                blocks += new
                ends[-1] = len(blocks)
                joinable = role if joins else ""
        leading = _leading(roles)
        options = body.get("prompt_cache_options") or {}
        return Prompt(
            tuple(_marked_last(blocks, self._grammar.top_mark(body))),
            tuple(ends[i] for i in _boundaries(roles, leading)),
            ends[leading - 1] if leading else 0,
            options.get("mode") != "explicit",
            options.get("ttl") in _LONGER,
        )

    def _recall(
        self, value: Json, read: Callable[[Json, str], tuple[_Told, ...]], before: str = ""
    ) -> tuple[_Told, ...]:
        raw = jsontext.write(value)
        key = sha256(before.encode() + b"\0" + raw).digest()
        told = self._read.get(key)
        if told is None:
            told = read(value, before)
            self._read.put(key, told, len(raw))
        return told

    def _tool(self, tool: Json, _: str) -> tuple[_Told, ...]:
        leaf = self._grammar.tool(tool)
        return (("", False, (self._block(["tool"], leaf, 0),)),)

    def _entry(self, entry: Json, before: str) -> tuple[_Told, ...]:
        told = list[_Told]()
        for spoken in self._grammar.spoken(entry):
            told.append((spoken.role, spoken.joins, self._message(spoken, framed=spoken.role != before)))
            before = spoken.role if spoken.joins else ""
        return tuple(told)

    def _message(self, spoken: Spoken, framed: bool) -> tuple[Block, ...]:
        """The first block carries what frames the message, the last one a mark on the message as a whole."""
        first, *others = spoken.leaves or (Leaf("text"),)
        counted = (jsontext.write(spoken.extras).decode(),) if spoken.extras else ()
        if framed or spoken.extras:
            first = replace(first, beside=[first.beside, spoken.extras], counted=first.counted + counted)
        *leaves, last = first, *others
        leaves.append(replace(last, marks=last.marks | spoken.marks))
        return tuple(self._leaf(spoken, leaf, FRAME if framed and not i else 0) for i, leaf in enumerate(leaves))

    def _leaf(self, spoken: Spoken, leaf: Leaf, frame: int) -> Block:
        head = [spoken.role, spoken.call_id, leaf.kind, leaf.beside]
        lead = frame + leaf.tokens + sum(map(self._count, leaf.counted))
        return self._block(head, replace(leaf, run="result") if spoken.role == "tool" else leaf, lead)

    def _block(self, head: list[object], leaf: Leaf, lead: int) -> Block:
        before = jsontext.write(head)
        digest = sha256(before + b"\0" + leaf.text.encode("utf-8", "surrogatepass")).digest()
        tokens = lead + self._count(leaf.text)
        markable = leaf.markable and (leaf.kind != "text" or bool(leaf.text))
        return Block(digest, before, leaf.text, lead, tokens, leaf.run, leaf.marks, markable)


def _marked_last(blocks: list[Block], mark: frozenset[str]) -> list[Block]:
    """The blocks with a mark at the last one that can carry it."""
    at = next((i for i in range(len(blocks) - 1, -1, -1) if blocks[i].markable), None) if mark else None
    if at is None:
        return blocks
    return [*blocks[:at], replace(blocks[at], marks=blocks[at].marks | mark), *blocks[at + 1 :]]


def marks_of(holder: Json) -> frozenset[str]:
    """The marks that an object carries."""
    found = {mark: holder[mark] for mark in MARKS if holder.get(mark) is not None}
    lasting = any(isinstance(said, dict) and said.get("ttl") in _LONGER for said in found.values())
    return frozenset(found) | ({LASTING} if lasting else frozenset())


def unmarked(holder: Json) -> dict[str, Any]:
    """The object without its marks."""
    return {key: value for key, value in holder.items() if key not in MARKS}


def tool_leaf(definition: Json, marks: frozenset[str]) -> Leaf:
    """A tool's definition, as chat completions says it."""
    return Leaf("tool", jsontext.write(definition).decode(), marks=marks)


def call_leaf(call_id: str, name: str, text: str, marks: frozenset[str] = frozenset()) -> Leaf:
    """A call of a tool."""
    return Leaf("call", text, [call_id, name], (name,), run="call", marks=marks)


def part_leaf(part: Json, texts: Mapping[str, str], sizes: Mapping[str, int], apart: frozenset[str] = MARKS) -> Leaf:
    """A content part: `texts` says which field of which kind is its text, `sizes` what the others count as. The fields
    `apart` are not compared."""
    plain = {key: value for key, value in part.items() if key not in apart}
    if part["type"] in texts:
        text = plain.pop(texts[plain.pop("type")])
        return Leaf("text", text, plain or None, marks=marks_of(part))
    tokens = sizes.get(part["type"])
    counted = (jsontext.write(plain).decode(),) if tokens is None else ()
    return Leaf(part["type"], "", plain, counted, tokens or 0, marks=marks_of(part))


def _leading(roles: list[str]) -> int:
    return next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))


def _boundaries(roles: list[str], leading: int) -> Iterable[int]:
    """After which messages OpenAI may place a breakpoint: the leading system messages (taken as one), each
    user message and each group of tool messages (taken as one); never an assistant message.
    """
    following = [*roles[1:], ""]
    return (
        i
        for i, (role, after) in enumerate(zip(roles, following, strict=False))
        if i == leading - 1 or role == "user" or (role == "tool" and after != "tool")
    )

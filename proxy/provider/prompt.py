"""A request as the sequence of content blocks that its provider's cache sees.

Laws
  Tools come first, then the messages in their order. A cache mark is not content: the same text with a mark
  or without, as a string or as a list of one part, is the same block.
  Blocks are equal when their digests are; two prompts share a prefix as far as their chains of digests do.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

from proxy.provider import jsontext

Json = Mapping[str, Any]
Count = Callable[[str], int]
V = TypeVar("V")

MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})
FRAME = 4
"""Tokens that surround each message."""
PART_TOKENS = {"image_url": 765, "input_audio": 500, "file": 1_000}
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


class PromptReader:
    """Reads requests. Each message is taken apart and counted once, then known by the digest of its JSON."""

    def __init__(self, count: Count, capacity: int = 64_000_000) -> None:
        self._count = count
        self._read: Bounded[tuple[Block, ...]] = Bounded(capacity)

    def __call__(self, body: Json) -> Prompt:
        """The prompt of a request that is without violations."""
        tools = [block for tool in body.get("tools") or () for block in self._recall(tool, self._tool)]
        spoken = [(message["role"], self._recall(message, self._message)) for message in body["messages"]]
        ends = list(accumulate((len(blocks) for _, blocks in spoken), initial=len(tools)))[1:]
        roles = [role for role, _ in spoken]
        leading = _leading(roles)
        return Prompt(
            (*tools, *(block for _, blocks in spoken for block in blocks)),
            tuple(ends[i] for i in _boundaries(roles, leading)),
            ends[leading - 1] if leading else 0,
            (body.get("prompt_cache_options") or {}).get("mode") != "explicit",
        )

    def _recall(self, value: Json, read: Callable[[Json], tuple[Block, ...]]) -> tuple[Block, ...]:
        raw = jsontext.write(value)
        key = sha256(raw).digest()
        blocks = self._read.get(key)
        if blocks is None:
            blocks = read(value)
            self._read.put(key, blocks, len(raw))
        return blocks

    def _tool(self, tool: Json) -> tuple[Block, ...]:
        inner = tool[tool["type"]]
        plain = _unmarked(tool) | {tool["type"]: _unmarked(inner)}
        return (self._block(["tool"], jsontext.write(plain).decode(), marks=_marks(tool) | _marks(inner)),)

    def _message(self, message: Json) -> tuple[Block, ...]:
        """The first block carries what frames the message, the last one a mark on the message as a whole."""
        first, *others = list(_leaves(message)) or [_Leaf("text")]
        extras = {key: value for key, value in message.items() if key not in _KNOWN and value is not None}
        counted = (jsontext.write(extras).decode(),) if extras else ()
        first = replace(
            first, beside=[first.beside, extras], counted=first.counted + counted, tokens=first.tokens + FRAME
        )
        *leaves, last = first, *others
        leaves.append(replace(last, marks=last.marks | _marks(message)))
        return tuple(self._leaf(message, leaf) for leaf in leaves)

    def _leaf(self, message: Json, leaf: "_Leaf") -> Block:
        head = [message["role"], message.get("tool_call_id"), leaf.kind, leaf.beside]
        lead = leaf.tokens + sum(map(self._count, leaf.counted))
        run = "result" if message["role"] == "tool" else leaf.run
        return self._block(head, leaf.text, lead, run, leaf.marks)

    def _block(
        self, head: list[object], text: str, lead: int = 0, run: str = "", marks: frozenset[str] = frozenset()
    ) -> Block:
        before = jsontext.write(head)
        digest = sha256(before + b"\0" + text.encode("utf-8", "surrogatepass")).digest()
        return Block(digest, before, text, lead, lead + self._count(text), run, marks)


_KNOWN = frozenset({"role", "content", "tool_calls", "tool_call_id"}) | MARKS


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One content part or call of a message. `beside` is compared with it, `counted` is counted with it."""

    kind: str
    text: str = ""
    beside: object = None
    counted: tuple[str, ...] = ()
    tokens: int = 0
    run: str = ""
    marks: frozenset[str] = frozenset()


def _leaves(message: Json) -> Iterator[_Leaf]:
    content, calls = message.get("content"), message.get("tool_calls") or ()
    if isinstance(content, list):
        yield from map(_part, content)
    elif content or (content is not None and not calls):
        yield _Leaf("text", content)
    yield from map(_call, calls)


def _part(part: Json) -> _Leaf:
    plain = _unmarked(part)
    if part["type"] == "text":
        del plain["type"], plain["text"]
        return _Leaf("text", part["text"], plain or None, marks=_marks(part))
    tokens = PART_TOKENS.get(part["type"])
    counted = (jsontext.write(plain).decode(),) if tokens is None else ()
    return _Leaf(part["type"], "", plain, counted, tokens or 0, marks=_marks(part))


def _call(call: Json) -> _Leaf:
    name, text = call_texts(call)
    return _Leaf("call", text, [call["id"], name], (name,), run="call", marks=_marks(call))


def call_texts(call: Json) -> tuple[str, str]:
    """The name and the arguments (or the input, of a custom tool) of a call."""
    inner = call[call["type"]]
    return inner["name"], inner["arguments" if call["type"] == "function" else "input"]


def _marks(holder: Json) -> frozenset[str]:
    return frozenset(mark for mark in MARKS if holder.get(mark) is not None)


def _unmarked(holder: Json) -> dict[str, Any]:
    return {key: value for key, value in holder.items() if key not in MARKS}


def _leading(roles: list[str]) -> int:
    return next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))


def _boundaries(roles: list[str], leading: int) -> Iterable[int]:
    """After which messages OpenAI may place a breakpoint: the leading system messages (taken as one), each
    user message and each group of tool messages (taken as one); never an assistant message.
    """
    following = [*roles[1:], ""]
    return (
        i
        for i, (role, after) in enumerate(zip(roles, following, strict=True))
        if i == leading - 1 or role == "user" or (role == "tool" and after != "tool")
    )

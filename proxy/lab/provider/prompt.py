"""A request as the sequence of content blocks that its provider's cache sees.

Laws
  Tools come first, then the messages in their order. A cache mark is not content: the same text with a mark or without,
  as a string or as a list of one part, is the same block.
  Blocks are equal when their digests are; two prompts share a prefix as far as their chains of digests do.
  The same conversation is the same blocks in every API: each API translates its entries to `PromptMessage`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any

from proxy.lab.provider import jsontext

Json = Mapping[str, Any]
Count = Callable[[str], int]

MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})
LONGER = "longer"
"""A member of `marks` where a mark asks for the longer lifetime."""
LONGER_TTLS = ("1h", "12h")
FRAME = 4
IMAGE, AUDIO, FILE = 765, 500, 1_000
"""Tokens of a part that is not text, whatever its bytes; OpenAI takes 765 for 1024x1024 pixels."""


@dataclass(frozen=True, slots=True)
class PromptBlock:
    """A content block. `head` must agree before the text can: role, kind, ids, names, unknown fields."""

    digest: bytes
    head: bytes
    text: str
    lead: int
    tokens: int
    run: str
    """Blocks that follow each other in a run (parallel calls, their results) may be one position looked back."""
    marks: frozenset[str]
    markable: bool = True
    """True where a mark on the request as a whole may come to stand here."""

    def shared(self, other: "PromptBlock", count: Count) -> int:
        """Tokens at the beginning of two different blocks that are the same."""
        if self.head != other.head:
            return 0
        low, high = 0, min(len(self.text), len(other.text))
        while low < high:  # by halving, so that C compares the long texts
            middle = (low + high + 1) // 2
            same = self.text[low:middle] == other.text[low:middle]
            low, high = (middle, high) if same else (low, middle - 1)
        return self.lead + count(self.text[:low])


@dataclass(frozen=True)
class ProviderPrompt:
    """The blocks of one request, and where a provider may place a boundary by itself."""

    blocks: tuple[PromptBlock, ...]
    endings: tuple[int, ...]
    """How many blocks stand before the end of each message that may be a boundary, in order."""
    opening: int
    """The same for the leading system messages; 0 where there are none."""
    implicit: bool
    """True where the client leaves boundaries to the provider."""
    longer: bool
    """True where everything that is written is for the longer lifetime."""
    retention: bytes = b""
    """The member by which it asks for how long all of it stays, as JSON."""

    @cached_property
    def ends(self) -> tuple[int, ...]:
        return tuple(accumulate((block.tokens for block in self.blocks), initial=0))

    @property
    def tokens(self) -> int:
        return self.ends[-1]

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """The look-back position of each prefix where a run of calls, or of results, is one."""
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
class PromptPiece:
    """One content part, call or tool, before it is counted. `beside` is compared with it, `counted` is counted."""

    kind: str
    text: str = ""
    beside: object = None
    counted: tuple[str, ...] = ()
    tokens: int = 0
    run: str = ""
    marks: frozenset[str] = frozenset()
    markable: bool = True


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """The words of one role at a time: `extras` is whatever else the message holds, `call_id` what it answers."""

    role: str
    pieces: tuple[PromptPiece, ...]
    call_id: str | None = None
    extras: Json = field(default_factory=dict)
    marks: frozenset[str] = frozenset()
    """On the message as a whole: they stand at its end."""
    joins: bool = False
    """True where neighbours of the same role are one message."""


def marks_of(holder: Json) -> frozenset[str]:
    marks = {mark: holder[mark] for mark in MARKS if holder.get(mark) is not None}
    longer = any(isinstance(value, dict) and value.get("ttl") in LONGER_TTLS for value in marks.values())
    return frozenset(marks) | ({LONGER} if longer else frozenset())


def unmarked(holder: Json) -> dict[str, Any]:
    return {key: value for key, value in holder.items() if key not in MARKS}


def tool_piece(definition: Json, marks: frozenset[str]) -> PromptPiece:
    return PromptPiece("tool", jsontext.write(definition).decode(), marks=marks)


def call_piece(call_id: str, name: str, text: str, marks: frozenset[str] = frozenset()) -> PromptPiece:
    return PromptPiece("call", text, [call_id, name], (name,), run="call", marks=marks)


def part_piece(
    part: Json, texts: Mapping[str, str], sizes: Mapping[str, int], ignored: frozenset[str] = MARKS
) -> PromptPiece:
    """A content part. `texts` names the field that holds the text of each kind that has one, `sizes` the tokens of the
    other kinds; the fields `ignored` are not compared."""
    plain = {key: value for key, value in part.items() if key not in ignored}
    if part["type"] in texts:
        text = plain.pop(texts[plain.pop("type")])
        return PromptPiece("text", text, plain or None, marks=marks_of(part))
    tokens = sizes.get(part["type"])
    texts_to_count = (jsontext.write(plain).decode(),) if tokens is None else ()
    return PromptPiece(part["type"], "", plain, texts_to_count, tokens or 0, marks=marks_of(part))

"""A request as a flat tuple of blocks, each with its address in the body and an anchor.

Laws
  A block's anchor is a digest of itself and of every non-system block before it; ids, timestamps and cache marks are
  left out. Equal anchors therefore mean: the same text, said after the same history.
  A turn is one assistant message, the results that answer it and the user messages directly before it. The request
  that asks for the answer of turn K carries the turns 0..K-1 and the user messages of turn K.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, takewhile
from typing import Literal

from policies.model.rawjson import Path

Kind = Literal["system", "user", "assistant", "call", "result", "opaque"]


_REF = (6, 9, 12, 18)
"""How many digits a reference has: the first number that nothing said earlier has taken."""
_RUN = 12
"""How many digits the reference to a run has: it is named by its place."""
_OUTPUT = re.compile(
    r"\A\s*(<returncode>|<output>|observation:)|\(current directory: [^\n]*\)\s*\n[^\n]*[$#]\s*\Z", re.I
)
"""How the output of a command looks where an agent speaks a text protocol: as its harness frames it, so that a person
who pastes a terminal is not taken for one."""


@dataclass(frozen=True, slots=True)
class Part:
    """One leaf of a raw message, as its dialect read it. `path` is relative to the message, `tokens` is exact."""

    kind: Kind
    text: str
    path: Path
    tokens: int
    tool: str = ""
    call_id: str = ""
    opens: str = ""
    """The id of a call that waits for an answer, and is no call that a policy may look at: it is made at the provider,
    or by a program that runs there."""

    def digest(self) -> bytes:
        """What the part says, without ids."""
        said = f"{self.kind}\0{self.tool}\0{self.text}"
        return sha256(said.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class Message:
    """A raw message, read once. `raw` is the digest of its bytes, `digest` of what it says, cache marks and spacing
    apart; `overhead` is the framing in tokens."""

    role: str
    parts: tuple[Part, ...]
    part_digests: tuple[bytes, ...]
    digest: bytes
    overhead: int
    marks: int
    raw: bytes = b""
    partial: bool = False
    """Whether it may be one of several in a row that are one message of the model: an API whose items are flat."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part in its place: `path` is the address in the body's list of messages, `answers` the block of the call (in a
    text protocol: of the assistant text with the command)."""

    kind: Kind
    text: str
    turn: int
    path: Path
    tokens: int
    anchor: str
    text_digest: bytes = b""
    """The digest of its kind, tool and text, wherever it stands."""
    tool: str = ""
    call_id: str = ""
    answers: int | None = None
    opens: str = ""
    frame: int = 0
    """Tokens around the message, carried by its first block."""

    @property
    def message(self) -> int:
        """The index of the message that holds the block."""
        return int(self.path[0])

    @property
    def from_person(self) -> bool:
        """Whether a person wrote it: the output of a command in a text protocol is nobody's words."""
        return self.kind == "user" and self.answers is None

    @property
    def from_tool(self) -> bool:
        """Whether it is of what a tool returned, whoever says it: in some APIs the user does."""
        return self.kind == "result" or bool(self.call_id)


@dataclass(frozen=True, slots=True)
class _Named:
    """What texts are called, and the first block that says each; both in the order of these blocks."""

    names: Mapping[bytes, str]
    places: Mapping[str, int]

    def until(self, end: int) -> "_Named":
        """Those of them that the blocks before `end` gave: no later block has a say in what these are called."""
        places = {name: at for name, at in self.places.items() if at < end}
        return _Named({said: name for said, name in self.names.items() if name in places}, places)

    def extended(self, blocks: Sequence[Block], start: int) -> "_Named":
        """With those that the blocks from `start` on give."""
        names, places = dict(self.names), dict(self.places)
        for at in range(start, len(blocks)):
            said = blocks[at].text_digest
            if said not in names and blocks[at].kind != "system":
                digits = _digits(said)
                names[said] = name = next((digits[:n] for n in _REF if digits[:n] not in places), digits)
                places[name] = at
        return _Named(names, places)


class Names:
    """What the blocks of a conversation are called. Worked out when somebody asks; what an earlier request has worked
    out of the blocks that it shares is taken over."""

    def __init__(self, known: "Names | None" = None, shared: int = 0) -> None:
        # one tuple, so that threads see all of it or nothing: what is named, by how many blocks, how many are ours
        named, blocks, ours = known._known if known else (_Named({}, {}), 0, 0)
        self._known: tuple[_Named, int, int] = (named, blocks, min(ours, shared))

    def of(self, blocks: Sequence[Block]) -> _Named:
        """The names of all these blocks, which are the conversation's."""
        named, count, ours = self._known
        if not count == ours == len(blocks):
            named = (named if count == ours else named.until(ours)).extended(blocks, ours)
            self._known = (named, len(blocks), len(blocks))
        return named


@dataclass(frozen=True)
class Conversation:
    """All blocks of a request; `ends[k]` is how many of them the request of turn k carried, so `ends[-1]` is all."""

    blocks: tuple[Block, ...]
    ends: tuple[int, ...]
    head: int
    """How many blocks lead the conversation as system text: they are outside every decision."""
    messages: tuple[Message, ...] = ()
    """What it was made of."""
    names: Names = field(default_factory=Names, compare=False, repr=False)

    @cached_property
    def index(self) -> dict[str, int]:
        """Where each anchor stands."""
        return {block.anchor: i for i, block in enumerate(self.blocks)}

    @cached_property
    def results(self) -> dict[int, tuple[int, ...]]:
        """The blocks that answer each call."""
        answers: dict[int, tuple[int, ...]] = {}
        for i, block in enumerate(self.blocks):
            if block.answers is not None:
                answers[block.answers] = (*answers.get(block.answers, ()), i)
        return answers

    @cached_property
    def no_cut_before(self) -> frozenset[int]:
        """The blocks before which no run may begin or end: a call that is made at the provider waits for its answer
        there. That may come in a later reply; a call that the next reply does not speak of is given up."""
        found, waiting = set[int](), dict[str, int]()
        for i, block in enumerate(self.blocks):
            if waiting:
                waiting = {name: turn for name, turn in waiting.items() if block.turn <= turn + 1}
            if waiting:
                found.add(i)
                waiting.pop(block.call_id, None)
            if block.opens:
                waiting[block.opens] = block.turn
        return frozenset(found)

    @cached_property
    def outputs_by_text(self) -> Mapping[str, Sequence[int]]:
        """Where each text stands as the output of a call, ascending."""
        found: dict[str, list[int]] = {}
        for i, block in enumerate(self.blocks):
            if block.answers is not None:
                found.setdefault(block.text, []).append(i)
        return found

    @cached_property
    def outputs_by_call(self) -> Mapping[tuple[str, str], Sequence[int]]:
        """The outputs that the same call gave (same tool, same arguments), ascending."""
        found: dict[tuple[str, str], list[int]] = {}
        for i, block in enumerate(self.blocks):
            if block.answers is not None:
                found.setdefault((block.tool, self.blocks[block.answers].text.strip()), []).append(i)
        return found

    @cached_property
    def is_text_protocol(self) -> bool:
        """Whether commands travel as text."""
        return any(block.kind == "user" and block.answers is not None for block in self.blocks)

    @cached_property
    def person_blocks(self) -> Sequence[int]:
        """The blocks that people wrote, ascending."""
        return [i for i, block in enumerate(self.blocks) if block.from_person]

    @cached_property
    def person_tokens(self) -> Sequence[int]:
        """Tokens of what people wrote before each block, and in all."""
        return [0, *accumulate(block.tokens if block.from_person else 0 for block in self.blocks)]

    def tokens(self, blocks: Iterable[int]) -> int:
        """Tokens of these blocks as they came, with what is around them."""
        return sum(self.blocks[i].tokens + self.blocks[i].frame for i in blocks)

    @cached_property
    def has_calls(self) -> bool:
        """Whether tools were called in it."""
        return any(block.kind == "call" for block in self.blocks)

    def ref(self, at: int) -> str:
        """What a block is called where it is hidden: digits, because they take few tokens. Equal texts are called the
        same; other texts never are, because what comes later takes more digits."""
        return self.names.of(self.blocks).names[self.blocks[at].text_digest]

    def find(self, ref: str) -> int | None:
        """The first block of that name."""
        return self.names.of(self.blocks).places.get(ref)

    def run_ref(self, first: int, last: int) -> str:
        """What a run of blocks is called where it is hidden."""
        return f"{_digits(bytes.fromhex(self.blocks[first].anchor))[:_RUN]}+{last - first + 1}"

    def find_run(self, ref: str) -> range | None:
        """The blocks of the run of that name."""
        name, _, count = ref.partition("+")
        if len(name) != _RUN or not count.isdecimal():
            return None
        places = (i for i, b in enumerate(self.blocks) if _digits(bytes.fromhex(b.anchor))[:_RUN] == name)
        first = next(places, None)
        if first is None or not 0 < int(count[:9]) <= len(self.blocks) - first:
            return None
        return range(first, first + int(count[:9]))

    @property
    def beginning(self) -> str:
        """The anchor of the first block that came from the model, after all that the first request said: what all
        summaries of a history begin with. Empty before there is one."""
        return self.blocks[self.ends[0]].anchor if len(self.ends) > 1 else ""

    def reply(self, step: int) -> range:
        """The messages of the reply that the request of `step` got."""
        first = self.blocks[self.ends[step]].message
        end = first + 1
        while end < len(self.messages) and self.messages[end].role == "assistant" and not begins(self.messages, end):
            end += 1
        return range(first, end)

    @property
    def steps(self) -> int:
        """How many requests the history stands for, this one included."""
        return len(self.ends)

    def end_anchor(self, step: int) -> str:
        """The anchor of the last block that the request of `step` carried: the name of its decisions."""
        end = self.ends[step]
        return self.blocks[end - 1].anchor if end else ""

    @cached_property
    def key(self) -> str:
        """What names the conversation where the client gives no id: all that was said before the first answer."""
        return self.end_anchor(0)


def _digits(digest: bytes) -> str:
    return f"{int.from_bytes(digest[:16], 'big') % 10**24:024}"


def converse(messages: Sequence[Message], known: Conversation | None = None) -> Conversation:
    """Put read messages in their places. What `known`, an earlier request, has in common is taken from it."""
    shared = _shared(messages, known)
    blocks, ends = _before(known, shared)
    names = Names(known.names if known else None, len(blocks))
    chain = next((bytes.fromhex(block.anchor) for block in reversed(blocks) if block.kind != "system"), b"")
    calls = _calls(blocks, ends[-1] if ends else 0)
    for position, message in enumerate(messages[shared:], shared):
        if begins(messages, position):
            ends.append(len(blocks))
            calls = {}
        frame = message.overhead
        for part, said in zip(message.parts, message.part_digests, strict=True):
            turn = len(ends) - (_is_of_the_turn(message, part) and bool(ends))
            anchor = sha256(chain + said).digest()[:16]
            if part.kind != "system":
                chain = anchor
            if part.kind == "call":
                calls.setdefault(part.call_id, len(blocks))
            blocks.append(_placed(part, position, turn, anchor, said, blocks, calls, frame))
            frame = 0
    ends.append(len(blocks))
    return Conversation(tuple(blocks), tuple(ends), _head(messages), tuple(messages), names)


def begins(messages: Sequence[Message], at: int) -> bool:
    """Whether the model begins to answer with this message."""
    goes_on = messages[at].partial and at > 0 and messages[at - 1].role == "assistant"
    return messages[at].role == "assistant" and not goes_on


def _is_of_the_turn(message: Message, part: Part) -> bool:
    """Whether a part belongs to the turn that the newest message of the model began: what answers its calls does,
    also where an API has a user say it."""
    return message.role in ("assistant", "tool", "function") or part.kind == "result" or bool(part.call_id)


def _shared(messages: Sequence[Message], known: Conversation | None) -> int:
    """How many leading messages are those of `known`."""
    old = known.messages if known else ()
    most = min(len(messages), len(old))
    return next((i for i in range(most) if messages[i] is not old[i]), most)


def _before(known: Conversation | None, shared: int) -> tuple[list[Block], list[int]]:
    """The blocks of the first `shared` messages of `known`, and where its assistant messages among them begin."""
    if known is None or not shared:
        return [], []
    end = bisect_left(known.blocks, shared, key=lambda block: block.message)
    return list(known.blocks[:end]), [at for at in known.ends[:-1] if at < end]


def _calls(blocks: Sequence[Block], start: int) -> dict[str, int]:
    """Where each call stands from `start` on, by id."""
    calls: dict[str, int] = {}
    for i in range(start, len(blocks)):
        if blocks[i].kind == "call":
            calls.setdefault(blocks[i].call_id, i)
    return calls


def _head(messages: Sequence[Message]) -> int:
    """How many blocks lead the conversation as system text."""
    leading = takewhile(lambda message: message.role in ("system", "developer"), messages)
    return sum(len(message.parts) for message in leading)


def _placed(
    part: Part,
    message: int,
    turn: int,
    anchor: bytes,
    said: bytes,
    before: Sequence[Block],
    calls: Mapping[str, int],
    frame: int,
) -> Block:
    answers = _answered(part, before, calls)
    return Block(
        kind=part.kind,
        text=part.text,
        turn=turn,
        path=(message, *part.path),
        tokens=part.tokens,
        anchor=anchor.hex(),
        text_digest=said,
        tool=part.tool if answers is None else before[answers].tool,
        call_id=part.call_id,
        answers=answers,
        opens=part.opens,
        frame=frame,
    )


def _answered(part: Part, before: Sequence[Block], calls: Mapping[str, int]) -> int | None:
    """The block that a result answers. `calls` are those of the nearest assistant message only, because ids repeat in
    real conversations.

    In a text protocol there are no calls: there, output in a user message answers the fenced command before it.
    """
    if part.kind == "result":
        return calls.get(part.call_id)
    if part.kind == "user" and before and before[-1].kind == "assistant":
        fenced = before[-1].text[-200:].rstrip().endswith("```")
        return len(before) - 1 if fenced and _OUTPUT.search(part.text[:200] + part.text[-1000:]) else None
    return None

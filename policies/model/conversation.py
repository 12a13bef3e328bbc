"""A request as a flat tuple of blocks, each with its address in the body and an anchor. `converse()` makes it from
messages and takes over what an earlier request of it has.

Laws
  A block's anchor is a digest of itself and of every non-system block before it; ids, timestamps and cache marks are
  left out. Equal anchors therefore mean: the same text after the same history.
  A turn is one assistant message, the results that answer it and the user messages directly before it. The request
  that asks for the answer of turn K carries the turns 0..K-1 and the user messages of turn K.
  An index of blocks says the same whether it was carried over from an earlier request or worked out anew.
  One request at a time has an index: the one that extends a history takes it over and adds what is new; an earlier one
  works it out again where it is asked. What is worked on in a thread is `held`, and gives nothing away meanwhile.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, compress, count, takewhile
from operator import is_not
from typing import Any, Generic, Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from policies.model.rawjson import Path

# --- indexes of the blocks of a history, which grow with it ---

B = TypeVar("B")
T = TypeVar("T")
K = TypeVar("K")
B_co = TypeVar("B_co", covariant=True)


@dataclass(slots=True)
class Carried:
    values: "dict[Index[Any, Any], tuple[Any, int]]" = field(default_factory=dict)
    """Indexes, each with the number of blocks that it covers."""
    holders: int = 0
    rendering: object = None
    """The newest rendering of the history, or of one with which it has its first messages in common."""
    rendered_messages: int = 0
    """How many messages that one has in common with this history."""

    @contextmanager
    def held(self) -> Iterator[None]:
        self.holders += 1
        try:
            yield
        finally:
            self.holders -= 1


class Indexed(Protocol[B_co]):
    @property
    def blocks(self) -> Sequence[B_co]: ...

    @property
    def carried(self) -> Carried: ...


class Index(Generic[B, T]):
    """Something that is worked out block by block. As an attribute of a history it is worked out when it is first asked
    for; `of` does the same for an index that is defined elsewhere."""

    def __init__(
        self,
        make: Callable[[], T],
        extend: Callable[[T, Sequence[B], int], object],
        cut: Callable[[T, Sequence[B], int], object],
    ) -> None:
        """`extend` adds the blocks from an index on, `cut` takes them out again, for a history that branches off."""
        self._make, self._extend, self._cut = make, extend, cut
        self._name = f"index {id(self)}"

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, history: Indexed[B], _: type | None = None) -> T:
        blocks = history.blocks
        value, count = history.carried.values.pop(self, None) or (self._make(), 0)
        if count < len(blocks):
            self._extend(value, blocks, count)
        vars(history)[self._name] = value  # found there before this is called again
        history.carried.values[self] = value, len(blocks)
        return value

    def of(self, history: Indexed[B]) -> T:
        value: T | None = vars(history).get(self._name)
        return self.__get__(history) if value is None else value

    def forget(self, history: Indexed[B]) -> None:
        vars(history).pop(self._name, None)

    def shorten(self, value: T, blocks: Sequence[B], end: int) -> bool:
        """Take out the blocks from `end` on, and return True, where that is less work than to begin anew."""
        if len(blocks) <= end:
            return True
        if len(blocks) > 2 * end:
            return False
        self._cut(value, blocks, end)
        return True


def carry_over(earlier: Indexed[Any], messages: int, end: int) -> Carried:
    """The indexes that a history takes over from an earlier one with the same first messages and blocks."""
    before = earlier.carried
    carried = Carried(rendering=before.rendering, rendered_messages=min(before.rendered_messages, messages))
    if not before.holders:
        for index, (value, count) in [*before.values.items()]:  # a thread may enter another one
            index.forget(earlier)
            if index.shorten(value, earlier.blocks[:count], end):
                carried.values[index] = value, min(count, end)
        before.values.clear()
    return carried


class Sums(Index[B, list[int]]):
    def __init__(self, count: Callable[[B], int]) -> None:
        def extend(sums: list[int], blocks: Sequence[B], start: int) -> None:
            sums[-1:] = accumulate(map(count, blocks[start:]), initial=sums[-1])

        def cut(sums: list[int], _: Sequence[B], end: int) -> None:
            del sums[end + 1 :]

        super().__init__(lambda: [0], extend, cut)


class Places(Index[B, dict[K, list[int]]]):
    """The blocks that have a key in common, ascending; it follows from the blocks up to theirs, and None is no key."""

    def __init__(self, key: Callable[[Sequence[B], int], K | None]) -> None:
        def extend(places: dict[K, list[int]], blocks: Sequence[B], start: int) -> None:
            for at in range(start, len(blocks)):
                if (name := key(blocks, at)) is not None:
                    places.setdefault(name, []).append(at)

        def cut(places: dict[K, list[int]], blocks: Sequence[B], end: int) -> None:
            for at in reversed(range(end, len(blocks))):
                if (name := key(blocks, at)) is not None:
                    places[name].pop()
                    if not places[name]:
                        del places[name]

        super().__init__(dict, extend, cut)


# --- the conversation ---

Kind = Literal["system", "user", "assistant", "call", "result", "opaque"]
# Part, Message and Block are structs that the garbage collector does not track: there are thousands of them for each
# conversation, they are made in a twentieth of a dataclass's time, and none can be part of a cycle.

_REF = (6, 9, 12, 18)
"""How many digits a reference has: the first of these lengths at which no earlier text has the same digits."""
_RUN = 12
"""How many digits the reference to a run has; they come from the anchor of its first block."""


class Part(Struct, frozen=True, gc=False):
    """One leaf of a raw message, as its dialect parsed it. `path` is relative to the message, `tokens` is exact."""

    kind: Kind
    text: str
    path: Path
    tokens: int
    tool: str = ""
    call_id: str = ""
    opens: str = ""
    """The id of a call that the provider makes itself, and that waits for an answer; policies see no call in it."""

    def digest(self) -> bytes:
        digest = sha256(f"{self.kind}\0{self.tool}\0".encode("utf-8", "surrogatepass"))
        digest.update(self.text.encode("utf-8", "surrogatepass"))  # a long text is copied once
        return digest.digest()


class Message(Struct, frozen=True, gc=False):
    """A raw message, parsed once. `raw` is the digest of its bytes, `digest` of its content without cache marks and
    spacing; `overhead` is the framing in tokens, `marks` how many cache marks it has."""

    role: str
    parts: tuple[Part, ...]
    part_digests: tuple[bytes, ...]
    digest: bytes
    overhead: int
    marks: int
    raw: bytes = b""
    partial: bool = False
    """True where it may be one of several in a row that form one message of the model, in an API with flat items."""


class Block(Struct, frozen=True, gc=False):
    """A part in its place: `path` is the address in the body's list of messages, `answers` the block of the call (in a
    text protocol: of the assistant text with the command)."""

    kind: Kind
    text: str
    turn: int
    path: Path
    tokens: int
    anchor: str
    text_digest: bytes = b""
    tool: str = ""
    call_id: str = ""
    answers: int | None = None
    opens: str = ""
    frame: int = 0
    """Tokens around the message, carried by its first block."""

    @property
    def message(self) -> int:
        return int(self.path[0])

    @property
    def from_person(self) -> bool:
        """True where a person wrote it: not so the output of a command in a text protocol."""
        return self.kind == "user" and self.answers is None

    @property
    def is_text_protocol_output(self) -> bool:
        """True where it is the output of a command in a text protocol."""
        return self.kind == "user" and self.answers is not None

    @property
    def from_tool(self) -> bool:
        """True where it is part of what a tool returned: in some APIs a user message carries it."""
        return self.kind == "result" or bool(self.call_id)


@dataclass(frozen=True, slots=True)
class References:
    refs: dict[bytes, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)

    def extend(self, blocks: Sequence[Block], start: int) -> None:
        refs, places = self.refs, self.places
        for at in range(start, len(blocks)):
            digest = blocks[at].text_digest
            if digest not in refs and blocks[at].kind != "system":
                digits = _digits(digest)
                refs[digest] = ref = next((digits[:n] for n in _REF if digits[:n] not in places), digits)
                places[ref] = at

    def cut(self, blocks: Sequence[Block], end: int) -> None:
        for at in range(end, len(blocks)):
            ref = self.refs.get(blocks[at].text_digest, "")
            if self.places.get(ref) == at:
                del self.refs[blocks[at].text_digest], self.places[ref]


def _add_anchors(places: dict[str, int], blocks: Sequence[Block], start: int) -> None:
    places.update((blocks[at].anchor, at) for at in range(start, len(blocks)))


def _cut_anchors(places: dict[str, int], blocks: Sequence[Block], end: int) -> None:
    """The same system text said twice in a row has one anchor."""
    for at in range(end, len(blocks)):
        places.pop(blocks[at].anchor, None)
    for at in takewhile(lambda at: blocks[at].kind == "system", reversed(range(end))):
        places.setdefault(blocks[at].anchor, at)


def _run_name(block: Block) -> str:
    return _digits(bytes.fromhex(block.anchor))[:_RUN]


def _add_runs(firsts: dict[str, int], blocks: Sequence[Block], start: int) -> None:
    for at in range(start, len(blocks)):
        firsts.setdefault(_run_name(blocks[at]), at)


def _cut_runs(firsts: dict[str, int], blocks: Sequence[Block], end: int) -> None:
    for at in range(end, len(blocks)):
        if firsts.get(name := _run_name(blocks[at])) == at:
            del firsts[name]


def _before_answer(blocks: Sequence[Block], opening: int) -> Iterator[int]:
    """The blocks from behind the one that opens a call up to that of its answer."""
    name, last = blocks[opening].opens, blocks[opening].turn + 1
    for at in range(opening + 1, len(blocks)):
        if blocks[at].turn > last:
            return
        yield at
        if blocks[at].call_id == name:
            return


def _answered_call(blocks: Sequence[Block], at: int) -> tuple[str, str] | None:
    call = blocks[at].answers
    return None if call is None else (blocks[at].tool, blocks[call].text.strip())


@dataclass(frozen=True)
class Conversation:
    """All blocks of a request; `ends[k]` is how many of them the request of turn k carried, so `ends[-1]` is all."""

    blocks: tuple[Block, ...]
    ends: tuple[int, ...]
    head: int
    """How many blocks of system text stand before everything else: no decision concerns them."""
    messages: tuple[Message, ...] = ()
    marked: tuple[int, ...] = ()
    """The messages that have cache marks."""
    carried: Carried = field(default_factory=Carried, compare=False, repr=False)
    """Indexes and renderings that an earlier request made of the blocks that it has in common with this one."""

    references = Index[Block, References](References, References.extend, References.cut)
    index = Index[Block, dict[str, int]](dict, _add_anchors, _cut_anchors)
    results = Places[Block, int](lambda blocks, at: blocks[at].answers)
    """The blocks that answer a call, by the block of the call."""
    outputs_by_text = Places[Block, str](lambda blocks, at: None if blocks[at].answers is None else blocks[at].text)
    outputs_by_call = Places[Block, tuple[str, str]](_answered_call)
    person_tokens = Sums[Block](lambda block: block.tokens if block.from_person else 0)
    client_tokens = Sums[Block](lambda block: block.tokens + block.frame)
    """Tokens before each block, and in all, as the client wrote them, message framing included."""
    kinds = Places[Block, Kind](lambda blocks, at: blocks[at].kind)
    runs = Index[Block, dict[str, int]](dict, _add_runs, _cut_runs)
    """The first block of the runs that a name begins: the reference of a run without the number of its blocks."""
    _opening = Places[Block, bool](lambda blocks, at: True if blocks[at].opens else None)
    _protocol_outputs = Places[Block, bool](lambda blocks, at: True if blocks[at].is_text_protocol_output else None)

    @cached_property
    def no_cut_before(self) -> frozenset[int]:
        """The blocks before which no run may begin or end: a call that the provider makes waits for its answer there.
        That may come in a later reply; a call that the next reply does not mention is given up."""
        return frozenset(at for opening in self._opening.get(True, ()) for at in _before_answer(self.blocks, opening))

    @property
    def is_text_protocol(self) -> bool:
        return bool(self._protocol_outputs)

    def tokens(self, blocks: Iterable[int]) -> int:
        return sum(self.blocks[i].tokens + self.blocks[i].frame for i in blocks)

    def ref(self, at: int) -> str:
        """The reference of a block where it is hidden: digits, because they take few tokens. Equal texts have the same
        reference; other texts never do, because a later one takes more digits."""
        return self.references.refs[self.blocks[at].text_digest]

    def run_ref(self, first: int, last: int) -> str:
        return f"{_run_name(self.blocks[first])}+{last - first + 1}"

    @property
    def beginning(self) -> str:
        """The anchor of the model's first block: all summaries of a history begin there. Empty before there is one."""
        return self.blocks[self.ends[0]].anchor if len(self.ends) > 1 else ""

    def reply(self, step: int) -> range:
        first = self.blocks[self.ends[step]].message
        end = first + 1
        while end < len(self.messages) and self.messages[end].role == "assistant" and not begins(self.messages, end):
            end += 1
        return range(first, end)

    @property
    def steps(self) -> int:
        return len(self.ends)

    def start(self, step: int) -> int:
        return self.ends[step - 1] if step else 0

    def arrived(self, step: int) -> range:
        return range(self.start(step), self.ends[step])

    def end_anchor(self, step: int) -> str:
        """The anchor of the last block that the request of `step` carried: its decisions are stored under it."""
        end = self.ends[step]
        return self.blocks[end - 1].anchor if end else ""

    @property
    def previous_anchor(self) -> str:
        """The anchor of the step before the newest; empty where there is none."""
        return self.end_anchor(self.steps - 2) if self.steps > 1 else ""


def _digits(digest: bytes) -> str:
    return f"{int.from_bytes(digest[:16], 'big') % 10**24:024}"


def begins(messages: Sequence[Message], at: int) -> bool:
    """True where the model begins to answer with this message."""
    goes_on = messages[at].partial and at > 0 and messages[at - 1].role == "assistant"
    return messages[at].role == "assistant" and not goes_on


# --- from messages to blocks ---

_OUTPUT = re.compile(
    r"\A\s*(<returncode>|<output>|observation:)|\(current directory: [^\n]*\)\s*\n[^\n]*[$#]\s*\Z", re.I
)
"""How a harness frames the output of a command in a text protocol; a terminal that a person pastes does not match."""
_CALLS_AS_TEXT = re.compile(r"(?:\A|\n)Calling tools:\n\[\{'id': ")
"""How smolagents writes the calls of the model into its message: as a list of Python at its end."""


def converse(
    messages: Sequence[Message], earlier: Conversation | None = None, shared: int | None = None, *, lends: bool = True
) -> Conversation:
    """The conversation of these messages. What it shares with `earlier`, one of an earlier request, is reused; `shared`
    is with how many messages both begin, where that is known. With `lends` it takes the indexes over, too."""
    old = earlier.messages if earlier else ()
    if shared is None:
        differing = map(is_not, messages, old)
        shared = next(compress(count(), differing), min(len(messages), len(old)))
    if earlier is not None and shared == len(messages) == len(old):
        return earlier
    before: tuple[Block, ...] = ()
    ends: list[int] = []
    if earlier is not None and shared:
        before = earlier.blocks
        if shared < len(old):  # as a rule a request extends the one before
            before = before[: bisect_left(before, shared, key=lambda block: block.message)]
        ends = list(earlier.ends[: bisect_left(earlier.ends, len(before), 0, len(earlier.ends) - 1)])
    blocks = _extended(before, ends, messages, shared)
    leading = takewhile(lambda message: message.role in ("system", "developer"), messages)
    head = sum(len(message.parts) for message in leading)
    marked = [*takewhile(shared.__gt__, earlier.marked)] if earlier else []
    marked += [at for at in range(shared, len(messages)) if messages[at].marks]
    carried = (
        carry_over(earlier, shared, _same(earlier.blocks, blocks, len(before))) if earlier and lends else Carried()
    )
    return Conversation(blocks, tuple(ends), head, tuple(messages), tuple(marked), carried)


def _extended(
    before: tuple[Block, ...], ends: list[int], messages: Sequence[Message], shared: int
) -> tuple[Block, ...]:
    chain = next((bytes.fromhex(block.anchor) for block in reversed(before) if block.kind != "system"), b"")
    start = ends[-1] if ends else 0
    blocks = list(before[start:])  # all from `start` on, where the model's newest turn begins
    calls: dict[str, int] = {}
    for i, block in enumerate(blocks, start):
        if block.kind == "call":
            calls.setdefault(block.call_id, i)
    for position in range(shared, len(messages)):
        message = messages[position]
        if begins(messages, position):
            ends.append(start + len(blocks))
            calls = {}
        frame = message.overhead
        for part, digest in zip(message.parts, message.part_digests, strict=True):
            anchor = sha256(chain + digest).digest()[:16]
            if part.kind != "system":
                chain = anchor
            if part.kind == "call":
                calls.setdefault(part.call_id, start + len(blocks))
            answers = _answered(part, start + len(blocks) - 1, blocks[-1] if blocks else None, calls)
            # results belong to the turn that the model's newest message began, in user messages too
            model_or_tool = message.role in ("assistant", "tool", "function")
            of_the_turn = model_or_tool or part.kind == "result" or bool(part.call_id)
            blocks.append(
                Block(
                    kind=part.kind,
                    text=part.text,
                    turn=len(ends) - (bool(ends) and of_the_turn),
                    path=(position, *part.path),
                    tokens=part.tokens,
                    anchor=anchor.hex(),
                    text_digest=digest,
                    tool=part.tool if answers is None else blocks[answers - start].tool,
                    call_id=part.call_id,
                    answers=answers,
                    opens=part.opens,
                    frame=frame,
                )
            )
            frame = 0
    ends.append(start + len(blocks))
    return before + tuple(blocks[len(before) - start :])


def _same(old: Sequence[Block], new: Sequence[Block], at: int) -> int:
    """With how many blocks both begin, wherever these stand in their messages (a client that moves a cache mark may
    write a text as a list); up to the block `at` they are the same."""
    while at < min(len(old), len(new)) and replace(old[at], path=()) == replace(new[at], path=()):
        at += 1
    return at


def _answered(part: Part, at: int, previous: Block | None, calls: Mapping[str, int]) -> int | None:
    """The block that a result answers. `calls` are those of the nearest assistant message only, because ids repeat in
    real conversations. In a text protocol there are no calls: there, output in a user message answers the fenced
    command, or the calls written as text, in the `previous` block, which is that at `at`."""
    if part.kind == "result":
        return calls.get(part.call_id)
    if part.kind == "user" and previous and previous.kind == "assistant":
        end = previous.text[-200:].rstrip()
        asks = end.endswith("```") or (end.endswith("}]") and _CALLS_AS_TEXT.search(previous.text))
        return at if asks and _OUTPUT.search(part.text[:200] + part.text[-1000:]) else None
    return None


def new_calls(conversation: Conversation) -> Sequence[str]:
    """The tools that the newest reply calls, as often as it does."""
    calls = conversation.kinds.get("call", ())
    newest = conversation.ends[-2] if conversation.steps > 1 else len(conversation.blocks)
    return [conversation.blocks[at].tool for at in calls[bisect_left(calls, newest) :]]

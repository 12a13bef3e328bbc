"""converse(): from the messages of a request to its conversation; what an earlier request of it has is taken over."""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import compress, count, takewhile
from operator import is_not

from msgspec.structs import replace

from policies.model.conversation import Block, Conversation, Message, Part, begins
from policies.model.indexes import Carried, carry_over

_OUTPUT = re.compile(
    r"\A\s*(<returncode>|<output>|observation:)|\(current directory: [^\n]*\)\s*\n[^\n]*[$#]\s*\Z", re.I
)
"""The output of a command in a text protocol, as the agent's harness frames it: a terminal pasted by a person does not
match."""
_CALLED = re.compile(r"(?:\A|\n)Calling tools:\n\[\{'id': ")
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
    """The blocks `before`, with those of the messages from `shared` on; `ends` is extended, too."""
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
        asks = end.endswith("```") or (end.endswith("}]") and _CALLED.search(previous.text))
        return at if asks and _OUTPUT.search(part.text[:200] + part.text[-1000:]) else None
    return None

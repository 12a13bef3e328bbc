"""What goes upstream: a request in hand, its plan, and the body that the plan makes of it.

Laws
  A message that no edit touches is sent as the client wrote it.
  What the same edits make of the same bytes is made once.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from policies.context import TokenCounter
from policies.dialects import Added, Dialect
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Replace
from policies.model.memory import Memory, StepRecord
from policies.model.rawjson import items
from policies.planning.plan import plan
from policies.planning.prefix import Chains, sent_record
from policies.planning.state import Plan, PlanState
from proxy.requests import RequestContext

PIECES_BYTES = 128 * 2**20
"""How many bytes of changed messages are kept, to be used again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A changed message: its bytes, and a digest of what they say, cache marks apart."""

    raw: bytes
    stamp: bytes


Pieces = MutableMapping[tuple[object, ...], Piece]
"""Changed messages by the API, the bytes and the edits that made them."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A plan, and the messages it changes."""

    plan: Plan
    changed: Mapping[int, bytes]
    chains: Chains


# a pure function of its arguments, so remembering changes nothing but the time it takes
@lru_cache(maxsize=64)
def _counted(text: bytes, count: TokenCounter) -> int:
    return count(text.decode())


def tool_tokens(tool: Added | None, count: TokenCounter) -> int:
    """What the recall tool adds to the prompt."""
    return _counted(tool[1], count) if tool else 0


def planned(work: RequestContext, plan_state: PlanState | None, memory: Memory, pieces: Pieces) -> Outgoing:
    """The plan for a request, and what it makes of the messages."""
    made = plan(work.conversation, work.setup, memory, plan_state)
    changed = _spliced(work, _by_message(work.conversation, made), pieces)
    stamps = {message: piece.stamp for message, piece in changed.items()}
    raws = {message: piece.raw for message, piece in changed.items()}
    return Outgoing(made, raws, Chains(work.conversation.messages, stamps))


def step_record(work: RequestContext, outgoing: Outgoing, at: float) -> StepRecord:
    """What to remember of this step."""
    sent = sent_record(work.conversation, outgoing.chains, work.head, work.fingerprint)
    anchor = work.conversation.end_anchor(work.conversation.steps - 1)
    made = outgoing.plan
    return StepRecord(anchor, made.new, made.reason, sent, at, work.setup.recall, made.state.dropped)


def body_of(work: RequestContext, outgoing: Outgoing) -> bytes:
    """The client's bytes, but for the changed messages, marks of ours and the recall tool."""
    changed = dict(outgoing.changed)
    for message in outgoing.plan.marks:
        raw = changed.get(message, work.request.raw(message))
        marked = work.dialect.marked(raw, work.setup.marks) if raw else None
        if marked is not None:
            changed[message] = marked
    if not (changed or work.tool or work.consent.change):
        return work.request.body
    return work.dialect.joined(work.request, changed, work.tool, work.consent.change)


def _spliced(work: RequestContext, made: Mapping[int, list[Edit]], pieces: Pieces) -> dict[int, Piece]:
    """The changed messages; from `pieces` where the same edits met the same bytes before."""
    dialect, messages = work.client_request.dialect, work.conversation.messages
    names = {message: (dialect, messages[message].raw, *edits) for message, edits in made.items()}
    known = {message: piece for message, name in names.items() if (piece := pieces.get(name)) is not None}
    unknown = [edit for message, edits in made.items() if message not in known for edit in edits]
    for message, raw in work.dialect.splice(work.request, work.conversation, unknown).items():
        known[message] = piece = Piece(raw, _stamp(work.dialect, raw) if raw else b"")
        alone = all(isinstance(edit, Replace) for edit in made.get(message, ()))
        if message in names and alone and len(raw) < PIECES_BYTES // 8:
            pieces[names[message]] = piece
    return known


def _by_message(conversation: Conversation, planned: Plan) -> dict[int, list[Edit]]:
    """The edits of each message; a fold is one of those in which it begins and ends, for it may leave some of both."""
    found: dict[int, list[Edit]] = {}
    for edit in planned.edits:
        ends = (edit.at,) if isinstance(edit, Replace) else (edit.first, edit.last)
        for message in dict.fromkeys(conversation.blocks[conversation.index[at]].message for at in ends):
            found.setdefault(message, []).append(edit)
    return found


def _stamp(dialect: Dialect, raw: bytes) -> bytes:
    """What is sent in the place of one message, cache marks apart: a client moves its marks, and that changes no
    prompt."""
    digests = [dialect.read(raw[start - 1 : end - 1], len).digest for start, end in items(b"[" + raw + b"]")]
    return sha256(b"".join(digests)).digest()

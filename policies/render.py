"""From a plan to the body that is sent: edited messages between the client's own bytes.

Laws
  A message that no edit touches is sent as the client wrote it.
  A request that extends another goes on behind what has not changed since. What is sent is the same with and without.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import compress, count, takewhile
from operator import is_not

from msgspec import Struct

from policies.dialects import DIALECTS, Added, Consent, Dialect, Request
from policies.dialects.common import longer_mark, longer_marks
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Fold, Replace
from policies.model.rawjson import Change, UnreadableError, items, spliced
from policies.money.caches import LONGER_TTL, MarkStyle
from policies.planning.prefix import Chains
from policies.planning.state import Plan

_NO_CONSENT = Consent()


class Rendering(Struct, frozen=True):
    """The edited messages of a request by index, with digests of their content without cache marks (a client moves its
    marks, and that changes no prompt), and digests of its beginnings as received and as sent. The next request takes
    over what stands there, too."""

    messages: Mapping[int, bytes]
    digests: Mapping[int, bytes]
    chains: Chains
    edits: Sequence[Edit]
    folded: int
    """The message behind all folds: what they become may follow from that one."""
    beside: bytes
    """Where there are folds, the bytes around the messages: what they become may follow from these, too."""


_NOTHING = Rendering({}, {}, Chains((), {}), (), 0, b"")


def render(dialect: str, request: Request, conversation: Conversation, plan: Plan) -> Rendering:
    before, same = _earlier_rendering(request, conversation, plan)
    edits = _edits_from(same, conversation, plan)
    spliced = DIALECTS[dialect].splice(request, conversation, edits) if edits else {}
    messages, digests = dict(before.messages), dict(before.digests)
    for message in range(same, before.chains.received):
        messages.pop(message, None)
        digests.pop(message, None)
    messages |= spliced
    for message, raw in spliced.items():
        spans = items(b"[" + raw + b"]") if raw else ()
        read = b"".join(DIALECTS[dialect].read(raw[start - 1 : end - 1], len).digest for start, end in spans)
        digests[message] = sha256(read).digest() if raw else b""
    ends = [conversation.index[edit.last] for edit in edits if isinstance(edit, Fold)]
    folded = conversation.blocks[max(ends)].message + 1 if ends else before.folded
    chains = Chains(conversation.messages, digests, before.chains, same)
    rendering = Rendering(messages, digests, chains, plan.edits, folded, _beside(request) if folded else b"")
    carried = conversation.carried
    carried.rendering, carried.rendered_messages = rendering, len(conversation.messages)
    return rendering


def _earlier_rendering(request: Request, conversation: Conversation, plan: Plan) -> tuple[Rendering, int]:
    """The rendering of an earlier request, and the message up to which it stands: before the first that is another."""
    before, same = conversation.carried.rendering, conversation.carried.rendered_messages
    if not isinstance(before, Rendering) or (before.folded and before.beside != _beside(request)):
        return _NOTHING, 0
    differing = map(is_not, plan.edits, before.edits)
    first = next(compress(count(), differing), min(len(plan.edits), len(before.edits)))
    for edit in (*plan.edits[first : first + 1], *before.edits[first : first + 1]):
        at = conversation.index.get(edit.at if isinstance(edit, Replace) else edit.first)
        same = min(same, conversation.blocks[at].message if at is not None else same)
    while same and conversation.messages[same - 1].role in ("system", "developer"):
        same -= 1  # system text that is said twice in a row has one anchor, which names the last one
    return (before, same) if before.folded < same or not before.folded else (_NOTHING, 0)


def _edits_from(start: int, conversation: Conversation, plan: Plan) -> list[Edit]:
    if not plan.edits:
        return []
    blocks, index = conversation.blocks, conversation.index

    def is_new(edit: Edit) -> bool:
        return blocks[index[edit.at if isinstance(edit, Replace) else edit.first]].message >= start

    return [*takewhile(is_new, reversed(plan.edits))][::-1]


def _beside(request: Request) -> bytes:
    return request.body[: request.spans[0][0]] + request.body[request.spans[-1][1] :]


def body_of(
    dialect: Dialect,
    request: Request,
    plan: Plan,
    rendering: Rendering,
    *,
    marks: MarkStyle = "",
    tool: Added | None = None,
    consent: Consent = _NO_CONSENT,
    bearing: Sequence[int] | None = None,
) -> bytes:
    """The client's bytes, but for edited messages, cache marks, the recall tool and the consent to edits. `bearing`:
    the messages with marks of the client's; None where no mark may be given the longer lifetime."""
    changed = dict(rendering.messages)
    for message in plan.marks:
        raw = changed.get(message, request.raw(message))
        marked = dialect.marks.add(raw, marks) if raw else None
        if marked is not None:
            changed[message] = marked
    beside = [*consent.changes]
    if plan.state.life.is_longer and bearing is not None:
        with suppress(UnreadableError):  # all marks ask for the same, or none does
            longer = _longer_messages(request, changed, bearing)
            beside += _longer_beside(request)
            changed |= longer
    if not (changed or tool or beside):
        return request.body
    return dialect.joined(request, changed, tool, beside)


def _longer_messages(request: Request, changed: Mapping[int, bytes], bearing: Sequence[int]) -> dict[int, bytes]:
    """The messages with marks, which ask for the longer lifetime. Raises UnreadableError."""
    texts = {message: changed.get(message, request.raw(message)) for message in {*bearing, *changed}}
    lists = {message: b"[" + raw + b"]" for message, raw in texts.items() if raw}
    changes = {message: [*longer_marks(raw, 0, len(raw))] for message, raw in lists.items()}
    return {message: spliced(lists[message], some)[1:-1] for message, some in changes.items() if some}


def _longer_beside(request: Request) -> list[Change]:
    """The changes by which marks beside the messages ask for the longer lifetime. Raises UnreadableError."""
    spans = [span for span in (request.tools, request.lead) if span[0] < span[1]]
    on_top = [(request.members[name], ttl) for name, ttl in LONGER_TTL.items() if name in request.members]
    changes = [change for span in spans for change in longer_marks(request.body, *span)]
    return changes + [change for span, ttl in on_top for change in longer_mark(request.body, span, ttl)]

"""From a plan to the body that is sent: edited messages between the client's own bytes.

Laws
  A message that no edit touches is sent as the client wrote it.
  The same edits on the same bytes are rendered once: `rendered` remembers them.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from hashlib import sha256

from policies.dialects import DIALECTS, Added, Consent, Dialect, Request
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Replace
from policies.model.rawjson import items
from policies.money.marks import MarkStyle
from policies.planning.prefix import Chains
from policies.planning.state import Plan

_NO_CONSENT = Consent()
RENDERED_BYTES = 128 * 2**20
"""The size of a cache of rendered messages."""


@dataclass(frozen=True, slots=True)
class RenderedMessage:
    """The bytes that stand for an edited message, and a digest of their content without cache marks: a client moves its
    marks, and that changes no prompt."""

    raw: bytes
    digest: bytes


RenderCache = MutableMapping[tuple[object, ...], RenderedMessage]
"""Rendered messages by the API, the bytes and the edits that they come from."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """The edited messages of a request by index, and digests of its beginnings as received and as sent."""

    messages: Mapping[int, bytes]
    chains: Chains


def render(
    dialect: str, request: Request, conversation: Conversation, plan: Plan, rendered: RenderCache | None = None
) -> Rendering:
    """Render what the plan edits. `rendered` is looked up first, and filled."""
    rendered = {} if rendered is None else rendered
    edits: dict[int, list[Edit]] = {}
    for edit in plan.edits:
        # a fold belongs to the messages in which it begins and ends: it may leave some of both
        ends = (edit.at,) if isinstance(edit, Replace) else (edit.first, edit.last)
        for message in dict.fromkeys(conversation.blocks[conversation.index[at]].message for at in ends):
            edits.setdefault(message, []).append(edit)
    names = {message: (dialect, conversation.messages[message].raw, *those) for message, those in edits.items()}
    results = {message: there for message, name in names.items() if (there := rendered.get(name)) is not None}
    missing = [edit for message, those in edits.items() if message not in results for edit in those]
    for message, raw in DIALECTS[dialect].splice(request, conversation, missing).items():
        results[message] = result = RenderedMessage(raw, _digest(DIALECTS[dialect], raw) if raw else b"")
        # a fold changes several messages at once, so one of them alone does not name it
        stands_alone = all(isinstance(edit, Replace) for edit in edits.get(message, ()))
        if message in names and stands_alone and len(raw) < RENDERED_BYTES // 8:
            rendered[names[message]] = result
    digests = {message: result.digest for message, result in results.items()}
    raws = {message: result.raw for message, result in results.items()}
    return Rendering(raws, Chains(conversation.messages, digests))


def body_of(
    dialect: Dialect,
    request: Request,
    plan: Plan,
    rendering: Rendering,
    *,
    marks: MarkStyle = "",
    tool: Added | None = None,
    consent: Consent = _NO_CONSENT,
) -> bytes:
    """The client's bytes, but for edited messages, cache marks of ours, the recall tool and what must be said beside
    an edited history."""
    changed = dict(rendering.messages)
    for message in plan.marks:
        raw = changed.get(message, request.raw(message))
        marked = dialect.marked(raw, marks) if raw else None
        if marked is not None:
            changed[message] = marked
    if not (changed or tool or consent.change):
        return request.body
    return dialect.joined(request, changed, tool, consent.change)


def _digest(dialect: Dialect, raw: bytes) -> bytes:
    """A digest of what is sent in the place of one message."""
    digests = [dialect.read(raw[start - 1 : end - 1], len).digest for start, end in items(b"[" + raw + b"]")]
    return sha256(b"".join(digests)).digest()

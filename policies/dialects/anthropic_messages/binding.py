"""Thoughts that are bound to the prompt before them, and how a request says that theirs may be dropped.

Newer models of Claude take a thinking block back only where nothing before it has changed since (Claude docs,
"Preserved thinking", prefix checks); else the request is refused, or, where it asks for that, the block is dropped.
Every edit changes what stands before later thoughts. So a request that may be edited asks for it: from the first one
on, so that it is the same all through a conversation; where nothing was edited there is nothing to drop.
"""

import re

import msgspec

from policies.dialects.base import Consent, Request
from policies.dialects.common import text_at
from policies.model.rawjson import Change, UnreadableError, members

_BOUND = re.compile(
    r"claude-(?:(?:fable|mythos)-(?:5[-.][1-9](?!\d)|[6-9](?!\d))|(?:opus|sonnet|haiku)-(?:5[-.][5-9](?!\d)|[6-9](?!\d)))"
)
"""By name: fable and mythos from 5.1, the others from 5.5."""
_DROP = b'{"prefix_mismatch_behavior":"drop_block"}'


def is_bound(model: str) -> bool:
    """Whether a model binds its thoughts to the prompt before them."""
    return _BOUND.search(model.lower()) is not None


def consent(request: Request) -> Consent | None:
    """None where the request holds thoughts and cannot say that they may be dropped."""
    if not is_bound(request.model):
        return Consent()
    try:
        return Consent(_change(request), {"anthropic-beta": "thinking-binding-controls-2026-08-01"})
    except (UnreadableError, msgspec.DecodeError, UnicodeDecodeError, LookupError):
        start, end = request.spans[0][0], request.spans[-1][1]
        has_thoughts = any(request.body.find(word, start, end) >= 0 for word in (b'"thinking"', b'"redacted_thinking"'))
        return None if has_thoughts else Consent()


def _change(request: Request) -> Change | None:
    """What to write where; None where the client has. Raises LookupError where it wants something else."""
    body, fields = request.body, request.members
    if "thinking" not in fields:  # these models think all the same
        end = body.rindex(b"}")
        return (end, end), b',"thinking":{"type":"adaptive","block_binding":' + _DROP + b"}"
    start, end = fields["thinking"]
    thinking = msgspec.json.decode(body[start:end], type=dict[str, object])
    if thinking.get("type") not in ("adaptive", "enabled"):
        raise LookupError
    if "block_binding" not in thinking:
        return (end - 1, end - 1), b',"block_binding":' + _DROP
    span, binding = members(body, start, end)["block_binding"], thinking["block_binding"]
    if text_at(binding, "prefix_mismatch_behavior") == "drop_block":
        return None
    if binding:
        raise LookupError
    return span, _DROP

"""Anthropic Messages."""

from collections.abc import Mapping, Sequence

from policies.dialects.anthropic_messages import exchange, reply, request
from policies.dialects.anthropic_messages.ping import ping
from policies.dialects.anthropic_messages.request import MARK
from policies.dialects.dialect import CacheMarks, Dialect, Http, Model, ModelListing, RecallForm
from policies.dialects.splitting import RequestFields

_PAGE, _LONGEST_PAGE = 20, 1_000
"""Models on a page where `limit` does not say, and at most."""
_PAGING = ("after_id", "before_id", "limit")


def page(models: Sequence[Model], query: Mapping[str, str]) -> Mapping[str, object]:
    ids = [model["id"] for model in models]
    after, before, limit = (query.get(name, "") for name in _PAGING)
    size = min(max(1, int(limit)), _LONGEST_PAGE) if limit.isascii() and limit.isdigit() else _PAGE
    begin = ids.index(after) + 1 if after in ids else 0
    end = ids.index(before) if before in ids else len(ids)
    entries = models[max(begin, end - size) : end] if before in ids else models[begin : begin + size]
    first, last = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
    return {"data": entries, "has_more": len(entries) < end - begin, "first_id": first, "last_id": last}


MODELS = ModelListing(
    entry=lambda id_, _: {"type": "model", "id": id_, "display_name": id_, "created_at": "1970-01-01T00:00:00Z"},
    page=page,
    paging=_PAGING,
    whole=f"limit={_LONGEST_PAGE}",
)
ANTHROPIC_MESSAGES = Dialect(
    name="anthropic_messages",
    label="messages",
    provider="anthropic",
    http=Http(
        path="/messages",
        counting_path="/messages/count_tokens",
        adds_version=True,
        missing_at=(".api.openai.com", ".openai.azure.com"),
        credentials=("Authorization", "x-api-key"),
        key=("x-api-key", ""),
        version={"anthropic-version": "2023-06-01"},  # Claude docs, "Versions"
        betas=("anthropic-beta",),
        sign_in_beta=("anthropic-beta", "oauth-"),
        rate="anthropic-ratelimit-{of}-{what}",
        rate_reset="instant",
        models=MODELS,
    ),
    # no id of the conversation: `metadata.user_id` names a person
    fields=RequestFields("messages", reserve=("max_tokens",), lead="system", names_conversations=False),
    leading_roles=("system",),
    leading_kinds=("system",),
    read=request.read,
    splice=request.splice,
    consent=request.consent,
    looks_like=request.looks_like,
    marks=CacheMarks(
        styles=(MARK,),
        style=request.mark_style,
        at_end=request.at_end,
        slots=request.slots,
        add=request.marked,
        longer=MARK,
    ),
    ping=ping,
    recall=RecallForm(
        tool=exchange.recall_tool, put_back=exchange.put_back, called=exchange.called, next_round=exchange.next_round
    ),
    deferral=exchange.DEFERRAL,
    usage=reply.USAGE,
    reply=reply.MessagesReply,
    whole_messages=reply.whole_messages,
    streamed_messages=reply.streamed_messages,
    writing=request.WRITING,
    failure=reply.failure,
)

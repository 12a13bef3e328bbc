"""Anthropic Messages."""

from policies.dialects.anthropic_messages import exchange, request
from policies.dialects.anthropic_messages.binding import consent
from policies.dialects.anthropic_messages.messages import MARK, looks_like, read
from policies.dialects.anthropic_messages.models import MODELS
from policies.dialects.anthropic_messages.reply import USAGE, MessagesReply, failure
from policies.dialects.anthropic_messages.whole import streamed_messages, whole_messages
from policies.dialects.anthropic_messages.writing import WRITING
from policies.dialects.dialect import CacheMarks, Dialect, RecallForm
from policies.dialects.http import Http
from policies.dialects.splitting import RequestFields

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
    read=read,
    splice=request.splice,
    consent=consent,
    looks_like=looks_like,
    marks=CacheMarks(
        styles=(MARK,), style=request.mark_style, at_end=request.at_end, slots=request.slots, add=request.marked
    ),
    recall=RecallForm(
        tool=exchange.recall_tool,
        put_back=exchange.put_back,
        arguments=exchange.arguments,
        next_round=exchange.next_round,
    ),
    usage=USAGE,
    reply=MessagesReply,
    whole_messages=whole_messages,
    streamed_messages=streamed_messages,
    writing=WRITING,
    failure=failure,
)

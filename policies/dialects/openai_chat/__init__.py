"""OpenAI chat completions: `POST /chat/completions`. One API, one file for each direction."""

from policies.dialects.common import failure, joined
from policies.dialects.openai_chat.exchange import arguments, next_round, put_back, recall_tool
from policies.dialects.openai_chat.reply import last_event, reply
from policies.dialects.openai_chat.request import (
    free_slots,
    head_tokens,
    mark_style,
    marked,
    read,
    splice,
    split,
)

__all__ = [
    "arguments",
    "failure",
    "free_slots",
    "head_tokens",
    "joined",
    "last_event",
    "mark_style",
    "marked",
    "next_round",
    "put_back",
    "read",
    "recall_tool",
    "reply",
    "splice",
    "split",
]

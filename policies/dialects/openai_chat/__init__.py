"""OpenAI chat completions: `POST /chat/completions`. One API, one file for each direction."""

from policies.dialects.common import consent, failure, joined, tool_kinds, tools
from policies.dialects.openai_chat.exchange import arguments, next_round, put_back, recall_tool
from policies.dialects.openai_chat.reply import reply
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
    "consent",
    "failure",
    "free_slots",
    "head_tokens",
    "joined",
    "mark_style",
    "marked",
    "next_round",
    "put_back",
    "read",
    "recall_tool",
    "reply",
    "splice",
    "split",
    "tool_kinds",
    "tools",
]

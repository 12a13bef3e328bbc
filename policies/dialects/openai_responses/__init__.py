"""OpenAI Responses: `POST /responses`. One API, one file for each direction."""

from policies.dialects.common import consent, failure, tool_kinds, tools
from policies.dialects.openai_responses.exchange import arguments, next_round, put_back, recall_tool
from policies.dialects.openai_responses.items import read
from policies.dialects.openai_responses.marks import free_slots, mark_style, marked
from policies.dialects.openai_responses.reply import reply
from policies.dialects.openai_responses.request import head_tokens, joined, splice, split

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

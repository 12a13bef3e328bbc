"""Anthropic Messages: `POST /v1/messages`. What each function does is written in dialects/base.py."""

from policies.dialects.anthropic_messages.binding import consent
from policies.dialects.anthropic_messages.exchange import arguments, next_round, put_back, recall_tool
from policies.dialects.anthropic_messages.messages import read
from policies.dialects.anthropic_messages.reply import failure, reply
from policies.dialects.anthropic_messages.request import (
    free_slots,
    head_tokens,
    mark_style,
    marked,
    marks_end,
    splice,
    split,
    takes_mark,
)
from policies.dialects.common import joined, takes_exchanges
from policies.dialects.tool_lists import tool_kinds, tools

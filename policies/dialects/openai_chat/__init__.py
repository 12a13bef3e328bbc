"""OpenAI chat completions: `POST /chat/completions`. What each function does is written in dialects/base.py."""

from policies.dialects.common import consent, failure, joined
from policies.dialects.openai_chat.exchange import arguments, next_round, put_back, recall_tool
from policies.dialects.openai_chat.messages import read
from policies.dialects.openai_chat.reply import reply
from policies.dialects.openai_chat.request import (
    free_slots,
    head_tokens,
    mark_style,
    marked,
    marks_end,
    splice,
    split,
    takes_exchanges,
    takes_mark,
)
from policies.dialects.tool_lists import tool_kinds, tools

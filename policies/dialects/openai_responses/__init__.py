"""OpenAI Responses: `POST /responses`. What each function does is written in dialects/base.py."""

from policies.dialects.common import consent, failure, takes_exchanges
from policies.dialects.openai_responses.exchange import arguments, next_round, put_back, recall_tool
from policies.dialects.openai_responses.messages import read
from policies.dialects.openai_responses.reply import reply
from policies.dialects.openai_responses.request import (
    free_slots,
    head_tokens,
    joined,
    mark_style,
    marked,
    marks_end,
    splice,
    split,
    takes_mark,
)
from policies.dialects.tool_lists import tool_kinds, tools

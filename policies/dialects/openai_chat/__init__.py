"""OpenAI chat completions."""

from policies.dialects.dialect import CacheMarks, Dialect, RecallForm, UsageOption
from policies.dialects.http import Http
from policies.dialects.openai import MARKS
from policies.dialects.openai_chat import asked_usage, exchange, request
from policies.dialects.openai_chat.messages import read
from policies.dialects.openai_chat.reply import USAGE, ChatReply
from policies.dialects.openai_chat.whole import streamed_messages, whole_messages
from policies.dialects.openai_chat.writing import WRITING
from policies.dialects.splitting import RequestFields

OPENAI_CHAT = Dialect(
    name="openai_chat",
    label="chat",
    http=Http(
        path="/chat/completions",
        credentials=("Authorization", "api-key"),
        accounts=("OpenAI-Organization", "OpenAI-Project"),
        betas=("openai-beta",),
    ),
    fields=RequestFields("messages", reserve=("max_completion_tokens", "max_tokens")),
    read=read,
    splice=request.splice,
    # providers of other models took this API over, and with it the marks of their own
    marks=CacheMarks(styles=MARKS, style=request.mark_style, slots=request.slots, add=request.marked),
    recall=RecallForm(
        tool=exchange.recall_tool,
        put_back=exchange.put_back,
        arguments=exchange.arguments,
        next_round=exchange.next_round,
        may_stand=request.may_stand,
    ),
    usage=USAGE,
    reply=ChatReply,
    whole_messages=whole_messages,
    streamed_messages=streamed_messages,
    writing=WRITING,
    usage_option=UsageOption(name=asked_usage.OPTION, ask=asked_usage.asking_for_usage, hide=asked_usage.without_usage),
)

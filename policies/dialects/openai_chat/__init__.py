"""OpenAI chat completions."""

from policies.dialects.dialect import CacheMarks, Dialect, Http, RecallForm, UsageOption
from policies.dialects.openai import MARKS
from policies.dialects.openai_chat import reply, request
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
    read=request.read,
    splice=request.splice,
    # providers of other models took this API over, and with it the marks of their own
    marks=CacheMarks(
        styles=MARKS, style=request.mark_style, slots=request.slots, add=request.marked, longer="cache_control"
    ),
    recall=RecallForm(
        tool=request.recall_tool,
        put_back=request.put_back,
        called=request.called,
        next_round=request.next_round,
        may_stand=request.may_stand,
    ),
    deferral=request.DEFERRAL,
    usage=reply.USAGE,
    reply=reply.ChatReply,
    whole_messages=reply.whole_messages,
    streamed_messages=reply.streamed_messages,
    writing=request.WRITING,
    usage_option=UsageOption(name=reply.OPTION, ask=reply.asking_for_usage, hide=reply.without_usage),
)

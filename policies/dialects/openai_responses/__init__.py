"""OpenAI Responses."""

from policies.dialects.dialect import CacheMarks, Dialect, Http, RecallForm
from policies.dialects.openai import BREAKPOINT
from policies.dialects.openai_responses import exchange, reply, request
from policies.dialects.openai_responses.ping import ping
from policies.dialects.splitting import RequestFields

OPENAI_RESPONSES = Dialect(
    name="openai_responses",
    label="responses",
    http=Http(
        path="/responses",
        counting_path="/responses/input_tokens",
        counting_implies=b'"store":false',
        compact_path="/responses/compact",
        stored_path=r"/responses/resp_\w{16,}(/cancel|/input_items)?",
        missing_at=(".anthropic.com",),
        credentials=("Authorization", "api-key"),
        accounts=("OpenAI-Organization", "OpenAI-Project"),
        betas=("openai-beta",),
    ),
    fields=RequestFields(
        "input",
        reserve=("max_output_tokens",),
        lead="instructions",
        elsewhere=("previous_response_id", "conversation"),
        takes_text=True,
    ),
    read=request.read,
    splice=request.splice,
    joined=request.joined,
    looks_like=lambda fields: "input" in fields and "messages" not in fields,
    marks=CacheMarks(
        styles=(BREAKPOINT,), style=request.mark_style, slots=request.slots, add=request.marked, longer=BREAKPOINT
    ),
    ping=ping,
    recall=RecallForm(
        tool=exchange.recall_tool, put_back=exchange.put_back, called=exchange.called, next_round=exchange.next_round
    ),
    deferral=exchange.DEFERRAL,
    usage=reply.USAGE,
    reply=reply.ResponsesReply,
    whole_messages=reply.whole_messages,
    streamed_messages=reply.streamed_messages,
    writing=request.WRITING,
    stores=True,
)

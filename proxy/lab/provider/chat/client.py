"""How clients of chat completions write their requests."""

from policies.dialects.openai_chat import OPENAI_CHAT
from proxy.lab.provider.client import ANYTHING, ClientApi, Json, marked, newest_marked


def with_marks(body: Json) -> Json:
    """With marks on the first message, which is the system text where there is one, and on the newest that can carry
    one."""
    first, *others = body["messages"]
    return {**body, "messages": [{**first, "content": marked(first.get("content"))}, *newest_marked(others)]}


CLIENT = ClientApi(
    OPENAI_CHAT,
    options={"stream": True, "stream_options": {"include_usage": True}},
    tool=lambda name: {"type": "function", "function": {"name": name, "parameters": ANYTHING}},
    marked=with_marks,
)

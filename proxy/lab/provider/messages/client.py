"""How clients of Messages write their requests."""

from policies.dialects.anthropic_messages import ANTHROPIC_MESSAGES
from policies.money.budget import RESERVE
from proxy.lab.provider.client import ANYTHING, MARK, ClientApi, Json, marked, newest_marked


def with_marks(body: Json) -> Json:
    """With marks on the system text, the end of the tools, and the newest message that can carry one."""
    request = {**body, "messages": newest_marked(body["messages"])}
    if body.get("system"):
        request["system"] = marked(body["system"])
    if body.get("tools"):
        request["tools"] = [*body["tools"][:-1], {**body["tools"][-1], **MARK}]
    return request


CLIENT = ClientApi(
    ANTHROPIC_MESSAGES,
    # a limit is required: what is left for an answer anyway, so that no session is planned by another one
    options={"max_tokens": RESERVE, "stream": True},
    tool=lambda name: {"name": name, "input_schema": ANYTHING},
    marked=with_marks,
)

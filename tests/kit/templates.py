"""What chat templates of local models refuse."""

from proxy.lab.provider.api import Violation
from tests.kit.histories import Json


def template_violation(body: Json) -> Violation | None:
    """Why the templates of Gemma, Mistral or Qwen would not render the history of a request to any API: a
    person and the model take turns, calls and results apart; system text stands at the beginning; a result follows a
    call."""
    entries = body.get("messages", body.get("input"))
    turn, before, why = "user", "", ""
    for at, role in enumerate(filter(None, map(_spoken_role, entries if isinstance(entries, list) else ()))):
        if at and role in ("system", "developer"):
            why = "System message must be at the beginning."
        elif role == "tool" and before not in ("call", "tool"):
            why = "A tool message must follow a tool call."
        elif role in ("user", "assistant"):
            why = "" if role == turn else "Conversation roles must alternate user/assistant/user/assistant/..."
            turn = "assistant" if role == "user" else "user"
        if why:
            return Violation(why, "messages")
        before = role
    return None


def _spoken_role(entry: Json) -> str:
    """The role of an entry; `call` where it makes calls, "" where it says nothing."""
    kind, content = str(entry.get("type", "message")), entry.get("content")
    kinds = {block.get("type") for block in content if isinstance(block, dict)} if isinstance(content, list) else set()
    if entry.get("tool_calls") or kind == "function_call" or "tool_use" in kinds:
        return "call"
    if kind == "function_call_output" or "tool_result" in kinds:
        return "tool"
    return str(entry.get("role", "")) if kind == "message" else ""

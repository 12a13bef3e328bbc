"""How messages must follow each other: neighbours of the same role are one message."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from policies.money.caches import CacheRule
from proxy.lab.provider.messages.blocks import THOUGHTS, blocks
from proxy.lab.provider.rules import Json, Violation, Violations, refusal

SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
"""Calls of tools that run at the provider, or that it calls itself."""


@dataclass(frozen=True, slots=True)
class JoinedMessage:
    """Neighbouring messages of one role, and the index of the first of them."""

    at: int
    role: str
    blocks: tuple[Json, ...]

    def values(self, kind: str, key: str) -> list[str]:
        return [block[key] for block in self.blocks if block["type"] == kind]


def joined(messages: Sequence[Json]) -> Iterator[JoinedMessage]:
    """The conversation of user and model as the model sees it; system messages between them are left out."""
    conversation = [(at, message) for at, message in enumerate(messages) if message["role"] != "system"]
    for role, run in groupby(conversation, lambda pair: pair[1]["role"]):
        members = list(run)
        content = (block for _, message in members for block in blocks(message["content"]))
        yield JoinedMessage(members[0][0], role, tuple(content))


def tool_loop(messages: Sequence[Json]) -> list[JoinedMessage]:
    """The tool loop in progress, the newest message first: results, and the calls that they answer."""

    def continues(message: JoinedMessage) -> bool:
        is_result = bool(message.blocks) and message.blocks[0]["type"] == "tool_result"
        return message.role == "assistant" or is_result

    return list(takewhile(continues, reversed(list(joined(messages)))))


def check_order(body: Json, _: CacheRule) -> Violations:
    yield from _check_results(body["messages"])
    yield from _check_server_tools(body["messages"])
    yield from _check_system_messages(body["messages"])


def _check_results(messages: Sequence[Json]) -> Violations:
    """Each call is answered at the beginning of the very next message, and once; no result answers anything else."""
    before = JoinedMessage(-1, "user", ())
    for message in joined(messages):
        if message.role == "user":
            yield from _answers(message, before)
        elif before.role == "assistant":
            yield from _unanswered(before, ())
        ids = message.values("tool_use", "id")
        if len(set(ids)) < len(ids):
            yield refusal(f"messages.{message.at}", "`tool_use` ids must be unique")
        before = message
    if before.role == "assistant":  # the model is to continue its own message
        yield from _unanswered(before, ())
        if before.blocks and before.blocks[-1]["type"] in THOUGHTS:
            yield refusal(f"messages.{before.at}", "The final block in an assistant message cannot be `thinking`.")
        text = before.blocks[-1].get("text", "") if before.blocks else ""
        if text != text.rstrip():
            yield refusal("messages", "final assistant content cannot end with trailing whitespace")


def _answers(message: JoinedMessage, before: JoinedMessage) -> Violations:
    calls = before.values("tool_use", "id") if before.role == "assistant" else []
    leading = [b["tool_use_id"] for b in takewhile(lambda block: block["type"] == "tool_result", message.blocks)]
    yield from _unanswered(before, leading) if calls else ()
    seen = set[str]()
    for at, call_id in enumerate(message.values("tool_result", "tool_use_id")):
        where = f"messages.{message.at}.content.{at}"
        if call_id not in calls:
            why = f"unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each `tool_result` block must "
            yield refusal(where, why + "have a corresponding `tool_use` block in the previous message.")
        if call_id in seen:
            why = f"each tool_use must have a single result. Found multiple `tool_result` blocks with id: {call_id}"
            yield refusal(where, why)
        seen.add(call_id)


def _unanswered(message: JoinedMessage, answered: Sequence[str]) -> Violations:
    waiting = [call_id for call_id in message.values("tool_use", "id") if call_id not in answered]
    if waiting:
        why = f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(waiting)}. "
        why += "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        yield refusal(f"messages.{message.at}", why)


def _check_system_messages(messages: Sequence[Json]) -> Violations:
    """A system message between the others follows a user message, or the result of a server tool, and comes before the
    model's next one."""
    roles = [message["role"] for message in messages]
    for i in (i for i, role in enumerate(roles) if role == "system"):
        before = next((messages[j] for j in range(i - 1, -1, -1) if roles[j] != "system"), None)
        after = next((role for role in roles[i + 1 :] if role != "system"), "assistant")
        content = blocks(before["content"]) if before else []
        ends_served = bool(content) and bool(_server_ids(content[-1])[1])
        if before is None or not (before["role"] == "user" or ends_served):
            why = "role 'system' must follow a 'user' message or an 'assistant' message ending in a server tool result"
            yield refusal(f"messages.{i}", why)
        elif after != "assistant":
            yield refusal(f"messages.{i}", "role 'system' must precede an 'assistant' message or end the array")


def _check_server_tools(messages: Sequence[Json]) -> Violations:
    """The result of a server tool follows its call, be it in a later message; each call has its result, except in the
    tool loop in progress, where it may be still to come."""
    loop_start = min((message.at for message in tool_loop(messages)), default=len(messages))
    waiting: dict[str, Violation] = {}
    calls = set[str]()
    for message in joined(messages):
        at = f"messages.{message.at}"
        for block in message.blocks:
            call, answer = _server_ids(block)
            if call:
                calls.add(call)
                if message.at < loop_start:
                    name = "mcp" if block["type"] == "mcp_tool_use" else block.get("name")
                    why = f"`{name}` tool use with id `{block['id']}` was found without a corresponding "
                    waiting[call] = refusal(at, f"{why}`{name}_tool_result` block")
            elif answer:
                waiting.pop(answer, None)
                if answer not in calls:
                    kind = block["type"]
                    why = f"unexpected `tool_use_id` found in `{kind}` blocks: {block['tool_use_id']}. Each `{kind}` "
                    yield refusal(at, why + "block must have a corresponding `server_tool_use` block before it.")
    yield from waiting.values()


def _server_ids(block: Json) -> tuple[str, str]:
    """The id of the call of a server tool that a block makes, and of the one that it answers; "" where it does not."""
    call = block.get("id") if block["type"] in SERVER_CALLS else ""
    is_answer = block["type"].endswith("_tool_result") and block["type"] != "tool_result"
    return str(call or ""), str(block.get("tool_use_id") or "") if is_answer else ""

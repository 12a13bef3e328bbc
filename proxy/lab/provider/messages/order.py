"""How messages must follow each other: neighbours of the same role are one message."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from proxy.lab.provider.messages.prompt import blocks
from proxy.lab.provider.messages.words import fault
from proxy.lab.provider.rules import Json, Violation, Violations

THOUGHTS = ("thinking", "redacted_thinking")
SERVED = ("server_tool_use", "mcp_tool_use")
"""Calls of tools that run at the provider, or that it calls itself."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Neighbouring messages of one role, and where the first of them stands."""

    at: int
    role: str
    blocks: tuple[Json, ...]

    def ids(self, kind: str, key: str) -> list[str]:
        """The ids that blocks of a type name."""
        return [block[key] for block in self.blocks if block["type"] == kind]


def joined(messages: Sequence[Json]) -> Iterator[Joined]:
    """What a user and the model say to each other, as the model sees it."""
    spoken = [(at, message) for at, message in enumerate(messages) if message["role"] != "system"]
    for role, run in groupby(spoken, lambda pair: pair[1]["role"]):
        members = list(run)
        content = (block for _, message in members for block in blocks(message["content"]))
        yield Joined(members[0][0], role, tuple(content))


def loop(messages: Sequence[Json]) -> list[Joined]:
    """The tool loop that is going on, the newest message first: results, and what asked for them."""
    return list(takewhile(_in_loop, reversed(list(joined(messages)))))


def _in_loop(message: Joined) -> bool:
    if message.role == "assistant":
        return True
    return bool(message.blocks) and message.blocks[0]["type"] == "tool_result"


def order_faults(messages: Sequence[Json]) -> Violations:
    """Each call is answered at the beginning of the very next message, and once; no result answers anything else."""
    before = Joined(-1, "user", ())
    for message in joined(messages):
        if message.role == "user":
            yield from _answers(message, before)
        elif before.role == "assistant":
            yield from _unanswered(before, ())
        yield from _unique(message)
        before = message
    if before.role == "assistant":
        yield from _last(before)


def _answers(message: Joined, before: Joined) -> Violations:
    called = before.ids("tool_use", "id") if before.role == "assistant" else []
    leading = [b["tool_use_id"] for b in takewhile(lambda block: block["type"] == "tool_result", message.blocks)]
    yield from _unanswered(before, leading) if called else ()
    seen = set[str]()
    for at, name in enumerate(message.ids("tool_result", "tool_use_id")):
        where = f"messages.{message.at}.content.{at}"
        if name not in called:
            why = f"unexpected `tool_use_id` found in `tool_result` blocks: {name}. Each `tool_result` block must have "
            yield fault(where, why + "a corresponding `tool_use` block in the previous message.")
        if name in seen:
            why = f"each tool_use must have a single result. Found multiple `tool_result` blocks with id: {name}"
            yield fault(where, why)
        seen.add(name)


def _unanswered(message: Joined, answered: Sequence[str]) -> Violations:
    open_ = [name for name in message.ids("tool_use", "id") if name not in answered]
    if open_:
        why = f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(open_)}. "
        why += "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        yield fault(f"messages.{message.at}", why)


def _unique(message: Joined) -> Violations:
    names = message.ids("tool_use", "id")
    if len(set(names)) < len(names):
        yield fault(f"messages.{message.at}", "`tool_use` ids must be unique")


def _last(message: Joined) -> Violations:
    """A message of the model's that it is to go on with."""
    yield from _unanswered(message, ())
    if message.blocks and message.blocks[-1]["type"] in THOUGHTS:
        yield fault(f"messages.{message.at}", "The final block in an assistant message cannot be `thinking`.")
    text = message.blocks[-1].get("text", "") if message.blocks else ""
    if text != text.rstrip():
        yield fault("messages", "final assistant content cannot end with trailing whitespace")


def system_faults(messages: Sequence[Json]) -> Violations:
    """A system message between the others: behind a user's, or behind what a tool of the server found, and before the
    model's next one."""
    roles = [message["role"] for message in messages]
    for i in (i for i, role in enumerate(roles) if role == "system"):
        before = next((messages[j] for j in range(i - 1, -1, -1) if roles[j] != "system"), None)
        after = next((role for role in roles[i + 1 :] if role != "system"), "assistant")
        if before is None or not (before["role"] == "user" or _ends_served(before)):
            why = "role 'system' must follow a 'user' message or an 'assistant' message ending in a server tool result"
            yield fault(f"messages.{i}", why)
        elif after != "assistant":
            yield fault(f"messages.{i}", "role 'system' must precede an 'assistant' message or end the array")


def _ends_served(message: Json) -> bool:
    content = blocks(message["content"])
    return bool(content) and bool(_served(content[-1])[1])


def server_faults(messages: Sequence[Json]) -> Violations:
    """What a tool of the server found follows its call, be it in a later message; each call has its result, but in the
    loop that is going on: there it may be still to come."""
    going_on = min((message.at for message in loop(messages)), default=len(messages))
    waiting: dict[str, Violation] = {}
    known = set[str]()
    for message in joined(messages):
        for block in message.blocks:
            called, answered = _served(block)
            if called:
                known.add(called)
                waiting |= {called: _unserved(block, message)} if message.at < going_on else {}
            elif answered:
                waiting.pop(answered, None)
                yield from () if answered in known else (_uncalled(block, message),)
    yield from waiting.values()


def _served(block: Json) -> tuple[str, str]:
    """The call of the server's that a block makes, and the one that it answers."""
    called = block.get("id") if block["type"] in SERVED else ""
    is_answer = block["type"].endswith("_tool_result") and block["type"] != "tool_result"
    return str(called or ""), str(block.get("tool_use_id") or "") if is_answer else ""


def _unserved(block: Json, message: Joined) -> Violation:
    name = "mcp" if block["type"] == "mcp_tool_use" else block.get("name")
    why = f"`{name}` tool use with id `{block['id']}` was found without a corresponding `{name}_tool_result` block"
    return fault(f"messages.{message.at}", why)


def _uncalled(block: Json, message: Joined) -> Violation:
    kind = block["type"]
    why = f"unexpected `tool_use_id` found in `{kind}` blocks: {block['tool_use_id']}. Each `{kind}` block must have a "
    return fault(f"messages.{message.at}", why + "corresponding `server_tool_use` block before it.")

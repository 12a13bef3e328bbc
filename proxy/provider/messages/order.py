"""How messages must follow each other: neighbours of the same role are one message."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from proxy.provider.messages.prompt import blocks
from proxy.provider.messages.words import fault
from proxy.provider.rules import Found, Json


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


def order_faults(messages: Sequence[Json]) -> Found:
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


def _answers(message: Joined, before: Joined) -> Found:
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


def _unanswered(message: Joined, answered: Sequence[str]) -> Found:
    open_ = [name for name in message.ids("tool_use", "id") if name not in answered]
    if open_:
        why = f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(open_)}. "
        why += "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        yield fault(f"messages.{message.at}", why)


def _unique(message: Joined) -> Found:
    names = message.ids("tool_use", "id")
    if len(set(names)) < len(names):
        yield fault(f"messages.{message.at}", "`tool_use` ids must be unique")


def _last(message: Joined) -> Found:
    """A message of the model's that it is to go on with."""
    yield from _unanswered(message, ())
    text = message.blocks[-1].get("text", "") if message.blocks else ""
    if text != text.rstrip():
        yield fault("messages", "final assistant content cannot end with trailing whitespace")

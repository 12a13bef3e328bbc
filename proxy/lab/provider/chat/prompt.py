"""Chat completions as what is said in them."""

from collections.abc import Iterator

from proxy.lab.provider.answers import call_texts
from proxy.lab.provider.prompt import (
    AUDIO,
    FILE,
    IMAGE,
    MARKS,
    Json,
    Leaf,
    Spoken,
    call_leaf,
    marks_of,
    part_leaf,
    tool_leaf,
    unmarked,
)

_KNOWN = frozenset({"role", "content", "tool_calls", "tool_call_id"}) | MARKS
_TEXTS = {"text": "text"}
_SIZES = {"image_url": IMAGE, "input_audio": AUDIO, "file": FILE}


def entries(body: Json) -> list[Json]:
    """The messages."""
    messages: list[Json] = body["messages"]
    return messages


def spoken(message: Json) -> tuple[Spoken, ...]:
    """What a message says."""
    extras = {key: value for key, value in message.items() if key not in _KNOWN and value is not None}
    call_id = message.get("tool_call_id")
    return (Spoken(message["role"], tuple(_leaves(message)), call_id, extras, marks_of(message)),)


def _leaves(message: Json) -> Iterator[Leaf]:
    content, calls = message.get("content"), message.get("tool_calls") or ()
    if isinstance(content, list):
        yield from (part_leaf(part, _TEXTS, _SIZES) for part in content)
    elif content or (content is not None and not calls):
        yield Leaf("text", content)
    yield from (call_leaf(call["id"], *call_texts(call), marks_of(call)) for call in calls)


def tool(definition: Json) -> Leaf:
    """A tool's definition."""
    inner = definition[definition["type"]]
    plain = unmarked(definition) | {definition["type"]: unmarked(inner)}
    return tool_leaf(plain, marks_of(definition) | marks_of(inner))


def top_mark(_: Json) -> frozenset[str]:
    """Marks stand on messages, parts and tools only."""
    return frozenset()

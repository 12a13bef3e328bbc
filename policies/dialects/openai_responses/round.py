"""One round of a reply: its items as they come, and which are calls of ours."""

from collections.abc import Sequence

from policies.dialects.common import as_json
from policies.dialects.events import Json, joined_text
from policies.dialects.openai_responses.messages import CALLS, called, texts_of, type_of
from policies.dialects.rounds import Round, derived_id, valid_arguments
from policies.tools import RECALL

TEXT_DELTA = "response.output_text.delta"
_ASKING = frozenset({*CALLS, "local_shell_call", "computer_call", "mcp_approval_request"})
"""Items that the client has to answer, unless they were answered at the provider."""


class OutputItem:
    """One item of the output, from its events; an Entry (rounds.py)."""

    def __init__(self, index: int, item: Json) -> None:
        self.index = index
        self.item = item
        self.ours: bool | None = _is_recall(item)
        """None while the name is not known."""
        self._deltas: dict[int, list[str]] = {}

    def receive(self, event: Json) -> None:
        item = event.get("item")
        if isinstance(item, dict):
            self.complete(item)
        elif event.get("type") == TEXT_DELTA:
            self.receive_text(event.get("delta"), event.get("content_index"))

    def receive_text(self, delta: object, at: object) -> None:
        """The next piece of the text of one of its parts."""
        if isinstance(delta, str) and isinstance(at, int):
            self._deltas.setdefault(at, []).append(delta)

    def complete(self, item: Json) -> None:
        self.item, self._deltas = item, {}
        if self.ours is None:
            self.ours = _is_recall(item) or False

    @property
    def text(self) -> str:
        texts = ["".join(texts_of(self.item))] if type_of(self.item) == "message" else []
        return joined_text([*texts, *(piece for at in sorted(self._deltas) for piece in self._deltas[at])])

    @property
    def id(self) -> str:
        return str(self.item.get("call_id") or "")

    @property
    def is_call(self) -> bool:
        return type_of(self.item) in CALLS

    @property
    def asks(self) -> bool:
        """Whether it is a call that its client has to answer."""
        if type_of(self.item) == "tool_search_call":
            return self.item.get("execution") == "client"
        return type_of(self.item) in _ASKING

    @property
    def arguments(self) -> str | None:
        return valid_arguments(self.item.get("arguments"))

    def as_json(self, place: int) -> str:
        arguments, call_id = self.arguments or "{}", self.item.get("call_id")
        if not (isinstance(call_id, str) and call_id):
            call_id = derived_id(place, arguments)
        return as_json({**self.item, "call_id": call_id, "name": RECALL, "arguments": arguments}).decode()


def _is_recall(item: Json) -> bool | None:
    if item.get("type") != "function_call" or item.get("namespace"):
        return False
    return item.get("name") == RECALL if item.get("name") else None


class ResponseRound(Round[OutputItem]):
    """All items of one round."""

    def receive(self, event: Json, index: int) -> None:
        """An event about one of them."""
        item = event.get("item")
        begins = event.get("type") == "response.output_item.added"
        if isinstance(item, dict) and (begins or index not in self.by_index):
            self.by_index[index] = OutputItem(index, item)
        if index in self.by_index and not begins:
            self.by_index[index].receive(event)

    def close(self, output: object) -> None:
        """No more of it comes; `output` are its items as the provider sums them up. Some leave them out there."""
        for at, item in enumerate(output if isinstance(output, list) else ()):
            if isinstance(item, dict):
                self.by_index.setdefault(at, OutputItem(at, item)).complete(item)
        for entry in self.by_index.values():
            entry.ours = entry.ours or False

    @property
    def call_ids(self) -> tuple[str, ...]:
        """Those that can be read when the client returns them."""
        return tuple(call_id for item in self.visible if (call_id := called(item)) is not None)

    @property
    def has_theirs(self) -> bool:
        entries = self.entries
        outputs = {entry.item.get("call_id") for entry in entries if type_of(entry.item).endswith("_output")}
        return any(not entry.ours and entry.asks and entry.item.get("call_id") not in outputs for entry in entries)

    @property
    def visible(self) -> list[Json]:
        """The items that the client gets."""
        return [entry.item for entry in self.entries if not entry.ours]

    def is_ours(self, index: int) -> bool:
        """Whether an item is a call of the recall tool."""
        return index in self.by_index and bool(self.by_index[index].ours)

    def fields(self, entries: Sequence[OutputItem], alone: bool) -> str:
        """The items around the calls of ours, as exchange.py describes them; "" where there are none."""
        layout: list[object] = []
        for entry in entries:
            item, kind = entry.item, type_of(entry.item)
            content = item.get("content")
            if entry.ours:
                layout.append(None)
            elif kind == "reasoning" and not (item.get("encrypted_content") or content):
                # not taken back, because the provider stores nothing to find it by ("Item with id 'rs_...' not found")
                continue
            elif kind in CALLS and not alone:
                layout.append(True)
            elif kind == "message" and isinstance(content, list):
                layout.append({**item, "content": list(map(_without_text, content))})
            else:
                layout.append(item)
        while alone and layout and layout[-1] is None:
            layout.pop()
        return as_json(layout).decode() if any(isinstance(entry, dict) for entry in layout) or not alone else ""


def _without_text(part: object) -> object:
    """A part of a message with the length of its text in place of the text."""
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        return part
    return {**{k: v for k, v in part.items() if k != "logprobs"}, "text": len(part["text"])}

"""One round of a reply as it comes, block by block, and which blocks are calls of ours."""

from collections.abc import Sequence

from policies.dialects.anthropic_messages.returned import stored_fields
from policies.dialects.common import as_json, text_at
from policies.dialects.events import Json, document, joined_text
from policies.dialects.rounds import Round
from policies.tools import RECALL

_WHOLE = frozenset({"signature_delta", "compaction_delta"})
"""Deltas that bring a value whole, where others bring the next piece of it (SDK, accumulation of a message)."""


class ContentBlock:
    """One block of content, from its beginning and its deltas; an Entry (rounds.py)."""

    def __init__(self, index: int, start: Json) -> None:
        self.index = index
        self.is_call = start.get("type") == "tool_use"
        self.id = str(start.get("id") or "")
        self.ours: bool | None = self.is_call and start.get("name") == RECALL
        self._start = start
        self._pieces: dict[str, list[str]] = {}
        self._values: Json = {}
        self._citations: list[object] = []
        self._json: list[str] = []

    def receive(self, delta: Json) -> None:
        """The next piece of it. In kinds that are not known, texts are taken for pieces."""
        for key, value in delta.items():
            if key == "partial_json" and isinstance(value, str):
                self._json.append(value)
            elif key == "citation":
                self._citations.append(value)
            elif key != "type" and isinstance(value, str) and text_at(delta, "type") not in _WHOLE:
                self._pieces.setdefault(key, []).append(value)
            elif key != "type":
                self._values[key] = value

    @property
    def text(self) -> str:
        text = self.whole.get("text") if self._start.get("type") == "text" else None
        return text if isinstance(text, str) else ""

    @property
    def whole(self) -> Json:
        """The block as a reply that is not streamed would have it."""
        block = {**self._start, **self._values}
        for key, pieces in self._pieces.items():
            begun = block.get(key)
            block[key] = joined_text([begun, *pieces] if isinstance(begun, str) else pieces)
        if self._citations:
            block["citations"] = self._citations
        if self._json:
            block["input"] = document("".join(self._json).encode("utf-8", "surrogatepass"))
        return block

    @property
    def arguments(self) -> str | None:
        arguments = self.whole.get("input")
        return as_json(arguments).decode() if isinstance(arguments, dict) else None

    def as_json(self, place: int) -> str:
        whole = self.whole
        return as_json(whole if isinstance(whole.get("input"), dict) else {**whole, "input": {}}).decode()


class MessageRound(Round[ContentBlock]):
    """The blocks of one round."""

    def fields(self, entries: Sequence[ContentBlock], alone: bool) -> str:
        return stored_fields([None if block.ours else block.whole for block in entries]) if alone else ""

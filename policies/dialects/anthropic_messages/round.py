"""One round of a reply as it comes, block by block, and which blocks are calls of ours."""

from collections.abc import Sequence

from policies.dialects.anthropic_messages.returned import stored_fields
from policies.dialects.common import as_json
from policies.dialects.events import Json, document, joined_text
from policies.model.edits import Exchange
from policies.tools import RECALL

_WHOLE = frozenset({"signature_delta", "compaction_delta"})
"""Deltas that bring a value whole, where others bring the next piece of it (SDK, accumulation of a message)."""


class ContentBlock:
    """One block of content, from its beginning and its deltas."""

    def __init__(self, start: Json) -> None:
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
            elif key != "type" and isinstance(value, str) and delta.get("type") not in _WHOLE:
                self._pieces.setdefault(key, []).append(value)
            elif key != "type":
                self._values[key] = value

    @property
    def is_call(self) -> bool:
        """Whether it calls a tool of the client's, or ours."""
        return self._start.get("type") == "tool_use"

    @property
    def is_ours(self) -> bool:
        """Whether it calls the recall tool."""
        return self.is_call and self._start.get("name") == RECALL

    @property
    def id(self) -> str:
        """The id of a call."""
        return str(self._start.get("id") or "")

    @property
    def text(self) -> str:
        """Its text for the client, if it has one."""
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


class MessageRound:
    """The blocks of one round."""

    def __init__(self) -> None:
        self.blocks: dict[int, ContentBlock] = {}

    @property
    def _ordered(self) -> Sequence[ContentBlock]:
        return [block for _, block in sorted(self.blocks.items())]

    @property
    def text(self) -> str:
        """Its text for the client."""
        return "".join(block.text for block in self._ordered)

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The calls of the client's own tools."""
        return tuple(block.id for block in self._ordered if block.is_call and not block.is_ours)

    @property
    def has_ours(self) -> bool:
        """Whether it calls the recall tool."""
        return any(block.is_ours for block in self.blocks.values())

    @property
    def has_theirs(self) -> bool:
        """Whether it calls tools of the client's."""
        return any(block.is_call and not block.is_ours for block in self.blocks.values())

    def ours_before(self, index: int) -> int:
        """How many calls of ours stand before a block."""
        return sum(1 for at, block in self.blocks.items() if at < index and block.is_ours)

    def exchange(self, alone: bool, cut: bool, last: bool) -> Exchange | None:
        """The recall calls to remember, each with its place among all calls; where there are no others, with the blocks
        around them. Input that is no object becomes an empty one: the API takes nothing else."""
        wholes = [(block, block.whole) for block in self._ordered]
        calls = [
            (block, whole)
            for block, whole in wholes
            if block.is_call and not (block.is_ours and cut and not isinstance(whole.get("input"), dict))
        ]
        places = tuple(place for place, (block, _) in enumerate(calls) if block.is_ours)
        if not places:
            return None
        ours = (calls[place][1] for place in places)
        written = tuple(
            as_json(call if isinstance(call.get("input"), dict) else {**call, "input": {}}).decode() for call in ours
        )
        if not alone:
            return Exchange(len(self.text), written, places)
        fields = stored_fields([None if block.is_ours else whole for block, whole in wholes])
        return Exchange(len(self.text), written, (), fields, last)

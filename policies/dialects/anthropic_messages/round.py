"""What the model says in one round of a reply, block by block, and how the round ends.

A round ends with a stop reason, and with one of these:
  no call of ours                 the reply is over as it came
  calls of ours and the client's  over; ours are answered when the client returns
  ours alone                      the reply waits for its next round, and the client hears of no end
  ours alone, no round left       over, for `max_tokens`; so with calls that the provider cut off, for its own reason
"""

from collections.abc import Sequence

from policies.dialects.anthropic_messages.rounds import noted
from policies.dialects.common import as_json
from policies.dialects.events import Json, document, joined_text
from policies.model.edits import Exchange
from policies.tools import RECALL

CUT = frozenset({"max_tokens", "stop_sequence", "refusal", "pause_turn", "model_context_window_exceeded", "compaction"})
"""Reasons for which a round ends that are no calls: a call that stands there is not to be answered."""
_WHOLE = frozenset({"signature_delta", "compaction_delta"})
"""Deltas that bring a value whole, where others bring the next piece of it (SDK, accumulation of a message)."""


class Block:
    """One block of content, from its beginning and its deltas."""

    def __init__(self, start: Json) -> None:
        self._start = start
        self._pieces: dict[str, list[str]] = {}
        self._values: Json = {}
        self._citations: list[object] = []
        self._json: list[str] = []

    def hear(self, delta: Json) -> None:
        """The next piece of it. Of kinds that are not known, texts are taken for pieces."""
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
    def is_ours(self) -> bool:
        """Whether it calls the recall tool."""
        return self.is_call and self._start.get("name") == RECALL

    @property
    def is_call(self) -> bool:
        """Whether it calls a tool of the client's, or ours."""
        return self._start.get("type") == "tool_use"

    @property
    def id(self) -> str:
        """The id of a call."""
        return str(self._start.get("id") or "")

    @property
    def text(self) -> str:
        """What it says to the person, if anything."""
        text = self.whole.get("text") if self._start.get("type") == "text" else None
        return text if isinstance(text, str) else ""

    @property
    def whole(self) -> Json:
        """The block as a reply that is not streamed would have it."""
        found = {**self._start, **self._values}
        for key, pieces in self._pieces.items():
            begun = found.get(key)
            found[key] = joined_text([begun, *pieces] if isinstance(begun, str) else pieces)
        if self._citations:
            found["citations"] = self._citations
        if self._json:
            found["input"] = document("".join(self._json).encode("utf-8", "surrogatepass"))
        return found

    @property
    def call(self) -> str | None:
        """A call of ours as JSON; None where its input is no object."""
        whole = self.whole
        return as_json(whole).decode() if isinstance(whole.get("input"), dict) else None


class Round:
    """What is said in one round."""

    def __init__(self) -> None:
        self.over = False
        self.blocks: dict[int, Block] = {}

    @property
    def ours(self) -> list[Block]:
        """The calls of the recall tool."""
        return [block for block in self._ordered if block.is_ours]

    @property
    def theirs(self) -> list[Block]:
        """The calls of the client's own tools."""
        return [block for block in self._ordered if block.is_call and not block.is_ours]

    @property
    def text(self) -> str:
        """What it says to the person."""
        return "".join(block.text for block in self._ordered)

    @property
    def _ordered(self) -> Sequence[Block]:
        return [block for _, block in sorted(self.blocks.items())]

    def below(self, index: int) -> int:
        """How many calls of ours stand before a block."""
        return sum(1 for at, block in self.blocks.items() if at < index and block.is_ours)

    def alone(self, last: bool) -> Exchange:
        """The exchange of a round with no other calls."""
        kept = noted([None if block.is_ours else block.whole for block in self._ordered])
        return Exchange(len(self.text), tuple(map(_written, self.ours)), (), kept, last)

    def mixed(self, cut: bool) -> Exchange | None:
        """The exchange of a round with calls of the client's; without what was `cut` off."""
        dropped = [block for block in self.ours if cut and block.call is None]
        calls = [block for block in self._ordered if block.is_call and block not in dropped]
        places = tuple(at for at, block in enumerate(calls) if block.is_ours)
        written = tuple(_written(calls[at]) for at in places)
        return Exchange(len(self.text), written, places) if places else None


def _written(call: Block) -> str:
    """Input that is no object becomes an empty one: the API takes nothing else."""
    return call.call or as_json({**call.whole, "input": {}}).decode()

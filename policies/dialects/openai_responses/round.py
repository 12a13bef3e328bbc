"""One round of a reply: its items as they come, and which are calls of ours.

A round ends with one of these:
  no call of ours                 the reply is over as it came
  calls of ours and the client's  over; ours are answered when the client returns
  ours alone                      the reply waits for its next round, and the client hears of no end
  ours alone, no round left       over, for max_output_tokens; so with calls that the provider cut off, as it says
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from policies.dialects.common import as_json
from policies.dialects.events import Json, document, joined_text
from policies.dialects.openai_responses.items import CALLS, called, texts_of, type_of
from policies.model.edits import Exchange
from policies.tools import RECALL

_ASKING = frozenset({*CALLS, "local_shell_call", "computer_call", "mcp_approval_request"})
"""What the client has to answer, but for what was answered at the provider."""


class Entry:
    """One item of the output, from its events."""

    def __init__(self, index: int, item: Json) -> None:
        self.index = index
        self.item = item
        self.ours: bool | None = _whose(item)
        """None while the name is not known."""
        self._said: dict[int, list[str]] = {}

    def hear(self, event: Json) -> None:
        """A further event of this item."""
        item, delta, at = event.get("item"), event.get("delta"), event.get("content_index")
        if isinstance(item, dict):
            self.become(item)
        elif event.get("type") == "response.output_text.delta" and isinstance(delta, str) and isinstance(at, int):
            self._said.setdefault(at, []).append(delta)

    def become(self, item: Json) -> None:
        """The whole item."""
        self.item, self._said = item, {}
        if self.ours is None:
            self.ours = _whose(item) or False

    @property
    def text(self) -> str:
        """What it says to the client."""
        said = ["".join(texts_of(self.item))] if type_of(self.item) == "message" else []
        return joined_text([*said, *(piece for at in sorted(self._said) for piece in self._said[at])])

    @property
    def asks(self) -> bool:
        """Whether it is a call that its client has to answer."""
        if type_of(self.item) == "tool_search_call":
            return self.item.get("execution") == "client"
        return type_of(self.item) in _ASKING

    @property
    def arguments(self) -> str | None:
        """The arguments of a call of ours; None where they are no JSON object."""
        found = self.item.get("arguments")
        text = found if isinstance(found, str) else as_json(found).decode()
        return text if document(text.encode("utf-8", "surrogatepass")) is not None else None

    def written(self, place: int) -> str:
        """A call of ours as JSON. Strict upstreams refuse arguments that are none, so these become empty ones."""
        arguments, call_id = self.arguments or "{}", self.item.get("call_id")
        if not (isinstance(call_id, str) and call_id):
            call_id = _made_id(place, arguments)
        return as_json({**self.item, "call_id": call_id, "name": RECALL, "arguments": arguments}).decode()


def _whose(item: Json) -> bool | None:
    if item.get("type") != "function_call" or item.get("namespace"):
        return False
    return item.get("name") == RECALL if item.get("name") else None


def _made_id(place: int, arguments: str) -> str:
    """An id for a call that came without: the same wherever it is made."""
    return "call_" + sha256(f"{place} {arguments}".encode("utf-8", "surrogatepass")).hexdigest()[:24]


class Round:
    """All items of one round."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def hear(self, event: Json, index: int) -> None:
        """An event about one of them."""
        item = event.get("item")
        begins = event.get("type") == "response.output_item.added"
        if isinstance(item, dict) and (begins or index not in self._entries):
            self._entries[index] = Entry(index, item)
        if index in self._entries and not begins:
            self._entries[index].hear(event)

    def end(self, output: object) -> None:
        """No more of it comes; `output` are its items as the provider sums them up. Some leave them out there."""
        for at, item in enumerate(output if isinstance(output, list) else ()):
            if isinstance(item, dict):
                self._entries.setdefault(at, Entry(at, item)).become(item)
        for entry in self._entries.values():
            entry.ours = entry.ours or False

    @property
    def entries(self) -> list[Entry]:
        """The items in their order."""
        return [self._entries[index] for index in sorted(self._entries)]

    @property
    def undecided(self) -> bool:
        """Whether a call is nobody's yet."""
        return any(entry.ours is None for entry in self._entries.values())

    @property
    def ours(self) -> list[Entry]:
        """The calls of the recall tool."""
        return [entry for entry in self.entries if entry.ours]

    @property
    def shown(self) -> list[Json]:
        """The items that the client gets."""
        return [entry.item for entry in self.entries if not entry.ours]

    @property
    def is_mixed(self) -> bool:
        """Whether the client has calls to answer, too."""
        done = {entry.item.get("call_id") for entry in self.entries if type_of(entry.item).endswith("_output")}
        return any(not entry.ours and entry.asks and entry.item.get("call_id") not in done for entry in self.entries)

    def is_ours(self, index: int) -> bool:
        """Whether an item is a call of the recall tool."""
        return index in self._entries and bool(self._entries[index].ours)

    def below(self, index: int) -> int:
        """How many calls of ours stand before an item."""
        return sum(1 for entry in self._entries.values() if entry.ours and entry.index < index)

    @property
    def text(self) -> str:
        """What it says to the client."""
        return "".join(entry.text for entry in self.entries)

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The calls that the client gets, those among them that it knows again."""
        found = (called(item) for item in self.shown)
        return tuple(call_id for call_id in found if call_id is not None)

    def exchange(self, cut: bool, alone: bool, last: bool) -> Exchange | None:
        """The round as it is remembered; None where no call of ours is whole. `cut`: the provider broke off."""
        dropped = [entry for entry in self.ours if cut and entry.arguments is None]
        entries = [entry for entry in self.entries if entry not in dropped]
        calls = [entry for entry in entries if type_of(entry.item) in CALLS]
        places = {entry: place for place, entry in enumerate(calls) if entry.ours}
        if not places:
            return None
        written = tuple(entry.written(place) for entry, place in places.items())
        stood = () if alone else tuple(places.values())
        return Exchange(len(self.text), written, stood, _fields(entries, alone), last)


def _fields(entries: Sequence[Entry], alone: bool) -> str:
    """The items around the calls of ours, without their texts; "" where there are none."""
    layout = [_placed(entry, alone) for entry in entries if entry.ours or _can_return(entry.item)]
    while alone and layout and layout[-1] is None:
        layout.pop()
    return as_json(layout).decode() if any(isinstance(entry, dict) for entry in layout) or not alone else ""


def _placed(entry: Entry, alone: bool) -> object:
    if entry.ours:
        return None
    return True if not alone and type_of(entry.item) in CALLS else _silent(entry.item)


def _silent(item: Json) -> Json:
    """A message with the length of each text in the place of the text."""
    content = item.get("content")
    if type_of(item) != "message" or not isinstance(content, list):
        return item
    return {**item, "content": [_measured(part) if isinstance(part, dict) else part for part in content]}


def _measured(part: Json) -> Json:
    text = part.get("text")
    if not isinstance(text, str):
        return part
    return {**{key: value for key, value in part.items() if key != "logprobs"}, "text": len(text)}


def _can_return(item: Mapping[str, object]) -> bool:
    """Whether the provider takes an item back: of reasoning that it neither seals nor says it knows nothing more where
    it stores nothing ("Item with id 'rs_...' not found")."""
    return type_of(item) != "reasoning" or bool(item.get("encrypted_content") or item.get("content"))

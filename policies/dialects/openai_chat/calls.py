"""The tool calls of one message as they come: which are ours, and what the client gets of the others.

Laws: a call is nobody's until its name says whose it is, and what follows it waits so long, so that the client gets
its calls in their order; the client's indexes have no gap where a call of ours was.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from policies.dialects.common import as_json
from policies.dialects.events import Json, document
from policies.dialects.openai_chat.pieces import gathered, of_a_call
from policies.tools import RECALL


class Call:
    """One call, from its pieces."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.ours: bool | None = None
        """None while the name may yet become ours."""
        self._name = ""
        self._kept: list[object] = []

    def take(self, entry: object) -> None:
        """The next piece of it."""
        self._kept.append(entry)
        if not self.id:
            self.id = id_of(entry)
        if self.ours is None:
            self._name += name_of(entry)
            self.ours = self._whose(entry)

    def _whose(self, entry: object) -> bool | None:
        if self._name == RECALL:
            return True
        if not isinstance(entry, dict) or not isinstance(entry.get("function", {}), dict | None):
            return False
        if entry.get("type") not in (None, "", "function") or not RECALL.startswith(self._name):
            return False
        return None

    def released(self, below: int) -> list[object]:
        """What the client gets of it now, as one entry; `below`: how many calls of ours stand before it."""
        pieces, self._kept = self._kept, []
        if not pieces:
            return []
        entry = gathered(pieces, of_a_call)
        if below and isinstance(entry, dict) and isinstance(entry.get("index"), int):
            entry = {**entry, "index": entry["index"] - below}
        return [entry]

    @property
    def arguments(self) -> str | None:
        """The arguments of a call of ours; None where they are no JSON object."""
        found = self._whole()[1].get("arguments")
        text = found if isinstance(found, str) else as_json(found).decode()
        return text if document(text.encode("utf-8", "surrogatepass")) is not None else None

    def written(self, place: int) -> str:
        """A call of ours as JSON. Strict upstreams refuse arguments that are none, so these become empty ones."""
        whole, function = self._whole()
        arguments = self.arguments or "{}"
        call = {
            **{key: value for key, value in whole.items() if key != "index"},
            "id": self.id or _made_id(place, arguments),
            "type": "function",
            "function": {**function, "name": RECALL, "arguments": arguments},
        }
        return as_json(call).decode()

    def _whole(self) -> tuple[Json, Json]:
        """The call and the function in it."""
        whole = gathered(self._kept, of_a_call)
        whole = whole if isinstance(whole, dict) else {}
        function = whole.get("function")
        return whole, function if isinstance(function, dict) else {}


class Calls:
    """All calls of one message."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._at: dict[int, Call] = {}

    def take(self, entries: Sequence[object], final: bool) -> list[object]:
        """The entries that the client gets now. `final`: no name grows any more."""
        for position, entry in enumerate(entries):
            self._call(entry, position).take(entry)
        if final:
            for call in self._calls:
                call.ours = call.ours or False
        return [entry for call in self._decided() if not call.ours for entry in call.released(self._below(call))]

    def _call(self, entry: object, position: int) -> Call:
        """The call that an entry belongs to. Servers that know no index, or give each call the same one, send each
        call whole: a new id and a name."""
        index = entry.get("index") if isinstance(entry, dict) else None
        index = index if isinstance(index, int) else position
        call = self._at.get(index)
        if call is None or (call.id not in ("", id_of(entry)) and id_of(entry) and name_of(entry)):
            call = self._at[index] = Call(index)
            self._calls.append(call)
        return call

    def _decided(self) -> Iterable[Call]:
        """The calls before the first that is still nobody's."""
        for call in self._calls:
            if call.ours is None:
                return
            yield call

    def _below(self, call: Call) -> int:
        return sum(1 for other in self._calls if other.ours and other.index < call.index)

    @property
    def undecided(self) -> bool:
        """Whether a call is nobody's yet."""
        return any(call.ours is None for call in self._calls)

    @property
    def ours(self) -> list[Call]:
        """The calls of the recall tool."""
        return [call for call in self._calls if call.ours]

    @property
    def theirs(self) -> list[Call]:
        """The calls of the client's own tools."""
        return [call for call in self._calls if call.ours is False]

    def places(self, dropped: Sequence[Call]) -> dict[Call, int]:
        """Where each call stands in its message, without those that are dropped."""
        ordered = sorted((call for call in self._calls if call not in dropped), key=lambda call: call.index)
        return {call: place for place, call in enumerate(ordered)}


def id_of(entry: object) -> str:
    """The id in one piece of a call."""
    found = entry.get("id") if isinstance(entry, dict) else None
    return found if isinstance(found, str) else ""


def name_of(entry: object) -> str:
    """The part of the name in one piece of a call."""
    function = entry.get("function") if isinstance(entry, dict) else None
    found = function.get("name") if isinstance(function, dict) else None
    return found if isinstance(found, str) else ""


def _made_id(place: int, arguments: str) -> str:
    """An id for a call that came without: the same wherever it is made."""
    return "call_" + sha256(f"{place} {arguments}".encode("utf-8", "surrogatepass")).hexdigest()[:24]

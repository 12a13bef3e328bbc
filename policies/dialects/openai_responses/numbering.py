"""Events written anew: the numbers of a stream from which events were taken, without a gap.

Law: as long as nothing is taken and nothing changes, an event is the very bytes that came.
"""

from collections.abc import Mapping

from policies.dialects.common import as_json
from policies.dialects.events import Json, read_event, text_of
from policies.model.rawjson import Path, UnreadableError, find, items, members, spliced
from policies.tools import RECALL

_NUMBER = "sequence_number"
_OURS = f'"{RECALL}"'.encode()


class Numbering:
    """Gives each event that is handed on the number after the one before it."""

    def __init__(self) -> None:
        self._shift = 0
        self._next = 0
        self._begins = False
        self._unread = b""

    @property
    def next(self) -> int:
        """The number of the event that the client is to get next."""
        number = self._number(read_event(self._unread) or {})
        return self._next if number is None else number + 1

    def hand_on(self, event: bytes) -> None:
        """An event that the client gets as it came, and that nobody need read."""
        if _NUMBER.encode() in event:
            self._unread = event

    def resume(self) -> None:
        """What comes now is the next round, which counts from its own beginning."""
        self._begins = True

    def skip(self, said: Mapping[str, object]) -> None:
        """An event that the client does not get."""
        if self._number(said) is not None:
            self._shift -= 1

    def put(self, said: Json, event: bytes, changes: Mapping[str, object]) -> bytes:
        """An event as the client gets it; itself where it says the same."""
        number = self._number(said)
        new = dict(changes)
        if number is not None:
            self._next = number + self._shift + 1
            new[_NUMBER] = number + self._shift
        if all(said.get(key) == value for key, value in new.items()):
            return event
        return written({**said, **new}, event)

    def _number(self, said: Mapping[str, object]) -> int | None:
        found = said.get(_NUMBER)
        if type(found) is not int:
            return None
        if self._begins:
            self._shift, self._begins = self._next - found, False
        return found


def written(said: Json, event: bytes) -> bytes:
    """The event with other data, named as it was."""
    data = b"data: " + as_json(said) + b"\n\n"
    is_named = b"event:" in event[: event.find(b"data:")]
    return b"event: " + str(said.get("type")).encode() + b"\n" + data if is_named else data


def without_tool(event: bytes, path: Path) -> bytes:
    """The event, or the body, without our tool in what it repeats of the request: the tools at `path`."""
    text = text_of(event)
    if _OURS not in text or event.count(text) != 1:
        return event
    try:
        start, end = find(text, path)
        found = items(text, start, end)
        kept = [text[a:b] for a, b in found if text[slice(*members(text, a, b).get("name", (0, 0)))] != _OURS]
    except (UnreadableError, KeyError):
        return event
    if len(kept) == len(found):
        return event
    return event.replace(text, spliced(text, [((start, end), b"[" + b",".join(kept) + b"]")]))

"""Events written anew: the numbers of a stream from which events were taken, without a gap.

Law: as long as nothing is taken and nothing changes, an event is the very bytes that came.
"""

import re
from collections.abc import Mapping

from policies.dialects.events import Json, framed, read_event, text_of
from policies.model.rawjson import Path, UnreadableError, find, items, members, spliced
from policies.tools import RECALL

_NUMBER = "sequence_number"
_BLANK = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_OURS = f'"{RECALL}"'.encode()


class Numbering:
    """Gives each event that is relayed the number after the one before it."""

    def __init__(self) -> None:
        self._shift = 0
        self._next = 0
        self._begins = False
        self._unread = b""

    @property
    def changes(self) -> bool:
        """Whether events get other numbers than they came with."""
        return self._shift != 0

    @property
    def next(self) -> int:
        """The number of the event that the client is to get next."""
        events = [event for event in _BLANK.split(self._unread) if _NUMBER.encode() in event]
        number = self._number(read_event(events[-1]) or {}) if events else None
        return self._next if number is None else number + 1

    def relay_unread(self, events: bytes) -> None:
        """The client gets whole events as they came. They are read only if the next number is asked for."""
        if _NUMBER.encode() in events:
            self._unread = events

    def pass_on(self, number: int) -> None:
        """The client gets the event of this number as it came."""
        self._next = number + self._shift + 1

    def resume(self) -> None:
        """What comes now is the next round, which counts from its own beginning."""
        self._begins = True

    def skip(self, content: Mapping[str, object]) -> None:
        """The client does not get an event."""
        if self._number(content) is not None:
            self._shift -= 1

    def relay(self, content: Json, event: bytes, changes: Mapping[str, object]) -> bytes:
        """An event as the client gets it; itself where nothing changes. Its name stays."""
        number = self._number(content)
        new = dict(changes)
        if number is not None:
            self._next = number + self._shift + 1
            new[_NUMBER] = number + self._shift
        if all(content.get(key) == value for key, value in new.items()):
            return event
        return framed({**content, **new}, named=b"event:" in event[: event.find(b"data:")])

    def _number(self, content: Mapping[str, object]) -> int | None:
        number = content.get(_NUMBER)
        if type(number) is not int:
            return None
        if self._begins:
            self._shift, self._begins = self._next - number, False
        return number


def without_tool(event: bytes, path: Path) -> bytes:
    """The event, or the body, without our tool in what it repeats of the request: the tools at `path`."""
    text = text_of(event)
    if _OURS not in text or event.count(text) != 1:
        return event
    try:
        start, end = find(text, path)
        tools = items(text, start, end)
        theirs = [text[a:b] for a, b in tools if text[slice(*members(text, a, b).get("name", (0, 0)))] != _OURS]
    except (UnreadableError, KeyError):
        return event
    if len(theirs) == len(tools):
        return event
    return event.replace(text, spliced(text, [((start, end), b"[" + b",".join(theirs) + b"]")]))

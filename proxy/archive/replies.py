"""A reader of a reply that keeps what the client receives, so that the log has the reply at once."""

from collections.abc import Sequence

from policies.dialects import ChoiceResult, Reply, Usage


class LoggedReply:
    """Reads a reply as the reader within does, and holds its bytes as the client gets them, `limit` of them at most."""

    def __init__(self, reply: Reply, limit: int) -> None:
        self._reply = reply
        self._left = limit
        self._pieces: list[bytes] = []

    @property
    def content(self) -> bytes:
        """What the client has received; empty where that is too much."""
        return b"".join(self._pieces)

    @property
    def size(self) -> int:
        return sum(map(len, self._pieces))

    @property
    def usage(self) -> Usage | None:
        return self._reply.usage

    @usage.setter
    def usage(self, usage: Usage | None) -> None:
        self._reply.usage = usage

    @property
    def pending(self) -> Sequence[int]:
        return self._reply.pending

    @property
    def over(self) -> Sequence[int]:
        return self._reply.over

    @property
    def completion(self) -> int:
        return self._reply.completion

    def feed(self, event: bytes, /) -> list[bytes]:
        pieces = self._reply.feed(event)
        self._hold(pieces)
        return pieces

    def feed_all(self, events: bytes, /) -> list[bytes] | None:
        pieces = self._reply.feed_all(events)
        if pieces is not None:
            self._hold(pieces)
        return pieces

    def resume(self, choice: int, /) -> None:
        self._reply.resume(choice)

    def result(self, choice: int, /) -> ChoiceResult:
        return self._reply.result(choice)

    def last_event(self, failure: bytes, /) -> bytes:
        return self._reply.last_event(failure)

    def _hold(self, pieces: Sequence[bytes]) -> None:
        if self._left < 0:
            return
        self._left -= sum(map(len, pieces))
        self._pieces.extend(pieces)
        if self._left < 0:
            self._pieces.clear()

"""Readers around another reader of a reply, and one that holds what the client receives: the log has it at once."""

from collections.abc import Sequence

from policies.dialects import ChoiceResult, Reply, Usage


class ReplyAround:
    """Reads a reply as the reader within does."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

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
        return self._reply.feed(event)

    def feed_all(self, events: bytes, /) -> list[bytes] | None:
        return self._reply.feed_all(events)

    def resume(self, choice: int, /) -> None:
        self._reply.resume(choice)

    def result(self, choice: int, /) -> ChoiceResult:
        return self._reply.result(choice)

    def last_event(self, failure: bytes, /) -> bytes:
        return self._reply.last_event(failure)


class LoggedReply(ReplyAround):
    """Holds the bytes of a reply as the client gets them, `limit` of them at most."""

    def __init__(self, reply: Reply, limit: int) -> None:
        super().__init__(reply)
        self._left = limit
        self._pieces: list[bytes] = []

    @property
    def content(self) -> bytes:
        """What the client has received; empty where that is too much."""
        return b"".join(self._pieces)

    @property
    def size(self) -> int:
        return sum(map(len, self._pieces))

    def feed(self, event: bytes, /) -> list[bytes]:
        pieces = self._reply.feed(event)
        self._hold(pieces)
        return pieces

    def feed_all(self, events: bytes, /) -> list[bytes] | None:
        pieces = self._reply.feed_all(events)
        if pieces is not None:
            self._hold(pieces)
        return pieces

    def _hold(self, pieces: Sequence[bytes]) -> None:
        if self._left < 0:
            return
        self._left -= sum(map(len, pieces))
        self._pieces.extend(pieces)
        if self._left < 0:
            self._pieces.clear()

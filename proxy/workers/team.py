"""What the workers of one start share: it is made before they are forked, and each of them inherits it.

Laws
  A message to a worker arrives whole, or the sender learns that it does not, at once.
  What waits for a worker that dies is read by the one that takes its place.
  A worker that stands still is sent no requests.
"""

import mmap
import os
import socket
import time
from collections.abc import Sequence

_LONGEST_MESSAGE = 4_096
_STANDSTILL = 3.0
"""Seconds after which a worker that gives no sign of life stands still."""


class Team:
    """The listening sockets, a channel to each worker, and who of them serves."""

    def __init__(self, count: int, listening: Sequence[socket.socket], secret: bytes) -> None:
        self.count = count
        self.listening = listening
        self.secret = secret
        """The key of the hash that names tenants, the same in all workers."""
        # of all kinds of sockets this one keeps messages apart, passes files, and is bounded in bytes
        self._channels = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        for end in (end for pair in self._channels for end in pair):
            end.setblocking(False)
        self._signs = memoryview(mmap.mmap(-1, 8 * count)).cast("d")  # shared with every worker
        """When each worker last gave a sign of life; 0 for one that does not serve."""

    def serves(self, number: int) -> bool:
        return self._signs[number] > 0

    def is_awake(self, number: int) -> bool:
        return time.monotonic() - self._signs[number] < _STANDSTILL

    def set_serving(self, number: int, serves: bool) -> None:
        """To be called at least every second by a worker that serves."""
        self._signs[number] = time.monotonic() if serves else 0.0

    def channel(self, number: int) -> int:
        """The file that is readable when there is a message for this worker."""
        return self._channels[number][0].fileno()

    def send(self, number: int, message: bytes, files: Sequence[int]) -> bool:
        """Send a message with open files; whether it was taken."""
        if not self.serves(number) or len(message) > _LONGEST_MESSAGE:
            return False
        try:
            socket.send_fds(self._channels[number][1], [message], files)
        except OSError:  # too much waits there
            return False
        return True

    def receive(self, number: int) -> tuple[bytes, list[int]] | None:
        """The next message for this worker, and its files: none where this process has no room for them. None where
        there is no message."""
        try:
            message, files, flags, _ = socket.recv_fds(self._channels[number][0], _LONGEST_MESSAGE, 2)
        except BlockingIOError:
            return None
        if flags & socket.MSG_CTRUNC:
            for file in files:
                os.close(file)
            files = []
        return message, files

    def close(self) -> None:
        """Let go of the channels; the listening sockets are the supervisor's."""
        for end in (end for pair in self._channels for end in pair):
            end.close()

"""What the workers of one start share: it is made before they are forked, and each of them inherits it.

Laws
  A message to a worker arrives whole, or the sender learns that it does not, at once.
  What waits for a worker that dies is read by the one that takes its place.
"""

import mmap
import socket
from collections.abc import Sequence

_LONGEST_MESSAGE = 4_096


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
        self._serving = mmap.mmap(-1, count)  # shared with every worker

    def serves(self, number: int) -> bool:
        return self._serving[number] == 1

    def set_serving(self, number: int, serves: bool) -> None:
        self._serving[number] = serves

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
        """The next message for this worker, and its files; None where there is none."""
        try:
            message, files, _, _ = socket.recv_fds(self._channels[number][0], _LONGEST_MESSAGE, 2)
        except BlockingIOError:
            return None
        return message, files

    def close(self) -> None:
        """Let go of the channels; the listening sockets are the supervisor's."""
        for end in (end for pair in self._channels for end in pair):
            end.close()

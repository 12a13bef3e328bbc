"""One worker's side of its team.

Laws
  A request is passed on whole, with its connection, or not at all; what is passed on is what the client sent.
  A request that cannot be passed on is served here.
  Whatever other workers ask is answered at once, or the asker goes on without it.
"""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from zlib import crc32

import msgspec
from aiohttp import web

from proxy.kernel.wire.listener import Connection, Listener
from proxy.memory.forgetting import ForgetRegistry
from proxy.requests import ClientRequest
from proxy.telemetry import Telemetry
from proxy.workers.team import Team, packed, page

_SMALL = 12_288
"""Bytes of a body below which a history is too short to be compacted: to plan it anew costs less than to pass it on."""
_PATIENCE = 2.0
"""Seconds that another worker has to answer."""
_SIGN_SECONDS = 1.0
"""Between two signs of life."""
_SETTLING_SECONDS = 0.05
"""After so long nobody sends requests to a worker that has said that it leaves."""
_REQUEST, _METRICS, _FORGET = b"r", b"m", b"f"
_CHANGED = frozenset({b"content-length", b"transfer-encoding", b"trailer", b"expect"})
"""Headers that say how a body comes: passed on, it is all there."""


class Worker:
    """Passes requests on to the workers that serve their conversations, and takes over what others pass on."""

    def __init__(self, team: Team, number: int, control: socket.socket) -> None:
        self.team = team
        self.number = number
        self.retires = False
        """Whether others take this worker's place, so that it accepts no connection any more."""
        self._control = control
        self._answering: set[asyncio.Task[None]] = set()
        self._answers: Mapping[bytes, Callable[[bytes], bytes]] = {}
        self._listener: Listener | None = None
        self._signing: asyncio.TimerHandle | None = None

    # Its life: join the team, hear from the supervisor, leave.

    def join(self, listener: Listener, telemetry: Telemetry, forgets: ForgetRegistry) -> None:
        """From now on it takes over requests, and tells the supervisor so."""

        def forget(message: bytes) -> bytes:
            forgets.forget(*msgspec.msgpack.decode(message, type=tuple[str, str | None]))
            return b"done"

        self._answers = {_METRICS: lambda _: packed(telemetry.metrics.registry), _FORGET: forget}
        self._listener, self._telemetry = listener, telemetry
        asyncio.get_running_loop().add_reader(self.team.channel(self.number), self._receive)
        self._give_sign()
        self._control.send(b"ready")

    def _give_sign(self) -> None:
        self.team.set_serving(self.number, True)
        self._signing = asyncio.get_running_loop().call_later(_SIGN_SECONDS, self._give_sign)

    def obey(self, stop: Callable[[], None], hurry: Callable[[], None]) -> None:
        """Call these as the supervisor orders. Where the supervisor is gone, the worker retires."""

        def hear() -> None:
            order = self._control.recv(64)
            self.retires |= order in (b"", b"retire")
            (hurry if order == b"hurry" else stop)()
            if not order:
                loop.remove_reader(self._control.fileno())

        loop = asyncio.get_running_loop()
        loop.add_reader(self._control.fileno(), hear)

    async def leave(self) -> None:
        """No request is passed on to this worker or by it any more; those on their way are taken over."""
        if self._signing is not None:
            self._signing.cancel()
        self.team.set_serving(self.number, False)
        await asyncio.sleep(_SETTLING_SECONDS)

    # Requests

    def pass_on(self, request: web.BaseRequest, client_request: ClientRequest, body: bytes) -> bool:
        """Pass a request on to the worker that serves its conversation: true where that one now has the connection.
        `body`: as it was on the wire."""
        if len(client_request.body) < _SMALL or client_request.mode == "off" or not self.team.serves(self.number):
            return False
        number = owner(client_request.tenant, client_request.conversation, client_request.body, self.team.count)
        connection, transport = request.protocol, request.transport
        if number is None or number == self.number or not self.team.is_awake(number):
            return False
        if transport is None or transport.get_write_buffer_size():  # there is more of an earlier reply to write
            return False
        if not isinstance(connection, Connection) or not connection.is_read_up_to(body):
            return False
        head = _head(request, len(body))
        if not self._send(number, transport, _REQUEST + client_request.id.encode(), head, body):
            return False
        transport.abort()  # this process's end of it
        return True

    def _send(self, number: int, transport: asyncio.Transport, message: bytes, head: bytes, body: bytes) -> bool:
        """Send a connection to another worker, with the request that was read from it; whether it was taken."""
        content = os.memfd_create("request")
        try:
            if os.writev(content, [head, body]) < len(head) + len(body):
                return False
            return self.team.send(number, message, [transport.get_extra_info("socket").fileno(), content])
        except OSError:
            return False
        finally:
            os.close(content)

    def _receive(self) -> None:
        """Take a message from another worker."""
        received = self.team.receive(self.number)
        if received is None:
            return
        message, files = received
        if not files:  # too many are open here: whoever sent it goes on without an answer
            self._telemetry.log.error("too_many_open_files")
            return
        if message[:1] == _REQUEST:
            task = self._take_over(message[1:].decode(), *files)
        else:
            task = self._reply(files[0], self._answers[message[:1]](message[1:]))
        running = asyncio.ensure_future(task)
        self._answering.add(running)
        running.add_done_callback(self._answering.discard)

    async def _take_over(self, request_id: str, connection: int, content: int) -> None:
        """Serve a request that another worker has read and given this id, and what else comes on its connection."""
        assert self._listener is not None
        listener, data = self._listener, os.pread(content, os.fstat(content).st_size, 0)
        os.close(content)
        with suppress(OSError):  # the client has left
            sock = socket.socket(fileno=connection)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: listener.resumed(data, request_id), sock)

    # What concerns all workers

    async def scrape(self) -> bytes:
        """The metrics of all workers."""
        answers = await self._ask_others(_METRICS)
        return await asyncio.to_thread(page, {self.number: self._answers[_METRICS](b""), **answers})

    async def forget(self, tenant: str, conversation: str | None) -> None:
        """Have all other workers forget a conversation, or all of a tenant."""
        answers = await self._ask_others(_FORGET + msgspec.msgpack.encode((tenant, conversation)))
        if silent := self.team.count - 1 - len(answers):
            self._telemetry.log.warning("workers_silent", count=silent)

    async def _ask_others(self, message: bytes) -> Mapping[int, bytes]:
        """What the other workers answer, by their numbers; those that do not are left out."""
        others = [number for number in range(self.team.count) if number != self.number]
        answers = await asyncio.gather(*(self._ask(number, message) for number in others))
        return {number: answer for number, answer in zip(others, answers, strict=True) if answer}

    async def _ask(self, number: int, message: bytes) -> bytes:
        ours, theirs = socket.socketpair()
        with theirs:
            if not self.team.send(number, message, [theirs.fileno()]):
                ours.close()
                return b""
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            async with asyncio.timeout(_PATIENCE):
                return await reader.read()
        except (TimeoutError, OSError):
            return b""
        finally:
            writer.close()

    async def _reply(self, file: int, answer: bytes) -> None:
        _, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=file))
        writer.write(answer)
        writer.close()


def _head(request: web.BaseRequest, length: int) -> bytes:
    """The head of a request whose body has this length, as it would come from the client."""
    version = request.version
    target = request.raw_path.encode("utf-8", "surrogateescape")
    lines = [b"%s %s HTTP/%d.%d" % (request.method.encode(), target, version.major, version.minor)]
    lines += [b"%s: %s" % each for each in request.raw_headers if each[0].lower() not in _CHANGED]
    return b"\r\n".join([*lines, b"Content-Length: %d" % length, b"", b""])


# --- which worker a request belongs to, found without decoding its body: some 20 microseconds, whatever its size ---
# Law: requests of one conversation have one owner for as long as its name, or the first message of the user, stays. A
# request whose owner cannot be told is served by whoever has it. A wrong guess costs a look at the store, no more.

_ENDS = 16_384
"""Bytes at either end of a body in which the name of a conversation is looked for."""
_LONGEST = 32_768
"""Bytes of a first message that count."""
_NAME = re.compile(rb'"(?:prompt_cache_key|conversation_id)"\s*+:\s*+("[^"\\]++")')
_ROLE = re.compile(rb'"role"\s*+:\s*+"user"')
_PIECE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[]}]', re.DOTALL)
"""A string of JSON, which may be cut off, or where a list or an object begins or ends."""


def owner(tenant: str, conversation: str | None, body: bytes, count: int) -> int | None:
    """The number of the worker, of `count`, that serves this conversation; None where the request does not tell.
    `conversation`: its name in a header."""
    name = conversation.encode("utf-8", "surrogateescape") if conversation else _name(body) or _first_message(body)
    return crc32(name, crc32(tenant.encode("utf-8", "surrogateescape"))) % count if name else None


def _name(body: bytes) -> bytes:
    """The name of the conversation in the body: it stands before the history or after it."""
    match = _NAME.search(body, 0, _ENDS) or _NAME.search(body, max(_ENDS, len(body) - _ENDS))
    return match[1] if match else b""


def _first_message(body: bytes) -> bytes:
    """The first message of the user, which stays while a conversation grows."""
    role = _ROLE.search(body)
    if role is None:
        return b""
    depth = 0
    for piece in _PIECE.finditer(body, role.end(), role.end() + _LONGEST):
        first = piece[0][:1]
        depth += (first in b"[{") - (first in b"]}")
        if depth < 0:
            # some clients sort keys, and the content stands before the role
            start = body.rfind(b'{"content"', 0, role.start())
            return body[role.end() : piece.start()].strip() or body[max(start, 0) : role.start()][:_LONGEST]
    return body[role.end() : role.end() + _LONGEST]

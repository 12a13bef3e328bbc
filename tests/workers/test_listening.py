"""Where nothing can listen, the setting at fault is named, and what to do."""

import asyncio
import errno
import os
import socket

import pytest

from proxy.app import App
from proxy.config import ConfigurationError, Settings
from proxy.workers.listening import cannot_listen, listening_sockets
from tests.kit.running import Start

REMEDY = "; give 127.0.0.1 for this machine alone, or 0.0.0.0 for all its addresses"


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("192.0.2.1", f"host: 192.0.2.1 is no address of this machine{REMEDY}"),
        ("a..b", f"host: there is no address for the name 'a..b'{REMEDY}"),
    ],
)
async def test_a_host_that_is_none_names_host(host: str, words: str) -> None:
    settings = Settings(upstream="http://127.0.0.1:9/v1", port=0, store="sqlite://", host=host)
    with pytest.raises(ConfigurationError) as alone:
        await App.start(settings)
    with pytest.raises(ConfigurationError) as several:
        listening_sockets(host, 0, 2)
    assert str(alone.value) == str(several.value) == words


async def test_a_port_in_use_says_by_whom(narrows: Start) -> None:
    setup = await narrows()
    with pytest.raises(ConfigurationError, match=f"port: {setup.port} on 127.0.0.1 is in use by another Narrows; end"):
        await App.start(setup.app.settings.model_copy(update={"port": setup.port}))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        refused = await asyncio.to_thread(cannot_listen, "127.0.0.1", port, OSError(errno.EADDRINUSE, "in use"))
    assert str(refused).startswith(f"port: {port} on 127.0.0.1 is in use by another program (`lsof -i :{port}` names")


def test_several_workers_share_their_port_with_nobody_else() -> None:
    sockets = listening_sockets("127.0.0.1", 0, 2)
    port = sockets[0][0].getsockname()[1]
    try:
        assert [each.getsockname()[1] for (each,) in sockets] == [port, port]
        with pytest.raises(ConfigurationError, match=f"port: {port} on 127.0.0.1 is in use by another program"):
            listening_sockets("127.0.0.1", port, 2)
    finally:
        for (each,) in sockets:
            each.close()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "port: 80 needs the right to use ports below 1024; choose one above, such as 8787"),
        (errno.EAFNOSUPPORT, f"host: this machine has no addresses such as ::1{REMEDY}"),
        (errno.EINVAL, f"host: nothing can listen on ::1{REMEDY}"),
        (errno.ENOBUFS, "port: cannot listen on ::1:80 (No buffer space available); choose another, or 0"),
    ],
)
def test_what_the_system_refuses_is_in_plain_words(number: int, words: str) -> None:
    assert str(cannot_listen("::1", 80, OSError(number, os.strerror(number)))) == words

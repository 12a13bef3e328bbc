"""The sockets on which workers listen, and why there may be none.

Each worker has its own (SO_REUSEPORT), so that the system spreads connections evenly. From one socket for all, the
worker that wakes first would take all that wait, and would serve them for as long as they last.
"""

import errno
import http.client
import socket
from collections.abc import Mapping
from contextlib import closing
from itertools import chain

from proxy.config import ConfigurationError

BACKLOG = 1024
"""Connections that may wait until they are accepted."""
_PATIENCE = 0.5
"""Seconds in which another Narrows says that it is one."""
_HOSTS = "give 127.0.0.1 for this machine alone, or 0.0.0.0 for all its addresses"
_FAULTS: Mapping[int, str] = {
    errno.EADDRNOTAVAIL: f"host: {{host}} is no address of this machine; {_HOSTS}",
    errno.EAFNOSUPPORT: f"host: this machine has no addresses such as {{host}}; {_HOSTS}",
    errno.EINVAL: f"host: nothing can listen on {{host}}; {_HOSTS}",
    errno.EACCES: "port: {port} needs the right to use ports below 1024; choose one above, such as 8787",
}
"""The setting that is wrong and the remedy, by the error of the system."""


def listening_sockets(host: str, port: int, workers: int) -> list[list[socket.socket]]:
    """For each worker one for each address of the host, all on one port. Raises ConfigurationError."""
    sockets: list[list[socket.socket]] = [[] for _ in range(workers)]
    number = port
    try:
        for family, _, _, _, (address, *_) in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            # first as one that shares with nobody: another Narrows of this user would share its port
            with socket.create_server((address, number), family=family) as alone:
                number = alone.getsockname()[1]
            for each in sockets:
                server = socket.create_server((address, number), family=family, backlog=BACKLOG, reuse_port=True)
                each.append(server)
    except (OSError, UnicodeError) as error:
        for server in chain(*sockets):
            server.close()
        raise cannot_listen(host, port, error) from error
    return sockets


def cannot_listen(host: str, port: int, error: OSError | UnicodeError) -> ConfigurationError:
    """Which of the two settings is wrong, and what to do; UnicodeError is of a name that is none."""
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return ConfigurationError(f"host: there is no address for the name {host[:64]!r}; {_HOSTS}")
    if error.errno == errno.EADDRINUSE:
        who = "another Narrows" if _is_narrows(host, port) else f"another program (`lsof -i :{port}` names it)"
        message = f"port: {port} on {host} is in use by {who}; end that one, or choose another --port (0 takes any)"
    elif message := _FAULTS.get(error.errno or errno.EADDRNOTAVAIL, ""):  # newer loops give no number for that
        message = message.format(host=host, port=port)
    else:
        message = f"port: cannot listen on {host}:{port} ({error.strerror}); choose another, or 0"
    return ConfigurationError(message)


def _is_narrows(host: str, port: int) -> bool:
    """True where it is a Narrows that listens there."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
    with closing(http.client.HTTPConnection(here, port, timeout=_PATIENCE)) as connection:
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().headers.get("Server") == "narrows"
        except (OSError, http.client.HTTPException):
            return False

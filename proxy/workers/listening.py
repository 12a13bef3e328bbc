"""The sockets on which all workers listen, and why there may be none."""

import errno
import http.client
import socket
from collections.abc import Mapping
from contextlib import closing

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
"""What is wrong with which setting, by the error of the system, and what to do."""


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address of the host, all on one port. Raises ConfigurationError."""
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            own = sockets[0].getsockname()[1] if sockets else port
            sockets.append(socket.create_server((address[0], own), family=family, backlog=BACKLOG))
    except (OSError, UnicodeError) as error:
        for each in sockets:
            each.close()
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
    """Whether it is a Narrows that listens there."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound here
    with closing(http.client.HTTPConnection(here, port, timeout=_PATIENCE)) as connection:
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().headers.get("Server") == "narrows"
        except (OSError, http.client.HTTPException):
            return False

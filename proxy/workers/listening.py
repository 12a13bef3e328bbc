"""The sockets on which all workers listen."""

import socket

from proxy.config import ConfigurationError

BACKLOG = 1024
"""Connections that may wait until they are accepted."""


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address of the host, all on one port. Raises ConfigurationError."""
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            own = sockets[0].getsockname()[1] if sockets else port
            sockets.append(socket.create_server((address[0], own), family=family, backlog=BACKLOG))
    except OSError as error:
        for each in sockets:
            each.close()
        raise cannot_listen(host, port, error) from error
    return sockets


def cannot_listen(host: str, port: int, error: OSError) -> ConfigurationError:
    message = f"port: cannot listen on {host}:{port} ({error.strerror}); choose another, or 0"
    return ConfigurationError(message)

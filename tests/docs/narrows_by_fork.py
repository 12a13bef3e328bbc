"""`narrows` for the shell blocks of the documents: one process has everything loaded, and each command is a fork of it.

`python -m tests.docs.narrows_by_fork SOCKET` is that process. CLIENT, as a program called `narrows`, passes its words,
environment, folder and files on, and ends as the command does; what listens goes on in the background from then on,
as if the reader had left it in a terminal of its own.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

CLIENT = """\
import json, os, select, socket, sys
from contextlib import closing
serves = sys.argv[1:2] == ["serve"] or "--sink" in sys.argv
files = [0, 1, 2]
if serves:
    log = os.open("serve.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    files = [os.open(os.devnull, os.O_RDONLY), log, log]
port = dict(zip(sys.argv, sys.argv[2:])).get("--port", os.environ.get("NARROWS_PORT"))


def listens():
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


taken = serves and listens()
server = socket.socket(socket.AF_UNIX)
server.connect(os.environ["NARROWS_FORKS"])
socket.send_fds(server, [json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode() + b"\\n"], files)
lines = server.makefile()
number = next(lines)
while serves:
    if not taken and listens():
        with open(os.environ["STARTED"], "a") as started:
            started.write(number)
        sys.exit()
    if select.select([server], [], [], 0.02)[0]:
        print(open("serve.log").read(), file=sys.stderr)
        break
sys.exit(int(next(lines)))
"""


def _run(connection: socket.socket, words: list[str], environment: dict[str, str], folder: str) -> int:
    """The exit code of the command."""
    from proxy.cli import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    connection.sendall(f"{os.getpid()}\n".encode())
    try:
        main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _answer(connection: socket.socket) -> None:
    message, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    for place, file in enumerate(files):
        os.dup2(file, place)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        code = _run(connection, *json.loads(message))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(f"{code}\n".encode())


def _main(place: Path) -> None:
    import proxy.lab.commands
    import proxy.serving.serve  # noqa: F401 - so that no command has to load it

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what has ended leaves nothing
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                _answer(connection)
                os._exit(0)
            connection.close()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))

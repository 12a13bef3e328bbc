"""`narrows serve --workers 3`: the real processes, on one port and one store."""

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import aiohttp

from proxy.addons.access.keys import digest_of, new_key
from tests.kit.paths import ROOT
from tests.kit.stage import Stage

CONFIG = """
preset = "eager"
floor = 0
mode = "{mode}"
log_level = "info"
auth = "both"
[models.m]
input = 1
output = 1
read = 0.5
write = 1.0
window = 100000
[[keys]]
name = "alice"
sha256 = "{digest}"
tenant = "local"
{limits}
"""
PROGRAM = """
import math, proxy.addons.limits.limits, proxy.kernel.admission, proxy.memory.cached
proxy.memory.cached._PATIENCE = proxy.addons.limits.limits.PATIENCE = 5.0
proxy.kernel.admission._LATE = math.inf
from proxy.console.cli import main
main()
"""
"""The command, however busy the machine is that runs the tests."""
KEY = new_key()
WORKERS = 3


class Serving:
    """A `narrows serve --workers 3` with its own configuration file."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.client = stage.client
        self.provider = stage.provider
        self.config = folder / "narrows.toml"
        self.configure("on")
        self.log = folder / "log"
        words = ["serve", "--config", self.config, "--port", "0", "--workers", WORKERS, "--upstream", stage.upstream]
        words += ["--store", f"sqlite:///{folder / 'workers.db'}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *map(str, words)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.url = ""

    async def reload(self) -> None:
        """Have all workers replaced by such as have the settings that are written now."""
        before = self.workers()
        self.process.send_signal(signal.SIGHUP)
        await until(lambda: len(self.workers()) == WORKERS and not set(before) & set(self.workers()))

    async def up(self) -> None:
        assert self.process.stdout is not None
        self.url = (await asyncio.to_thread(self.process.stdout.readline)).split()[-1]

    @property
    def port(self) -> int:
        return int(self.url.removesuffix("/v1").rpartition(":")[2])

    def configure(self, mode: str, **limits: float) -> None:
        """Write the settings; `limits`: those of the key."""
        lines = "\n".join(f"{name} = {limit}" for name, limit in limits.items())
        self.config.write_text(CONFIG.format(mode=mode, digest=digest_of(KEY), limits=lines))

    def workers(self) -> list[int]:
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    async def logs(self, event: str, times: int = 1) -> None:
        await until(lambda: self.log.read_text().count(event) == times)

    async def ask(self, body: bytes) -> tuple[bytes, str]:
        """Send a request; what the upstream received for it, and its mode."""
        headers = await self.headers_of(body)
        return self.provider.requests[-1].body, headers["x-narrows-mode"]

    async def headers_of(self, body: bytes) -> Mapping[str, str]:
        """Send a request; the headers of its reply."""
        for attempt in (1, 2):  # a worker that was killed takes the client's idle connection with it
            try:
                place, head = f"{self.url}/chat/completions", {"x-narrows-key": KEY}
                async with self.client.post(place, data=body, headers=head) as reply:
                    await reply.read()
                    assert reply.status == 200
                    return reply.headers
            except aiohttp.ClientConnectionError:
                assert attempt == 1
        raise AssertionError

    def connection(self, wanted: Callable[[int], bool]) -> tuple[int, http.client.HTTPConnection]:
        """A connection to a worker whose process id is wanted, and that id."""
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            pid = self._worker_of(connection.sock)
            if wanted(pid):
                return pid, connection
            connection.close()

    def _worker_of(self, client: socket.socket) -> int:
        """The process that has the other end of this connection; 0 where it has just ended."""
        ends = f"0100007F:{self.port:04X} 0100007F:{client.getsockname()[1]:04X} 01 "  # 01: established
        lines = Path("/proc/net/tcp").read_text().splitlines()  # which may have a line twice
        sockets = {f"socket:[{line.split()[9]}]" for line in lines if ends in line}
        return next((pid for pid in self.workers() if sockets & _files(pid)), 0)

    def ask_another(self, body: bytes, before: int, streams: bool) -> tuple[int, Mapping[str, str]]:
        """Send a request to another worker than the last time, and read its reply to its last event. The process id of
        the worker, and the headers of the reply."""
        pid, connection = self.connection(lambda pid: pid != before)
        connection.request("POST", "/v1/chat/completions", body, {"x-narrows-key": KEY})
        reply = connection.getresponse()
        assert reply.status == 200
        while streams and b"[DONE]" not in reply.readline():
            continue
        if not streams:
            reply.read()
        reply.close()
        connection.close()
        return pid, dict(reply.getheaders())

    async def metric(self, name: str) -> float:
        async with self.client.get(self.url.replace("/v1", "/metrics")) as reply:
            (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", await reply.text(), re.MULTILINE)
            return float(value)


def _files(pid: int) -> set[str]:
    """What the files are that a process has open."""
    names = set[str]()
    with suppress(FileNotFoundError):
        for file in os.listdir(f"/proc/{pid}/fd"):
            names.add(os.readlink(f"/proc/{pid}/fd/{file}"))
    return names


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.02)

"""`make image-test`: the Dockerfile is really built, and the image really run, where no container engine is.

buildah builds it on a Debian of the same release, made by debootstrap and named as the Dockerfile's base: what is not
shown is the official base image alone. Then podman runs it in a network of its own that has nothing but loopback, with
a read-only root file system and no rights, before the built-in provider. Needs root. IMAGE_TEST_DIR keeps what is made.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

from policies.model.tokens import Counter
from policies.money.catalog import prices_for
from proxy.lab.provider import Provider, Say, Wire, start
from tests.kit.paths import ROOT

TOOLS = ("buildah", "podman", "runc", "debootstrap", "unshare", "ip")
IMAGE = "narrows:image-test"
NAME = "narrows-image-test"
URL = "http://127.0.0.1:8787"
READY_SECONDS = 60
ALONE = "alone"
"""The word that says: the network is ours, run the image."""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def lacking() -> str:
    """What keeps this from being tried here."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        packages = "buildah podman runc debootstrap util-linux iproute2"
        return f"{', '.join(absent)} not installed; apt-get install --no-install-recommends {packages}"
    return "" if os.geteuid() == 0 else "it needs root"


def run(*words: str | Path, folder: Path = ROOT) -> str:
    """What it printed. Where it fails, what it said is shown, and that is the end."""
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"image-test: {words[0]} failed\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout.strip()


def tool(name: str, folder: Path) -> list[str | Path]:
    """buildah or podman, with a storage of its own."""
    return [name, "--root", folder / "storage", "--runroot", folder / "run", "--storage-driver", "vfs"]


def base_name() -> str:
    """The base of the Dockerfile by tag: what is made here has another digest."""
    return re.findall(r"^ARG BASE=([^@\s]+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[0]


def base(folder: Path) -> None:
    """A Debian with Python under the name of the base image, where there is none yet."""
    name = base_name()
    release = name.rpartition("-")[2]
    if f"docker.io/library/{name}" in run(*tool("podman", folder), "images", "--format", "{{.Repository}}:{{.Tag}}"):
        return
    system, packed = folder / "base", folder / "base.tar"
    run("debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", release, system)
    run("tar", "-C", system, "--exclude=./var/cache/apt/archives/*.deb", "-cf", packed, ".")
    run(*tool("podman", folder), "import", packed, f"docker.io/library/{name}")
    shutil.rmtree(system)
    packed.unlink()


def build(folder: Path) -> str:
    """Build it with this machine's package index and certificates; its size."""
    options = ["--isolation", "chroot", "--network", "host", "--pull=never", "--format", "docker", "--tag", IMAGE]
    options += ["--build-arg", f"BASE={base_name()}"]
    for place in ("/etc/ssl/certs", "/etc/pip.conf"):
        options += ["--volume", f"{place}:{place}:ro"] if Path(place).exists() else []
    run(*tool("buildah", folder), "build", *options, ROOT)
    images = run(*tool("podman", folder), "images", "--format", "{{.Repository}}:{{.Tag}} {{.Size}}").splitlines()
    return "; ".join(line.removeprefix("localhost/").removeprefix("docker.io/library/") for line in images)


@contextmanager
def container(folder: Path, upstream: str) -> Iterator["Container"]:
    """The image, running."""
    podman = [*tool("podman", folder), "--runtime", "runc", "--cgroup-manager", "cgroupfs"]
    limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"]
    rights = ["--read-only", "--read-only-tmpfs=false", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
    options = ["--env", f"NARROWS_UPSTREAM={upstream}", "--name", NAME, "--network", "host"]
    words = [*podman, "run", "--rm", *options, *rights, *limits, IMAGE]
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log)
        try:
            yield Container(podman, process, folder / "log")
        finally:
            subprocess.run([str(word) for word in [*podman, "rm", "--force", NAME]], capture_output=True)
            process.wait()


class Container:
    """What can be asked of it."""

    def __init__(self, podman: Sequence[str | Path], process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.podman = podman
        self.process = process
        self.log = log

    async def does(self, *words: str) -> tuple[int, str]:
        """What a command inside comes to, and what it prints."""
        process = await asyncio.create_subprocess_exec(
            *(str(word) for word in [*self.podman, "exec", NAME, *words]),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await process.communicate()
        return process.returncode or 0, printed.decode().strip()

    def signal(self) -> None:
        """As an engine asks it to stop."""
        run(*self.podman, "kill", "--signal", "TERM", NAME)


def check(what: str, true: object) -> None:
    """A line for what was seen; where it was not, the end."""
    print(f"  {'ok' if true else 'FAILED'}  {what}", flush=True)
    if not true:
        raise AssertionError(what)


async def answers(http: aiohttp.ClientSession, running: Container) -> float:
    """The seconds until it is healthy."""
    began = time.monotonic()
    while running.process.poll() is None and time.monotonic() - began < READY_SECONDS:
        try:
            async with http.get(f"{URL}/healthz") as reply:
                if reply.status == 200:
                    return time.monotonic() - began
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.1)
    sys.exit(f"image-test: it did not come up\n{running.log.read_text()}")


@asynccontextmanager
async def provider(gate: asyncio.Event) -> AsyncIterator[str]:
    """The built-in one; whoever streams waits at the gate."""
    provider = Provider(prices_for, Counter())
    waiting = Say("one two three", wire=Wire(gate=gate.wait))
    provider.answer = lambda received: waiting if b"stream" in received.body else None
    async with await start(provider) as listening:
        yield listening.url


async def tried(folder: Path) -> None:
    """Everything that the image is to do, once."""
    gate = asyncio.Event()
    async with provider(gate) as upstream, aiohttp.ClientSession() as http:
        with container(folder, upstream) as running:
            check(f"healthy {await answers(http, running):.1f} s after podman was called", True)
            await confined(running)
            async with http.post(f"{URL}/v1/chat/completions", json=CHAT) as reply:
                text = json.loads(await reply.read())["choices"][0]["message"]["content"]
                check(f"a chat request is relayed: {reply.status}, {text!r}", reply.status == 200)
                check(f"and was planned: x-narrows-prefix {reply.headers['x-narrows-prefix']}", True)
            await stopped(http, running, gate)


async def confined(running: Container) -> None:
    """Who it is, what it may, and what the image says of its health."""
    _, user = await running.does("id", "-u")
    check(f"runs as user {user}", user not in ("", "0"))
    _, status = await running.does("cat", "/proc/1/status")
    check("as process 1, without any capability", re.search(r"^CapEff:\s+0+$", status, re.MULTILINE))
    _, links = await running.does("cat", "/proc/net/dev")
    check("has no network but loopback", re.findall(r"^\s*(\w+):", links, re.MULTILINE) == ["lo"])
    _, files = await running.does("ls", "/data")
    check(f"keeps its store there: {', '.join(files.split())}", "narrows.db" in files)
    written = [(await running.does("touch", f"{place}/x"))[0] for place in ("", "/opt/narrows", "/tmp", "/data")]  # noqa: S108
    check("writes to /data and nowhere else", [bool(code) for code in written] == [True, True, True, False])
    inspected = json.loads(run(*running.podman, "image", "inspect", IMAGE))[0]
    _, *words = inspected.get("HealthCheck", inspected.get("Healthcheck"))["Test"]
    check("the image's health check passes", (await running.does(*words))[0] == 0)


async def stopped(http: aiohttp.ClientSession, running: Container, gate: asyncio.Event) -> None:
    """SIGTERM while a reply is under way: it is finished, then the process ends well."""
    waiting = asyncio.ensure_future(http.post(f"{URL}/v1/chat/completions", json={**CHAT, "stream": True}))
    await asyncio.sleep(1)
    await asyncio.to_thread(running.signal)
    await unready(http)
    gate.set()
    began = time.monotonic()
    async with await waiting as reply:
        check(
            "after SIGTERM it is not ready, and finishes its stream", (await reply.read()).endswith(b"data: [DONE]\n\n")
        )
    code = await asyncio.to_thread(running.process.wait, READY_SECONDS)
    check(f"and ends with exit code {code}, {time.monotonic() - began:.1f} s after the stream", code == 0)


async def unready(http: aiohttp.ClientSession) -> None:
    """Wait until it says so."""
    async with asyncio.timeout(READY_SECONDS):
        while True:
            async with http.get(f"{URL}/readyz") as reply:
                if reply.status == 503:
                    return
            await asyncio.sleep(0.1)


def build_and_check(folder: Path) -> None:
    """Build, and go on in a network of our own."""
    began = time.monotonic()
    base(folder)
    print(f"base image: {time.monotonic() - began:.0f} s", flush=True)
    began = time.monotonic()
    print(f"build: {build(folder)} in {time.monotonic() - began:.0f} s", flush=True)
    alone = f"ip link set lo up && exec {sys.executable} -m tests.long.image {ALONE} {folder}"
    if subprocess.run(["unshare", "--net", "sh", "-c", alone], cwd=ROOT).returncode:
        sys.exit(1)


def main() -> None:
    """Say what is missing, or do it all."""
    if sys.argv[1:2] == [ALONE]:
        return asyncio.run(tried(Path(sys.argv[2])))
    if trouble := lacking():
        sys.exit(f"image-test: cannot be tried here: {trouble}")
    with ExitStack() as stack:
        kept_folder = os.environ.get("IMAGE_TEST_DIR")
        folder = Path(kept_folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="narrows-image-")))
        folder.mkdir(parents=True, exist_ok=True)
        return build_and_check(folder)


if __name__ == "__main__":
    main()

"""`make bench-peers`: small requests and those of a 400 kB agent, through Narrows and other proxies that compact.

Each has a virtual environment of its own below .peers, is run as it comes but for its address, its upstream and what
would keep it from starting, and reaches nothing but loopback: the vocabularies of
tiktoken are given to it, and what else it would download (such as the model that headroom-ai shortens prose with) it
does without. What does not install or start is named in the table.
"""

import asyncio
import os
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
from rich.console import Console

from proxy.console.output import plain_table
from tests.kit.paths import ROOT
from tests.kit.redis_servers import free_ports
from tests.kit.vocabularies import unpack
from tests.long.bench import LARGE, plan
from tests.long.bench_stage import Cost, Server, Stage, loaded
from tests.long.bench_texts import MODEL, agent, chat

PEERS_FOLDER = ROOT / ".peers"
PATIENCE = 120
LITELLM = """model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "{upstream}/v1", api_key: sk-bench}}
"""
LOADS = {
    "small": plan(chat(1_000, 31, words=60), conversations=20, warm=1),
    "agent, warm": plan(agent(LARGE, 22), conversations=2, warm=2),
    "agent, first seen": plan(agent(LARGE, 1), conversations=6),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """How a proxy is installed and started. In its words stand {port}, {upstream} (without /v1) and {file}."""

    package: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    """A configuration that it reads."""


PEERS: Mapping[str, Peer] = {
    "awecompress": Peer("awecompress", ("awecompress", "serve", "--port", "{port}", "--upstream", "{upstream}")),
    "cliffcompaction": Peer(
        "cliffcompaction", ("cliff", "serve", "--port", "{port}", "--openai-upstream", "{upstream}")
    ),
    "headroom-ai": Peer(
        "headroom-ai[proxy]",
        ("headroom", "proxy", "--port", "{port}", "--openai-api-url", "{upstream}", "--no-rate-limit"),
        {"HF_HUB_OFFLINE": "1", "HEADROOM_TELEMETRY": "off"},
    ),
    "litellm": Peer(
        "litellm[proxy]",
        ("litellm", "--host", "127.0.0.1", "--port", "{port}", "--config", "{file}"),
        {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": "sk-bench"},
        LITELLM,
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One proxy under all loads, or why it is not there."""

    name: str
    costs: Mapping[str, Cost] = field(default_factory=dict)
    rss: float = 0.0
    trouble: str = ""


async def measured(server: Server) -> Row:
    idle = server.rss()
    return Row(server.name, {name: await loaded(server, load) for name, load in LOADS.items()}, idle)


async def peer_row(stage: Stage, name: str) -> Row:
    try:
        await install(name, PEERS[name])
        return await measured(await started(stage, name, PEERS[name], stage.sink.url))
    except (RuntimeError, ValueError, OSError, TimeoutError) as error:
        return Row(name, trouble=" ".join(str(error).split())[-160:] or type(error).__name__)


async def install(name: str, peer: Peer) -> None:
    folder = PEERS_FOLDER / name
    ready = folder / ".ready"
    if ready.exists():
        return
    print(f"installing {name}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(venv.create, folder, with_pip=True)
    words = ("install", "--quiet", "--disable-pip-version-check", peer.package)
    pip = await asyncio.create_subprocess_exec(folder / "bin" / "pip", *words, stderr=asyncio.subprocess.PIPE)
    _, errors = await pip.communicate()
    if pip.returncode:
        raise RuntimeError(f"is not installed: {errors.decode(errors='replace')}")
    ready.touch()


async def started(stage: Stage, name: str, peer: Peer, upstream: str) -> Server:
    """A peer before this upstream that answers a request. Raises RuntimeError."""
    folder = PEERS_FOLDER / name
    (port,) = free_ports(1)
    upstream = upstream.removesuffix("/v1")
    file = stage.folder / f"{name}.yaml"
    file.write_text(peer.file.format(model=MODEL, upstream=upstream))
    program, *words = (word.format(port=port, upstream=upstream, file=file) for word in peer.command)
    home = stage.folder / f"{name}-home"
    home.mkdir()
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    loopback = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "TIKTOKEN_CACHE_DIR": str(unpack(stage.folder / "tiktoken"))}
    environment = {**own, **nowhere, **loopback, **peer.environment}
    process = await stage.process(str(folder / "bin" / program), *words, environment=environment, quiet=True)
    server = Server(name, f"http://127.0.0.1:{port}/v1", process.pid)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    async with aiohttp.ClientSession() as http:
        for _ in range(PATIENCE):
            if process.returncode is not None:
                raise RuntimeError(f"does not start: {stage.log()}")
            try:
                headers = {"Authorization": "Bearer sk-bench"}
                async with http.post(server.url + "/chat/completions", json=body, headers=headers) as reply:
                    if reply.status == 200:
                        return server
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(1)
    raise RuntimeError(f"does not answer: {stage.log()}")


def printed(rows: Sequence[Row], direct: Row, relay: Row) -> None:
    """Waits over what the sink alone needs, and CPU."""
    heads = [head for load in LOADS for head in (f"{load}: added p50 ms", "CPU ms")]
    grid = plain_table("proxy", *heads, "RSS idle MiB")
    for row in (relay, *rows):
        if row.trouble:
            continue
        cells = []
        for load in LOADS:
            cost = row.costs[load]
            cells += [f"{cost.p50 - direct.costs[load].p50:,.2f}", f"{cost.cpu_us / 1000:,.2f}"]
        grid.add_row(row.name, *cells, f"{row.rss:,.0f}")
    console = Console(width=160, highlight=False, markup=False)
    console.print(grid)
    for row in rows:
        if row.trouble:
            console.print(f"{row.name} {row.trouble}")


async def main(names: Sequence[str]) -> None:
    if wrong := [name for name in names if name not in PEERS]:
        sys.exit(f"there is no peer {wrong[0]!r}; these are {' '.join(PEERS)}")
    async with Stage.opened() as stage:
        direct, relay = await measured(stage.sink), await measured(stage.relay)
        rows = [await measured(await stage.narrows())]
        rows += [await peer_row(stage, name) for name in names or PEERS]
    printed(rows, direct, relay)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

"""One client at work through a real `narrows serve`, and what went wrong."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from policies.model.tokens import Counter
from policies.money.catalog import prices_for
from proxy.lab.provider import Provider, start
from tests.long.clients.client import CACHE, Client, Place, Relay, command_of, plain
from tests.long.clients.passing import Ear, broken, lost, promises, refused, task, undeferred, unseen
from tests.long.clients.talk import Editor, unedited
from tests.long.clients.task import DONE, MORE, PARTS, RESULT, TASK, Model, part, word

TOOLS = ("keep", "defer")
"""What becomes of the definitions, by whether they are deferred."""
PRESET = """
[presets.clients]
about = "a long output is cut once the model has seen it; what was recalled stays for three turns"
[[presets.clients.policies]]
policy = "collapse"
keep = 3
[[presets.clients.policies]]
policy = "clip"
over = 150
keep = 1
keep_writes = 1
[[presets.clients.policies]]
policy = "offload"
over = 250
keep = 1
keep_files = 1
relevant_tokens = 1
"""
_READY = re.compile(rb"(?:base_url|Narrows is up).*?(http://\S+)")


def tried(client: Client) -> list[str]:
    """What went wrong as this client did its task."""
    with TemporaryDirectory() as folder:
        home, work = Path(folder, "home"), Path(folder, "work")
        home.mkdir()
        work.mkdir()
        for number in range(PARTS):
            (work / f"part_{number}.txt").write_text(part(number))
        return [*asyncio.run(_called(client, home, work) if client.calls else _talked(client, home, work))]


async def _called(client: Client, home: Path, work: Path) -> Iterable[str]:
    """With tools: something is hidden, and recalled."""
    model = Model(client, work)
    provider = Provider(prices_for, Counter(), answer=model)
    async with _chain(client, provider, home, work) as (place, ear):
        tasks = [TASK, MORE][: 1 + client.continues]
        calls = [(*client.words, TASK), (*client.again, MORE)] if client.again else [(*client.words, *tasks)]
        ends = [await client.run(words, place) for words in calls]
    requests = task(provider)
    return [
        *_unfinished(ends, work / RESULT, word(model.wanted)),
        *([] if model.over or not client.continues else ["it stopped before the model did"]),
        *model.faults,
        *refused(provider.requests),
        *promises(ear.heard, requests),
        *unseen(client.hides, ear.heard, requests),
        *(undeferred(ear.heard, requests, model.looked) if client.defers and requests else ()),
        *broken(client.dialect, client.streams, ear),
        *_unforwarded(client, ear),
        *lost(client.dialect, model.thoughts[: None if client.continues else -1], requests),
    ]


async def _talked(client: Client, home: Path, work: Path) -> Iterable[str]:
    """Without tools: a long session of edits, in which nothing breaks."""
    editor = Editor()
    provider = Provider(prices_for, Counter(), answer=editor)
    async with _chain(client, provider, home, work) as (place, ear):
        end = await client.run((*client.words, *editor.tasks), place)
    return [*unedited(end, work), *refused(provider.requests), *broken(client.dialect, client.streams, ear)]


@asynccontextmanager
async def _chain(client: Client, provider: Provider, home: Path, work: Path) -> AsyncIterator[tuple[Place, Ear]]:
    """Client, maybe a gateway, Narrows, maybe a gateway, provider: where the client works."""
    async with AsyncExitStack() as stack:
        upstream = (await stack.enter_async_context(await start(provider))).url
        if client.behind:
            upstream = await stack.enter_async_context(_relay(client, client.behind, home, upstream))
        narrows = await stack.enter_async_context(_narrows(home, upstream, client.defers))
        ear = Ear(provider, narrows)
        base_url = await stack.enter_async_context(ear.listening())
        asked = base_url
        if client.front:
            base_url = await stack.enter_async_context(_relay(client, client.front, home, asked))
        yield Place(home, work, base_url, asked), ear


@asynccontextmanager
async def _narrows(home: Path, upstream: str, defers: bool) -> AsyncIterator[str]:
    """The base_url of a `narrows serve`."""
    (home / "narrows.toml").write_text(
        f'port = 0\nstore = "sqlite:///{home}/narrows.db"\nlog_level = "error"\n'
        f'preset = "clients"\nsummaries = false\ntools = "{TOOLS[defers]}"\n{PRESET}'
        f'[[upstreams]]\nname = "provider"\nurl = "{upstream}"\n'
    )
    words = [str(Path(sys.executable).with_name("narrows")), "serve", "--config", str(home / "narrows.toml")]
    async with _serving(words, {"PATH": os.environ["PATH"], "HOME": str(home)}) as url:
        yield url


@asynccontextmanager
async def _relay(client: Client, relay: Relay, home: Path, asked: str) -> AsyncIterator[str]:
    """The address of a gateway of others that asks this one."""
    program = "node" if relay.script.endswith(".mjs") else "python"
    words = command_of(relay.package, (program, relay.script, asked, client.model))
    async with _serving(words, {**plain(home), "CACHE": str(CACHE)}) as url:
        yield url


@asynccontextmanager
async def _serving(words: Sequence[str], environment: Mapping[str, str]) -> AsyncIterator[str]:
    """The address that a server prints when it listens."""
    process = await asyncio.create_subprocess_exec(
        *words, env=environment, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            async for line in process.stdout:
                if url := _READY.search(line):
                    break
            else:
                raise ChildProcessError(f"{words[0]} ended before it listened")
        drain = asyncio.create_task(process.stdout.read())
        yield url[1].decode()
        drain.cancel()
    finally:
        if process.returncode is None:
            # a script starts gateways of others, and LiteLLM does not end by SIGTERM
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _unfinished(ends: Iterable[tuple[int | None, str, str]], result: Path, wanted: str) -> Iterable[str]:
    """What of the task was not done; all that was printed goes to the report."""
    for code, stdout, stderr in ends:
        if code != 0 or DONE not in stdout:
            print(stdout, stderr, sep="\n")
            yield f"it ended with {code}: {' '.join((stderr or stdout).splitlines()[-1:])}"
    if not result.is_file() or result.read_text().strip() != wanted:
        yield f"{RESULT}: {result.read_text() if result.is_file() else 'was not written'}"


def _unforwarded(client: Client, ear: Ear) -> Iterable[str]:
    """What a gateway in front did not pass on."""
    for each in ear.heard:
        yield from (f"{name} did not arrive" for name, value in client.arrives.items() if each.sent.get(name) != value)

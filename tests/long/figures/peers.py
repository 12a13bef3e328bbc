"""`make figures-peers`: recorded sessions through other proxies that compact, beside presets of Narrows: what each pays
and leaves in sight. Exit code 1 where a peer did not get through a session.

Laws
  Sessions, requests, prices, cache and judge are the same for all: what a peer sends to the strict provider is billed
  and judged by the code that bills and judges a preset.
  Sight is verbatim: a text that a peer writes in another form is out of sight, whatever it says.
  What a model would ask back costs nothing here, with Narrows and with peers.
"""

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from importlib.metadata import distributions
from pathlib import Path
from statistics import fmean
from typing import Annotated

import aiohttp
import orjson
import typer

from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from proxy.console.output import refusing
from proxy.lab.arguments import check_prices
from proxy.lab.provider import Provider, Received, Say, start
from proxy.lab.replay.recorded import RequestReader, Session, load_all
from tests.long.bench_peers import PEERS, PEERS_FOLDER, Peer, install, started
from tests.long.bench_stage import Server, Stage
from tests.long.figures.__main__ import with_kinds
from tests.long.figures.curve import share
from tests.long.figures.runs import ROOT, Job, Run, figures_of, runs_of
from tests.long.figures.simulated import Lane, SimulatedProvider, recorded_requests, report_for
from tests.long.figures.tables import put, table

PAGE, MARK = "tests/README.md", "peers"
PRESETS = ("coding-agent", "lossless")
MEASURED: Mapping[str, Peer] = {
    # without what compares it with itself: requests that are sent again as they came, and conversations left alone
    "distil-llm": Peer(
        "distil-llm",
        ("distil", "proxy", "--port", "{port}", "--upstream", "{upstream}", "--shadow", "0"),
        {"DISTIL_HOLDOUT_RATE": "0"},
    ),
    "headroom-ai": PEERS["headroom-ai"],
}
LONGEST = 20
"""Seconds of its processor time that a peer may take for a request."""


class PeerError(Exception):
    """Why a peer did not get through a session, in one line."""


def peers(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recorded sessions. Skips *.usage.json.")],
    prices: Annotated[list[str], typer.Option(metavar="MODEL", help="Prices; can be repeated.")],
    group: Annotated[
        list[str] | None, typer.Option(metavar="NAME=GLOB", help="The kind of sessions of these names.")
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Default: all.")] = None,
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Where runs are remembered.")] = ROOT / ".figures",
    print_only: Annotated[bool, typer.Option("--print", help="Print the table, and write no file.")] = False,
) -> None:
    """Measure other proxies and presets of Narrows over recorded sessions in chat completions, and write the table."""
    with refusing():
        check_prices(prices)
        sessions = with_kinds(load_all(files), group or [])
        if wrong := [name for name in peer or () if name not in MEASURED]:
            raise ValueError(f"there is no peer {wrong[0]!r}; these are {' '.join(MEASURED)}")
        if wrong := [each.name for each in sessions if each.dialect != "openai_chat"]:
            raise ValueError(f"{wrong[0]} is no session of chat completions")
    names = peer or [*MEASURED]
    for name in names:
        asyncio.run(install(name, MEASURED[name]))
    runs = runs_of([Job(session, each, PRESETS) for each in prices for session in sessions], folder)
    troubles: list[str] = []
    tasks = [(name, sessions, each) for name in names for each in prices]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for done, failed in pool.map(_measured, tasks):
            runs += done
            troubles += failed
    labels = {preset: f"`{preset}`" for preset in PRESETS} | {name: f"{name} {version_of(name)}" for name in names}
    text = drawn(runs, labels)
    if print_only:
        print(text)
    else:
        page = ROOT / PAGE
        page.write_text(put(page.read_text(encoding="utf-8"), {MARK: text}), encoding="utf-8")
    for line in troubles:
        print(line, file=sys.stderr)
    raise typer.Exit(int(bool(troubles)))


def version_of(name: str) -> str:
    (packages,) = (PEERS_FOLDER / name / "lib").glob("python3*/site-packages")
    return next(iter(distributions(name=name, path=[str(packages)]))).version


# --- a session through a peer ---


@dataclass(slots=True)
class Replies:
    """What the provider's model says: the recorded reply of the request that is on its way."""

    say: Say | None = None
    received: list[Received] = field(default_factory=list)

    def __call__(self, received: Received) -> Say | None:
        self.received.append(received)
        return self.say


def _measured(task: tuple[str, Sequence[Session], str]) -> tuple[list[Run], list[str]]:
    return asyncio.run(measured(*task))


async def measured(name: str, sessions: Sequence[Session], model: str) -> tuple[list[Run], list[str]]:
    """The runs of the sessions that a peer got through, and what went wrong with the others."""
    runs, troubles, replies = [], [], Replies()
    provider = Provider(prices_for, Counter(encoding_for(model)), answer=replies)
    async with (
        Stage.opened(relay=False) as stage,
        await start(provider) as upstream,
        aiohttp.ClientSession() as http,
    ):
        server = await started(stage, name, MEASURED[name], upstream.url)
        for session in sessions:
            try:
                runs.append(run := await through(http, server, replies, session, model))
                print(f"{name}, {model}, {session.name}: {run.whole_bill:.3f}", file=sys.stderr, flush=True)
            except (PeerError, aiohttp.ClientError, TimeoutError) as error:
                troubles.append(f"{name}, {model}, {session.name}: {error or type(error).__name__}")
    return runs, troubles


async def through(http: aiohttp.ClientSession, server: Server, replies: Replies, session: Session, model: str) -> Run:
    """Raises PeerError."""
    prices, count = prices_for(model), Counter(encoding_for(model))
    provider = SimulatedProvider(session.dialect, model, prices, count)
    lane = Lane(report_for(session, server.name, model, prices))
    reader = RequestReader(session.dialect, count)
    headers = {"Authorization": f"Bearer sk-{session.name}", "Content-Type": "application/json"}
    for number, recorded in enumerate(recorded_requests(session, prices, provider, count), 1):
        replies.say, replies.received, began = recorded.say, [], server.cpu()
        body = {**orjson.loads(recorded.request.body), "stream": False}
        del body["stream_options"]
        async with http.post(server.url + "/chat/completions", json=body, headers=headers) as reply:
            words = await reply.text()
        received = [each for each in replies.received if each.dialect]
        if refused := [each.violation.message for each in received if each.violation]:
            raise PeerError(f"request {number} was refused: {refused[0]}")
        if reply.status != 200 or len(received) != 1:
            raise PeerError(f"request {number}: {len(received)} were sent, status {reply.status}: {words[:200]}")
        if (seconds := server.cpu() - began) > LONGEST:
            raise PeerError(f"request {number} took {seconds:.0f} s of processor time")
        sent = received[0].json
        _, conversation = reader.read(sent)
        lane.bill(recorded, provider.read(sent), [*edits(recorded.conversation, conversation)], provider)
    return figures_of(lane.report, session.group)


def edits(own: Conversation, sent: Conversation) -> Iterator[Replace]:
    """What makes the blocks that a client wrote into those that were sent: texts that changed or were left out, and
    what was put in, as a part of the text before it."""
    texts = [""] * len(own.blocks)
    at = 0
    for first, other, size in SequenceMatcher(None, _shape(own), _shape(sent), autojunk=False).get_matching_blocks():
        for block in sent.blocks[at:other]:
            texts[max(first - 1, 0)] += f"\n{block.text}"
        for offset in range(size):
            texts[first + offset] += sent.blocks[other + offset].text
        at = other + size
    for block, text in zip(own.blocks, texts, strict=True):
        if text != block.text:
            yield Replace(block.anchor, text, "peer")


def _shape(conversation: Conversation) -> list[tuple[str, str]]:
    """By what a block is known again, whatever became of its text."""
    return [(block.kind, block.call_id) for block in conversation.blocks]


# --- the table ---

_HEADS = ("bill (worst)", "rare", "quoted", "actions")


def drawn(runs: Sequence[Run], names: Mapping[str, str]) -> str:
    """A row for each kind and who was measured; of a kind that not all got through, how many."""
    prices = list(dict.fromkeys(run.prices for run in runs))
    rows = []
    for kind in dict.fromkeys(run.kind for run in runs):
        whole = len({run.session for run in runs if run.kind == kind})
        for place, (name, label) in enumerate(names.items()):
            cells = []
            for each in prices:
                alike = [run for run in runs if (run.kind, run.preset, run.prices) == (kind, name, each)]
                cells += _cells(alike, whole)
            rows.append(("" if place else f"{kind} ({whole})", label, *cells))
    heads = ("sessions", "through", *(f"{each}: {head}" for each in prices for head in _HEADS))
    return table(heads, rows, left=2)


def _cells(runs: Sequence[Run], whole: int) -> Sequence[str]:
    if not runs:
        return ("failed", *["-"] * (len(_HEADS) - 1))
    bills = [run.whole_bill for run in runs]
    rare = [seen / used if used else 1.0 for used, seen in (run.sight["rare"] for run in runs)]
    quoted, in_sight = (sum(run.sight["quoted"][at] for run in runs) for at in (0, 1))
    return (
        f"{fmean(bills):.3f} ({max(bills):.3f})" + (f", {len(runs)} of {whole}" if len(runs) < whole else ""),
        f"{fmean(rare):.3f}",
        f"{in_sight / quoted:.3f}" if quoted else "-",
        f"{100 * (share(runs, 'actions', 'out_of_sight_in_calls') or 0.0):.1f} %",
    )


if __name__ == "__main__":
    typer.run(peers)

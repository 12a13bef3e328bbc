"""`narrows load --as-recorded` and `--serve`: each request at its own time, and a target that is started for a load."""

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from rich.console import Console
from typer.testing import CliRunner

from proxy.console.cli import command_line
from proxy.lab import sessions
from proxy.lab.load import client
from proxy.lab.load.client import ALL, BEHIND, NAME, Latencies, RecordedClient
from proxy.lab.load.command import measure
from proxy.lab.load.plan import LoadPlan, begins_of, expected_cost, script_of
from proxy.lab.load.report import print_load
from proxy.lab.load.sink import Sink
from proxy.lab.replay.recorded import Session, session_of
from proxy.lab.replay.times import RequestTimes
from tests.kit.paths import ROOT
from tests.lab.test_load import listening

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="load tests need Linux or macOS")


def session(*times: Sequence[float], date: float | None = None, name: str = "it") -> Session:
    """A chat with a request at each of these times."""
    turns = [[{"role": "user", "content": f"Question {at}?"}, {"role": "assistant", "content": "."}] for at in times]
    body = {"model": "gpt-5.4", "messages": [message for turn in turns for message in turn]}
    recorded = session_of(json.dumps(body).encode(), name, name)
    return replace(recorded, times=tuple(RequestTimes(*each) for each in times), started_at=date)


def plan_of(*played: Session, url: str = "http://127.0.0.1/v1", speed: float = 100, **more: Any) -> LoadPlan:
    begins = begins_of(played, more.pop("conversations", len(played)))
    plan = LoadPlan(url, [script_of(each, "") for each in played], len(begins), begins=begins, speed=speed, named=True)
    return replace(plan, **{"once": True, "streamed": 0, **more})


# --- when each request is due ---


def test_p1_sessions_keep_their_distance_and_others_are_spread() -> None:
    one, other = session([0], [100], date=5_000), session([0], [10], date=5_300)
    nobody_knows = session([7], [67])
    assert begins_of([one, other], 2) == [0, 300]
    assert begins_of([nobody_knows], 1) == [0]
    assert begins_of([nobody_knows], 3) == [0, 20, 40]
    assert begins_of([nobody_knows, other], 4) == [0, 0, 20, 40]
    assert begins_of([other, nobody_knows, one], 5) == [300, 0, 0, 100, 200]


def test_p1_a_script_has_the_times_from_its_first_request_on_and_what_overlapped() -> None:
    script = script_of(session([7, 8, 9], [8.5], [9, None, 20], [19, 20, 21], [21]), "")
    assert script.moments == [0, 1.5, 2, 12, 14]
    assert script.overlaps == [False, True, False, True, False]
    plan = replace(plan_of(session([0], [30])), scripts=[script], begins=[0, 1, 5])
    assert plan.moments(2) == [5, 6.5, 7, 17, 19]
    assert plan.span == 19
    assert expected_cost(replace(plan, conversations=3)).startswith("about 15 requests with ")


# --- a load on a real socket ---


class Upstream:
    """A sink that notes each request: when it came, whose it was, its messages, and whether its conversation waited for
    a reply. `hold` is awaited before a reply."""

    def __init__(self, hold: Callable[[int], Any] | None = None, status: int = 200) -> None:
        self.rows: defaultdict[str, list[tuple[float, int, bool]]] = defaultdict(list)
        self._open: set[str] = set()
        self._hold, self._status, self._sink = hold, status, Sink(events=4)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if not request.path.endswith("/completions"):
            return web.Response(status=404)
        at, name = perf_counter(), request.headers[NAME]
        messages = len(orjson.loads(await request.content.read())["messages"])
        self.rows[name].append((at, messages, name in self._open))
        self._open.add(name)
        if self._hold is not None:
            await self._hold(messages)
        if self._status != 200:
            self._open.discard(name)
            return web.Response(status=self._status)
        reply = web.json_response({})
        self._open.discard(name)
        return reply


async def test_p1_requests_go_at_their_times_and_are_measured_by_them(capsys: pytest.CaptureFixture[str]) -> None:
    upstream = Upstream()
    played = session([0], [5], [5], [30], date=0), session([0], [20], date=10)
    async with listening(upstream) as url:
        plan = plan_of(*played, url=url, conversations=3, speed=20)
        report = await measure(plan, 2, lambda: None)
    assert report.errors == {}
    began = min(rows[0][0] for rows in upstream.rows.values())
    for number in range(plan.conversations):
        rows = upstream.rows[f"load-{plan.seed + number}"]
        dues = [at / plan.speed for at in plan.moments(number)]
        assert [messages for _, messages, _ in rows] == plan.script(number).ends
        assert all(at - began > due - 0.2 for (at, _, _), due in zip(rows, dues, strict=True))
        assert not any(waited for _, _, waited in rows)
    counts = {row.kind: row.count for row in report.latencies}
    assert counts[ALL] == counts[BEHIND] == report.answered == 8
    assert report.recorded_seconds == plan.span == 30
    print_load(Console(width=100), report)
    printed = capsys.readouterr().out
    assert "as recorded, 20 times as fast, 3 conversations" in printed
    assert "0:00:30 in 0:00:0" in printed


async def test_p1_only_what_overlapped_does_not_wait_for_the_reply_before() -> None:
    second, passed, order = asyncio.Event(), 0.0, list[int]()

    async def hold(messages: int) -> None:
        nonlocal passed
        order.append(messages)
        if messages == 1:  # its reply comes when the next request is there
            await second.wait()
        second.set()
        if messages == 3:
            await asyncio.sleep(0.1)
            passed = 1_000.0

    upstream = Upstream(hold)
    async with listening(upstream) as url, aiohttp.ClientSession() as http:
        measuring = RecordedClient(plan_of(session([0, 1, 60], [2, 3, 4], [5, 6, 7]), url=url), http)
        measuring._now = lambda: perf_counter() + passed  # type: ignore[assignment]
        result = await asyncio.wait_for(measuring.run(asyncio.Event()), 60)
    assert result.answered == 3
    assert order == [1, 3, 5]
    (rows,) = upstream.rows.values()
    assert [waited for _, _, waited in rows][:2] == [False, True]
    assert rows[2][0] - rows[1][0] >= 0.1  # and not after 30 ms
    behind, whole = (Latencies([result.latencies[kind]]) for kind in (BEHIND, ALL))
    assert behind.longest > 900_000
    assert whole.percentiles((50,))[50] < 500_000  # the last counts from when it could be sent


async def test_p1_what_was_due_and_never_sent_counts_and_what_fails_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = asyncio.Event()

    async def hold(messages: int) -> None:
        await stopped.wait()

    monkeypatch.setattr(client, "_GRACE", 0)
    async with listening(Upstream(hold)) as url, aiohttp.ClientSession() as http:
        plan = plan_of(session([0], [5], [10], [10_000]), url=url, once=False, duration=0.3)
        measuring = RecordedClient(plan, http)
        await measuring.warm_up()
        result = await measuring.run(asyncio.Event())
        stopped.set()
    assert result.errors == {"unanswered": 3}
    assert Latencies([result.latencies[BEHIND]]).count == 3
    async with listening(Upstream(status=500)) as url:
        report = await measure(plan_of(session([0], [5], [10]), url=url), 1, lambda: None)
    assert report.errors == {"status 500": 3}


# --- the target that is started for it ---

CONFIG = """
auth = "keys"
record = "{folder}"
holdout = 0.5
[[keys]]
name = "somebody"
sha256 = "{digest}"
[[upstreams]]
name = "one"
url = "http://192.0.2.1/v1"
apis = ["messages"]
[[upstreams]]
name = "two"
url = "https://api.openai.com/v1"
auth = "bearer"
key_env = "LOAD_KEY"
"""


@contextmanager
def files_of_a_load(folder: Path) -> Iterator[list[str]]:
    """A session, its times beside it, and settings that lead elsewhere."""
    (folder / "times").mkdir()
    (folder / "write_once.json").write_text(json.dumps(sessions.load("write_once")))
    (folder / "times" / "write_once.json").write_text(json.dumps([at * 2 for at in range(8)]))
    (folder / "narrows.toml").write_text(CONFIG.format(folder=folder / "recordings", digest="0" * 64))
    yield [str(folder / "write_once.json"), "--pauses", str(folder / "times"), "--config", str(folder / "narrows.toml")]


def test_a_load_starts_its_own_target_that_leads_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOAD_KEY", "sk-nobody")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lengths = list[int]()

    @contextmanager
    def progress(total: int, unit: str) -> Iterator[Callable[[], None]]:
        lengths.append(total)
        yield lambda: None

    monkeypatch.setattr("proxy.lab.load.command.progress", progress)
    with files_of_a_load(tmp_path) as words:
        options = ["--as-recorded", "--speed", "10", "--conversations", "2", "--json"]
        done = CliRunner().invoke(command_line("load"), ["load", "--serve", *words, *options])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["answered"], report["errors"], report["is_whole"]) == (16, {}, True)
    assert (report["target"] is not None) == (sys.platform == "linux")
    assert report["recorded_seconds"] == 21
    assert lengths == [2]
    assert not (tmp_path / "recordings").exists()
    assert not [*tmp_path.glob("narrows-load-*")]  # nor its store


async def test_a_target_ends_with_the_process_that_started_it() -> None:
    script = (
        "import asyncio\nfrom proxy.lab.load.target import served\nasync def main():\n"
        "    async with served(4) as url:\n        print(url, flush=True)\n        await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    pipe, environment = asyncio.subprocess.PIPE, {**os.environ, "NARROWS_CONFIG": ""}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=pipe, cwd=ROOT, env=environment)
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{url.removesuffix('/v1')}/healthz") as reply:
            assert reply.status == 200
        process.kill()
        await process.wait()
        with suppress(aiohttp.ClientConnectionError):
            async with asyncio.timeout(60):
                while True:
                    await (await http.get(f"{url.removesuffix('/v1')}/healthz")).read()
                    await asyncio.sleep(0.05)
        with pytest.raises(aiohttp.ClientConnectionError):
            await http.get(url)


def test_a_target_that_cannot_start_says_why(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NARROWS_WORKERS", "2")
    done = CliRunner().invoke(command_line("load"), ["load", "--serve", "--rate", "1", "--store", "sqlite:///:memory:"])
    assert done.exit_code == 2
    assert "did not start" in done.stderr
    assert "narrows: " in capfd.readouterr().err

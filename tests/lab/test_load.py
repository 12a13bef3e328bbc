"""`narrows load`: what counts as latency, texts that do not repeat, what is asked before a load, what it reports."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from proxy.app import App
from proxy.config import Settings
from proxy.config.units import seconds
from proxy.console.cli import command_line
from proxy.console.output import as_json
from proxy.lab import sessions
from proxy.lab.load import client
from proxy.lab.load.client import ALL, BETWEEN, FIRST_BYTE, STREAMED, Client, ClientResult, Latencies
from proxy.lab.load.command import measure
from proxy.lab.load.plan import SALTS, LoadPlan, Salt, SessionScript, conversations_for, script_of
from proxy.lab.load.report import load_page, print_load, read, report_of, use
from proxy.lab.load.sink import Sink
from proxy.lab.provider import find_violation
from proxy.lab.replay.recorded import requests, session_of
from tests import examples
from tests.console.test_cli import told
from tests.kit.drawn import checked
from tests.kit.paths import ROOT

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def script(name: str = "write_once") -> SessionScript:
    return script_of(session_of(json.dumps(sessions.load(name)).encode(), name, name), "")


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


# --- latency ---


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.floats(min_value=1e-6, max_value=3_000), min_size=1, max_size=20))
def test_histograms_of_several_processes_are_one(recorded: list[float]) -> None:
    parts = (Latencies(), Latencies())
    for at, value in enumerate(recorded):
        parts[at % 2].record(value)
    whole = Latencies(part.encode() for part in parts)
    assert whole.count == len(recorded)
    assert whole.longest == pytest.approx(max(recorded) * 1000, rel=2e-3, abs=2e-3)
    assert whole.percentiles((100.0,))[100.0] == whole.longest
    assert sum(whole.buckets()[0]) == len(recorded)


async def test_what_was_due_while_the_target_stood_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await stopped.wait()
        return web.json_response({})

    monkeypatch.setattr(client, "_GRACE", 0)
    async with listening(answer) as url, aiohttp.ClientSession() as http:
        measuring = Client(LoadPlan(url, [script()], rate=100, duration=0.3), http)
        await measuring.warm_up()
        result = await measuring.run(asyncio.Event())
        stopped.set()
    # one was sent, and about thirty were due
    assert result.answered == 0
    assert result.errors["unanswered"] > 10
    assert Latencies([result.latencies[ALL]]).count == result.errors["unanswered"]


# --- texts ---


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from texts(json.loads(each) if name == "arguments" else each) if name != "tool_calls" else ()
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


@pytest.mark.parametrize("name", sessions.names())
def test_conversations_of_a_load_share_no_text_and_stay_valid(name: str) -> None:
    session = session_of(json.dumps(sessions.load(name)).encode(), name, name)
    one, other = ([Salt(number).message(each) for each in session.messages] for number in (1, SALTS - 1))
    contents = [{text for each in spelled for text in texts(each["content"])} for spelled in (one, other)]
    assert not {text for text in contents[0] & contents[1] if long_words(text)}
    *_, last = requests(replace(session, messages=tuple(one)), session.model, marks=False)
    assert find_violation(last) is None
    assert sum(map(len, contents[0])) == sum(
        len(text) for text in {t for m in session.messages for t in texts(m["content"])}
    )


def long_words(text: str) -> list[str]:
    return [word for word in "".join(c if c.isascii() and c.isalpha() else " " for c in text).split() if len(word) > 5]


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.text("abcxyzXYZ", min_size=1, max_size=9)), st.integers(0, SALTS), st.data())
def test_what_a_text_quotes_it_still_quotes(words: list[str], number: int, data: st.DataObject) -> None:
    salt = Salt(number)
    begin = data.draw(st.integers(0, len(words)))
    end = data.draw(st.integers(begin, len(words)))
    assert salt.text(" ".join(words[begin:end])) in salt.text(" ".join(words))
    spelled = {salt.text(word) for word in words}
    assert len(spelled) == len(set(words))


# --- what is asked before ---


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["foo", "--rate", "1"], "is no address of a target"),
        (["http://127.0.0.1:1/v1"], "say how fast"),
        (["http://127.0.0.1:1/v1", "--rate", "1", "--concurrency", "1"], "say how fast"),
        (["http://127.0.0.1:1/v1", "--rate", "9", "--think", "5s", "--conversations", "4"], "needs 46 conversations"),
        (["http://127.0.0.1:1/v1", "--rate", "9", "--duration", "long"], "is no duration"),
        (["http://127.0.0.1:1/v1", "--concurrency", "2", "--processes", "3"], "--processes 3 is more"),
        (["http://127.0.0.1:1/v1", "no-such-file.json", "--rate", "9"], "cannot read"),
        (["http://127.0.0.1:1/v1", "--rate", "9"], "nothing answers at"),
        (["http://127.0.0.1:1/v1", "--sink"], "--sink is an upstream"),
        (["http://127.0.0.1:1/v1", "--as-recorded", "--rate", "1"], "say how fast, in one way"),
        (["http://127.0.0.1:1/v1", "--as-recorded"], "follow_up.json does not say when its requests were sent; record"),
        (["http://127.0.0.1:1/v1", "--as-recorded", "--pauses", "/no"], "cannot read /no"),
        (["http://127.0.0.1:1/v1", "--rate", "1", "--speed", "2"], "--speed is for --as-recorded"),
        (["http://127.0.0.1:1/v1", "--rate", "1", "--pauses", "it"], "--pauses is for --as-recorded"),
        (["http://127.0.0.1:1/v1", "--rate", "1", "--store", "sqlite:///it.db"], "--store is for --serve"),
        (["--serve", "http://127.0.0.1:1/v1", "--rate", "1"], "--serve starts a target of its own"),
        (["--serve", "no-such-file.json", "--rate", "1"], "cannot read no-such-file.json"),
        (["--serve", "--rate", "1", "--config", "/no.toml"], "cannot read /no.toml"),
    ],
)
def test_what_makes_no_load_is_one_line(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(command_line(), ["load", *words])
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_target_elsewhere_is_loaded_only_when_its_cost_was_shown() -> None:
    done = CliRunner().invoke(command_line(), ["load", "http://192.0.2.1/v1", "--rate", "10", "--duration", "1m"])
    assert done.exit_code == 2
    cost, refusal = done.stderr.splitlines()
    assert "about 600 requests with " in cost
    assert "at the prices of gpt-5.4" in cost
    assert "add --yes" in refusal


def test_times_and_conversations_follow_from_the_options() -> None:
    assert [seconds(text) for text in ("60", "5s", "500ms", "2m", ".5h")] == [60, 5, 0.5, 120, 1800]
    assert conversations_for(rate=20, concurrency=0, think=5, chosen=0) == 120
    assert conversations_for(rate=0, concurrency=8, think=5, chosen=0) == 8


# --- what it reports ---

PAGE = """# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total {cpu}
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes {rss}
# TYPE narrows_event_loop_lag_seconds histogram
narrows_event_loop_lag_seconds_bucket{{le="0.01"}} {short}
narrows_event_loop_lag_seconds_bucket{{le="0.05"}} {all}
narrows_event_loop_lag_seconds_bucket{{le="+Inf"}} {all}
"""


def test_what_the_target_used_lies_between_two_samples() -> None:
    before = read(PAGE.format(cpu=1.5, rss=2**27, short=4, all=6))
    after = read(PAGE.format(cpu=3.5, rss=2**27 + 2**28, short=9, all=12))
    assert before is not None
    assert after is not None
    used = use(before, after, seconds=10, requests=400, events=8_000, begun=50)
    assert (used.cpu_seconds, used.cores, used.cpu_ms_per_request, used.cpu_ms_per_1000_events) == (2, 0.2, 5, 250)
    assert (used.rss_mib_before, used.rss_mib_after, used.conversations_per_gib) == (128, 384, 200)
    assert used.longest_stop_ms == 50
    assert use(after, after, 10, 0, 0, 50).longest_stop_ms == 0
    assert read("<html>") is None


def test_nothing_is_said_of_a_target_that_was_started_again() -> None:
    plan, result = LoadPlan("http://target/v1", [script()], conversations=1, concurrency=1), ClientResult(seconds=1.0)
    before, after = (read(f"process_start_time_seconds {at}\nprocess_cpu_seconds_total 1\n") for at in (7, 8))
    assert report_of(plan, [result], (before, before), True).target is not None
    assert report_of(plan, [result], (before, after), True).target is None


async def test_a_load_on_a_real_narrows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with listening(Sink(events=12)) as upstream:
        settings = Settings(upstream=upstream, port=0, store=f"sqlite:///{tmp_path}/a.db", log_level="error")
        async with await App.start(settings) as app:
            plan = LoadPlan(app.base_url, [script(), script("follow_up")], conversations=4, concurrency=2, once=True)
            report = await measure(plan, 2, lambda: None)
    answered = 2 * sum(len(each.ends) for each in plan.scripts)
    assert (report.answered, report.errors, report.is_whole) == (answered, {}, True)
    counts = {row.kind: row.count for row in report.latencies}
    assert counts[ALL] == counts[FIRST_BYTE] == answered
    assert report.events == counts[STREAMED] * 14  # words, the finish reason, [DONE]
    assert BETWEEN in counts
    whole = orjson.loads(orjson.dumps(as_json(report)))
    assert whole["latencies"][0]["percentiles"].keys() == {"p50", "p90", "p99", "p99.9"}
    assert (whole["target"] is not None) == (sys.platform == "linux")
    print_load(Console(width=100), report)
    printed = capsys.readouterr().out
    assert f"{answered} in " in printed
    assert checked(load_page(report)).count("figure") == len(report.latencies)


async def test_what_fails_is_counted_by_kind_and_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path.endswith("/metrics") or not request.path.endswith("/completions"):
            return web.Response(status=404)
        names.add(request.headers["x-narrows-conversation"])
        if b"parcel" in await request.content.read():
            return web.Response(status=503)
        response = web.StreamResponse(headers={"Content-Length": "9"})
        await response.prepare(request)
        assert request.transport is not None
        request.transport.close()
        return response

    names = set[str]()
    async with listening(answer) as url:
        scripts = [script("long_day"), script()]
        plan = LoadPlan(url, scripts, conversations=2, concurrency=2, once=True, begin_at=1, named=True)
        report = await measure(plan, 1, lambda: None)
    assert len(names) == 2
    assert report.errors == {"status 503": 1, "cut": 1}
    assert (report.answered, report.latencies, report.target) == (0, [], None)
    print_load(Console(width=100), report)
    printed = capsys.readouterr().out
    assert "status 503: 1" in printed
    assert "does not report" in printed
    assert "does not report" in checked(load_page(report)).text


@pytest.mark.skipif(sys.platform == "win32", reason="there Ctrl-C ends it at once")
async def test_ctrl_c_ends_it_with_the_report_so_far() -> None:
    enough, seen, sink = asyncio.Event(), 0, Sink()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal seen
        seen += request.path.endswith("/completions")
        if seen > 5:
            enough.set()
        return await sink(request)

    async with listening(answer) as url:
        words = ("-m", "proxy.console.cli", "load", url, "--concurrency", "2", "--duration", "5m", "--json")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=pipe, cwd=ROOT, env=os.environ)
        await asyncio.wait_for(enough.wait(), 60)
        process.send_signal(signal.SIGINT)
        printed, _ = await process.communicate()
    report = json.loads(printed)
    assert report["is_whole"] is False
    assert report["answered"] > 0
    assert report["target"] is None
    assert process.returncode == 0


def test_where_a_package_has_no_wheel_load_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("proxy.lab.load.command.find_spec", lambda _: None)
    assert told(capsys, "load", "http://127.0.0.1:1/v1", "--concurrency", "1") == (
        2,
        "",
        "narrows: load needs a package that has no wheel for this machine: pip install hdrhistogram\n",
    )

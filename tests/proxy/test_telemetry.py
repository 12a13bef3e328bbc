"""What is said about a request: one line, bounded labels, no text of a client's, the bill as billed."""

import asyncio
import io
import json
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from policies.money.bills import BillSums, Labels, RequestBill
from proxy.addons.telemetry.addon import fields_of
from proxy.config import Settings
from proxy.kernel.addons import Exchange
from proxy.requests import ClientRequest, UpstreamRequest
from proxy.summaries.background import Waiting
from proxy.telemetry import LogWriter, Telemetry
from proxy.telemetry.metrics import BoundedLabel, Metrics
from proxy.workers import metrics as workers
from tests.kit.counted import counted
from tests.kit.running import PassThrough, Start
from tests.kit.upstream import CHAT, REQUEST, chunk, completion, event, json_answer, stream_head


def test_x8_a_label_has_few_values_and_they_look_like_words() -> None:
    word = BoundedLabel(most=2)
    assert [word("on"), word("a b"), word("off"), word("third"), word("on")] == [
        "on",
        "other",
        "off",
        "other",
        "on",
    ]
    assert BoundedLabel()('x"} 1\nforged') == "other"


def test_a_series_of_requests_without_new_planning_has_one_line_for_each_reason() -> None:
    stream = io.StringIO()
    telemetry = Telemetry("info", "json", stream)
    for reason in ("time", "queue", "time", "queue"):
        telemetry.shed(reason)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["reason"]) for line in lines] == [("shedding", "time"), ("shedding", "queue")]
    assert b'narrows_shed_total{reason="time"} 2.0' in telemetry.metrics.page()


async def unread(_: Exchange) -> None:
    """Its body is not read."""


def line(**fields: Any) -> dict[str, Any]:
    """The line of a request."""
    exchange = Exchange(make_mocked_request("POST", "/"), "r", read=unread, kind="chat", status=200)
    return {**fields_of(exchange), **fields}


def log_request(telemetry: Telemetry, fields: dict[str, Any]) -> None:
    telemetry.writer.put({**fields, "event": "request", "level": "info", "timestamp": time.time()})


@pytest.mark.parametrize("format_", ["json", "console"])
def test_x8_no_value_starts_a_line_or_moves_a_cursor(format_: str) -> None:
    stream = io.StringIO()
    log_request(Telemetry("info", format_, stream), line(conversation="a\nb\x1b[2J"))
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b[2J" not in stream.getvalue()


CONVERSATION = "b026" * 8
HEADERS = {"x-narrows-tokens-before": "27180", "x-narrows-tokens-after": "11000", "x-narrows-prefix": "extended"}


@pytest.mark.parametrize(
    ("sums", "fields", "words"),
    [
        (
            BillSums(paid=0.0142, baseline=0.0284),
            {},
            "chat gpt-5.4  27.2k -> 11.0k  extended  $0.014 less  24 ms  conv b026",
        ),
        (
            BillSums(paid=0.5, baseline=0.25),
            {"rounds": 2, "conversation": "my-chat"},
            "chat gpt-5.4  27.2k -> 11.0k  extended  $0.250 more  2 recalls  24 ms  conv my-chat",
        ),
        (
            BillSums(paid=0.0123, baseline=0.0124),
            {"before": 940},
            "chat gpt-5.4  940 -> 11.0k  extended  $0.012  24 ms  conv b026",
        ),
        (
            BillSums(paid=0.0123, baseline=0.0123),
            {"mode": "observed"},
            "chat gpt-5.4  27.2k -> 11.0k  extended  observed  $0.012  24 ms  conv b026",
        ),
        (BillSums(unpriced=1), {"before": 11_000}, "chat gpt-5.4  11.0k  extended  24 ms  conv b026"),
        (
            None,
            {"status": 502, "trouble": "upstream_cut", "before": 0, "after": 0, "prefix": ""},
            "chat  24 ms  conv b026  status 502  upstream_cut",
        ),
    ],
)
def test_on_a_terminal_a_request_is_a_line_for_people_and_elsewhere_json(
    sums: BillSums | None, fields: dict[str, object], words: str
) -> None:
    exchange = Exchange(make_mocked_request("POST", "/"), "r", read=unread, kind="chat", status=200, added_ms=23.6)
    exchange.headers = {**HEADERS, "x-narrows-conversation": CONVERSATION}
    exchange.bill = sums and bill_of(sums, model="gpt-5.4")
    record = {**fields_of(exchange), **fields}
    streams = {format_: io.StringIO() for format_ in ("console", "json")}
    for format_, stream in streams.items():
        log_request(Telemetry("info", format_, stream), record)
    assert streams["console"].getvalue() == words + "\n"
    line = json.loads(streams["json"].getvalue())
    assert (line["request_id"], line.get("model")) == ("r", "gpt-5.4" if sums else None)
    known = sums is not None and not sums.unpriced
    money = {"paid": sums.paid, "baseline": sums.baseline, "saved": round(sums.saved, 6)} if sums and known else {}
    assert {name: line[name] for name in ("paid", "baseline", "saved") if name in line} == money


def test_a_request_that_is_relayed_is_said_with_its_method() -> None:
    stream = io.StringIO()
    log_request(Telemetry("info", "console", stream), line(method="GET", route="relay", status=404, ms=3.2))
    assert stream.getvalue() == "relay GET  3 ms  status 404\n"


def bill_of(sums: BillSums, prefix: str = "extended", **labels: str) -> RequestBill:
    whose = Labels(**{"tenant": "t", "owner": "o", "model": "GPT-4o", "preset": "p", "api": "a"} | labels)
    return RequestBill(id="1", at=0.0, labels=whose, conversation="c", prefix=prefix, mode="compacted", sums=sums)


def test_a_bill_is_counted_by_what_it_was_for_and_whose_it_is() -> None:
    telemetry = Telemetry(stream=io.StringIO())
    tokens = BillSums(requests=1, original=20, sent=10, prompt=16, cached=4, written=3, output=5, rewritten=7)
    money = BillSums(paid=0.5, recalls=0.125, baseline=0.75, baseline_marked=0.625, checked=1, checked_paid=0.5)
    telemetry.metrics.bill(bill_of(tokens + money, "checkpoint:context"))
    telemetry.metrics.bill(bill_of(BillSums(summaries=0.25)))
    costs = {kind: counted(telemetry, "cost_usd_total", kind=kind) for kind in ("request", "recall", "summary")}
    assert costs == {"request": 0.375, "recall": 0.125, "summary": 0.25}
    assert counted(telemetry, "cost_usd_total", tenant="t", model="gpt-4o", preset="p", api="a") == 0.75
    sums = ("prompt_tokens_original", "prompt_tokens_sent", "cost_baseline_usd", "cost_baseline_marked_usd")
    assert [counted(telemetry, f"{name}_total") for name in sums] == [20, 10, 0.75, 0.625]
    assert counted(telemetry, "prefix_rewritten_tokens_total", reason="checkpoint:context") == 7
    kinds = ("input", "cached", "written", "output")
    assert [counted(telemetry, "billed_tokens_total", kind=kind) for kind in kinds] == [9, 4, 3, 5]


@pytest.mark.parametrize(
    ("sums", "prefix", "outcome"),
    [
        (BillSums(requests=1, prompt=9), "first", "first"),
        (BillSums(requests=1, prompt=9, cached=8), "extended", "read"),
        (BillSums(requests=1, prompt=9, cached=8, rewritten=1), "tail-cut", "read"),
        (BillSums(requests=1, prompt=9, cached=3, rewritten=4), "checkpoint:paid", "rewritten"),
        (BillSums(requests=1, prompt=9), "client-changed", "rewritten"),
        (BillSums(requests=1, prompt=9, expired=1, rewritten=4), "checkpoint:cold", "expired"),
        (BillSums(requests=1, prompt=9, cached=8, bridged=1), "extended", "bridged"),
        (BillSums(requests=1, prompt=9), "extended", "missed"),
        (BillSums(requests=1, prompt=9, cached=8, estimated=1), "extended", "unreported"),
    ],
)
def test_a_request_is_counted_by_what_it_found_in_the_cache(sums: BillSums, prefix: str, outcome: str) -> None:
    telemetry = Telemetry(stream=io.StringIO())
    telemetry.metrics.bill(bill_of(sums, prefix))
    assert counted(telemetry, "cache_total") == counted(telemetry, "cache_total", outcome=outcome) == 1


def test_pauses_are_counted_by_what_they_cost_and_what_was_not_paid() -> None:
    telemetry = Telemetry(stream=io.StringIO())
    telemetry.metrics.bill(bill_of(BillSums(requests=1, expired=1, paid=0.5, pause_cost=0.25)))
    telemetry.metrics.bill(bill_of(BillSums(requests=1, bridged=1, paid=0.5, pause_saving=0.125)))
    telemetry.metrics.bill(bill_of(BillSums(pings=1, paid=0.5, ping_cost=0.5)))
    names = ("pause_cost_usd_total", "pause_saving_usd_total", "cache_total")
    assert [counted(telemetry, name) for name in names] == [0.25, 0.125, 2]
    assert counted(telemetry, "pause_cost_usd_total", tenant="t", model="gpt-4o", preset="p", api="a") == 0.25


def test_x8_however_many_tenants_and_models_there_are_their_series_are_bounded_and_nothing_is_lost() -> None:
    telemetry = Telemetry(stream=io.StringIO())
    for i in range(3_000):
        sums = BillSums(requests=1, original=1, paid=1.0, recalls=0.5)
        telemetry.metrics.bill(bill_of(sums, tenant=f"{i % 150:x}", model=f"m{i % 40}", preset=f"p{i % 7}"))
    assert telemetry.metrics.page().count(b"narrows_cost_usd_total{") < 1_000
    assert counted(telemetry, "prompt_tokens_original_total") == counted(telemetry, "cost_usd_total") == 3_000
    assert counted(telemetry, "cost_usd_total", tenant="other") > 0


def test_the_page_of_several_workers_adds_up_money_and_latencies() -> None:
    packed = {}
    for number in (1, 2):
        metrics = Telemetry(stream=io.StringIO()).metrics
        metrics.build.labels("0", "same").set(1)
        metrics.bill(bill_of(BillSums(requests=1, original=20, paid=0.5, baseline=0.75)))
        metrics.observe("overhead_seconds", 0.003 * number)
        packed[number] = workers.packed(metrics.registry)
    page = workers.page(packed).decode()
    assert counted(page, "cost_usd_total", tenant="t", kind="request") == 1.0
    assert counted(page, "cost_baseline_usd_total") == 1.5
    assert [counted(page, "overhead_seconds_bucket", le=le) for le in ("0.002", "0.005", "+Inf")] == [0, 1, 2]
    assert counted(page, "overhead_seconds_sum") == pytest.approx(0.009)
    assert [counted(page, "build_info", worker=number) for number in "12"] == [1, 1]


def test_no_series_says_when_it_was_made_and_every_name_has_its_unit() -> None:
    page = Telemetry(stream=io.StringIO()).metrics.page().decode()
    assert "_created" not in page
    metrics = re.findall(r"^# TYPE (narrows_\w+) (\w+)$", page, re.MULTILINE)
    assert {kind for _, kind in metrics} == {"counter", "gauge", "histogram"}
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in metrics)
    assert all(name.endswith("_seconds") for name, kind in metrics if kind == "histogram")


def test_the_digest_of_the_settings_is_of_what_is_no_secret() -> None:
    def digest(**values: object) -> str:
        return Settings(upstream="http://a/v1", **values).digest  # type: ignore[arg-type]

    assert digest(tenant_secret="s") == digest(tenant_secret="t") != digest()
    assert digest(store="redis://:pw@r/0") == digest() != digest(preset="chat")


@pytest.mark.parametrize("streamed", [False, True])
async def test_t8_the_real_compaction_reads_the_usage_and_says_what_it_did(narrows: Start, streamed: bool) -> None:
    whole = completion()
    stream = stream_head() + chunk(event({**whole, "choices": []}) + b"data: [DONE]\n\n") + chunk(b"")
    setup = await narrows(stream if streamed else json_answer(whole), real=True)
    async with setup.client.post(setup.url + CHAT, json=REQUEST | {"stream": streamed}) as reply:
        await reply.read()
        assert (reply.headers["x-narrows-mode"], reply.headers["x-narrows-prefix"]) == ("untouched", "first")
    assert json.loads(setup.upstream.seen[0].body) == REQUEST | {"stream": streamed}
    async with setup.client.get(setup.url.replace("/v1", "/metrics")) as page:
        assert counted(await page.text(), "billed_tokens_total", kind="input", model="gpt-4o") == 9


async def test_c3_a_write_costs_what_the_provider_says_and_not_what_a_request_seems_to_ask(narrows: Start) -> None:
    created = {"ephemeral_1h_input_tokens": 40, "ephemeral_5m_input_tokens": 60}
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 100, "cache_creation": created, "output_tokens": 5}
    setup = await narrows(
        json_answer({"type": "message", "role": "assistant", "content": [], "usage": usage}), real=True
    )
    part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    use = {"type": "tool_use", "id": "a", "name": "write", "input": part}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "x"}
    said = [("user", "x"), ("assistant", [use]), ("user", [result])]
    messages = [{"role": role, "content": content} for role, content in said]
    body = {"model": "claude-sonnet-5", "max_tokens": 9, "system": [part], "messages": messages}
    async with setup.client.post(setup.url + "/messages", json=body) as reply:
        assert reply.status == 200
    async with setup.client.get(setup.url.replace("/v1", "/metrics")) as page:
        dollars = counted(await page.text(), "cost_usd_total", kind="request", model="claude-sonnet-5")
    assert dollars == pytest.approx(((10 + 60 * 1.25 + 40 * 2.0) * 2 + 5 * 10) / 1e6)


@dataclass(slots=True)
class Broken(PassThrough):
    """Something that ought not to raise, and does."""

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        raise LookupError(client_request.body)


async def test_x4_a_fault_of_ours_is_told_by_name_and_place_only(
    narrows: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    setup = await narrows(compaction=Broken(), log_format="json")
    async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
        assert (reply.status, (await reply.json())["error"]["code"]) == (500, "narrows_failed")
    line = json.loads(capfd.readouterr().err)
    assert (line["event"], line["error"]) == ("unexpected", "LookupError")
    assert line["at"].startswith("test_telemetry.py:")
    assert "messages" not in json.dumps(line)


def test_a_log_that_nobody_reads_any_more_stops_nothing() -> None:
    stream = io.StringIO()
    telemetry = Telemetry("info", "json", stream)
    stream.close()
    telemetry.log.error("said", to="nobody")


async def test_a_stop_of_the_event_loop_and_the_cpu_are_on_the_page(narrows: Start) -> None:
    setup = await narrows()
    await asyncio.sleep(0.02)  # its watch has looked
    time.sleep(0.05)  # noqa: ASYNC251 - this is the stop
    await asyncio.sleep(0.02)
    async with setup.client.get(setup.url.replace("/v1", "/metrics")) as page:
        text = await page.text()
    longest = [line for line in text.splitlines() if line.startswith("narrows_event_loop_lag_seconds_bucket")]
    short, all_ = (next(line for line in longest if f'le="{le}"' in line) for le in ("0.02", "+Inf"))
    assert float(all_.split()[-1]) > float(short.split()[-1])
    if sys.platform == "linux":
        assert re.search(r"^process_cpu_seconds_total \S+$", text, re.MULTILINE)


async def test_a_page_of_many_series_does_not_stop_the_event_loop(
    narrows: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(Metrics, "page", lambda _: threads.append(threading.current_thread()) or b"")
    setup = await narrows()
    async with setup.client.get(setup.url.replace("/v1", "/metrics")) as page:
        assert page.status == 200
    (thread,) = threads
    assert thread is not threading.main_thread()


START = LogWriter.start
"""What the fixtures take away from every other test."""


class Reader(io.StringIO):
    """A log that is read only from the time on that `reads` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = threading.Event()
        self.stuck = threading.Event()

    def write(self, text: str) -> int:
        self.stuck.set()
        assert self.reads.wait(10)
        return super().write(text)

    @property
    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.getvalue().splitlines()]


@pytest.fixture
def log() -> Iterator[tuple[Reader, Telemetry]]:
    """A log that a thread writes, and nobody reads yet."""
    reader = Reader()
    telemetry = Telemetry("info", "json", reader)
    START(telemetry.writer)
    yield reader, telemetry
    reader.reads.set()
    telemetry.close()


def test_x9_who_reads_no_log_stops_no_request_and_loses_lines_in_number(
    monkeypatch: pytest.MonkeyPatch, log: tuple[Reader, Telemetry]
) -> None:
    monkeypatch.setattr("proxy.telemetry.log._MOST_LINES", 5)
    reader, telemetry = log
    telemetry.log.info("first")
    assert reader.stuck.wait(10)
    for number in range(8):
        telemetry.log.info(f"line_{number}")
    reader.reads.set()
    telemetry.close()
    assert reader.events == ["first", *(f"line_{number}" for number in range(5)), "log_lines_lost"]
    assert json.loads(reader.getvalue().splitlines()[-1])["lines"] == 3


def test_x9_lines_keep_their_order_and_trouble_does_not_wait_for_others(
    monkeypatch: pytest.MonkeyPatch, log: tuple[Reader, Telemetry]
) -> None:
    monkeypatch.setattr("proxy.telemetry.log._BATCH_SECONDS", 60)
    reader, telemetry = log
    reader.reads.set()
    log_request(telemetry, line(ms=1.23456))
    telemetry.log.info("second")
    telemetry.log.error("third", exc_info=LookupError("a body"))
    for _ in range(1000):
        if reader.getvalue().count("\n") == 3:
            break
        time.sleep(0.01)
    lines = [json.loads(line) for line in reader.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["request", "second", "third"]
    assert (lines[0]["ms"], lines[0]["level"], "trouble" in lines[0]) == (1.235, "info", False)
    assert lines[2]["error"] == "LookupError"
    assert lines[0]["timestamp"] <= lines[1]["timestamp"] <= lines[2]["timestamp"]


@pytest.mark.parametrize("threaded", [True, False])
def test_x9_trouble_does_not_wait_for_a_reader_of_a_full_pipe_and_neither_does_the_end(threaded: bool) -> None:
    reading, writing = os.pipe()
    while select.select([], [writing], [], 0)[1]:
        os.write(writing, b"x" * select.PIPE_BUF)
    with open(reading, "rb") as reader, open(writing, "w", encoding="utf-8") as stream:
        telemetry = Telemetry("info", "json", stream)
        if threaded:
            START(telemetry.writer)

        def work() -> None:
            for _ in range(3):
                telemetry.log.error("trouble")
            telemetry.close()

        working = threading.Thread(target=work, daemon=True)
        working.start()
        working.join(20)
        is_stuck = working.is_alive()
        reader.read(65_536)
    assert not is_stuck

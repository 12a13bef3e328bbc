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

import pytest

from policies.money.prices import Prices, Usage
from proxy.requests import ClientRequest, UpstreamRequest
from proxy.summaries.background import Waiting
from proxy.telemetry import BoundedLabel, LogWriter, RequestRecord, Telemetry
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


@pytest.mark.parametrize("format_", ["json", "console"])
def test_x8_no_value_starts_a_line_or_moves_a_cursor(format_: str) -> None:
    stream = io.StringIO()
    Telemetry("info", format_, stream).request(RequestRecord("GET", route="chat", conversation="a\nb\x1b[2J"))
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b[2J" not in stream.getvalue()


def test_the_bill_is_what_the_provider_billed() -> None:
    prices = Prices("m", input=10, output=20, read=0.1, write=1.25, listed=True)
    telemetry = Telemetry(stream=io.StringIO())
    telemetry.billed("GPT-4o", prices, Usage(10, 4, 0, 3), 11, 20)
    telemetry.billed("gpt-4o", prices, None, 7, 7)
    page = telemetry.metrics.page().decode()
    for line in ('kind="input",model="gpt-4o"} 6.0', 'kind="estimated",model="gpt-4o"} 7.0'):
        assert "narrows_billed_tokens_total{" + line in page


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
        assert 'narrows_billed_tokens_total{kind="input",model="gpt-4o"} 9.0' in await page.text()


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
        found = re.search(r'narrows_billed_dollars_total\{model="claude-sonnet-5"\} (\S+)', await page.text())
    assert found
    assert float(found[1]) == pytest.approx(((10 + 60 * 1.25 + 40 * 2.0) * 2 + 5 * 10) / 1e6)


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
    assert (line["event"], line["fault"]) == ("unexpected", "LookupError")
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
    longest = [line for line in text.splitlines() if line.startswith("narrows_loop_stop_seconds_bucket")]
    short, all_ = (next(line for line in longest if f'le="{le}"' in line) for le in ("0.02", "+Inf"))
    assert float(all_.split()[-1]) > float(short.split()[-1])
    if sys.platform == "linux":
        assert re.search(r"^process_cpu_seconds_total \S+$", text, re.MULTILINE)


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
    START(telemetry._writer)
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
    telemetry.request(RequestRecord("POST", route="chat", status=200, ms=1.23456))
    telemetry.log.info("second")
    telemetry.log.error("third", exc_info=LookupError("a body"))
    for _ in range(1000):
        if reader.getvalue().count("\n") == 3:
            break
        time.sleep(0.01)
    lines = [json.loads(line) for line in reader.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["request", "second", "third"]
    assert (lines[0]["ms"], lines[0]["level"], "trouble" in lines[0]) == (1.235, "info", False)
    assert lines[2]["fault"] == "LookupError"
    assert lines[0]["timestamp"] <= lines[1]["timestamp"] <= lines[2]["timestamp"]


@pytest.mark.parametrize("threaded", [True, False])
def test_x9_trouble_does_not_wait_for_a_reader_of_a_full_pipe_and_neither_does_the_end(threaded: bool) -> None:
    reading, writing = os.pipe()
    while select.select([], [writing], [], 0)[1]:
        os.write(writing, b"x" * select.PIPE_BUF)
    with open(reading, "rb") as reader, open(writing, "w", encoding="utf-8") as stream:
        telemetry = Telemetry("info", "json", stream)
        if threaded:
            START(telemetry._writer)

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

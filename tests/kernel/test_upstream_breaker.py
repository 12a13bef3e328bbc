"""An upstream that cannot be reached is left alone for a moment; one that answers, whatever it answers, is not."""

import json
import re

import pytest

from tests.kit.pausing import pause_breakers
from tests.kit.running import Start
from tests.kit.upstream import REQUEST, ScriptedUpstream, completion, error_of, json_answer, post, says

BODY = json.dumps(REQUEST).encode()
OPEN = b'narrows_breakers_open{name="upstream"} '


async def test_t3_an_upstream_that_cannot_be_reached_is_left_alone(
    narrows: Start, free_port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pause_breakers(monkeypatch, "upstream", 60.0)
    setup = await narrows(upstream=f"http://127.0.0.1:{free_port}/v1", log_level="info", log_format="json")
    for _ in range(5):
        assert error_of(await setup.raw(post(BODY)))["code"] == "upstream_unreachable"
    paused = await setup.raw(post(BODY))
    assert paused.startswith(b"HTTP/1.1 503 ")
    assert re.search(rb"\r\nRetry-After: [1-6]\d\r\n", paused)
    assert error_of(paused)["code"] == "upstream_paused"
    assert OPEN + b"1" in await setup.raw(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    troubles = [line for line in lines if line["event"] == "upstream_trouble"]
    assert [(line["host"], line["error"]) for line in troubles] == [(f"127.0.0.1:{free_port}", "ClientConnectorError")]


async def test_t3_it_is_well_again_with_the_first_connection(
    narrows: Start, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pause_breakers(monkeypatch, "upstream", 0.2)
    async with ScriptedUpstream(says(json_answer(completion()))) as gone:
        port = gone.port
    setup = await narrows(upstream=f"http://127.0.0.1:{port}/v1", log_level="info", log_format="json")
    for _ in range(6):
        await setup.raw(post(BODY))
    upstream = ScriptedUpstream(says(json_answer(completion())))
    upstream.wanted_port = port
    async with upstream:
        while not (await setup.raw(post(BODY))).startswith(b"HTTP/1.1 200 "):
            pass
    lines = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert [event for event in lines if event.startswith("upstream")] == ["upstream_trouble", "upstream_recovered"]


async def test_t5_errors_of_the_provider_open_nothing(narrows: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pause_breakers(monkeypatch, "upstream", 60.0)
    setup = await narrows(json_answer({"error": {}}, status="503 Service Unavailable"))
    for _ in range(8):
        assert (await setup.raw(post(BODY))).startswith(b"HTTP/1.1 503 ")
    assert len(setup.upstream.seen) == 8

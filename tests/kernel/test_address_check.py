"""An upstream whose URL is not that of its API is named, before or with the first 404, and nothing waits for it."""

import asyncio
import io
import json
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.config import Settings, UpstreamRow
from proxy.config.upstreams import names_no_version
from proxy.telemetry import Telemetry
from proxy.upstreams.outbound import AddressCheck
from tests.kit.running import Start
from tests.kit.upstream import CHAT, REQUEST, Asked, completion, json_answer

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


async def below_v1(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """An API that is below /v1, and wants a key."""
    path = asked.line.split()[1]
    if not path.startswith("/v1/"):
        writer.write(NOT_FOUND)
    elif not asked.all("authorization"):
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
    else:
        writer.write(json_answer(completion()))


def check(url: str, **fields: Any) -> tuple[AddressCheck, io.StringIO]:
    log = io.StringIO()
    return AddressCheck(UpstreamRow(name="u", url=url, **fields), Telemetry("warning", "json", log)), log


def lines(log: io.StringIO) -> list[dict[str, str]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("url", "usual"),
    [
        ("https://api.openai.com", "https://api.openai.com/v1"),
        ("https://openrouter.ai/api", "https://openrouter.ai/api/v1"),
        ("https://openrouter.ai/v1", "https://openrouter.ai/api/v1"),
        ("http://localhost:11434", "http://localhost:11434/v1"),
        ("https://api.openai.com/v1", ""),
        ("https://openrouter.ai/api/v1", ""),
        ("https://gateway.example/openai", ""),
    ],
)
async def test_a_host_whose_api_is_known_is_corrected_at_start(url: str, usual: str) -> None:
    one, log = check(url)

    async def ask(_: str) -> int:
        return 401

    await one.look(ask)
    assert [each.get("remedy") for each in lines(log)] == ([f"set its address to {usual}"] if usual else [])
    if one.is_doubtful:
        one.note("/chat/completions", 404)
    assert len(lines(log)) == int(bool(usual) or names_no_version(url))  # once, by whatever


async def test_the_background_look_finds_the_api_below_v1(narrows: Start, capfd: pytest.CaptureFixture[str]) -> None:
    inner = await narrows(below_v1)
    url = inner.upstream.url.removesuffix("/v1")
    await narrows(upstream=url, log_level="warning", log_format="json")
    async with asyncio.timeout(10):
        while "upstream_address" not in (text := capfd.readouterr().err):  # noqa: ASYNC110 - of a log
            await asyncio.sleep(0.01)
    (line,) = [json.loads(each) for each in text.splitlines() if "upstream_address" in each]
    assert (line["upstream"], line["remedy"]) == ("default", f"set its address to {url}/v1")
    assert [asked.line for asked in inner.upstream.seen] == ["GET /models HTTP/1.1", "GET /v1/models HTTP/1.1"]
    for asked in inner.upstream.seen:
        assert not [name for name, _ in asked.headers if name.lower() in ("authorization", "api-key", "x-api-key")]


async def test_no_upstream_with_a_version_a_key_or_headers_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-secret")

    async def ask(target: str) -> int:
        raise AssertionError(target)

    for url, fields in (
        ("http://u/v1", {}),
        ("https://gateway.example/v1beta/openai", {}),
        ("https://x.example/openai/deployments/{model}", {}),
        ("http://u", {"auth": "bearer", "key_env": "UPSTREAM_KEY"}),
        ("http://u", {"headers": {"X-Token": "t"}}),
        ("http://u/openai", {"query": {"api-version": "1"}}),
    ):
        await check(url, **fields)[0].look(ask)


@pytest.mark.parametrize("answers", [(200, 200), (401, 401), (404, 404), (404, 500)])
async def test_what_an_answer_leaves_open_is_not_warned_of(answers: tuple[int, int]) -> None:
    one, log = check("https://gateway.example/openai")

    async def ask(target: str) -> int:
        return answers[target == "/v1/models"]

    await one.look(ask)
    assert lines(log) == []


async def test_the_first_404_of_a_chat_says_it_once(narrows: Start, capfd: pytest.CaptureFixture[str]) -> None:
    inner = await narrows(NOT_FOUND)
    url = inner.upstream.url.removesuffix("/v1")
    setup = await narrows(upstream=url, log_level="warning", log_format="json")
    for _ in range(3):
        async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
            assert (reply.status, await reply.read()) == (404, b"")
    (line,) = [json.loads(each) for each in capfd.readouterr().err.splitlines() if "upstream_address" in each]
    assert line["reason"] == "it answered 404 at /chat/completions"
    assert line["remedy"] == f"unless that is about the model, set its address to {url}/v1"


def test_an_upstream_that_has_answered_is_where_it_should_be() -> None:
    one, log = check("https://gateway.example/openai")
    for target, status in (("/models", 404), ("/chat/completions", 401), ("/chat/completions?a=b", 200)):
        one.note(target, status)
    assert not one.is_doubtful  # so a 404 is about an unknown model
    assert lines(log) == []


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("api.openai.com", "give a whole URL, with its scheme: https://api.openai.com/v1"),
        ("api.openai.com/v1", "give a whole URL, with its scheme: https://api.openai.com/v1"),
        ("localhost:11434", "give a whole URL, with its scheme: http://localhost:11434/v1"),
        ("gpu.example:8000/v1/", "give a whole URL, with its scheme: https://gpu.example:8000/v1"),
        ("gpu:8000/v1", "give a whole URL, with its scheme: http://gpu:8000/v1"),
        ("sk-abcdef", "give a whole URL such as https://api.openai.com/v1"),
        ("http://[::1/v1", "give a whole URL such as https://api.openai.com/v1"),
        ("http://gpu:99999/v1", "give a whole URL such as https://api.openai.com/v1"),
        ("http://my gpu/v1", "give a whole URL such as https://api.openai.com/v1"),
        ("https://api.openai.com/v1/chat/completions", "leave out /chat/completions at its end: clients add that"),
        ("https://api.openai.com/v1/responses/", "leave out /responses at its end: clients add that"),
        ("https://api.openai.com/v1/v1", "leave out one of the two /v1 at its end"),
    ],
)
def test_what_is_no_address_of_an_api_is_refused_with_the_one_that_is_meant(url: str, advice: str) -> None:
    with pytest.raises(ValidationError) as error:
        Settings(upstream=url)
    assert error.value.errors()[0]["msg"] == advice
    with pytest.raises(ValidationError, match=advice.partition(":")[0]):
        UpstreamRow(name="u", url=url)


def test_anthropics_address_may_have_v1_or_not_and_no_endpoint() -> None:
    for url in ("https://api.anthropic.com", "https://api.anthropic.com/v1", " https://api.anthropic.com/v1/ "):
        assert Settings(anthropic_upstream=url).anthropic_upstream == "https://api.anthropic.com/v1"
    with pytest.raises(ValidationError, match="leave out /messages at its end"):
        Settings(anthropic_upstream="https://api.anthropic.com/v1/messages")

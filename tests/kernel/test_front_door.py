"""What somebody meets who comes for the first time: the page at `/`, and the answer to a wrong base_url."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest

from proxy.config.routes import MISTAKES, ROUTES
from tests.kernel.test_safety import get
from tests.kit.running import Running, Start

BROWSER = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
WORDS: Any = [{"role": "user", "content": "Hello"}]
Ask = Callable[[Any], Awaitable[object]]


def chat(client: openai.AsyncOpenAI) -> Awaitable[object]:
    return client.chat.completions.create(model="m", messages=WORDS)


def response(client: openai.AsyncOpenAI) -> Awaitable[object]:
    return client.responses.create(model="m", input="Hello")


def models(client: openai.AsyncOpenAI) -> Awaitable[object]:
    return client.models.list()._get_page()  # type: ignore[attr-defined]  # the awaitable itself


def message(client: anthropic.AsyncAnthropic) -> Awaitable[object]:
    return client.messages.create(model="m", max_tokens=9, messages=WORDS)


def count(client: anthropic.AsyncAnthropic) -> Awaitable[object]:
    return client.messages.count_tokens(model="m", messages=WORDS)


HAS_V1, ADDS_V1 = "let base_url (OPENAI_BASE_URL) end in /v1 and in nothing else", "leave /v1 out of base_url"


@pytest.mark.parametrize(
    ("kind", "base", "ask", "meant", "remedy"),
    [
        (openai, "", chat, "/v1/chat/completions", HAS_V1),
        (openai, "", response, "/v1/responses", HAS_V1),
        (openai, "/v1/v1", chat, "/v1/chat/completions", HAS_V1),
        (openai, "/v1/chat/completions", chat, "/v1/chat/completions", HAS_V1),
        (anthropic, "/v1", message, "/v1/messages", ADDS_V1),
        (anthropic, "/v1", count, "/v1/messages/count_tokens", ADDS_V1),
        (anthropic, "/v1/messages", message, "/v1/messages", ADDS_V1),
    ],
    ids=["chat", "responses", "twice", "whole path", "messages", "count", "whole path of messages"],
)
async def test_t3_a_wrong_base_url_is_the_sdks_usual_error_with_the_remedy(
    narrows: Start, kind: Any, base: str, ask: Ask, meant: str, remedy: str
) -> None:
    setup = await narrows()
    client = openai.AsyncOpenAI if kind is openai else anthropic.AsyncAnthropic
    async with client(base_url=setup.url.removesuffix("/v1") + base, api_key="sk-x", max_retries=0) as sdk:
        with pytest.raises(kind.NotFoundError) as error:
            await ask(sdk)
    assert f"but at {meant}: {remedy}" in str(error.value)
    assert setup.upstream.seen == []


async def test_a_list_of_models_without_v1_says_it_too(narrows: Start) -> None:
    setup = await narrows()
    for path in ("/models", "/embeddings", "/v1/v1/models"):
        async with setup.client.get(setup.url.removesuffix("/v1") + path) as reply:
            assert reply.status == 404
            assert (await reply.json())["error"]["code"] == "wrong_base_url"
            assert reply.headers["x-narrows-request-id"]
    assert setup.upstream.seen == []


def test_no_path_that_is_served_is_a_mistake() -> None:
    assert not MISTAKES.keys() & ROUTES.keys()
    assert {path for path, _ in MISTAKES.values()} > ROUTES.keys()
    assert "/v1/threads/t1/messages" not in MISTAKES


async def page(setup: Running, *headers: str, host: str = "", target: str = "/") -> tuple[int, str, str]:
    """Status, head and body of a page."""
    reply = await setup.raw(get(target, *headers, host=host or f"127.0.0.1:{setup.port}"))
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), body.decode()


async def test_the_first_page_says_how_to_point_a_client_here(narrows: Start) -> None:
    setup = await narrows()
    address = f"http://127.0.0.1:{setup.port}"
    status, head, body = await page(setup)
    assert (status, "Content-Type: text/plain; charset=utf-8" in head) == (200, True)
    for line in (f"export OPENAI_BASE_URL={address}/v1", f"export ANTHROPIC_BASE_URL={address}"):
        assert line in body.splitlines()
    assert f'base_url="{address}/v1"' in body
    status, head, html = await page(setup, BROWSER)
    assert (status, "Content-Type: text/html; charset=utf-8" in head) == (200, True)
    assert "default-src 'none'" in head
    assert f"<pre>export OPENAI_BASE_URL={address}/v1</pre>" in html
    assert "<script" not in html


async def test_x8_the_first_page_is_the_same_for_all_and_says_nothing_of_this_narrows(narrows: Start) -> None:
    plain = await narrows()
    _, _, first = await page(plain, host="localhost:1")
    setup = await narrows(host="0.0.0.0", preset="rolling", auth="keys", admin_token="t0ken")  # noqa: S104
    for headers in (
        (),
        ("Authorization: Bearer nrw_cut",),
        ("Authorization: Bearer t0ken",),
        ("X-Forwarded-For: 1.1.1.1",),
    ):
        assert (await page(setup, *headers, host="localhost:1"))[::2] == (200, first)
    (status, head, _) = await page(setup, host="team.example")
    assert (status, "Server: narrows" in head, "no-store" in head) == (200, True, True)
    assert not re.search(r"\d+\.\d+\.\d+|rolling|sqlite|adaptive", first + head)


async def test_x8_no_host_writes_into_the_first_page(narrows: Start) -> None:
    setup = await narrows(host="0.0.0.0")  # noqa: S104
    for host in ("a<script>", "x;reboot", "$(reboot)", "a'b", "a/b"):
        status, _, body = await page(setup, BROWSER, host=host)
        assert status in (200, 400)
        assert host not in body
    _, _, body = await page(setup, "X-Forwarded-Proto: https", host="team.example")
    assert "export OPENAI_BASE_URL=https://team.example/v1" in body.splitlines()


async def test_x8_a_page_of_another_site_on_this_machine_is_refused_there_too(narrows: Start) -> None:
    setup = await narrows()
    assert (await page(setup, host="evil.example"))[0] == 403
    assert (await page(setup, host="localhost"))[0] == 200


async def test_the_first_page_is_only_read(narrows: Start) -> None:
    setup = await narrows()
    async with setup.client.post(setup.url.removesuffix("v1"), data=b"{}") as reply:
        assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")
    async with setup.client.head(setup.url.removesuffix("v1")) as reply:
        assert (reply.status, await reply.read()) == (200, b"")

"""The models of all upstreams as one list, as the official SDKs read it, and who is asked for it with what."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import anthropic
import openai
import pytest

from proxy.addons.access.keys import digest_of, new_key
from tests.kit.running import Running, Start
from tests.kit.upstream import Asked, ScriptedUpstream, json_answer, whole

CLOUD = ("gpt-5", "gpt-5-mini", "shared", "o3")
LOCAL = ("llama-3", "qwen-3", "shared")
CLAUDES = [f"claude-{number}" for number in range(5)]


def lists(*ids: str, **more: Any) -> ScriptedUpstream:
    """An upstream with these models."""

    async def script(asked: Asked, writer: Any) -> None:
        path = asked.line.split()[1].partition("?")[0]
        models = [{"id": each, **more} for each in ids]
        named = [each for each in models if path.endswith(f"/models/{each['id']}")]
        writer.write(json_answer(named[0] if named else {"object": "list", "data": models}))
        await writer.drain()

    return ScriptedUpstream(script)


@pytest.fixture
async def local() -> AsyncIterator[ScriptedUpstream]:
    """An upstream beside the one of `narrows`."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(lists(*LOCAL, owned_by="us"))


async def both(narrows: Start, local: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Running:
    """Narrows before two: a local one with a key, for some models, and one in the cloud for all others."""
    monkeypatch.setenv("LOCAL_KEY", "sk-local")
    row = {"name": "local", "url": local.url, "models": ["llama*", "shared"], "auth": "bearer", "key_env": "LOCAL_KEY"}
    return await narrows(lists(*CLOUD, context=8).script, upstreams=[row], **settings)


async def listed(setup: Running, key: str) -> list[str]:
    async with openai.AsyncOpenAI(base_url=setup.url, api_key=key, max_retries=0) as sdk:
        return [model.id async for model in sdk.models.list()]


async def test_a_client_of_openai_sees_each_model_once_where_it_would_go(
    narrows: Start, local: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = await both(narrows, local, monkeypatch)
    assert await listed(setup, "sk-mine") == ["llama-3", "shared", "gpt-5", "gpt-5-mini", "o3"]
    assert [asked.all("authorization") for asked in local.seen] == [["Bearer sk-local"]]
    assert [asked.all("authorization") for asked in setup.upstream.seen] == [["Bearer sk-mine"]]
    async with setup.client.get(f"{setup.url}/models?region=eu") as reply:
        models = {each["id"]: each for each in (await reply.json())["data"]}
    assert models["o3"] == {"id": "o3", "object": "model", "created": 0, "owned_by": "default", "context": 8}
    assert models["shared"]["owned_by"] == "us"
    assert local.seen[-1].line == "GET /v1/models?region=eu HTTP/1.1"
    async with openai.AsyncOpenAI(base_url=setup.url, api_key="k", max_retries=0) as sdk:
        assert [(await sdk.models.retrieve(name)).id for name in ("llama-3", "o3")] == ["llama-3", "o3"]
    assert local.seen[-1].line == "GET /v1/models/llama-3 HTTP/1.1"
    assert setup.upstream.seen[-1].line == "GET /v1/models/o3 HTTP/1.1"


async def test_x5_a_key_sees_the_models_that_it_may_ask_and_no_others(
    narrows: Start, local: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {name: new_key() for name in ("some", "one", "all")}
    limits: dict[str, Any] = {
        "some": {"models": ["gpt-5*", "llama*"], "rpm": 2},
        "one": {"upstreams": ["default"], "models": ["shared", "qwen*"]},
        "all": {},
    }
    rows = [{"name": name, "sha256": digest_of(key), **limits[name]} for name, key in keys.items()]
    setup = await both(narrows, local, monkeypatch, auth="keys", keys=rows)
    assert await listed(setup, keys["some"]) == ["llama-3", "gpt-5", "gpt-5-mini"]
    asked = len(local.seen)
    assert await listed(setup, keys["one"]) == ["shared"]  # of the one upstream that it may use
    assert len(local.seen) == asked
    assert len(await listed(setup, keys["all"])) == 5
    async with openai.AsyncOpenAI(base_url=setup.url, api_key=keys["some"], max_retries=0) as sdk:
        with pytest.raises(openai.PermissionDeniedError):
            await sdk.models.retrieve("o3")
        raw = await sdk.models.with_raw_response.list()
        assert raw.headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(openai.RateLimitError):
            await sdk.models.list()
    assert not [1 for each in (*local.seen, *setup.upstream.seen) if b"nrw_" in each.head]


async def test_a_client_of_anthropic_reads_the_list_page_by_page_and_claude_code_at_once(narrows: Start) -> None:
    async with lists(*CLAUDES, type="model", display_name="A Claude") as first, lists("glm-5") as second:
        rows = [
            {"name": "first", "url": first.url, "models": ["claude*"]},
            {"name": "second", "url": second.url, "apis": ["messages"]},
        ]
        setup = await narrows(upstreams=rows, upstream=None)
        root = setup.url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=root, api_key="sk-ant", max_retries=0) as sdk:
            page = await sdk.models.list(limit=2)
            assert (page.has_more, page.first_id, page.last_id) == (True, "claude-0", "claude-1")
            assert [model.id async for model in sdk.models.list(limit=2)] == [*CLAUDES, "glm-5"]
            back = await sdk.models.list(limit=2, before_id="claude-4")
            assert ([each.id for each in back.data], back.has_more) == (["claude-2", "claude-3"], True)
            glm = (await sdk.models.list()).data[-1]
            assert (glm.id, glm.type, glm.display_name) == ("glm-5", "model", "glm-5")
        headers = {"anthropic-version": "2023-06-01", "Authorization": "Bearer sk-ant"}
        async with setup.client.get(f"{setup.url}/models?limit=1000", headers=headers) as reply:
            whole_list = await reply.json()
        assert ([each["id"] for each in whole_list["data"]], whole_list["has_more"]) == ([*CLAUDES, "glm-5"], False)
        assert first.seen[-1].line == "GET /v1/models?limit=1000 HTTP/1.1"
        assert first.seen[-1].one("authorization") == "Bearer sk-ant"  # and nobody else sees it
        assert [
            name for asked in second.seen for name, _ in asked.headers if name in ("authorization", "x-api-key")
        ] == []


async def test_one_upstreams_list_goes_on_as_it_came(narrows: Start, local: ScriptedUpstream) -> None:
    answer = whole(b'{ "data" : [ {"id":"o3"} ] }', "Content-Type: application/json", "x-own: 1")

    async def script(_: Asked, writer: Any) -> None:
        writer.write(answer)

    setup = await narrows(script, upstreams=[{"name": "local", "url": local.url, "apis": ["messages"]}])
    async with setup.client.get(f"{setup.url}/models") as reply:
        assert (await reply.read(), reply.headers["x-own"]) == (b'{ "data" : [ {"id":"o3"} ] }', "1")
    assert local.seen == []
    setup = await narrows(upstream=None, upstreams=[{"name": "local", "url": local.url, "apis": ["responses"]}])
    assert await listed(setup, "k") == list(LOCAL)


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (whole(b"<html>", "Content-Type: text/html"), 502, "upstream_garbled"),
        (whole(b'{"data": {"id": 1}}'), 502, "upstream_garbled"),
        (json_answer({"error": {}}, status="401 Unauthorized"), 401, "no_models"),
        (whole(b"", "Location: http://elsewhere/", status="302 Found"), 502, "no_models"),
        (b"", 502, "upstream_cut"),
    ],
)
async def test_an_upstream_that_lists_nothing_is_left_out_and_only_where_all_are_the_client_gets_an_error(
    narrows: Start, local: ScriptedUpstream, answer: bytes, status: int, code: str
) -> None:
    async def script(_: Asked, writer: Any) -> None:
        writer.write(answer)
        writer.close()

    async with ScriptedUpstream(script) as wrong:
        bad = {"name": "bad", "url": wrong.url, "models": ["bad*"]}
        good = {"name": "local", "url": local.url, "models": ["llama*"]}
        setup = await narrows(upstream=None, upstreams=[bad, good])
        assert await listed(setup, "k") == ["llama-3"]
        setup = await narrows(upstream=None, upstreams=[bad, {**bad, "name": "worse", "models": ["worse*"]}])
        async with setup.client.get(f"{setup.url}/models") as reply:
            error = json.loads(await reply.read())["error"]
        assert (reply.status, error["code"]) == (status, code)


async def test_a_slow_upstream_keeps_nobody_waiting(
    narrows: Start, local: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.upstreams.model_lists._SECONDS", 0.1)

    async def script(_: Asked, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await asyncio.Event().wait()

    setup = await narrows(script, upstreams=[{"name": "local", "url": local.url, "models": ["llama*"]}])
    assert await listed(setup, "k") == ["llama-3"]

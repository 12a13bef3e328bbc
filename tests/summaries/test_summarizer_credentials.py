"""The summariser: whose credential goes where, and what else leaves with it."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from proxy.config import ConfigurationError
from proxy.summaries.summarizer import SummarizerError
from tests.kit.summarizers import ASKING, PROOFS, Make, Serve, claude, message, other, proofs, text
from tests.kit.upstream import Asked, completion, json_answer, whole

ENVIRONMENT = {
    "OPENAI_API_KEY": "env-key",
    "OPENAI_ORG_ID": "env-org",
    "OPENAI_PROJECT_ID": "env-project",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
    "OPENAI_CUSTOM_HEADERS": "api-key: env-header\nHost: elsewhere\nUser-Agent: env\nX-Extra: 1",
    "ANTHROPIC_API_KEY": "env-key",
    "ANTHROPIC_AUTH_TOKEN": "env-token",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
    "ANTHROPIC_CUSTOM_HEADERS": "Authorization: Bearer env-header",
}


@pytest.mark.parametrize(
    "auth",
    [
        {"Authorization": "Bearer client"},
        {"api-key": "client"},
        {"x-api-key": "client", "OpenAI-Organization": "org", "OpenAI-Project": "project"},
        {"Authorization": "Basic c2VjcmV0"},
        {},
    ],
    ids=["bearer", "azure", "x-api-key", "basic", "none"],
)
async def test_x4_the_upstream_hears_what_the_client_said_and_nothing_else(
    serve: Serve, make: Make, monkeypatch: pytest.MonkeyPatch, auth: dict[str, str]
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    upstream = await serve(json_answer(completion()))
    summarizer = make(upstream)
    await summarizer.write(replace(ASKING, auth={"Authorization": "Bearer somebody else"}))
    await summarizer.write(replace(ASKING, auth=auth))
    assert proofs(upstream.seen[1]) == {name.lower(): value for name, value in auth.items()}
    assert upstream.seen[1].one("host") == f"127.0.0.1:{upstream.port}"
    assert upstream.seen[1].one("user-agent") == "narrows"
    sent = {name.lower() for name, _ in upstream.seen[1].headers} - set(PROOFS)
    assert sent <= {"host", "accept", "accept-encoding", "content-type", "content-length", "user-agent"}


@pytest.mark.parametrize("place", ["upstream", "elsewhere"])
async def test_x4_a_key_of_ours_goes_without_the_clients(
    serve: Serve, make: Make, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    upstream, server = await serve(json_answer(completion())), await serve(json_answer(completion()))
    entry = {"key_env": "KEY_OF_OURS", "model": "x"} if place == "upstream" else other(server, model="x")
    summarizer = make(upstream, entry)
    await summarizer.write(replace(ASKING, auth={"Authorization": "Bearer client", "api-key": "client"}))
    asked, unasked = (upstream, server) if place == "upstream" else (server, upstream)
    assert [proofs(one) for one in asked.seen] == [{"authorization": "Bearer ours"}]
    assert unasked.seen == []


async def test_x4_in_a_chain_each_gets_its_own_credential(
    serve: Serve, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    broken = json_answer({}, "x-should-retry: false", status="500 Oh")
    upstream, second, third = await serve(broken), await serve(broken), await serve(json_answer(message(text("ok"))))
    summarizer = make(upstream, {"model": ""}, other(second), claude(third))
    assert (await summarizer.write(ASKING)).model == "c"
    seen = [proofs(server.seen[0]) for server in (upstream, second, third)]
    assert seen == [{"authorization": "Bearer client"}, {"authorization": "Bearer ours"}, {"x-api-key": "ours"}]


async def test_x1_a_redirect_is_not_followed(serve: Serve, make: Make) -> None:
    trap = await serve(json_answer(completion()))
    upstream = await serve(whole(b"", f"Location: {trap.url}/chat/completions", status="308 There"))
    summarizer = make(upstream)
    with pytest.raises(SummarizerError):
        await summarizer.write(ASKING)
    assert trap.seen == []


async def test_x4_a_credential_that_no_header_can_hold_is_a_fault_and_not_said(serve: Serve, make: Make) -> None:
    upstream = await serve(json_answer(completion()))
    summarizer = make(upstream)
    for value in ("a\r\nX-More: 1", "\udcff"):
        with pytest.raises(SummarizerError) as error:
            await summarizer.write(replace(ASKING, auth={"Authorization": value}))
        assert value not in repr(error.value)
    assert upstream.seen == []


@pytest.mark.parametrize("bypassed", [False, True])
async def test_x1_the_way_is_that_of_other_requests(
    serve: Serve, make: Make, monkeypatch: pytest.MonkeyPatch, bypassed: bool
) -> None:
    upstream, gateway = await serve(json_answer(completion())), await serve(json_answer(completion()))
    monkeypatch.setenv("HTTP_PROXY", f"http://user:word@127.0.0.1:{gateway.port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1" if bypassed else "")
    summarizer = make(upstream)
    await summarizer.write(ASKING)
    assert [len(upstream.seen), len(gateway.seen)] == [int(bypassed), int(not bypassed)]
    if not bypassed:
        assert gateway.seen[0].line == f"POST {upstream.url}/chat/completions HTTP/1.1"
        assert gateway.seen[0].one("proxy-authorization") == "Basic dXNlcjp3b3Jk"
    else:
        assert upstream.seen[0].all("proxy-authorization") == []


async def test_x1_a_proxy_of_another_kind_is_refused(serve: Serve, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="must be an http:// URL"):
        make(await serve(b""))


async def test_x4_each_of_many_at_once_is_asked_for_in_its_own_name(serve: Serve, make: Make) -> None:
    async def slow(_: Asked, writer: Any) -> None:
        await asyncio.sleep(0.01)
        writer.write(json_answer(completion()))
        await writer.drain()

    upstream = await serve(slow)
    summarizer = make(upstream)
    names = [f"client {n}" for n in range(20)]
    await asyncio.gather(*(summarizer.write(replace(ASKING, text=n, auth={"api-key": n})) for n in names))
    assert all(proofs(asked)["api-key"].encode() in asked.body for asked in upstream.seen)
    assert sorted(proofs(asked)["api-key"] for asked in upstream.seen) == sorted(names)
    await summarizer.close()
    await upstream.until_idle()

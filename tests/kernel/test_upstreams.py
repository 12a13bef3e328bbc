"""Which upstream a request goes to, with whose key, and what the upstream receives."""

import gzip
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncAzureOpenAI, AsyncOpenAI
from pydantic import ValidationError
from yarl import URL

from policies.dialects import DIALECTS
from proxy.config import Settings
from proxy.config.upstreams import UpstreamRow
from proxy.console.doctor import check_upstream, upstreams_of
from proxy.errors import ApiError
from proxy.upstreams.outbound import Outbound
from proxy.upstreams.price_book import PriceBook
from proxy.upstreams.table import chosen
from tests.kit.running import Start
from tests.kit.upstream import Asked, ScriptedUpstream, completion, json_answer, says

CHAT = "/v1/chat/completions"


@pytest.fixture
async def other() -> AsyncIterator[ScriptedUpstream]:
    """An upstream beside the one of `narrows`."""
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(ScriptedUpstream(says(json_answer(completion()))))


def row(name: str, **fields: Any) -> UpstreamRow:
    return UpstreamRow(name=name, **{"url": "http://127.0.0.1:9/v1", **fields})


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"url": "api.example.com"}, "give a whole URL"),
        ({"url": "https://{model}.example.com/v1"}, "write {model} once, as a part of the path"),
        ({"url": "https://a.example/{model}/{model}"}, "write {model} once"),
        ({"url": "https://a.example/{deployment}"}, "only {model} may stand in braces"),
        ({"url": "https://a.example/v1?api-version=1"}, "leave out everything from ?"),
        ({"auth": "bearer"}, "name the variable"),
        ({"key_env": "UPSTREAM_KEY"}, "say in which header"),
        ({"key_env": "NO_SUCH_KEY", "auth": "bearer"}, "the environment variable NO_SUCH_KEY is empty or not set"),
        ({"key_file": "/no/such/key", "auth": "bearer"}, "cannot read the file /no/such/key"),
        ({"key_env": "UPSTREAM_KEY", "key_file": "/k", "auth": "bearer"}, "one key is enough"),
        ({"key_env": "UPSTREAM_KEY", "auth": "bearer", "headers": {"Authorization": "x"}}, "the key stands there"),
        ({"headers": {"Connection": "close"}}, "sets or drops this header itself"),
        ({"headers": {"x-narrows-mode": "off"}}, "sets or drops this header itself"),
        ({"headers": {"X Y": "1"}}, "no name of a header"),
        ({"headers": {"X-Y": "1\r\nZ: 2"}}, "characters that no header can hold"),
        ({"ca": "/no/such.pem"}, "there is no file"),
        ({"name": "default"}, "is the one of `upstream`"),
        ({"name": "first"}, "there is an upstream 'first' above"),
        ({"models": []}, "it is never reached: upstreams.0 fits all that it fits"),
        ({"models": ["b"], "apis": ["chat"]}, ""),
        ({"overrides": {"m": {"input": "much"}}}, "prices of 'm'"),
    ],
)
def test_c6_a_row_that_cannot_be_meant_is_refused_and_shows_no_key(
    fields: dict[str, Any], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-secret")
    second = {"name": "second", "url": "https://b.example/v1", "models": ["b"], **fields}
    rows = [{"name": "first", "url": "https://a.example", "models": [] if fields == {"models": []} else ["a"]}, second]
    if not advice:
        assert Settings(upstream="https://c.example/v1", upstreams=rows).upstreams[1].models == ("b",)  # type: ignore[arg-type]  # as in a file
        return
    with pytest.raises(ValidationError, match=re.escape(advice)) as refusal:
        Settings(upstream="https://c.example/v1", upstreams=rows)  # type: ignore[arg-type]  # as in a file
    assert "sk-secret" not in str(refusal.value)


def test_c6_a_key_of_the_gateways_own_is_for_loopback_or_for_holders_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-secret")
    rows: Any = [{"name": "own", "url": "https://a.example/v1", "auth": "bearer", "key_env": "UPSTREAM_KEY"}]
    for allowed in ({"host": "127.0.0.1"}, {"host": "::1"}, {"host": "0.0.0.0", "auth": "keys"}):  # noqa: S104
        assert "sk-secret" not in repr(Settings(upstreams=rows, **allowed))  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="would pay for whoever reaches"):
        Settings(upstreams=rows, host="0.0.0.0")  # noqa: S104


ROWS = st.lists(
    st.tuples(
        st.sampled_from([(), ("chat",), ("messages", "responses")]),
        st.sampled_from([(), ("gpt-*",), ("claude", "*-x")]),
    ),
    min_size=1,
    max_size=5,
)


@given(
    ROWS,
    st.sampled_from(sorted(DIALECTS)),
    st.sampled_from([None, "gpt-5", "claude", "gpt-x", "o1"]),
    st.sets(st.sampled_from("abcde")),
    st.sampled_from(["", "a", "c"]),
)
def test_the_first_row_that_fits_counts_of_those_that_the_request_may_use(
    shapes: list[Any], dialect: str, model: str | None, allowed: set[str], rule: str
) -> None:
    rows = [row(name, apis=apis, models=models) for name, (apis, models) in zip("abcde", shapes, strict=False)]
    speaking = [each for each in rows if each.fits(dialect, None) and (not allowed or each.name in allowed)]
    fitting = [each for each in speaking if (each.name == rule if rule else each.fits(dialect, model))]
    if fitting:
        assert chosen(rows, dialect, model, allowed, rule) is fitting[0]
        return
    with pytest.raises(ApiError) as refusal:
        chosen(rows, dialect, model, allowed, rule)
    assert (refusal.value.status, refusal.value.code) == (404, "no_upstream")
    assert (model or "This request") in refusal.value.message


async def test_a_chat_goes_where_its_model_is_served_and_a_rule_decides_before_the_models(
    narrows: Start, other: ScriptedUpstream
) -> None:
    rows = [{"name": "local", "url": other.url, "apis": ["chat"], "models": ["llama*"]}]
    setup = await narrows(upstreams=rows, rules=[{"model": "gpt-9*", "upstream": "local"}])
    for model in ("llama-3", "gpt-5", "gpt-9-mini", ""):
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]})
        async with setup.client.post(setup.url.removesuffix("/v1") + CHAT, data=body) as reply:
            assert reply.status == 200
    assert [json.loads(asked.body)["model"] for asked in other.seen] == ["llama-3", "gpt-9-mini", ""]
    assert [json.loads(asked.body)["model"] for asked in setup.upstream.seen] == ["gpt-5"]


# --- keys of the gateway's own ---


async def test_x4_the_key_of_a_row_takes_the_place_of_all_that_a_client_proves_itself_with(
    narrows: Start, other: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-own")
    own = {"name": "own", "url": other.url, "models": ["m"], "auth": "bearer", "key_env": "UPSTREAM_KEY"}
    setup = await narrows(upstreams=[{**own, "headers": {"X-Title": "team"}, "query": {"api-version": "1"}}])
    proofs = [
        "Authorization",
        "api-key",
        "x-api-key",
        "x_api_key",
        "OpenAI-Organization",
        "Cookie",
        "copilot-integration-id",
    ]
    headers = dict.fromkeys(proofs, "sk-client")
    headers |= {"anthropic-beta": "oauth-2025-04-20, fast", "x-title": "mine", "X-Other": "stays"}
    for path in ("/chat/completions", "/embeddings"):
        for model in ("m", "n"):
            url = f"{setup.url}{path}?key=sk-client&API-version=2&beta=true"
            async with setup.client.post(url, json={"model": model, "messages": []}, headers=headers) as reply:
                assert reply.status == 200
    assert len(other.seen) == len(setup.upstream.seen) == 2
    for asked in other.seen:
        assert b"sk-client" not in asked.head
        assert b"oauth" not in asked.head
        assert (asked.one("authorization"), asked.one("x-title"), asked.one("x-other")) == (
            "Bearer sk-own",
            "team",
            "stays",
        )
        assert asked.line.split()[1].endswith("?beta=true&api-version=1")
    for asked in setup.upstream.seen:
        assert b"sk-own" not in asked.head
        assert asked.one("api-key") == "sk-client"


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "10.0.0.7"},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
        {"Host": "203.0.113.7"},  # HAProxy passes it on, and says nothing else of whom it speaks for
        {"Host": "[2001:db8::7]:443"},
    ],
)
async def test_x4_who_is_not_on_this_machine_spends_no_key_of_the_gateway(
    narrows: Start, other: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-own")
    rows = [{"name": "own", "url": other.url, "auth": "bearer", "key_env": "UPSTREAM_KEY"}]
    setup = await narrows(upstream=None, upstreams=rows)
    for path in ("/chat/completions", "/embeddings"):
        async with setup.client.post(setup.url + path, json={"model": "m", "messages": []}, headers=headers) as reply:
            assert reply.status == 401
            assert "nrw_" in (await reply.json())["error"]["message"]
    assert other.seen == []


async def test_a_key_in_a_file_is_read_again_when_it_changes_and_stays_where_the_file_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-1\n")
    outbound = Outbound(row("own", auth="api-key", key_file=file))
    assert outbound.proof == {"api-key": "sk-1"}
    file.write_text("sk-second")
    assert await outbound.reread() == ""
    assert outbound.proof == {"api-key": "sk-second"}
    file.write_text("")
    assert "is empty" in await outbound.reread()
    file.unlink()
    assert "cannot read" in await outbound.reread()
    assert outbound.proof == {"api-key": "sk-second"}
    assert "sk-second" not in repr(outbound)


# --- Azure ---


async def azure(asked: Asked, writer: Any) -> None:
    """Answers as Azure OpenAI does: at its own paths, with its own header, and with a version."""
    target = asked.line.split()[1]
    path, _, query = target.partition("?")
    model = json.loads(asked.body).get("model") if asked.body else None
    is_deployment = path in (f"/openai/deployments/gpt-dev/{each}" for each in ("chat/completions", "embeddings"))
    has_version = "api-version=2024-10-21" in query.split("&")
    is_v1 = path == "/openai/v1/chat/completions" and model == "gpt-dev"
    is_listed = path == "/openai/models" and has_version
    if asked.all("api-key") != ["az-key"] or asked.all("authorization"):
        await says(json_answer(b"{}", status="401 Unauthorized"))(asked, writer)
    elif (is_deployment and has_version) or is_v1 or is_listed:
        await says(json_answer(completion()))(asked, writer)
    else:
        await says(json_answer(b"{}", status="404 Not Found"))(asked, writer)


@pytest.mark.parametrize("brings_version", [True, False])
async def test_the_azure_client_and_the_plain_one_work_before_azure_and_before_openai(
    narrows: Start, monkeypatch: pytest.MonkeyPatch, brings_version: bool
) -> None:
    monkeypatch.setenv("AZURE_KEY", "az-key")
    async with ScriptedUpstream(azure) as cloud:
        base = cloud.url.removesuffix("/v1") + "/openai"
        auth = {"auth": "api-key", "key_env": "AZURE_KEY"}
        query = {} if brings_version else {"query": {"api-version": "2024-10-21"}}
        deployments = {"name": "azure", "url": base + "/deployments/{model}", "models": ["gpt-dev"], **auth, **query}
        v1 = {"name": "azure-v1", "url": base + "/v1", "models": ["gpt-dev"], "apis": ["chat"], **auth}
        for rows in ([deployments], [v1], []):
            setup = await narrows(upstreams=rows)
            root = setup.url.removesuffix("/v1")
            version = "2024-10-21" if brings_version else "2099-01-01"
            azures = [
                AsyncAzureOpenAI(azure_endpoint=root, api_key="k", api_version=version, max_retries=0),
                AsyncAzureOpenAI(
                    azure_endpoint=root, azure_deployment="gpt-dev", api_key="k", api_version=version, max_retries=0
                ),
            ]
            plain = [
                AsyncOpenAI(base_url=f"{root}{path}", api_key="k", max_retries=0) for path in ("/openai/v1", "/v1")
            ]
            for client in (*azures, *(plain if rows != [deployments] or not brings_version else [])):
                reply = await client.chat.completions.create(
                    model="gpt-dev", messages=[{"role": "user", "content": "hi"}]
                )
                assert reply.choices[0].message.content
                await client.close()
            if not rows:
                assert {asked.line.split()[1].partition("?")[0] for asked in setup.upstream.seen} == {
                    "/v1/chat/completions"
                }


async def test_a_deployment_in_the_path_is_the_model_and_nothing_else_is_asked(narrows: Start) -> None:
    setup = await narrows()
    root = setup.url.removesuffix("/v1")
    for path, body, status in (
        ("/openai/deployments/a/chat/completions", {"model": "b", "messages": []}, 400),
        ("/openai/deployments/a/chat/completions", {"messages": []}, 400),
        ("/openai/deployments/a/chat/completions", {"model": "a", "messages": []}, 200),
        ("/openai/deployments/a/embeddings", {"model": "b"}, 400),
        ("/openai/deployments/a%2Fb/chat/completions", {"model": "a/b"}, 400),
        ("/openai/deployments/../chat/completions", {"model": "a"}, 400),
        ("/openai/deployments/%2e%2e/chat/completions", {"model": "a"}, 400),
        ("/openaix/v1/chat/completions", {"model": "a"}, 404),
    ):
        url = URL(root + path, encoded=True)
        async with setup.client.post(url, json=body) as reply:
            assert reply.status == status, path
    assert [asked.line.split()[1] for asked in setup.upstream.seen] == ["/v1/chat/completions"]


async def test_what_is_asked_without_a_model_goes_beside_the_deployments(
    narrows: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_KEY", "az-key")
    async with ScriptedUpstream(azure) as cloud:
        url = cloud.url.removesuffix("/v1") + "/openai/deployments/{model}"
        row = {"name": "azure", "url": url, "auth": "api-key", "key_env": "AZURE_KEY"}
        setup = await narrows(upstream=None, upstreams=[{**row, "query": {"api-version": "2024-10-21"}}])
        async with setup.client.get(setup.url + "/models") as reply:
            assert reply.status == 200
        async with setup.client.post(setup.url + "/embeddings", json={"model": "gpt-dev", "input": "x"}) as reply:
            assert reply.status == 200
        for name in ("..", "a/../b", "a%2fb"):
            async with setup.client.post(setup.url + "/embeddings", json={"model": name, "input": "x"}) as reply:
                assert reply.status == 404


async def test_t1_a_relayed_body_goes_byte_for_byte_where_its_model_is_served(
    narrows: Start, other: ScriptedUpstream
) -> None:
    setup = await narrows(upstreams=[{"name": "local", "url": other.url + "/api", "models": ["bge*"]}])
    body = b'{ "input" : "\\u00e4",\n"model":"bge-m3" }'
    headers = {"Content-Type": "application/json"}
    async with setup.client.post(setup.url + "/embeddings", data=body, headers=headers) as reply:
        assert reply.status == 200
    packed = {**headers, "Content-Encoding": "gzip"}
    async with setup.client.post(setup.url + "/embeddings", data=gzip.compress(body), headers=packed) as reply:
        assert reply.status == 200
    async with setup.client.get(setup.url + "/responses/resp_1") as reply:
        assert reply.status == 200
    targets = [asked.line.split()[1] for asked in other.seen]
    assert targets == ["/v1/api/embeddings", "/v1/api/embeddings", "/v1/api/responses/resp_1"]
    assert [asked.body for asked in other.seen[:1]] == [body]
    assert gzip.decompress(other.seen[1].body) == body
    assert setup.upstream.seen == []


async def test_the_doctor_asks_each_row_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_KEY", "az-key")
    async with ScriptedUpstream(azure) as cloud:
        url = cloud.url.removesuffix("/v1") + "/openai/deployments/{model}"
        fields: Any = {"auth": "api-key", "key_env": "AZURE_KEY", "query": {"api-version": "2024-10-21"}}
        settings = Settings(upstreams=({"name": "azure", "url": url, **fields},))  # type: ignore[arg-type]  # as in a file
        ((each, name),) = upstreams_of(settings).values()
        findings = await check_upstream(settings, each, name, {})
        assert cloud.seen[0].one("api-key") == "az-key"
        assert "az-key" not in repr(findings)
        assert [finding for finding in findings if "AZURE_KEY is set, and accepted" in finding.text]


def test_prices_and_windows_are_those_of_the_row() -> None:
    rows: Any = [{"name": "own", "url": "http://127.0.0.1:9/v1", "overrides": {"m": {"window": 9_000, "input": 7.0}}}]
    rows[0]["apis"] = ["chat"]
    settings = Settings(upstreams=rows, models={"m": {"window": 50_000}}, upstream="http://127.0.0.1:9")
    book = PriceBook(settings)
    assert (book.prices("m", "own").window, book.prices("m", "own").input) == (9_000, 7.0)
    assert book.prices("m", "default").window == 50_000

"""Targets, headers, framing, patience, tenants, logs: what a client can do to others, and cannot."""

import asyncio
import json
import re

import aiohttp
import pytest

from proxy.console.serve import greeting
from proxy.kernel.gateway import Target
from tests.kit.running import Start
from tests.kit.upstream import CHAT, REQUEST, chunk, completion, error_of, json_answer, post, whole

BODY = json.dumps(REQUEST).encode()


def get(target: str, *headers: str, host: str = "127.0.0.1") -> bytes:
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example/v1/models",
        "https://key@evil.example/v1/models",
        "//evil.example/v1/models",
        "evil.example:443",
        "*",
        "/v1/../admin",
        "/v1/%2e%2e/admin",
        "/v1/%252e%252e/admin",
        "/v1/%25252525252e./admin",
        "/v1/..;x/admin",
        "/v1/..%5cadmin",
        "/v1/./models",
        "/v1/%00",
        "/v1/%0d%0aHost:%20evil.example",
        "/v1\\..\\admin",
        "/%76%31/models",
        "/v1@evil.example/models",
        "/v1/..;/admin",
        "/v1/x;..;/admin",
        "/v1/..%20/admin",
        "/v1/%c0%ae%c0%ae/admin",
        "/v1/%2e%2e%ff/admin",
        "/v1/%ef%bc%8e%ef%bc%8e/admin",
        "/v1/%e2%80%a5/admin",
        "/v1/%uff0e%uff0e/admin",
        "/v1/%",
    ],
)
async def test_x1_no_target_leads_elsewhere(narrows: Start, target: str) -> None:
    setup = await narrows()
    reply = await setup.raw(get(target))
    assert re.match(rb"HTTP/1\.[01] 40[04] ", reply)
    assert error_of(reply)["type"] == "invalid_request_error"
    assert setup.upstream.seen == []


@pytest.mark.parametrize("target", ["/v1/models//evil.example/", "/v1/@evil.example:80/", "/v1//evil.example"])
async def test_x1_what_looks_like_a_host_stays_a_path(narrows: Start, target: str) -> None:
    setup = await narrows()
    forged = ("X-Forwarded-Host: evil.example", "Forwarded: host=evil.example")
    await setup.raw(get(target, *forged).replace(b"Host: narrows", b"Host: evil.example"))
    (asked,) = setup.upstream.seen
    assert asked.line == f"GET {target} HTTP/1.1"
    assert asked.all("host") == [f"127.0.0.1:{setup.upstream.port}"]


async def test_x1_the_upstream_may_have_a_path_of_its_own(narrows: Start) -> None:
    inner = await narrows()
    setup = await narrows(upstream=inner.upstream.url.replace("/v1", "/openai/v1/"))
    await setup.raw(post(BODY, target="/v1/%63hat//completions/?a=b"))
    assert inner.upstream.seen[0].line == "POST /openai/v1/%63hat//completions/?a=b HTTP/1.1"
    assert [noted.client_request.dialect for noted in setup.compaction.seen] == ["openai_chat"]


async def test_x1_redirects_are_not_followed(narrows: Start) -> None:
    setup = await narrows(whole(b"", "Location: http://evil.example/", status="307 Temporary Redirect"))
    reply = await setup.raw(post(BODY))
    assert b" 307 " in reply.splitlines()[0]
    assert b"Location: http://evil.example/" in reply
    assert len(setup.upstream.seen) == 1


def test_x1_targets_are_read_as_they_are_meant() -> None:
    assert Target.read("/v1/a%20b//c?x=%2e%2e") == Target("/v1/a b/c", "/a%20b//c?x=%2e%2e")
    assert Target.read("/v1") == Target("/v1", "")
    assert Target.read("/healthz") == Target("/healthz", None)


async def test_x2_headers_of_the_hop_stay_and_all_others_pass(narrows: Start) -> None:
    answer = whole(
        b"{}",
        "Set-Cookie: a=1",
        "set-cookie: b=2",
        "Retry-After: 7",
        "x-ratelimit-Remaining: 3",
        "Connection: X-Hop",
        "X-Hop: secret",
        "Keep-Alive: timeout=5",
        "X-Latin: caf\xe9",
    )
    setup = await narrows(answer)
    reply = await setup.raw(
        post(
            BODY,
            "Connection: X-Mine, keep-alive",
            "X-Mine: hop",
            "TE: trailers",
            "Proxy-Authorization: Basic eDp5",
            "Upgrade: h2c",
            "Idempotency-Key: k1",
            "X-Custom: 1",
            "x-custom: 2",
            "X-Narrows-Anything: x",
            "Authorization: Bearer sk-1",
            "Accept-Encoding: gzip;q=0.5, snappy, br, *",
            "Expect: 100-continue",
        )
    )
    (asked,) = setup.upstream.seen
    names = [name.lower() for name, _ in asked.headers]
    dropped = {"connection", "x-mine", "te", "proxy-authorization", "upgrade", "expect", "x-narrows-anything"}
    assert not dropped.intersection(names)
    assert ("X-Custom", "1") in asked.headers
    assert asked.all("x-custom") == ["1", "2"]
    assert asked.one("idempotency-key") == "k1"
    assert asked.one("authorization") == "Bearer sk-1"
    assert asked.one("accept-encoding") == "gzip;q=0.5, br"
    assert asked.one("content-length") == str(len(BODY))
    assert {"user-agent", "accept", "content-type"}.isdisjoint(names)
    assert reply.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    head = reply.partition(b"\r\n\r\n")[2].partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    for line in ("Set-Cookie: a=1", "set-cookie: b=2", "Retry-After: 7", "x-ratelimit-Remaining: 3"):
        assert line in head
    assert "X-Latin: caf\xe9" in head
    assert not any(line.lower().startswith(("x-hop", "keep-alive", "server", "content-type")) for line in head)


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 6\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length : 5\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Host: y\r\nContent-Length: 5\r\n",
        b"X-A: 1\r\n folded\r\nContent-Length: 5\r\n",
        b"X-A: 1\nX-B: 2\r\nContent-Length: 5\r\n",
        b" Content-Length: 5\r\n",
        b"X: " + b"x" * 20_000 + b"\r\n",
        b"Authorization: Bearer sk-secret\r\nbroken header sk-secret\r\n",
        b"X-Control: a\x01b\r\nContent-Length: 5\r\n",
    ],
)
async def test_x2_ambiguous_framing_is_refused_and_closed(narrows: Start, framing: bytes) -> None:
    setup = await narrows()
    smuggled = b"0\r\n\r\nGET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    reply = await setup.raw(HEAD + framing + b"\r\n" + smuggled)
    assert re.match(rb"HTTP/1\.[01] 4\d\d ", reply)
    assert b"secret" not in reply
    assert error_of(reply)["type"] == "invalid_request_error"
    assert setup.upstream.seen == []


async def test_x2_broken_chunks_are_refused_and_closed(narrows: Start) -> None:
    setup = await narrows()
    reply = await setup.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello!zzz\r\nGET /v1/x HTTP/1.1\r\n\r\n")
    assert b" 400 " in reply.splitlines()[0]
    assert setup.upstream.seen == []


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
async def test_x2_a_chunked_body_goes_on_with_one_framing(narrows: Start, target: str) -> None:
    setup = await narrows()
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    await setup.raw(head.encode() + chunk(b"hel") + chunk(b"lo") + chunk(b""))
    (asked,) = setup.upstream.seen
    assert asked.body == b"hello"
    assert len(asked.all("content-length") + asked.all("transfer-encoding")) == 1


@pytest.mark.parametrize(
    ("settings", "sent", "status"),
    [
        ({"header_timeout": 0.2}, b"", b""),
        ({"header_timeout": 0.2}, HEAD, b""),
        ({"body_timeout": 0.2}, HEAD + b"Content-Length: 5\r\n\r\nhel", b"HTTP/1.1 408 "),
        (
            {"body_timeout": 0.2},
            b"PUT /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhel",
            b"HTTP/1.1 408 ",
        ),
    ],
    ids=["silent", "half a head", "half a body", "half an upload"],
)
async def test_x3_who_dawdles_is_let_go_and_others_are_served(
    narrows: Start, settings: dict[str, float], sent: bytes, status: bytes
) -> None:
    setup = await narrows(**settings)
    reader, writer = await setup.connect()
    writer.write(sent)
    async with setup.client.post(setup.url + CHAT, json=REQUEST) as reply:
        assert reply.status == 200
    async with asyncio.timeout(5):
        assert (await reader.read(2**16)).startswith(status)
    writer.close()


async def test_x4_no_credential_and_no_body_is_logged(narrows: Start, capfd: pytest.CaptureFixture[str]) -> None:
    setup = await narrows(log_level="debug", log_format="json")
    await setup.raw(post(b'{"messages": "sk-secret"}', "Authorization: Bearer sk-secret", "api-key: sk-secret"))
    await setup.raw(b"GET /v1/x HTTP/1.1\r\nsk-secret\r\n\r\n")
    await setup.raw(get("/v1/models?key=sk-secret"))
    shown = capfd.readouterr()
    assert "sk-secret" not in shown.err + shown.out
    lines = [json.loads(line) for line in shown.err.splitlines()]
    chat = next(line for line in lines if line.get("route") == "chat")
    assert (chat["event"], chat["status"], chat["mode"], chat["prefix"]) == (
        "request",
        200,
        "untouched",
        "first",
    )


@pytest.mark.parametrize(
    ("settings", "headers", "tenant"),
    [
        ({}, (), "local"),
        ({"tenant": "team"}, ("X-Forwarded-For: 10.0.0.1",), "team"),
        ({"tenant_secret": "k"}, ("X-Forwarded-For: 10.0.0.1", "Authorization: Bearer a"), None),
        ({"tenant_secret": "k"}, ("X-Forwarded-Proto: https", "Authorization: Bearer a"), None),
        ({"tenant_secret": "k"}, ("CF-Connecting-IP: 10.0.0.1", "Authorization: Bearer a"), None),
    ],
)
async def test_x5_a_tenant_is_configured_or_this_machine_or_a_keyed_hash(
    narrows: Start, settings: dict[str, str], headers: tuple[str, ...], tenant: str | None
) -> None:
    setup = await narrows(**settings)
    await setup.raw(post(BODY, *headers))
    await setup.raw(post(BODY, *headers))
    await setup.raw(post(BODY, *(header.replace("Bearer a", "Bearer b") for header in headers)))
    one, same, other = (noted.client_request.sender.tenant for noted in setup.compaction.seen)
    assert one == same
    assert (one == other) is (tenant is not None)
    assert one == tenant or re.fullmatch("[0-9a-f]{64}", one)


async def test_a_conversation_can_be_named_by_header(narrows: Start) -> None:
    setup = await narrows()
    await setup.raw(post(BODY, "x-narrows-conversation: c 1"))
    await setup.raw(post(BODY))
    assert [noted.client_request.conversation for noted in setup.compaction.seen] == ["c 1", None]
    assert error_of(await setup.raw(post(BODY, "x-narrows-conversation: " + "c" * 201)))["code"] == "bad_header"


async def test_x8_metrics_need_loopback_or_the_token(narrows: Start) -> None:
    setup = await narrows(metrics_token="t0ken")
    await setup.raw(post(BODY))
    counted = await setup.raw(get("/metrics"))
    assert b'narrows_requests_total{mode="untouched",status="2xx"} 1.0' in counted
    assert b'narrows_prefix_total{outcome="first"} 1.0' in counted
    elsewhere = "X-Forwarded-For: 10.0.0.1"
    assert b" 403 " in (await setup.raw(get("/metrics", elsewhere))).splitlines()[0]
    assert b" 403 " in (await setup.raw(get("/metrics", elsewhere, "Authorization: Bearer no"))).splitlines()[0]
    assert b" 200 " in (await setup.raw(get("/metrics", elsewhere, "Authorization: Bearer t0ken"))).splitlines()[0]


async def test_x8_a_page_of_another_site_reaches_none_of_our_pages(narrows: Start) -> None:
    """Its name may resolve to this machine."""
    setup = await narrows(metrics_token="t0ken")
    for target in ("/metrics", "/narrows/conversations/c", "/narrows/originals/123456"):
        assert b" 403 " in (await setup.raw(get(target, host="evil.example:8787"))).splitlines()[0]
    for target in ("/healthz", "/readyz"):  # for every balancer, and they tell nothing
        assert b" 200 " in (await setup.raw(get(target, host="a_backend"))).splitlines()[0]
    for host in ("127.0.0.1:8787", "localhost:8787", "[::1]:8787"):
        assert b" 200 " in (await setup.raw(get("/metrics", host=host))).splitlines()[0]
    assert b" 403 " in (await setup.raw(get("/metrics", "Origin: http://evil.example"))).splitlines()[0]
    for site in ("cross-site", "same-site"):
        for target in ("/metrics", "/narrows/conversations/c"):  # where it loads or not tells something
            frame = get(target, f"Sec-Fetch-Site: {site}", "Sec-Fetch-Dest: iframe", "Sec-Fetch-Mode: navigate")
            assert b" 403 " in (await setup.raw(frame)).splitlines()[0]
    for fetched in (["Sec-Fetch-Site: same-origin"], ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: document"]):
        assert b" 200 " in (await setup.raw(get("/metrics", *fetched))).splitlines()[0]
    token = ("X-Forwarded-For: 10.0.0.1", "Authorization: Bearer t0ken")
    proxied = get("/metrics", *token, host="narrows.example")  # a proxy on this machine
    assert b" 200 " in (await setup.raw(proxied)).splitlines()[0]


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/embeddings"])
async def test_x8_a_page_whose_name_resolves_to_this_machine_asks_no_upstream(narrows: Start, target: str) -> None:
    """An upstream without keys that looks at Host would be asked by its own name."""
    setup = await narrows()
    asked = post(BODY, "Origin: http://evil.example:8787", "Content-Type: text/plain", target=target)
    hosts = {b"evil.example:8787": b" 403 ", b"localhost:3000": b" 200 ", b"127.0.0.1:3000": b" 200 "}
    for host, status in hosts.items():
        reply = await setup.raw(re.sub(rb"Host: [^\r]+", b"Host: " + host, asked))
        assert status in reply.splitlines()[0]
    plain = re.sub(rb"Host: [^\r]+", b"Host: host.docker.internal", post(BODY, target=target))  # no browser
    assert b" 200 " in (await setup.raw(plain)).splitlines()[0]
    assert len(setup.upstream.seen) == 3


async def test_x8_where_it_listens_to_the_network_names_are_those_of_the_network(narrows: Start) -> None:
    setup = await narrows(metrics_token="t0ken", host="0.0.0.0")  # noqa: S104
    assert b" 200 " in (await setup.raw(get("/healthz", host="narrows:8080"))).splitlines()[0]
    assert b" 403 " in (await setup.raw(get("/metrics", host="evil.example"))).splitlines()[0]
    scrape = get("/metrics", "Authorization: Bearer t0ken", host="narrows:8080")
    assert b" 200 " in (await setup.raw(scrape)).splitlines()[0]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:se/cret@host/0", "redis://host/0"),
        ("redis+sentinel://u:secret@a,b/main?sentinel_password=secret", "redis+sentinel://a,b/main"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    ],
)
async def test_x4_the_greeting_shows_no_password_of_the_store(narrows: Start, url: str, shown: str) -> None:
    setup = await narrows()
    settings = setup.app.settings.model_copy(update={"store": url})
    (line,) = [line for line in greeting(settings, setup.url).splitlines() if line.startswith("  store:")]
    assert line.split() == ["store:", shown]


async def test_each_request_of_a_connection_is_served_by_its_own_head(narrows: Start) -> None:
    setup = await narrows(json_answer(completion()), tenant="team")
    heads = [{"Authorization": "Bearer a"}, {"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}]
    heads += [{"Authorization": "Bearer b", "x-narrows": "off"}, {"Authorization": "Bearer a", "X-Own": "1"}]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as client:
        for at, head in enumerate(heads):
            body = json.dumps({**REQUEST, "user": "x" * at}).encode()
            async with client.post(setup.url + CHAT, data=body, headers=head) as reply:
                assert reply.status == 200
                await reply.read()
    requests = [noted.client_request for noted in setup.compaction.seen]
    assert [request.proof.auth["Authorization"] for request in requests] == [head["Authorization"] for head in heads]
    assert [request.options.mode for request in requests] == ["on", "on", "on", "off", "on"]
    owners = [request.sender.owner for request in requests]
    assert owners[0] == owners[1] == owners[4] != owners[2] == owners[3]
    assert [asked.all("authorization") for asked in setup.upstream.seen] == [[h["Authorization"]] for h in heads]
    assert [asked.all("x-own") for asked in setup.upstream.seen] == [[], [], [], [], ["1"]]
    assert [asked.all("content-length") for asked in setup.upstream.seen] == [[str(len(r.body))] for r in requests]

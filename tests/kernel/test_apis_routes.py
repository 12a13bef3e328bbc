"""Where the requests of each API go, and which of them are read."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.kit.running import Running, Start, compaction_of
from tests.kit.upstream import whole
from tests.kit.wire import APIS, Json

RELAYED = (
    ("GET", "/responses/resp_1?stream=true"),
    ("DELETE", "/responses/resp_1"),
    ("POST", "/responses/resp_1/cancel"),
    ("GET", "/responses/resp_1/input_items"),
    ("POST", "/responses/compact"),
    ("POST", "/messages/batches"),
    ("GET", "/messages/batches/b_1/results"),
    ("GET", "/messages"),
    ("GET", "/responses/input_tokens"),
    ("GET", "/models/claude-sonnet-5"),
    ("POST", "/files"),
)


async def test_t1_what_is_below_or_beside_an_api_is_relayed(narrows: Start) -> None:
    answer = b'{"any": "thing"}'
    setup = await narrows(whole(answer, "Content-Type: application/json"))
    for method, target in RELAYED:
        body = b'{"model": "m", "messages": [], "input": [] }' if method == "POST" else None
        async with setup.client.request(method, setup.url + target, data=body) as reply:
            assert await reply.read() == answer
            own = [name for name in reply.headers if name.lower().startswith("x-narrows")]
            assert own == ["x-narrows-mode", "x-narrows-request-id"]
        assert (setup.upstream.seen[-1].line, setup.upstream.seen[-1].body) == (
            f"{method} /v1{target} HTTP/1.1",
            body or b"",
        )
    assert setup.compaction.seen == []


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_0"},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"input": None, "prompt": {"id": "pmpt_1"}},
        {"input": [{"type": "item_reference", "id": "rs_1"}], "previous_response_id": "resp_0"},
    ],
    ids=lambda more: "+".join(more),
)
async def test_t1_where_the_history_is_the_providers_bytes_pass_untouched(narrows: Start, more: Json) -> None:
    setup = await narrows(whole(b"{}", "Content-Type: application/json"), real=True)
    body = json.dumps({**APIS[1].request, "tools": [APIS[1].tool], "store": False, **more}, indent=1).encode()
    async with setup.client.post(setup.url + "/responses", data=body) as reply:
        assert (reply.headers["x-narrows-mode"], reply.headers["x-narrows-prefix"]) == ("untouched", "bypassed")
    assert setup.upstream.seen[0].body == body


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [("/v1/responses", 426, "POST"), ("/v1/messages", 426, "POST"), ("/v1/realtime", 501, "upstream")],
)
async def test_t1_a_websocket_is_refused_with_what_to_do_instead(
    narrows: Start, path: str, status: int, says: str
) -> None:
    setup = await narrows()
    lines = (
        f"GET {path} HTTP/1.1",
        "Host: x",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
    )
    reader, writer = await setup.connect()
    writer.write("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"(?i)content-length: (\d+)", head)
        assert size
        error = json.loads(await reader.readexactly(int(size[1])))["error"]
    writer.close()
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert (b"upgrade: http/1.1" in head.lower()) == (status == 426)
    assert says in error["message"]
    assert setup.upstream.seen == []


async def test_x1_each_api_has_its_upstream(narrows: Start) -> None:
    other = await narrows()
    setup = await narrows(anthropic_upstream=other.upstream.url.removesuffix("/v1"))
    version = {"anthropic-version": "2023-06-01"}
    for path, headers in (
        ("/messages", {}),
        ("/messages/count_tokens", {}),
        ("/messages/batches", {}),
        ("/models", version),
        ("/chat/completions", version),
        ("/responses/resp_1/cancel", version),
        ("/models", {}),
        ("/files", {}),
    ):
        async with setup.client.post(setup.url + path, data=b"{}", headers=headers) as reply:
            assert reply.status == 200
    theirs, ours = ([asked.line.split()[1] for asked in each.upstream.seen] for each in (other, setup))
    assert theirs == ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches", "/v1/models"]
    assert ours == ["/v1/chat/completions", "/v1/responses/resp_1/cancel", "/v1/models", "/v1/files"]


@pytest.mark.parametrize("path", ["/messages", "/messages/count_tokens"])
async def test_x2_who_asks_and_how_passes_as_it_came(narrows: Start, path: str) -> None:
    setup = await narrows(real=True)
    given = {
        "x-api-key": "sk-ant-1",
        "Authorization": "Bearer sk-ant-oat-1",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "oauth-2025-04-20,context-1m-2025-08-07",
        "anthropic-dangerous-direct-browser-access": "true",
    }
    body = json.dumps({**APIS[2].request, "tools": [APIS[2].tool]})
    async with setup.client.post(setup.url + path, data=body, headers=given) as reply:
        assert reply.status == 200
    (asked,) = setup.upstream.seen
    assert {name: asked.one(name) for name in given} == given


async def test_x5_of_several_credentials_each_tells_clients_apart(narrows: Start) -> None:
    """One of them may be a word that everybody sends."""
    setup = await narrows(real=True)
    names = set()
    for key in ("one", "two"):
        given = {"Authorization": "Bearer none", "x-api-key": key, "X-Forwarded-For": "192.0.2.1"}
        async with setup.client.post(setup.url + "/messages", data=APIS[2].body, headers=given) as reply:
            assert reply.headers["x-narrows-prefix"] == "first"
        names.add(tenants(setup))
    assert len(names) == 2


def tenants(setup: Running) -> int:
    """How many tenants this Narrows has read requests of."""
    compactor: Any = compaction_of(setup.app).compactor
    pieces = compactor._store.conversations._index._by_piece
    return len({tenant for (_, tenant, *_), *_ in pieces})

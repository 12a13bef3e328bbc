"""The compress API: what callers of such an API send and read, who may ask, and that each hash leads to its text."""

import json
import re
from typing import Any

import pytest

from proxy.app import App
from proxy.memory import StoreTrouble
from tests.kit.stage import Stage

LOG = "\n".join(f"2026-01-01 INFO step {i} finished in {i * 7 % 97} ms" for i in range(900)) + "\nERROR disk full"
ROW = {"role": "tool", "tool_call_id": "a", "content": LOG}
LITELLM = {"model": "gpt-4o", "config": {"mode": "ccr"}}
"""What LiteLLM's guardrail sends beside messages."""
HASH = re.compile(r"\[narrows: [^\]]*hash=([a-f0-9]{24})")


async def asked(stage: Stage, app: App, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and answer of one of the two paths."""
    raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    async with stage.client.request(method, f"{app.base_url}{path}", data=raw, headers=headers) as reply:
        return reply.status, await reply.json(content_type=None)


def session(turns: int) -> list[Any]:
    """A history with replies of the model."""
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look around."}]
    for turn in range(turns):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "bash", "arguments": f'{{"n":{turn}}}'}}
        text = "\n".join(f"line {i} of {turn} is {i * i + turn}" for i in range(200))
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": f"c{turn}", "content": text}]
    return messages


@pytest.mark.parametrize(
    "message",
    [ROW, {"role": "user", "content": LOG}, {"role": "user", "content": [{"type": "tool_result", "content": LOG}]}],
)
async def test_r9_a_row_alone_becomes_short_and_its_hash_brings_it_back(stage: Stage, message: Any) -> None:
    app = await stage.start(compress_api=True)
    status, answer = await asked(stage, app, "/compress", {"messages": [message], **LITELLM})
    assert status == 200
    assert answer["tokens_after"] < answer["tokens_before"] / 10
    assert answer["tokens_saved"] == answer["tokens_before"] - answer["tokens_after"]
    assert answer["compression_ratio"] == round(answer["tokens_after"] / answer["tokens_before"], 4)
    assert answer["messages"][0].keys() == message.keys()
    assert HASH.findall(json.dumps(answer["messages"])) == answer["hashes"] == answer["ccr_hashes"]
    assert "disk full" in json.dumps(answer["messages"])
    assert answer["ttl"] == 15 * 86_400
    (name,) = answer["hashes"]
    assert await asked(stage, app, f"/retrieve/{name}?query=disk") == (200, {"hash": name, "original_content": LOG})


async def test_rows_come_back_in_their_places_whatever_stands_around_them(stage: Stage) -> None:
    app = await stage.start(compress_api=True)
    rows = [{"role": "user", "content": "first"}, ROW, {**ROW, "content": LOG.replace("step", "part")}]
    _, together = await asked(stage, app, "/compress", {"messages": rows})
    for i, row in enumerate(rows):
        _, alone = await asked(stage, app, "/compress", {"messages": [row]})
        assert alone["messages"] == [together["messages"][i]]
    assert together["messages"][0] == rows[0]
    assert len(together["hashes"]) == 2


async def test_r9_s2_a_history_that_grows_gives_what_it_gave_before(stage: Stage) -> None:
    app = await stage.start(compress_api=True, preset="adaptive", models={})
    before: list[Any] = []
    for turns in range(1, 9):
        _, answer = await asked(stage, app, "/compress", {"messages": session(turns), "model": "gpt-4o"})
        assert len(answer["messages"]) == 2 + 2 * turns
        assert answer["messages"][: len(before)] == before
        before = answer["messages"]
    assert len(answer["hashes"]) == 8
    outputs = [message["content"] for message in session(8) if message["role"] == "tool"]
    back = [(await asked(stage, app, f"/retrieve/{name}"))[1]["original_content"] for name in answer["hashes"]]
    assert back == outputs


async def test_r9_x5_only_who_sent_a_text_gets_it(stage: Stage) -> None:
    app = await stage.start(compress_api=True)
    mine, others = {"Authorization": "Bearer k"}, {"Authorization": "Bearer other"}
    _, answer = await asked(stage, app, "/compress", {"messages": [ROW]}, **mine)
    (name,) = answer["hashes"]
    assert (await asked(stage, app, f"/retrieve/{name}", **mine))[0] == 200
    refused = [await asked(stage, app, f"/retrieve/{each}", **others) for each in (name, "0" * 24, "x", "a/b")]
    assert {status for status, _ in refused} == {404}
    assert len({json.dumps(error) for _, error in refused}) == 1


async def test_x11_a_stranger_fills_no_store(stage: Stage) -> None:
    """Whoever comes through a proxy is not this machine: its credential counts once an upstream has accepted it."""
    app = await stage.start(compress_api=True)
    stranger = {"Authorization": "Bearer k", "X-Forwarded-For": "203.0.113.9"}
    assert (await asked(stage, app, "/compress", {"messages": [ROW]}, **stranger))[0] == 403
    await stage.ask(app, [{"role": "user", "content": "hello"}], ("X-Forwarded-For", "203.0.113.9"))
    assert (await asked(stage, app, "/compress", {"messages": [ROW]}, **stranger))[0] == 200


async def test_r9_f_nothing_is_hidden_that_cannot_be_stored(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    app = await stage.start(compress_api=True)

    async def fails(*_: Any) -> None:
        raise StoreTrouble("it is away")

    monkeypatch.setattr("proxy.memory.sqlite.store.SqliteStore.put_texts", fails)
    _, answer = await asked(stage, app, "/compress", {"messages": [ROW]})
    assert (answer["messages"], answer["hashes"], answer["warning"]) == ([ROW], [], "store")
    assert answer["tokens_saved"] == 0
    small = await stage.start(compress_api=True, artifacts_limit=1_000)
    _, answer = await asked(stage, small, "/compress", {"messages": [ROW]})
    assert (answer["messages"], answer["warning"]) == ([ROW], "too-large")


async def test_what_is_deleted_is_gone(stage: Stage) -> None:
    app = await stage.start(compress_api=True)
    _, answer = await asked(stage, app, "/compress", {"messages": [ROW]}, **{"x-narrows-conversation": "mine"})
    (name,) = answer["hashes"]
    assert (await asked(stage, app, f"/retrieve/{name}"))[0] == 200
    url = app.base_url.removesuffix("/v1") + "/narrows/conversations/mine"
    async with stage.client.delete(url) as reply:
        assert reply.status in (200, 204)
    assert (await asked(stage, app, f"/retrieve/{name}"))[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"no", b"[]", b"{}", b'{"messages":3}', b'{"messages":[]}', b'{"messages":[1]}'),
        *(b'{"model":3,"messages":[{}]}', b'{"messages":' + b"[" * 100_000),
    ],
)
async def test_a_body_that_is_none_is_refused_by_the_field(stage: Stage, body: bytes) -> None:
    app = await stage.start(compress_api=True)
    status, answer = await asked(stage, app, "/compress", body)
    assert (status, answer["error"]["param"]) == (400, "messages")
    assert answer["error"]["type"] == "invalid_request_error"


async def test_where_it_is_off_both_paths_are_relayed_as_ever(stage: Stage) -> None:
    app = await stage.start()
    for path, body in (("/compress", {"messages": [ROW]}), ("/retrieve/" + "1" * 24, None)):
        status, _ = await asked(stage, app, path, body)
        assert status == 404
    assert [request.path for request in stage.provider.requests][-2:] == ["/v1/compress", "/v1/retrieve/" + "1" * 24]


async def test_a_request_that_is_only_observed_comes_back_as_it_came(stage: Stage) -> None:
    app = await stage.start(compress_api=True)
    _, answer = await asked(stage, app, "/compress", {"messages": [ROW]}, **{"x-narrows": "observe"})
    assert (answer["messages"], answer["compression_ratio"]) == ([ROW], 1.0)


async def test_v9_what_is_to_stay_comes_back_as_it_came(stage: Stage) -> None:
    app = await stage.start(compress_api=True, keep=["text:step 7 "])
    other = {**ROW, "content": LOG.replace("step", "part")}
    _, answer = await asked(stage, app, "/compress", {"messages": [ROW, other]})
    assert answer["messages"][0] == ROW
    assert len(answer["hashes"]) == 1
    history = session(8)
    for patterns, hidden in (("text:line 3 of 2 is", 6), ("bash", 0)):
        _, answer = await asked(stage, app, "/compress", {"messages": history}, **{"x-narrows-keep": patterns})
        assert answer["messages"][7] == history[7]
        assert len(answer["hashes"]) == hidden


async def test_x10_rows_are_shortened_for_a_bounded_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    app = await stage.start(compress_api=True)
    clock = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr("proxy.addons.compress.addon.monotonic", lambda: next(clock))
    _, answer = await asked(stage, app, "/compress", {"messages": [ROW]})
    assert (answer["messages"], answer["hashes"], answer["warning"]) == ([ROW], [], "busy")

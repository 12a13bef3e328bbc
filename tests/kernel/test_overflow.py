"""T5: a prompt that is too long for its model. It is compacted harder and sent once more; what the upstream says of the
window counts from then on, so that there is no second time."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import aiohttp
import openai
import pytest

from policies.dialects import DIALECTS
from policies.dialects.overflow import Overflow
from policies.model.memory import StepRecord
from proxy.app import App
from proxy.identity.who import Identity
from proxy.kernel.prepare import Compactor
from proxy.lab.provider import Answer, Received, Say, Send
from proxy.lab.provider.answers import Excess, Wording
from proxy.memory import Key
from proxy.memory.cached import CachedStore
from proxy.requests import ClientRequest, RequestOptions, UpstreamRequest
from tests.kit.apis import APIS, Api, plays
from tests.kit.histories import Json
from tests.kit.overflows import IN_BODY, STREAMS, WORDINGS
from tests.kit.prefixes import LIGHT, ask, grow, marks, moved, spaced
from tests.kit.recalling import recall
from tests.kit.running import compaction_of
from tests.kit.speaking import speaking
from tests.kit.stage import MODELS, Exchange, Stage, staged

pytestmark = pytest.mark.usefixtures("patient")

WINDOW = 16_384
SERVERS: Mapping[str, Json] = {
    **MODELS,
    "own": {"input": 1, "output": 1, "window": WINDOW},
    "other": {"input": 1, "output": 1, "window": WINDOW},
    "tiny": {"input": 1, "output": 1, "window": 4_096},
    "claude-own": {**MODELS["claude-marked"], "window": WINDOW},
}
"""What the upstream serves; Narrows is told nothing of the window of `own`, and so on."""


def agent(turns: int, words_each: int = 150) -> list[Json]:
    """A session of an agent whose outputs say something new each."""
    words = Random(7)

    def text(count: int) -> str:
        return " ".join(f"{words.choice(_WORDS)}{words.randrange(90)}" for _ in range(count))

    messages: list[Json] = [{"role": "user", "content": "Please find out why the parser fails."}]
    for turn in range(turns):
        function = {"name": "bash", "arguments": json.dumps({"command": f"make check-{turn}"})}
        made = {"id": f"call_{turn}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": text(60), "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": made["id"], "content": text(words_each)})
    return [*messages, {"role": "assistant", "content": "It is done."}]


_WORDS = ("parse", "line", "token", "brace", "index", "state", "reader", "queue", "merge", "field")
LONG = agent(48)
"""Some 21,000 tokens at its end."""
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
WARNING = "x-narrows-warning"


@pytest.fixture(name="server")
async def server_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path / "narrows.db", SERVERS, keep=500) as stage:
        yield stage


async def started(stage: Stage, **settings: Any) -> App:
    """A Narrows that does not know the models, and takes nothing out before there is need."""
    late = {"policies": [{"policy": "trim"}]}
    return await stage.start(**{"models": {}, "presets": {"late": late}, "preset": "late", "floor": None, **settings})


async def long(stage: Stage, app: App, api: Api, *headers: tuple[str, str], task: str = "", **fields: Any) -> Exchange:
    """One request that is too long; `task` makes it one of another conversation."""
    first = [{"role": "user", "content": task}] if task else LONG[:1]
    return await ask(stage, app, api, [*first, *LONG[1:-1]], *headers, **{"model": "own", **fields})


def recalls(received: Received) -> Answer:
    """A model that wants to see what was left out."""
    ref = re.findall(r"left out to fit the window, ref (\d+\+\d+)", json.dumps(received.json))[-1]
    return Say("Let me see. ", [recall(ref)])


def counted(app: App, outcome: str) -> float:
    """How many prompts that were too long had this outcome."""
    name = "narrows_overflows_total"
    return app.telemetry.metrics.registry.get_sample_value(name, {"outcome": outcome}) or 0


def refused(stage: Stage) -> list[bool]:
    """Of each request: whether it was too long."""
    return [each.excess is not None for each in stage.provider.requests]


def sizes(stage: Stage) -> list[int]:
    return [len(each.body) for each in stage.provider.requests]


@BOTH
async def test_t5_a_prompt_that_is_too_long_is_compacted_harder_and_sent_once_more(
    server: Stage, api: Api, stream: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    app = await started(server, log_level="warning", log_format="json")
    async with speaking(api, app.base_url) as speaker:
        heard = await speaker.hear(LONG[:-1], stream, model="own")
    assert (heard.text, heard.finish) == ("Understood.", "stop")
    assert refused(server) == [True, False]
    first, second = sizes(server)
    assert second < first
    assert heard.headers[WARNING] == "overflow-retried"
    assert heard.mode == "compacted"
    assert counted(app, "retried") == 1
    (line,) = [json.loads(each) for each in capfd.readouterr().err.splitlines() if '"overflow"' in each]
    assert (line["outcome"], line["retried_tokens"] < line["tokens"]) == ("retried", True)


@pytest.mark.parametrize("name", [name for name in WORDINGS if name != "vllm-max-tokens"])
async def test_t5_it_is_in_whatever_words_the_upstream_says_it(server: Stage, name: str) -> None:
    server.provider.too_long = WORDINGS[name]
    app = await started(server)
    exchange = await long(server, app, APIS["openai_chat"])
    assert (exchange.status, exchange.headers[WARNING]) == (200, "overflow-retried")
    assert refused(server) == [True, False]


@pytest.mark.parametrize(
    ("dialect", "wording"),
    [
        *(("openai_chat", STREAMS[name]) for name in ("chat", "chat-flat", "llama-cpp", "openrouter")),
        *(("openai_responses", STREAMS[name]) for name in ("responses-failed", "responses-error")),
        ("anthropic_messages", STREAMS["anthropic"]),
    ],
)
async def test_t5_a_stream_that_begins_with_the_error_is_no_success(
    server: Stage, dialect: str, wording: Wording
) -> None:
    server.provider.too_long = wording
    app = await started(server)
    async with speaking(APIS[dialect], app.base_url) as speaker:
        heard = await speaker.hear(LONG[:-1], stream=True, model="own")
    assert (heard.text, heard.headers[WARNING]) == ("Understood.", "overflow-retried")
    assert refused(server) == [True, False]


@pytest.mark.parametrize("name", IN_BODY)
async def test_t5_a_body_that_holds_the_error_is_no_success(server: Stage, name: str) -> None:
    server.provider.too_long = IN_BODY[name]
    app = await started(server)
    exchange = await long(server, app, APIS["openai_chat"])
    assert (exchange.status, refused(server)) == (200, [True, False])
    assert b"Understood." in exchange.reply


@pytest.mark.parametrize("wording", [None, WORDINGS["vllm"], WORDINGS["llama-cpp"]], ids=["own", "vllm", "llama"])
async def test_t5_an_agent_on_an_unknown_model_never_sees_it(server: Stage, api: Api, wording: Wording | None) -> None:
    """The window is assumed to be 128,000 tokens, and has 16,384: one request is refused, once."""
    server.provider.too_long = wording if api.dialect == "openai_chat" else None
    app = await started(server)
    async with speaking(api, app.base_url) as speaker:
        heard = await speaker.grow(LONG, model="own")
    assert {each.finish for each in heard} == {"stop"}
    silent = api.dialect == "openai_responses"  # where no window is named, one is felt for
    assert refused(server).count(True) == 1 or (silent and refused(server).count(True) <= 2)
    assert sum(each.headers.get(WARNING) == "overflow-retried" for each in heard) == refused(server).count(True)


async def test_t5_so_it_is_with_the_default_preset(server: Stage) -> None:
    """Outputs of some 7,000 tokens, each new: nearly all of them go before there is need."""
    app = await started(server, preset=None)
    session = agent(40, 3_000)
    async with speaking(APIS["openai_chat"], app.base_url) as speaker:
        heard = await speaker.grow(session, model="own")
    assert {each.finish for each in heard} == {"stop"}
    assert refused(server).count(True) == 1


async def test_t5_what_follows_extends_what_was_sent_in_the_end(server: Stage, api: Api) -> None:
    app = await started(server)
    grown = await grow(server, app, api, LONG, model="own")
    assert {exchange.status for exchange in grown} == {200}
    assert moved(api, grown) == []
    (at,) = [i for i, exchange in enumerate(grown) if WARNING in exchange.headers][:1]
    assert grown[at].prefix == "checkpoint:window"
    assert {exchange.prefix for exchange in grown[at + 1 : at + 3]} <= {"extended", "tail-cut"}


@pytest.mark.parametrize("kind", ["file", "redis"])
async def test_t5_another_replica_repeats_and_extends_what_was_sent_in_the_end(
    server: Stage, kind: str, request: pytest.FixtureRequest
) -> None:
    """It has not learned the window; but the store holds what was decided, and not what was refused."""
    shared = {"store": f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}"} if kind == "redis" else {}
    api, app = APIS["openai_chat"], await started(server, **shared)
    other = await started(server, **shared)
    exchange = await long(server, app, api)
    assert exchange.headers[WARNING] == "overflow-retried"
    await asyncio.sleep(0.1)  # what is written behind it
    again = await long(server, other, api)
    assert again.sent == exchange.sent
    more = await ask(server, other, api, [*LONG, {"role": "user", "content": "And then?"}], model="own")
    assert moved(api, [exchange, more]) == []
    assert (more.prefix, refused(server)) == ("extended", [True, False, False, False])


async def test_t5_what_a_learned_window_decides_stands_in_the_store_before_it_is_sent(
    server: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor of a small window is lower: a replica that has not learned it would leave these requests alone."""
    claimed = list[StepRecord]()
    claim = CachedStore.claim

    async def noting(store: CachedStore, key: Key, record: StepRecord) -> StepRecord | None:
        claimed.append(record)
        return await claim(store, key, record)

    monkeypatch.setattr(CachedStore, "claim", noting)
    prices = {"tiny": {"read": 0.1, "write": 1.0}}
    api, app = APIS["openai_chat"], await started(server, preset="coding-agent", models=prices)
    await long(server, app, api, model="tiny")
    assert not claimed
    grown = await grow(server, app, api, agent(3), model="tiny")
    cut = [exchange for exchange in grown if exchange.prefix == "tail-cut"]
    assert len([record for record in claimed if record.reason == "tail-cut"]) == len(cut) > 0


async def test_t5_a_window_is_learned_for_one_model_at_one_upstream(server: Stage, tmp_path: Path) -> None:
    chat = APIS["openai_chat"]
    async with staged(tmp_path / "elsewhere.db", SERVERS) as elsewhere:
        app = await started(server, anthropic_upstream=elsewhere.upstream)
        await long(server, app, chat)
        again = await long(server, app, chat, task="Hi.")
        assert (refused(server), again.status) == ([True, False, False], 200)
        assert WARNING not in again.headers
        await long(server, app, chat, model="other", task="Hello.")
        assert refused(server)[3:] == [True, False]
        async with speaking(APIS["anthropic_messages"], app.base_url) as speaker:
            await speaker.hear(LONG[:-1], model="own")
        assert refused(elsewhere) == [True, False]


async def test_x5_no_tenant_learns_from_what_another_was_refused(server: Stage) -> None:
    """An error may repeat what a client wrote."""
    compaction = compaction_of(await started(server))

    async def prepared(tenant: str, task: str) -> UpstreamRequest:
        body = spaced(APIS["openai_chat"].body([{"role": "user", "content": task}, *LONG[1:-1]], model="own"))
        return await compaction.compactor.prepare(
            ClientRequest("openai_chat", body, Identity("", tenant, ""), None, RequestOptions("on"))
        )

    first = await prepared("one", "Go.")
    assert await compaction.follow_up.compact_harder(first, Overflow(window=WINDOW)) is not None
    assert (await prepared("one", "Come.")).tokens_sent < WINDOW < (await prepared("two", "Come.")).tokens_sent


async def test_t5_a_window_that_an_error_only_repeats_is_soon_forgotten(server: Stage) -> None:
    """A client has an error name a tiny window, to have everything trimmed for the others of its tenant."""
    said = "Invalid value: 'prompt is too long: maximum context length is 300 tokens'."
    app, api = await started(server), APIS["openai_chat"]
    server.provider.answer = plays(Send(400, json.dumps({"error": {"message": said}}).encode()))
    assert (await ask(server, app, api, [{"role": "user", "content": "Hi."}], model="other")).status == 400
    server.provider.answer = None
    history = agent(20)
    trimmed = await ask(server, app, api, history[:-1], model="other")
    assert "trim" in trimmed.headers["x-narrows-edits"]
    assert trimmed.status == 200
    whole = await ask(server, app, api, [{"role": "user", "content": "Go."}, *history[1:-1]], model="other")
    assert "trim" not in whole.headers["x-narrows-edits"]


async def test_t5_a_compressed_error_is_read_and_passed_on_as_it_came(server: Stage) -> None:
    packed = gzip.compress(json.dumps({"error": {"message": "prompt is too long"}}).encode(), mtime=0)
    refusal = Send(400, packed, (("Content-Type", "application/json"), ("Content-Encoding", "gzip")))
    server.provider.answer = plays(refusal, refusal)
    app = await started(server, recall="never")
    body, url = spaced(APIS["openai_chat"].body(LONG[:-1], model="own")), f"{app.base_url}/chat/completions"
    async with (
        aiohttp.ClientSession(auto_decompress=False) as client,
        client.post(url, data=body, headers={"Accept-Encoding": "gzip"}) as reply,
    ):
        assert (reply.status, await reply.read()) == (400, packed)
    assert (len(server.provider.requests), counted(app, "failed")) == (2, 1)


@pytest.mark.parametrize("second", ["taken", "refused"])
async def test_t5_a_response_that_began_early_goes_on_after_it(
    server: Stage, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    """Its client was told to wait for a summary; of the reply it has nothing yet."""
    prepare = Compactor.prepare

    async def slowly(self: Compactor, client_request: ClientRequest, waiting: Any = None) -> UpstreamRequest:
        async with waiting():
            await asyncio.sleep(0.05)
        return await prepare(self, client_request)

    monkeypatch.setattr(Compactor, "prepare", slowly)
    if second == "refused":
        messages = [f"prompt is too long: {n} tokens > {WINDOW} maximum" for n in (30_000, 29_000)]
        server.provider.answer = plays(*(Send(400, json.dumps({"error": {"message": m}}).encode()) for m in messages))
    app = await started(server, summary_wait=1_000, summary_comments=True)
    body = spaced(APIS["openai_chat"].body(LONG[:-1], model="own", stream=True))
    received = b""
    async with server.client.post(f"{app.base_url}/chat/completions", data=body) as reply:
        assert reply.status == 200
        with suppress(aiohttp.ClientPayloadError):  # the connection is closed where a stream has begun
            async for piece in reply.content.iter_any():
                received += piece
    assert received.startswith(b": updating summary")
    if second == "taken":
        assert received.endswith(b"data: [DONE]\n\n")
        assert (refused(server), counted(app, "retried")) == ([True, False], 1)
    else:
        assert b"30000 tokens" in received
        assert (b"29000" in received, b"[DONE]" in received, counted(app, "failed")) == (False, False, 1)


@pytest.mark.parametrize("second", ["too-long", "limited", "gone"])
async def test_t5_a_second_failure_returns_the_first_error(server: Stage, second: str) -> None:
    bodies = [
        b'{"error" : {"message": "This model\'s maximum context length is %d tokens.", "n": %d}}' % (WINDOW, n)
        for n in range(2)
    ]
    answers = {
        "too-long": Send(400, bodies[1], (("Content-Type", "application/json"), ("x-second", "1"))),
        "limited": Send(429, b"{}"),
        "gone": Send(503, b"gone"),
    }
    first = Send(400, bodies[0], (("Content-Type", "application/json"), ("x-first", "1")))
    server.provider.answer = plays(first, answers[second])
    app = await started(server)
    exchange = await long(server, app, APIS["openai_chat"])
    assert (exchange.status, exchange.reply, exchange.headers["x-first"]) == (400, bodies[0], "1")
    assert WARNING not in exchange.headers
    assert len(server.provider.requests) == 2
    assert counted(app, "failed") == 1


async def test_t5_where_nothing_can_go_the_error_is_the_clients_at_once(server: Stage, api: Api) -> None:
    app = await started(server)
    newest = [{"role": "user", "content": "word " * 20_000}]
    exchange = await ask(server, app, api, newest, model="own")
    assert exchange.status == 400
    assert refused(server) == [True]
    assert counted(app, "no_room") == 1
    assert exchange.reply == b"".join(server.provider.reply(server.provider.requests[0]).body)  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize("header", ["off", "observe"])
async def test_t5_where_nothing_may_be_changed_nothing_is_sent_again(server: Stage, header: str) -> None:
    app = await started(server)
    exchange = await long(server, app, APIS["openai_chat"], ("x-narrows", header))
    assert (exchange.status, refused(server)) == (400, [True])
    assert b"context_length_exceeded" in exchange.reply


@pytest.mark.parametrize("status", [401, 404, 413, 429, 503])
async def test_t5_another_error_is_never_sent_again(server: Stage, status: int) -> None:
    body = b'{"error": {"message": "Request too large on tokens per min (TPM): Limit 30000, Requested 342389"}}'
    server.provider.answer = plays(Send(status, body, (("Retry-After", "7"),)))
    exchange = await long(server, await started(server), APIS["openai_chat"])
    assert (exchange.status, exchange.reply, exchange.headers["Retry-After"]) == (status, body, "7")
    assert len(server.provider.requests) == 1


@pytest.mark.parametrize("name", ["vllm", "vllm-new", "vllm-max-tokens", "anthropic-with-answer"])
async def test_t5_what_the_answer_may_have_counts_where_the_upstream_counts_it(server: Stage, name: str) -> None:
    server.provider.too_long = WORDINGS[name]
    app = await started(server)
    exchange = await long(server, app, APIS["openai_chat"], max_tokens=10_000)
    assert (exchange.status, refused(server)) == (200, [True, False])
    hopeless = await long(server, app, APIS["openai_chat"], max_tokens=WINDOW, task="Write a novel.")
    assert hopeless.status == 400


async def test_t5_a_listed_window_that_is_too_large_is_learned_too(server: Stage) -> None:
    """And a count of ours that is too small: the upstream's own calibrates."""
    app = await started(server, models={"own": {"window": 200_000}})
    assert (await long(server, app, APIS["openai_chat"])).headers[WARNING] == "overflow-retried"

    def doubled(excess: Excess) -> Send:
        return WORDINGS["openai-resulted"](Excess(2 * excess.prompt, 0, excess.window))

    server.provider.too_long = doubled
    other = await long(server, app, APIS["openai_chat"], model="other", task="Count.")
    before, after = (int(other.headers[f"x-narrows-tokens-{side}"]) for side in ("before", "after"))
    assert before > 40_000
    assert after < WINDOW


async def test_t5_it_goes_together_with_marks_that_are_refused(server: Stage) -> None:
    """Whichever of the two the upstream says first, no request is sent three times for the same reason."""
    server.provider.unmarkable = {"claude-own"}
    api = APIS["anthropic_messages"]
    app = await started(server, models={"claude-own": MODELS["claude-marked"]})
    exchange = await long(server, app, api, ("Idempotency-Key", "one"), model="claude-own")
    assert exchange.status == 200
    assert exchange.headers[WARNING] == "overflow-retried, marks-refused"
    first, second, third = server.provider.requests
    assert marks(first.body) > 0 == marks(second.body) == marks(third.body)
    assert len(third.body) < len(second.body)
    assert len({each.headers["Idempotency-Key"] for each in server.provider.requests}) == 3
    assert counted(app, "retried") == 1
    again = await long(server, app, api, model="claude-own", metadata={"user_id": "u"})
    assert (again.status, len(server.provider.requests)) == (200, 4)


async def test_t5_marks_that_are_refused_after_it_are_taken_off_the_smaller_request(server: Stage) -> None:
    refusal = Send(400, b'{"error": {"message": "messages.1.cache_control: Extra inputs are not permitted"}}')
    too_long = Send(400, b'{"error": {"message": "prompt is too long: 30000 tokens > %d maximum"}}' % WINDOW)
    server.provider.answer = plays(too_long, refusal, Say("At last."))
    app = await started(server, models=dict.fromkeys(("claude-own", "claude-two"), MODELS["claude-marked"]))
    exchange = await long(server, app, APIS["anthropic_messages"], model="claude-own")
    assert (exchange.status, b"At last." in exchange.reply) == (200, True)
    assert [marks(each.body) > 0 for each in server.provider.requests] == [True, True, False]
    server.provider.answer = plays(too_long, refusal, too_long)
    failed = await long(server, app, APIS["anthropic_messages"], model="claude-two", task="Fail.")
    assert (failed.status, counted(app, "failed")) == (400, 1)
    assert b"prompt is too long" in failed.reply


@BOTH
async def test_t5_a_reply_with_recalls_goes_on_after_it(server: Stage, api: Api, stream: bool) -> None:
    model = plays(recalls, Say("It is 42."))
    server.provider.answer = lambda received: None if received.excess else model(received)
    app = await started(server)
    async with speaking(api, app.base_url) as speaker:
        heard = await speaker.ask(LONG[:-1], stream, model="own")
        assert heard.text == "Let me see. It is 42."
        assert refused(server) == [True, False, False]
        more = await speaker.ask([*LONG[:-1], heard.message(), {"role": "user", "content": "Thanks."}], model="own")
    assert more.prefix in ("extended", "tail-cut")


@BOTH
async def test_t5_a_later_round_that_is_too_long_is_an_error_and_teaches_the_window(
    server: Stage, api: Api, stream: bool
) -> None:
    asked = 0
    refusal = b'{"error": {"message": "prompt is too long: 17000 tokens > 9000 maximum"}}'

    def answer(received: Received) -> Any:
        nonlocal asked
        asked += 1
        return Send(400, refusal) if asked == 3 else recalls(received) if asked == 2 else None

    app = await started(server)
    await long(server, app, api)
    server.provider.answer = lambda received: None if received.excess else answer(received)
    asked = 1
    body = spaced(api.body([*LONG, {"role": "user", "content": "And?"}], **LIGHT, model="own", stream=stream))
    form, received = DIALECTS[api.dialect], b""
    async with server.client.post(f"{app.base_url}{form.http.path}", data=body, headers=form.http.auth("k")) as reply:
        assert reply.status == (200 if stream else 400)
        with suppress(aiohttp.ClientPayloadError):  # the connection is closed where a stream has begun
            async for piece in reply.content.iter_any():
                received += piece
    assert b"prompt is too long" in received
    assert counted(app, "later_round") == 1
    server.provider.answer = None
    after = await long(server, app, api, task="Something else.")
    assert after.status == 200
    assert int(after.headers["x-narrows-tokens-after"]) < 9_000


async def test_t5_a_reply_that_begins_slowly_is_not_held_back_for_long(
    server: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.kernel.send._PATIENCE", 0.05)
    events = [b'data: {"type":"response.created","response":{}}\n\n', b'data: {"type":"response.completed"}\n\n']

    async def slowly() -> AsyncIterator[bytes]:
        yield events[0]
        await asyncio.sleep(0.3)
        yield events[1]

    kind = (("Content-Type", "text/event-stream"),)
    server.provider.answer = lambda _: Send(200, slowly(), kind)
    exchange = await long(server, await started(server, recall="never"), APIS["openai_responses"], stream=True)
    assert exchange.reply == b"".join(events)


async def test_t5_the_official_client_sees_the_first_error_as_ever(server: Stage) -> None:
    app = await started(server)
    async with openai.AsyncOpenAI(base_url=app.base_url, api_key="k", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="own", messages=[{"role": "user", "content": "word " * 20_000}])
    assert caught.value.code == "context_length_exceeded"

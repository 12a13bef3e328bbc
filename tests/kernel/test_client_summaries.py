"""Conversations that their client compacts itself, over sockets, in the words of Claude Code and of Codex."""

import json
from uuid import uuid4

import pytest

from proxy.app import App
from proxy.lab.provider import Received, Say
from proxy.memory import open_store
from tests.kit.apis import APIS, Api
from tests.kit.histories import Json
from tests.kit.prefixes import ask, grow, moved
from tests.kit.speaking import post
from tests.kit.stage import MODELS, Exchange, Stage, working

pytestmark = pytest.mark.usefixtures("patient")
SESSION = working(lines=16)[:-1]
TEXT = "1. Primary Request and Intent:\n   Rename the parser of the module.\n\n\n2. Files:\n" + "\n".join(
    f"   - src/part_{at}.py: the parser reads line {at}" for at in range(12)
)
CLAUDE_ASKS = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n- Tool calls will be REJECTED.\n\n"
    "Your task is to create a detailed summary of the conversation so far, paying close attention to the user's "
    "explicit requests."
)
CLAUDE_BEGINS = (
    "This session is being continued from a previous conversation that ran out of context. The summary below covers "
    "the earlier portion of the conversation.\n\nSummary:\n{}\nContinue the conversation from where it left off."
)
CODEX_ASKS = (
    "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM that will resume "
    "the task."
)
CODEX_BEGINS = (
    "Another language model started to solve this problem and produced a summary of its thinking process. Here is the "
    "summary produced by the other language model, use the information in this summary to assist with your own "
    "analysis:\n{}"
)
CLIENTS = {
    "Claude Code": (CLAUDE_ASKS, f"<analysis>It went well.</analysis>\n\n<summary>\n{TEXT}\n</summary>", CLAUDE_BEGINS),
    "Codex": (CODEX_ASKS, TEXT, CODEX_BEGINS),
}
EACH_CLIENT = pytest.mark.parametrize(("asks", "answer", "begins"), CLIENTS.values(), ids=CLIENTS)


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def beginning(begins: str, summary: str = TEXT.replace("\n\n\n", "\n\n")) -> list[Json]:
    """The history that a client begins with a summary: it has collapsed the empty lines."""
    return [SESSION[0], user("Please rename the parser."), user(begins.format(summary))]


def name_of(exchange: Exchange) -> str:
    return exchange.headers["x-narrows-conversation"]


async def compacted(stage: Stage, app: App, api: Api, asks: str, answer: str, **fields: object) -> list[Exchange]:
    """A session up to the answer to a request for its summary."""
    grown = await grow(stage, app, api, working(lines=16))

    def says(received: Received) -> Say:
        return Say(answer)

    stage.provider.answer = says
    asked = await ask(stage, app, api, [*SESSION, user(asks)], **fields)
    stage.provider.answer = None
    return [*grown, asked]


@EACH_CLIENT
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_request_for_a_summary_passes_and_the_history_behind_it_is_the_same_conversation(
    stage: Stage, api: Api, asks: str, answer: str, begins: str, kind: str, request: pytest.FixtureRequest
) -> None:
    url = f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}" if kind == "redis" else ""
    shared = {"store": url} if url else {}
    replicas = [await stage.start(**shared), await stage.start(**shared)]
    *grown, asked = await compacted(stage, replicas[0], api, asks, answer, stream=kind == "redis")
    assert grown[-1].mode == "compacted"
    assert (asked.sent, asked.mode, asked.status) == (asked.given, "observed", 200)
    assert len(grown[-1].sent) < len(asked.sent)
    after = [*beginning(begins), *working(lines=16)[2:]]
    for at, end in enumerate([3, 5, 8]):  # at once, wherever it comes
        later = await ask(stage, replicas[1 - at % 2], api, after[:end])
        assert (name_of(later), later.status) == (name_of(asked), 200)
    assert name_of(asked) == name_of(grown[0])
    restarted = await stage.start(**shared)
    assert name_of(await ask(stage, restarted, api, after[:3])) == name_of(asked)


@pytest.mark.parametrize("asks", [CLAUDE_ASKS, CODEX_ASKS])
async def test_s2_what_goes_on_behind_a_request_for_a_summary_says_so(stage: Stage, api: Api, asks: str) -> None:
    app = await stage.start()
    *grown, asked = await compacted(stage, app, api, asks, TEXT)
    on = await ask(stage, app, api, [*SESSION, user(asks), {"role": "assistant", "content": TEXT}, user("Go on.")])
    assert (asked.prefix, on.mode) == ("bypassed", "compacted")
    # Messages: the question stands in one message with the outputs before it, which was never sent so
    assert on.prefix == ("client-changed" if api.dialect == "anthropic_messages" else "checkpoint:replayed")
    assert moved(api, [*grown, on]) == []


@pytest.mark.parametrize("words", ["Please do this. {}", "Your task is to create a detailed summary of the file a.py."])
async def test_words_that_only_look_like_it_change_nothing(stage: Stage, api: Api, words: str) -> None:
    *grown, asked = await compacted(stage, await stage.start(), api, words.format(CODEX_ASKS), TEXT)
    assert asked.mode == "compacted"
    assert moved(api, [*grown, asked]) == []


@EACH_CLIENT
async def test_an_edited_summary_and_that_of_another_tenant_name_nothing(
    stage: Stage, api: Api, asks: str, answer: str, begins: str
) -> None:
    app = await stage.start(tenant_secret="s")
    *_, asked = await compacted(stage, app, api, asks, answer)
    edited = await ask(stage, app, api, beginning(begins, TEXT.replace("line 11", "line 12")))
    cut = await ask(stage, app, api, beginning(begins, TEXT[:-20]))
    of_another = await ask(stage, app, api, beginning(begins), ("X-Forwarded-For", "10.0.0.1"))
    names = {name_of(each) for each in (asked, edited, cut, of_another)}
    assert len(names) == 4
    assert name_of(await ask(stage, app, api, beginning(begins))) == name_of(asked)


async def test_what_is_known_of_a_summary_goes_with_its_conversation(stage: Stage) -> None:
    app, api = await stage.start(), APIS["openai_chat"]
    *_, asked = await compacted(stage, app, api, CODEX_ASKS, TEXT)
    url = f"{app.base_url.removesuffix('/v1')}/narrows/conversations/{name_of(asked)}"
    async with stage.client.delete(url) as reply:
        assert reply.status == 204
    assert name_of(await ask(stage, app, api, beginning(CODEX_BEGINS))) != name_of(asked)


@EACH_CLIENT
async def test_both_histories_have_one_bill(stage: Stage, api: Api, asks: str, answer: str, begins: str) -> None:
    app = await stage.start()
    exchanges = await compacted(stage, app, api, asks, answer)
    exchanges.append(await ask(stage, app, api, beginning(begins)))
    await app.close(0)
    store = open_store(f"sqlite:///{stage.path}")
    await store.open()
    (row,) = await store.conversation_rows()
    await store.close()
    assert (row.conversation, row.sums.requests) == (name_of(exchanges[0]), len(exchanges))


async def test_a_request_for_a_summary_that_would_not_fit_is_made_to_fit(stage: Stage, api: Api) -> None:
    app = await stage.start()
    asked = await ask(stage, app, api, [*SESSION, user(CLAUDE_ASKS)], model="small")
    assert (asked.mode, asked.status) == ("compacted", 200)
    assert len(asked.sent) < len(asked.given)


async def test_one_that_its_upstream_finds_too_long_is_compacted_then(stage: Stage, api: Api) -> None:
    app = await stage.start(models={"small": {**MODELS["small"], "window": 100_000}})
    asked = await ask(stage, app, api, [*SESSION, user(CLAUDE_ASKS)], model="small")
    assert (asked.mode, asked.status) == ("compacted", 200)
    first, second = (each.body for each in stage.provider.requests)
    assert (first, len(second) < len(first)) == (asked.given, True)


async def test_the_output_of_a_tool_that_speaks_of_summaries_is_no_request_for_one(stage: Stage, api: Api) -> None:
    session = working(lines=16)
    session[-2] = {**session[-2], "content": CLAUDE_ASKS}
    asked = await ask(stage, await stage.start(), api, session[:-1])
    assert asked.mode == "compacted"


async def test_where_the_provider_writes_the_summary_its_request_passes(stage: Stage) -> None:
    app, api = await stage.start(), APIS["openai_responses"]
    body = api.body(SESSION, prompt_cache_key="thread")
    assert (await post(stage, app, api, json.dumps(body).encode())).mode == "compacted"
    body["input"].append({"type": "compaction_trigger"})
    asked = await post(stage, app, api, json.dumps(body).encode())
    assert (asked.sent, asked.mode, name_of(asked)) == (asked.given, "observed", "thread")
    raw = json.dumps(body).encode()
    async with stage.client.post(f"{app.base_url}/responses/compact", data=raw, headers={"Authorization": "Bearer k"}):
        assert stage.provider.requests[-1].body == raw

"""Conversations that their client compacts itself, over sockets, in the words of Claude Code and of Codex."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from policies.money.bills import RequestBill
from proxy.app import App
from proxy.kernel import client_summaries
from proxy.kernel.client_summaries import ClientSummaries
from proxy.kernel.prepare import Holdout
from proxy.kernel.understand import RequestParser
from proxy.lab.provider import Received, Say
from proxy.memory import CLIENT_SUMMARIES, Key, StoreTrouble, TextKind, open_store
from proxy.memory.conversation import Conversations, ParsedRequest
from proxy.memory.forgetting import Scope, delete_stored
from proxy.memory.sqlite.store import SqliteStore
from tests.kit.apis import APIS, Api
from tests.kit.histories import Json
from tests.kit.prefixes import ask, grow, moved
from tests.kit.recalling import REPORT, Client, answered, fetched, hiding, plays, wants
from tests.kit.speaking import post
from tests.kit.stage import MODELS, Exchange, Stage, working

pytestmark = pytest.mark.usefixtures("patient")
*SESSION, REPLY = working(lines=16)
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


OTHERS = {
    "opencode": "Provide a detailed prompt for continuing our conversation above.\nFocus on what helps.",
    "opencode, first": "Create a new anchored summary from the conversation history above.\n\nOutput this Markdown.",
    "opencode, again": "Update the anchored summary below using the conversation history above.\nPreserve details.",
    "Cline": '<explicit_instructions type="summarize_task">\nThe current conversation is rapidly running out of '
    "context. Now, your urgent task is to create a detailed, comprehensive summary of the conversation so far.",
    "Qwen Code": "First, reason in your scratchpad. Then, generate the <state_snapshot>.",
    "Qwen Code, newer": "First, reason in your <analysis> block. Then, produce the <state_snapshot> XML.",
    "Gemini CLI": "Generate a new <state_snapshot> based on the provided history.\n\nFirst, reason in your scratchpad.",
    "Gemini CLI, again": "A previous <state_snapshot> exists in the history. You MUST integrate all of that.",
    "Gemini CLI, check": "Critically evaluate the <state_snapshot> you just generated. Did you omit any details?",
}
OBSERVED = ("x-narrows", "observe")


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def beginning(begins: str, summary: str = TEXT.replace("\n\n\n", "\n\n")) -> list[Json]:
    """The history that a client begins with a summary: it has collapsed the empty lines."""
    return [SESSION[0], user("Please rename the parser."), user(begins.format(summary))]


def name_of(exchange: Exchange) -> str:
    return exchange.headers["x-narrows-conversation"]


async def compacted(
    stage: Stage, app: App, api: Api, asks: str, answer: str, *headers: tuple[str, str], task: str = "", **fields: Any
) -> list[Exchange]:
    """A session up to the answer to a request for its summary."""
    session = [SESSION[0], user(task or SESSION[1]["content"]), *SESSION[2:]]
    grown = await grow(stage, app, api, [*session, REPLY], *headers)
    return [*grown, await summarized(stage, app, api, [*session, user(asks)], answer, *headers, **fields)]


async def summarized(
    stage: Stage, app: App, api: Api, history: list[Json], answer: str, *headers: tuple[str, str], **fields: Any
) -> Exchange:
    def says(received: Received) -> Say:
        return Say(answer)

    stage.provider.answer = says
    asked = await ask(stage, app, api, history, *headers, **fields)
    stage.provider.answer = None
    return asked


async def bill_of(stage: Stage, app: App, exchange: Exchange) -> RequestBill:
    await app.close(0)
    store = open_store(f"sqlite:///{stage.path}")
    await store.open()
    try:
        bills = await store.request_bills(Key("local", name_of(exchange)))
    finally:
        await store.close()
    (bill,) = [each for each in bills if each.id == exchange.headers["x-narrows-request-id"]]
    return bill


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
    assert on.prefix == "checkpoint:replayed"
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


@pytest.mark.parametrize("asks", OTHERS.values(), ids=OTHERS)
async def test_requests_for_summaries_of_other_clients_pass(stage: Stage, api: Api, asks: str) -> None:
    app = await stage.start()
    assert (await ask(stage, app, api, SESSION)).mode == "compacted"
    asked = await ask(stage, app, api, [*SESSION, user(asks)])
    assert (asked.sent, asked.mode, asked.status) == (asked.given, "observed", 200)


@EACH_CLIENT
async def test_what_a_summary_costs_is_billed_beside_a_cache_that_nobody_has_shortened(
    stage: Stage, api: Api, asks: str, answer: str, begins: str
) -> None:
    """What doing nothing costs shows where nothing is done: with every request only observed."""
    app, exchanges = await stage.start(), []
    for task, *headers in (("Please rename this parser.",), ("Please rename that parser.", OBSERVED)):
        session = [SESSION[0], user(task), *SESSION[2:], REPLY]
        await grow(stage, app, api, session, *headers)
        exchanges.append(await summarized(stage, app, api, [*session, user(asks)], answer, *headers))
    sums, nothing = [(await bill_of(stage, app, each)).sums for each in exchanges]
    assert sums.cached < nothing.cached / 2 > 0
    assert sums.baseline == pytest.approx(nothing.paid, rel=0.05)
    assert (sums.saved < -0.2 * sums.paid, nothing.saved) == (True, 0.0)
    assert (sums.checked, sums.checked_error) == (0, 0.0)
    assert sums.rewritten > 0 == nothing.rewritten


async def test_a_summary_of_what_was_never_shortened_costs_what_it_would(stage: Stage, api: Api) -> None:
    app = await stage.start(preset="lossless", floor=50_000, recall="never")
    session = working(lines=16)[:4]
    for end in (2, 4):
        await ask(stage, app, api, session[:end])
    asked = await ask(stage, app, api, [*session, user(CLAUDE_ASKS)])
    sums = (await bill_of(stage, app, asked)).sums
    assert (sums.baseline, sums.saved, sums.checked, sums.rewritten) == (sums.paid, 0.0, 0, 0)


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


async def test_a_conversation_stays_what_it_was_where_the_store_was_away(
    stage: Stage, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = [await stage.start(), await stage.start()]
    *_, asked = await compacted(stage, replicas[0], api, CODEX_ASKS, TEXT)
    after, find = [*beginning(CODEX_BEGINS), *working(lines=16)[2:]], SqliteStore.conversations_with

    async def fails(self: SqliteStore, tenant: str, kind: TextKind, name: str) -> Sequence[str]:
        raise StoreTrouble("away")

    monkeypatch.setattr(SqliteStore, "conversations_with", fails)
    first = await ask(stage, replicas[0], api, after[:3])
    monkeypatch.setattr(SqliteStore, "conversations_with", find)
    assert name_of(first) != name_of(asked)
    assert name_of(await ask(stage, replicas[0], api, after[:5])) == name_of(first)
    await replicas[0].close(0)
    for app, end in ((replicas[1], 8), (await stage.start(), 5)):
        assert name_of(await ask(stage, app, api, after[:end])) == name_of(first)
    forked = [*after[:2], {**after[2], "content": after[2]["content"] + " Now."}]
    assert name_of(await ask(stage, replicas[1], api, forked)) == name_of(asked)


async def test_the_store_is_asked_once_for_the_conversation_of_a_beginning(
    stage: Stage, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, find = list[str](), SqliteStore.conversations_with

    async def finds(self: SqliteStore, tenant: str, kind: TextKind, name: str) -> Sequence[str]:
        asked.append(name)
        return await find(self, tenant, kind, name)

    monkeypatch.setattr(SqliteStore, "conversations_with", finds)
    app, after = await stage.start(), [*beginning(CODEX_BEGINS), *working(lines=16)[2:]]
    await grow(stage, app, api, after)
    await ask(stage, app, api, [*after[:3], user("Something else.")])
    assert len(asked) == 2  # the last one begins with other words, and is another conversation
    assert len({*asked}) == 1


async def test_whoever_looks_for_a_summary_keeps_nobody_from_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of credentials that nobody has accepted are worked on one at a time."""
    conversations, large = Conversations(), "The words of a file. " * 4_000

    class Slow(ClientSummaries):
        async def placed(self, parsed: ParsedRequest, dialect: str, owner: str, text: str) -> ParsedRequest:
            other = json.dumps({"model": "m", "messages": [user(f"Another. {large}")]}).encode()
            assert await asyncio.wait_for(parser.parse(dialect, other, "t", is_accepted=False), 20)
            return parsed

    parser = RequestParser(conversations, Slow(None))  # type: ignore[arg-type]
    body = json.dumps({"model": "m", "messages": [*beginning(CODEX_BEGINS), user(large)]}).encode()
    assert await parser.parse("openai_chat", body, "t", owner="o", is_accepted=False)


@pytest.mark.parametrize("how", ["shortened", "observed", "held out"])
async def test_a_summary_is_known_however_its_request_was_sent(
    stage: Stage, api: Api, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"holdout": 0.5} if how == "held out" else {"recall": "never"}
    monkeypatch.setattr(Holdout, "has", lambda self, key: bool(self.share))
    headers = [OBSERVED] if how == "observed" else []
    app = await stage.start(**settings)
    asked = (
        await compacted(
            stage, app, api, CODEX_ASKS, TEXT, *headers, **({"model": "small"} if how == "shortened" else {})
        )
    )[-1]
    assert asked.mode == ("compacted" if how == "shortened" else "observed")
    assert name_of(await ask(stage, app, api, beginning(CODEX_BEGINS), *headers)) == name_of(asked)


async def test_one_that_is_only_observed_and_too_long_stays_as_it_is(stage: Stage, api: Api) -> None:
    app = await stage.start(models={"small": {**MODELS["small"], "window": 100_000}})
    asked = await ask(stage, app, api, [*SESSION, user(CLAUDE_ASKS)], OBSERVED, model="small")
    assert (asked.status, len(stage.provider.requests)) == (400, 1)


async def test_the_same_words_of_another_owner_or_api_are_another_conversation(stage: Stage, api: Api) -> None:
    app = await stage.start()
    *_, asked = await compacted(stage, app, api, CODEX_ASKS, TEXT)
    for other in APIS.values():
        found = await ask(stage, app, other, beginning(CODEX_BEGINS))
        assert (name_of(found) == name_of(asked)) == (other is api)
    header = ("x-api-key", "another") if api.dialect == "anthropic_messages" else ("Authorization", "Bearer another")
    assert name_of(await ask(stage, app, api, beginning(CODEX_BEGINS), header)) != name_of(asked)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_of_two_conversations_with_one_summary_the_newest_goes_on(
    stage: Stage, api: Api, order: Sequence[int]
) -> None:
    app, tasks = await stage.start(), ["Please rename this parser.", "Please rename that parser."]
    asked = [(await compacted(stage, app, api, CODEX_ASKS, TEXT, task=tasks[at]))[-1] for at in order]
    assert name_of(asked[0]) != name_of(asked[1])
    assert name_of(await ask(stage, app, api, beginning(CODEX_BEGINS))) == name_of(asked[1])


async def test_what_is_known_of_summaries_is_bounded_and_goes_with_its_owner(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_summaries, "_BYTES", 1_000)
    app, api = await stage.start(), APIS["openai_chat"]
    for at in range(8):
        *_, asked = await compacted(stage, app, api, CODEX_ASKS, f"{at} {TEXT}")
    await app.close(0)
    store, key = open_store(f"sqlite:///{stage.path}"), Key("local", name_of(asked))
    await store.open()
    try:
        (owner,) = await store.owners(key)
        assert 0 < len(await store.list_texts(key, CLIENT_SUMMARIES)) < 8
        assert await delete_stored(store, Scope("local", None, owner)) == 1
        assert [await store.list_texts(key, CLIENT_SUMMARIES), await store.conversations("local")] == [[], []]
    finally:
        await store.close()


async def test_a_deleted_conversation_is_no_more_in_the_place_of_another(stage: Stage) -> None:
    app, api = await stage.start(), APIS["openai_chat"]
    *_, asked = await compacted(stage, app, api, CODEX_ASKS, TEXT)
    assert name_of(await ask(stage, app, api, beginning(CODEX_BEGINS))) == name_of(asked)
    url = f"{app.base_url.removesuffix('/v1')}/narrows/conversations/{name_of(asked)}"
    async with stage.client.delete(url) as reply:
        assert reply.status == 204
    assert name_of(await ask(stage, app, api, beginning(CODEX_BEGINS))) != name_of(asked)


async def test_an_exchange_stays_in_its_place_behind_a_summary_that_was_only_observed(
    stage: Stage, client: Client
) -> None:
    """Whoever only observes has not looked for the exchanges of a history, and does not say that there are none."""
    said = hiding()
    stage.provider.answer = plays(wants("Let me look. "), Say("Seen."), Say(TEXT), Say("Done."))
    said = [*said, *answered((await client.ask(said)).message()), user(CODEX_ASKS)]
    assert (await client.ask(said, extra_headers=dict([OBSERVED]))).headers["x-narrows-mode"] == "observed"
    await client.ask([*said, {"role": "assistant", "content": TEXT}, user("Go on.")])
    assert fetched(stage.provider.requests[-1]) == [REPORT]

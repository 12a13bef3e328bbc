"""Summaries in each API: by whom they are written, with what the client itself sent, and where."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from policies.presets import PRESETS, Preset
from proxy.lab.provider import Received
from proxy.summaries.summarizer import ModelRequest, SummarizerError
from tests.kit.forms import FORMS
from tests.kit.histories import TOOLS, Json, requests
from tests.kit.rolling import PLAIN, PRICED, work, writes_summaries
from tests.kit.running import compaction_of
from tests.kit.stage import Stage, staged, working
from tests.kit.summarizers import Make, Serve, body_of, message, proofs, text
from tests.kit.upstream import completion, json_answer, whole

pytestmark = pytest.mark.usefixtures("patient")

PATHS = {"openai_chat": "/chat/completions", "openai_responses": "/responses", "anthropic_messages": "/messages"}
EACH = pytest.mark.parametrize("dialect", PATHS)
CLAUDE = {
    "x-api-key": "client",
    "anthropic-version": "2023-06-02",
    "anthropic-beta": "context-1m-2025-08-07, oauth-2025-04-20",
}
PROOF = {"openai_chat": {"Authorization": "Bearer client"}, "openai_responses": {"Authorization": "Bearer client"}}
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 50},
    "output_tokens": 7,
}


def response(*output: Json, **more: Any) -> Json:
    head = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "incomplete_details": None}
    return {**head, "output": list(output), "usage": USAGE, **more}


def output(*parts: Json) -> Json:
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": list(parts)}


def said(words: str) -> Json:
    return {"type": "output_text", "text": words, "annotations": []}


ANSWERS = {
    "openai_chat": completion("The notes."),
    "openai_responses": response({"type": "reasoning", "id": "rs_1", "summary": []}, output(said("The notes."))),
    "anthropic_messages": message(text("The notes.")),
}


def asking(dialect: str, auth: Mapping[str, str], model: str = "m") -> ModelRequest:
    return ModelRequest(
        instructions="Write notes.", text="what was said", most=800, model=model, auth=auth, dialect=dialect
    )


@EACH
async def test_x4_the_clients_credential_goes_where_its_requests_go(serve: Serve, make: Make, dialect: str) -> None:
    """In the API that they speak, with the model that they name; of its betas with the one that its token needs."""
    upstream, claude = await serve(json_answer(ANSWERS[dialect])), await serve(json_answer(ANSWERS[dialect]))
    summarizer = make(upstream, anthropic_upstream=claude.url)
    auth = PROOF.get(dialect) or {**CLAUDE, "anthropic-beta": "oauth-2025-04-20"}
    written = await summarizer.write(asking(dialect, auth))
    assert (written.text, written.model, written.end) == ("The notes.", "m", "stop")
    servers = (claude, upstream) if dialect == "anthropic_messages" else (upstream, claude)
    (asked,) = servers[0].seen
    assert servers[1].seen == []
    assert asked.line == f"POST /v1{PATHS[dialect]} HTTP/1.1"
    assert {name: asked.one(name) for name in auth} == auth
    assert proofs(asked).keys() == {name.lower() for name in auth} - {"anthropic-version", "anthropic-beta"}


async def test_m9_responses_are_asked_for_as_they_are_billed_and_are_not_stored(serve: Serve, make: Make) -> None:
    upstream = await serve(json_answer(ANSWERS["openai_responses"]))
    written = await make(upstream, {"model": "same"}).write(asking("openai_responses", {}, model="gpt-5.3-codex"))
    asked = body_of(upstream.seen[0])
    assert asked == {
        "model": "gpt-5.3-codex",
        "instructions": "Write notes.",
        "input": "what was said",
        "max_output_tokens": 1000 + 8192,
        "store": False,
    }
    spent = written.spent
    assert (spent.prompt, spent.cached, spent.written, spent.completion) == (100, 30, 50, 7)


CUT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
FILTERED = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}


@pytest.mark.parametrize(
    ("reply", "end"),
    [
        (response(output(said("so")), **CUT), "length"),
        (response(output(said("so")), **FILTERED), "refusal"),
        (response(output(said("so")), status="failed"), "other"),
        (response(output({"type": "refusal", "refusal": "No."})), "refusal"),
        (response(output(said("so")), {"type": "function_call", "name": "x"}), "calls"),
        (response({"type": "reasoning", "summary": []}), "reasoning"),
        (response(output(said("so")), {"type": "of_tomorrow"}), "stop"),
        (response(), "stop"),
    ],
    ids=["cut", "filter", "failed", "refusal", "call", "reasoning", "unknown", "empty"],
)
async def test_m4_how_a_response_ended(serve: Serve, make: Make, reply: Json, end: str) -> None:
    written = await make(await serve(json_answer(reply))).write(asking("openai_responses", {}))
    assert written.end == end


@pytest.mark.parametrize("garbage", [json_answer({"output": 1}), json_answer({}), whole(b"[]")])
async def test_m8_what_is_no_response_is_a_fault(serve: Serve, make: Make, garbage: bytes) -> None:
    with pytest.raises(SummarizerError) as error:
        await make(await serve(garbage)).write(asking("openai_responses", {}))
    assert error.value.reason == "garbled"


async def test_m9_a_named_provider_is_asked_for_its_own_conversations_or_with_a_key_of_ours(
    serve: Serve, make: Make
) -> None:
    upstream = await serve(json_answer(ANSWERS["anthropic_messages"]))
    mine, keyed = (
        {"provider": "anthropic", "model": "c"},
        {"provider": "anthropic", "model": "d", "key_env": "KEY_OF_OURS"},
    )
    summarizer = make(upstream, mine, keyed)
    assert summarizer.models("anthropic_messages", "m") == ("c", "d")
    assert summarizer.models("openai_chat", "m") == summarizer.models("openai_responses", "m") == ("d",)
    assert (await summarizer.write(asking("openai_chat", {"Authorization": "Bearer client"}))).model == "d"
    assert [asked.line for asked in upstream.seen] == ["POST /v1/messages HTTP/1.1"]
    assert proofs(upstream.seen[0]) == {"x-api-key": "ours"}
    alone = make(upstream, mine)
    assert alone.models("openai_chat", "m") == ()
    with pytest.raises(SummarizerError):
        await alone.write(asking("openai_chat", {"Authorization": "Bearer client"}))
    assert len(upstream.seen) == 1


@pytest.fixture
async def claude(tmp_path: Path) -> Any:
    """Another provider, where requests in Anthropic's API go."""
    async with staged(tmp_path / "unused.db") as other:
        yield other


async def sent(stage: Stage, url: str, dialect: str, messages: list[Json], **more: Any) -> Json:
    fields = {"max_tokens": 100} if dialect == "anthropic_messages" else {}
    body = {"model": "m", **FORMS[dialect]({"model": "m", "messages": messages, "tools": TOOLS}), **fields, **more}
    headers = PROOF.get(dialect) or CLAUDE
    async with stage.client.post(url, data=json.dumps(body), headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        return {"json": await reply.json(), "headers": reply.headers}


def proven(received: Received) -> dict[str, str]:
    return {name: received.headers[name] for name in ("x-api-key", "Authorization") if name in received.headers}


@EACH
async def test_m9_a_summary_is_written_in_the_api_of_its_conversation_and_adopted(
    stage: Stage, claude: Stage, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    monkeypatch.setattr("policies.planning.folding.SMALLEST", 1)
    monkeypatch.setitem(PRESETS, "plain", Preset(PLAIN))
    here, there = (claude, stage) if dialect == "anthropic_messages" else (stage, claude)
    settings: Json = {"preset": "plain", "summary_tokens": 100, "summarizers": [{"model": "scribe"}], "models": PRICED}
    settings["summary_credential"] = "client-any"
    app = await stage.start(anthropic_upstream=claude.upstream, **settings)
    here.provider.answer = writes_summaries
    url, told = app.base_url + PATHS[dialect], [""]
    for messages in requests(work(21))[10:]:
        if told[-1] != "adopted":
            told.append((await sent(stage, url, dialect, messages))["headers"].get("x-narrows-summary"))
            await compaction_of(app).maker.settled()
    assert told[-1] == "adopted"
    assert not there.provider.requests
    summaries = [each for each in here.provider.requests if each.headers["User-Agent"] == "narrows"]
    assert summaries
    assert {each.path for each in summaries} == {"/v1" + PATHS[dialect]}
    assert [proven(each) for each in summaries] == [proven(here.provider.requests[0])] * len(summaries)
    if dialect == "anthropic_messages":
        assert {each.headers["anthropic-version"] for each in summaries} == {"2023-06-02"}
        assert {each.headers["anthropic-beta"] for each in summaries} == {"oauth-2025-04-20"}
    assert "narrows_summary" in here.provider.requests[-1].body.decode()


@EACH
async def test_m1_a_summary_for_people_reads_a_body_of_any_api(stage: Stage, claude: Stage, dialect: str) -> None:
    here, there = (claude, stage) if dialect == "anthropic_messages" else (stage, claude)
    app = await stage.start(anthropic_upstream=claude.upstream, summary_credential="client-any")
    here.provider.default = type(here.provider.default)("Rename of the parser\n\nThe person wants the parser renamed.")
    url = app.base_url.removesuffix("/v1") + "/narrows/conversations/chat/summary"
    made = [(await sent(stage, url, dialect, working(2)))["json"] for _ in range(2)]
    assert [page["cached"] for page in made] == [False, True]
    assert made[0]["content"] == "Rename of the parser\n\nThe person wants the parser renamed."
    assert not there.provider.requests
    (request,) = here.provider.requests
    assert request.path == "/v1" + PATHS[dialect]
    history = request.json["messages"][-1]["content"] if "messages" in request.json else request.json["input"]
    assert "Please rename the parser." in history
    assert "grep -rn thing_0 src" in history

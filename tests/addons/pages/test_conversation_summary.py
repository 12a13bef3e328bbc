"""A summary for people, on request: made with the caller's credential, kept, and given again while it counts."""

import asyncio
import gzip
import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from proxy.addons.access.keys import digest_of, new_key
from proxy.app import App
from proxy.lab.provider import Abort, Received, Say, Send, Wire
from proxy.memory import Key, open_store
from tests.addons.pages.test_conversations import FOREIGN, started
from tests.kit.stage import Stage
from tests.kit.visiting import BEHIND, Page, bearer, conversation_page

SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "You are careful."},
    {"role": "user", "content": "Please rename the parser in src/parser.py to reader."},
    {"role": "assistant", "content": "The parser in src/parser.py is called reader now, and all 482 tests pass."},
    {"role": "user", "content": "Thank you. Please update the documentation too."},
]
ENTRY = (
    "Renaming the parser\n\nThe person wanted the parser in src/parser.py to be called reader. It was renamed, and all "
    "482 tests pass. What is left to do is the documentation, which was asked for last and was not begun."
)

pytestmark = pytest.mark.usefixtures("patient")


@dataclass(slots=True)
class Scribe:
    """A model that writes what it is told to; what it was asked stays with the provider."""

    answer: Any = field(default_factory=lambda: Say(ENTRY))

    def __call__(self, _: Received) -> Any:
        return self.answer


@pytest.fixture
def scribe(stage: Stage) -> Scribe:
    stage.provider.answer = made = Scribe()
    return made


async def summed(stage: Stage, app: App, *headers: tuple[str, str], name: str = "chat", **given: Any) -> Page:
    body = {"model": "m", "messages": SAID, **given}
    return await conversation_page(stage, app, "POST", f"/{name}/summary", *headers, data=json.dumps(body).encode())


async def test_m1_a_summary_for_people_is_made_with_the_credential_of_the_caller(stage: Stage, scribe: Scribe) -> None:
    app = await started(stage)
    assert (await summed(stage, app, *bearer("mine"))).status == 403  # the upstream does not know it yet
    await stage.ask(app, SAID, *bearer("mine"))
    page = await summed(stage, app, *bearer("mine"))
    assert (page.status, page.headers["Cache-Control"]) == (200, "no-store")
    assert (page.headers["Content-Type"], page.headers["X-Content-Type-Options"]) == (
        "application/json; charset=utf-8",
        "nosniff",
    )
    _, request = stage.provider.requests
    assert request.credential == "mine"
    assert (request.model, "renamed" in request.body.decode()) == ("m", False)
    found = page.json
    assert (found["content"], found["cached"], found["kind"]) == (ENTRY, False, "history")
    assert (found["model"], found["prompt"]) == ("m", "history-1")
    assert [source["index"] for source in found["messages"]] == [1, 2, 3]
    assert found["tokens_before"] > 0
    assert found["tokens_after"] > 0
    assert request.usage
    assert (found["usage"]["calls"], found["usage"]["prompt"]) == (1, request.usage.prompt)
    assert found["dollars"] == pytest.approx((request.usage.prompt + request.usage.completion) / 1e6, rel=0.5)
    listed = (await conversation_page(stage, app, "GET", "/chat/summaries", *bearer("mine"))).json
    assert [row["id"] for row in listed["summaries"]] == [found["id"]]
    assert listed["spent"]["history"]["dollars"] == found["dollars"]


async def test_m2_it_is_given_again_for_exactly_these_messages_and_made_anew_for_others(
    stage: Stage, scribe: Scribe
) -> None:
    app = await started(stage)
    first = (await summed(stage, app)).json
    again = (await summed(stage, app, stream=True, temperature=0.5)).json
    assert (again["cached"], again["id"], len(stage.provider.requests)) == (True, first["id"], 1)
    for messages in ([*SAID[:-1], {"role": "user", "content": "No, stop."}], SAID[:-1], [*SAID, SAID[2], SAID[3]]):
        changed = (await summed(stage, app, messages=messages)).json
        assert (changed["cached"], changed["id"] == first["id"]) == (False, False)
    assert len(stage.provider.requests) == 4
    await app.close()
    other = await started(stage, summary_ttl=0.001)
    assert (await summed(stage, other)).json["cached"] is False


async def test_m9_one_for_people_is_none_for_the_prompt_and_the_other_way_round(stage: Stage, scribe: Scribe) -> None:
    app = await started(stage)
    made = (await summed(stage, app)).json
    key = Key("local", "chat")
    store = open_store(f"sqlite:///{stage.path}", patience=10)
    await store.open()
    try:
        (record,) = await store.summaries(key)
        assert (record.kind, record.id) == ("history", made["id"])
        assert (await store.memory(key, [record.first])).summaries == ()
        twin = replace(record, id="compaction", kind="compaction", content="Not for people.", created_at=2e9)
        await store.delete(key)
        await store.put_summary(key, twin)
    finally:
        await store.close()
    anew = (await summed(stage, app)).json
    assert (anew["cached"], anew["content"]) == (False, ENTRY)


@pytest.fixture
def gates(scribe: Scribe) -> tuple[asyncio.Event, asyncio.Event]:
    """The first is set once the model is asked, and it answers once the second is set."""
    reached, open_ = asyncio.Event(), asyncio.Event()

    async def held() -> None:
        reached.set()
        await open_.wait()

    scribe.answer = Say(ENTRY, wire=Wire(gate=held))
    return reached, open_


@pytest.mark.parametrize("place", ["/chat", ""])
async def test_x6_what_is_being_made_of_a_deleted_conversation_is_not_kept(
    stage: Stage, gates: tuple[asyncio.Event, asyncio.Event], place: str
) -> None:
    app = await started(stage)
    reached, open_ = gates
    page = asyncio.create_task(summed(stage, app))
    await reached.wait()
    assert (await conversation_page(stage, app, "DELETE", place)).status in (200, 204)
    open_.set()
    stopped = await page
    assert (stopped.status, stopped.code) == (503, "summarizer_stopped")
    assert (await conversation_page(stage, app, "GET", "/chat/summaries")).status == 404


async def test_two_who_ask_at_once_pay_once(stage: Stage, gates: tuple[asyncio.Event, asyncio.Event]) -> None:
    app = await started(stage)
    reached, open_ = gates
    pages = [asyncio.create_task(summed(stage, app)) for _ in range(5)]
    await reached.wait()
    open_.set()
    assert len({page.json["id"] for page in await asyncio.gather(*pages)}) == 1
    assert len(stage.provider.requests) == 1


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (b"", None, "JSON object"),
        (b"[]", None, "JSON object"),
        (b'{"model": "m", "messages": [', None, "JSON object"),
        (b'{"model": "m", "model": "m", "messages": [{}]}', None, "duplicate"),
        (b'{"messages": [{"role": "user", "content": "x"}]}', "model", "`model`"),
        (b'{"model": 5, "messages": [{"role": "user", "content": "x"}]}', "model", "`model`"),
        (b'{"model": "m"}', "messages", "`messages`"),
        (b'{"model": "m", "messages": []}', "messages", "`messages`"),
        (b'{"model": "m", "messages": ["x"]}', "messages", "`messages`"),
        (b'{"model": "m", "messages": {"role": "user"}}', "messages", "`messages`"),
        (b'{"model": "m", "messages": [{"role": "system", "content": "x"}]}', "messages", "system text"),
    ],
)
async def test_a_body_that_cannot_be_summarized_is_refused_with_its_field(
    stage: Stage, body: bytes, field: str | None, words: str
) -> None:
    app = await started(stage)
    refused = await conversation_page(stage, app, "POST", "/chat/summary", data=body)
    error = refused.json["error"]
    assert (refused.status, error["param"], error["type"]) == (400, field, "invalid_request_error")
    assert words in error["message"]
    assert not stage.provider.requests


async def test_t6_bodies_are_read_as_those_of_chat_requests(stage: Stage, scribe: Scribe) -> None:
    app = await started(stage, body_limit=10_000)
    body = json.dumps({"model": "m", "messages": SAID}).encode()
    packed = await conversation_page(
        stage, app, "POST", "/chat/summary", ("Content-Encoding", "gzip"), data=gzip.compress(body, mtime=0)
    )
    assert (packed.status, packed.json["content"]) == (200, ENTRY)
    bomb = gzip.compress(b" " * 20_000)
    for data, coding, status in (
        (b" " * 10_001, "", 413),
        (bomb, "gzip", 413),
        (b"x", "gzip", 400),
        (b"x", "rot", 415),
    ):
        refused = await conversation_page(stage, app, "POST", "/chat/summary", ("Content-Encoding", coding), data=data)
        assert refused.status == status
    assert (await summed(stage, app)).status == 200


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (Say("Too short."), 502, "summary_rejected"),
        (Say(ENTRY, finish="length"), 502, "summary_rejected"),
        (Send(401, b'{"error": {"message": "who?"}}'), 502, "summarizer_refused"),
        (Abort(), 502, "summarizer_unreachable"),
        (Say(ENTRY, wire=Wire(delay=60)), 504, "summarizer_timeout"),
    ],
)
async def test_m8_what_went_wrong_is_said_and_holds_no_credential(
    stage: Stage, scribe: Scribe, answer: Any, status: int, code: str
) -> None:
    app = await started(stage, summary_timeout=1 if status == 504 else 60)
    scribe.answer = answer
    refused = await summed(stage, app, ("Authorization", "Bearer a-secret"))
    assert (refused.status, refused.code) == (status, code)
    assert b"a-secret" not in refused.body


async def test_m9_what_was_rejected_is_paid_for_and_shown_without_its_text(stage: Stage, scribe: Scribe) -> None:
    app = await started(stage)
    scribe.answer = Say("Too short.")
    await summed(stage, app)
    found = (await conversation_page(stage, app, "GET", "/chat/summaries")).json
    ((rejected, content, dollars),) = [(row["rejected"], row["content"], row["dollars"]) for row in found["summaries"]]
    assert (rejected, content) == ("short", "")
    assert dollars == found["spent"]["history"]["dollars"] > 0
    scribe.answer = Say(ENTRY)
    assert (await summed(stage, app)).json["content"] == ENTRY  # a person may have it tried again


@pytest.mark.parametrize("headers", FOREIGN[:-1])
async def test_x8_nobody_has_a_summary_made_without_a_credential(
    stage: Stage, headers: tuple[tuple[str, str], ...]
) -> None:
    app = await started(stage)
    refused = await summed(stage, app, *headers)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert not stage.provider.requests


async def test_x5_within_a_tenant_what_is_kept_is_given_for_the_messages_that_the_caller_has(
    stage: Stage, scribe: Scribe
) -> None:
    app = await started(stage, tenant="team")
    for key in ("one", "two"):
        await stage.ask(app, SAID, *bearer(key))
    first = (await summed(stage, app, *bearer("one"))).json
    assert (await summed(stage, app, *bearer("two"))).json["id"] == first["id"]
    assert (await conversation_page(stage, app, "GET", "/chat/summaries", *bearer("two"))).status == 404


async def test_x5_between_tenants_nothing_is_given_for_the_same_messages(stage: Stage, scribe: Scribe) -> None:
    app = await started(stage)
    for key in ("one", "two"):
        await stage.ask(app, SAID, *bearer(key))
    first = (await summed(stage, app, *bearer("one"))).json
    second = (await summed(stage, app, *bearer("two"))).json
    assert (second["cached"], second["id"] == first["id"]) == (False, False)
    assert [request.credential for request in stage.provider.requests] == ["one", "two"] * 2


async def test_x1_it_is_asked_where_a_rule_sends_the_conversation_and_of_no_model_that_the_key_may_not_ask(
    stage: Stage, scribe: Scribe
) -> None:
    places = ({"name": name, "url": stage.upstream, "headers": {"x-place": name}} for name in ("near", "far"))
    rules = [{"model": "m", "upstream": "far"}]
    key = new_key()
    row = {"name": "alice", "sha256": digest_of(key), "models": ["m"]}
    app = await started(stage, upstreams=list(places), rules=rules, auth="both", keys=[row])
    await stage.ask(app, SAID, *bearer("mine"))
    assert (await summed(stage, app, *bearer("mine"))).status == 200
    assert [request.headers["x-place"] for request in stage.provider.requests] == ["far", "far"]
    refused = await summed(stage, app, *bearer(key), model="other")
    assert (refused.status, refused.code) == (403, "model_not_allowed")


async def test_x10_the_limits_of_a_key_count_for_it_too(stage: Stage, scribe: Scribe) -> None:
    key = new_key()
    row = {"name": "alice", "sha256": digest_of(key), "rpm": 2}
    app = await started(stage, auth="keys", keys=[row])
    await stage.ask(app, SAID, *bearer(key))
    pages = [await summed(stage, app, *bearer(key), messages=SAID[:count]) for count in (4, 3)]
    assert [page.status for page in pages] == [200, 429]
    assert int(pages[1].headers["Retry-After"]) > 0
    assert pages[1].code == "rate_limit_exceeded"
    assert len(stage.provider.requests) == 2


async def test_f_without_a_store_none_is_made(stage: Stage, scribe: Scribe) -> None:
    stage.path.write_bytes(b"This is not a database. " * 500)
    app = await started(stage)
    refused = await summed(stage, app)
    assert (refused.status, refused.code) == (503, "store_trouble")
    assert not stage.provider.requests


async def test_x4_neither_texts_nor_credentials_are_logged_or_kept(
    stage: Stage, scribe: Scribe, capfd: pytest.CaptureFixture[str]
) -> None:
    app = await started(stage, log_level="debug", log_format="json")
    await stage.ask(app, SAID, *bearer("a-secret"))
    await summed(stage, app, BEHIND, ("Authorization", "Bearer a-secret"))
    scribe.answer = Say("Too short.")
    await summed(stage, app, BEHIND, ("Authorization", "Bearer a-secret"), name="two")
    await conversation_page(stage, app, "DELETE", "/two", BEHIND, ("Authorization", "Bearer a-secret"))
    await app.close()
    said = capfd.readouterr().err
    assert "conversation.deleted" in said
    for text in ("a-secret", "Renaming", "rename the parser", "Too short"):
        assert text not in said
    assert b"a-secret" not in stage.path.read_bytes()

"""The pages of conversations: what was summarised, a summary on request, deletion, and who may ask for them."""

import asyncio
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from policies.model.memory import StepRecord
from policies.model.summary_record import SummaryCost, SummaryRecord
from proxy.addons.pages.answers import parse_target
from proxy.app import App
from proxy.errors import ApiError
from proxy.identity.credential import owner_of
from proxy.memory import Event, Key, Store, open_store
from tests.kit.stage import Stage
from tests.kit.stored_texts import original, put_originals
from tests.kit.visiting import BEHIND, NOBODY, bearer, conversation_page

SECRET = "for these tests"
MINE = owner_of(SECRET.encode(), "k")
ADMIN = "an admin's token"
RECORD = SummaryRecord(
    id="s1",
    conversation="chat",
    first="a0",
    last="a9",
    sources=("1:aa11", "2:bb22"),
    model="gpt-4o-mini",
    content="The parser was renamed. \ud800 <script>",
    tokens_before=900,
    tokens_after=120,
    created_at=1_700_000_000.0,
    policy="summarize",
    prompt="compaction-1",
    generation=2,
    previous="s0",
    owner=MINE,
    spent=SummaryCost(1, 1_000, 200, 100, 130, 0.25),
)
HISTORY = replace(
    RECORD, id="h1", kind="history", prompt="history-1", spent=SummaryCost(1, 500, completion=60, dollars=0.5)
)
USAGE = {"calls": 1, "prompt": 1_000, "cached": 200, "written": 100, "completion": 130}

pytestmark = pytest.mark.usefixtures("patient")


async def started(stage: Stage, **settings: Any) -> App:
    return await stage.start(tenant_secret=SECRET, **settings)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    """The store, for a test to look into."""
    store = open_store(url, patience=10)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def kept(stage: Stage, *records: SummaryRecord, tenant: str = "local", name: str = "chat", url: str = "") -> None:
    """Put these records into the store, each with its bill."""
    async with opened(url or f"sqlite:///{stage.path}") as store:
        for record in records:
            await store.put_summary(Key(tenant, name), replace(record, conversation=name))
            await store.spend(Key(tenant, name), record.kind, record.spent)


async def noted(store: Store, name: str) -> list[tuple[str, Event]]:
    """The events of this name, once there are any: they are written behind the request."""
    for _ in range(1_000):
        if found := [(tenant, event) for tenant, event in await store.events(None, None, 100) if event.name == name]:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("it was never noted")


def tenant_of(token: str) -> str:
    return hmac.new(SECRET.encode(), token.encode(), "sha256").hexdigest()


# --- what is kept ---


async def test_m1_a_person_sees_what_a_summary_covers_and_what_made_it(stage: Stage, url: str) -> None:
    app = await started(stage, store=url)
    await kept(stage, RECORD, url=url)
    page = await conversation_page(stage, app, "GET", "/chat/summaries")
    assert (page.status, page.headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert (page.headers["Cache-Control"], page.headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    summary = {
        "id": "s1",
        "kind": "compaction",
        "model": "gpt-4o-mini",
        "policy": "summarize",
        "prompt": "compaction-1",
        "generation": 2,
        "previous": "s0",
        "created_at": "2023-11-14T22:13:20Z",
        "tokens_before": 900,
        "tokens_after": 120,
        "content": RECORD.content,
        "rejected": "",
        "state": "ready",
        "reason": "",
        "messages": [{"index": 1, "digest": "aa11"}, {"index": 2, "digest": "bb22"}],
        "usage": USAGE,
        "dollars": 0.25,
    }
    spent = {"compaction": {"usage": USAGE, "dollars": 0.25}}
    assert page.json == {"conversation": "chat", "summaries": [summary], "spent": spent}
    head = await conversation_page(stage, app, "HEAD", "/chat/summaries")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(page.body)))
    assert not stage.provider.requests


async def test_m1_one_that_must_not_be_used_is_shown_with_the_reason(stage: Stage) -> None:
    app = await started(stage)
    await kept(stage, replace(RECORD, content="", rejected="invented"))
    (summary,) = (await conversation_page(stage, app, "GET", "/chat/summaries")).json["summaries"]
    assert (summary["content"], summary["rejected"]) == ("", "invented")


async def test_m9_kinds_are_told_apart_and_so_is_what_each_cost(stage: Stage) -> None:
    app = await started(stage)
    await kept(stage, RECORD, HISTORY, replace(HISTORY, id="h2"))
    found = (await conversation_page(stage, app, "GET", "/chat/summaries", NOBODY)).json
    assert [(row["id"], row["kind"]) for row in found["summaries"]] == [
        ("s1", "compaction"),
        ("h1", "history"),
        ("h2", "history"),
    ]
    assert {kind: (bill["usage"]["calls"], bill["dollars"]) for kind, bill in found["spent"].items()} == {
        "compaction": (1, 0.25),
        "history": (2, 1.0),
    }


# --- who may ask ---


async def test_x5_somebody_else_gets_what_a_missing_conversation_gets(stage: Stage) -> None:
    app = await started(stage)
    await kept(stage, replace(RECORD, owner=owner_of(SECRET.encode(), "mine")), tenant=tenant_of("mine"))
    assert (await conversation_page(stage, app, "GET", "/chat/summaries", *bearer("mine"))).status == 200
    refusals = [
        await conversation_page(stage, app, "GET", "/chat/summaries", *bearer("theirs")),
        await conversation_page(stage, app, "GET", "/chat/summaries"),  # this machine is a tenant of its own
        await conversation_page(stage, app, "GET", "/chat/summaries", NOBODY),
        await conversation_page(stage, app, "GET", "/chat2/summaries", *bearer("mine")),
        await conversation_page(stage, app, "GET", "/CHAT/summaries", *bearer("mine")),
    ]
    assert {refusal.status for refusal in refusals} == {404}
    assert len({refusal.body for refusal in refusals}) == 1


async def test_x5_on_one_machine_each_credential_sees_its_own_and_who_shows_none_sees_all(stage: Stage) -> None:
    app = await started(stage)
    theirs = replace(RECORD, id="s2", owner=owner_of(SECRET.encode(), "other"), spent=SummaryCost(1, 50, dollars=8.0))
    await kept(stage, RECORD, theirs)
    mine = (await conversation_page(stage, app, "GET", "/chat/summaries")).json
    assert [row["id"] for row in mine["summaries"]] == ["s1"]
    assert mine["spent"]["compaction"]["dollars"] == 0.25
    everything = (await conversation_page(stage, app, "GET", "/chat/summaries", NOBODY)).json
    assert [row["id"] for row in everything["summaries"]] == ["s1", "s2"]
    assert everything["spent"]["compaction"]["dollars"] == 8.25
    stranger = await conversation_page(stage, app, "GET", "/chat/summaries", ("Authorization", "Bearer stranger"))
    assert stranger.status == 404


FOREIGN = [
    (NOBODY, BEHIND),
    (NOBODY, ("Host", "attacker.example")),
    (NOBODY, ("Origin", "https://attacker.example")),
    (NOBODY, ("Origin", "null")),
    (("Host", "attacker.example"), ("Origin", "http://attacker.example"), ("Authorization", "Bearer k")),
]


@pytest.mark.parametrize("headers", FOREIGN)
async def test_x8_whoever_proves_nothing_sees_nothing_and_deletes_nothing(
    stage: Stage, headers: tuple[tuple[str, str], ...]
) -> None:
    app = await started(stage)
    await kept(stage, RECORD)
    for method, place in (("GET", "/chat/summaries"), ("DELETE", "/chat"), ("DELETE", "")):
        refused = await conversation_page(stage, app, method, place, *headers)
        assert (refused.status, refused.code) == (403, "forbidden")
        assert refused.headers["Cache-Control"] == "no-store"
    assert (await conversation_page(stage, app, "GET", "/chat/summaries", NOBODY)).status == 200


async def test_x8_a_page_of_our_own_may_ask(stage: Stage) -> None:
    app = await started(stage)
    await kept(stage, RECORD)
    ours = ("Origin", app.base_url.removesuffix("/v1"))
    assert (await conversation_page(stage, app, "GET", "/chat/summaries", ours)).status == 200


async def test_x8_where_a_tenant_is_configured_only_the_admin_and_this_machine_see_all_of_it(stage: Stage) -> None:
    app = await started(stage, tenant="team", admin_token=ADMIN)
    await kept(stage, RECORD, tenant="team")
    others = [(bearer(token), 404) for token in ("j", ADMIN + "x", ADMIN[:-1])]
    for headers, status in (*others, ((BEHIND, NOBODY), 403)):
        for method, place in (("GET", "/chat/summaries"), ("DELETE", "/chat")):
            assert (await conversation_page(stage, app, method, place, *headers)).status == status
    assert (await conversation_page(stage, app, "GET", "/chat/summaries", NOBODY)).status == 200
    assert (await conversation_page(stage, app, "GET", "/chat/summaries", *bearer(ADMIN))).status == 200
    assert (await conversation_page(stage, app, "DELETE", "/chat", *bearer(ADMIN))).status == 204
    assert (await conversation_page(stage, app, "GET", "/chat/summaries", *bearer(ADMIN))).status == 404


async def test_x8_the_admin_token_is_a_credential_like_any_other_where_no_tenant_is_configured(stage: Stage) -> None:
    app = await started(stage, admin_token=ADMIN)
    await kept(stage, RECORD)
    assert (await conversation_page(stage, app, "GET", "/chat/summaries", *bearer(ADMIN))).status == 404


async def test_x8_a_credential_that_is_no_text_opens_nothing(stage: Stage) -> None:
    app = await started(stage, tenant="team", admin_token=ADMIN)
    refused = await conversation_page(stage, app, "GET", "/chat/summaries", BEHIND, ("Authorization", "Bearer \udcff"))
    assert refused.status == 404


# --- deletion ---


async def test_x6_a_conversation_is_deleted_with_all_that_is_kept_of_it_and_that_stays_on_record(
    stage: Stage, url: str
) -> None:
    app = await started(stage, store=url)
    await kept(stage, RECORD, HISTORY, url=url)
    await kept(stage, RECORD, name="other", url=url)
    key = Key("local", "chat")
    async with opened(url) as store:
        await store.remember([(key, StepRecord("anchor"))])
        await put_originals(store, key, {f"{MINE}.123456": "hidden"})
        await store.note("local", Event(1.0, "chat", "summary.made", {"id": "s1"}))
        gone = await conversation_page(stage, app, "DELETE", "/chat")
        assert (gone.status, gone.body, gone.headers["Cache-Control"]) == (204, b"", "no-store")
        ((tenant, event),) = await noted(store, "conversation.deleted")
        assert (tenant, event.conversation) == ("local", "chat")
        assert not await store.summaries(key)
        assert not await store.spent(key)
        assert (await store.memory(key, ["anchor", "a0"])).steps == {}
        assert not await original(store, "local", f"{MINE}.123456", None)
        assert [event.name for _, event in await store.events("local", "chat", 9)] == ["conversation.deleted"]
    assert (await conversation_page(stage, app, "GET", "/chat/summaries", NOBODY)).status == 404
    assert (await conversation_page(stage, app, "GET", "/other/summaries", NOBODY)).status == 200


async def test_x6_deleting_again_is_answered_like_what_was_never_there(stage: Stage) -> None:
    app = await started(stage)
    await kept(stage, RECORD)
    first, again, never = [await conversation_page(stage, app, "DELETE", at) for at in ("/chat", "/chat", "/never")]
    assert (first.status, again.status) == (204, 404)
    assert (again.status, again.body) == (never.status, never.body)


async def test_x6_a_tenant_is_deleted_whole_and_no_other(stage: Stage, url: str) -> None:
    app = await started(stage, store=url)
    for name in ("chat", "two"):
        await kept(stage, RECORD, name=name, url=url)
        await kept(stage, RECORD, name=name, tenant=tenant_of("mine"), url=url)
    gone = await conversation_page(stage, app, "DELETE", "", *bearer("mine"))
    assert (gone.status, gone.json, gone.headers["Cache-Control"]) == (200, {"deleted": 2}, "no-store")
    async with opened(url) as store:
        ((tenant, event),) = await noted(store, "tenant.deleted")
        assert (tenant, event.details) == (tenant_of("mine"), {"conversations": 2})
        assert not await store.summaries(Key(tenant, "chat"))
        assert len(await store.summaries(Key("local", "chat"))) == 1
    assert (await conversation_page(stage, app, "DELETE", "", *bearer("mine"))).json == {"deleted": 0}


# --- what a conversation is called ---

ODD = ["a/b", "a//b", "summaries", "%2F", "a b+c", "\u4e00\u00e9", "?id=x", "-", "\ufffd"]
UNSPEAKABLE = ["..", "../x", "..;/x", "a\nb", "\x1b[2J", "\udcff", "a\\..\\b"]
"""They cannot be in a path."""


@pytest.mark.parametrize("name", [*ODD, *UNSPEAKABLE])
async def test_every_id_that_a_client_can_give_can_be_asked_for_and_deleted(stage: Stage, name: str) -> None:
    app = await started(stage)
    await kept(stage, RECORD, name=name)
    spelled = quote(name.encode("utf-8", "surrogatepass"), safe="")
    places = [(f"/{spelled}", ""), ("", f"?id={spelled}")] if name in ODD else [("", f"?id={spelled}")]
    for path, query in places:
        page = await conversation_page(stage, app, "GET", f"{path}/summaries{query}")
        assert (page.status, page.json["conversation"]) == (200, name)
    assert (await conversation_page(stage, app, "DELETE", places[0][0] + places[0][1])).status == 204
    assert (await conversation_page(stage, app, "GET", f"/summaries?id={spelled}")).status == 404


def test_x6_a_misspelt_target_never_widens_what_is_deleted() -> None:
    assert parse_target("/narrows/conversations") == (None, "")
    for target in ("/", "//", "/?id=x", "?id=", "?", "?conversation=x", "?id=x&id=y", "?id=x&all=1", "?id=%FF", "/%FF"):
        with pytest.raises(ApiError):
            parse_target("/narrows/conversations" + target)
    for target in ("/narrows%2Fconversations", "/narrows//conversations", "/x/narrows/conversations", "/narrows"):
        with pytest.raises(ApiError):
            parse_target(target)


@pytest.mark.parametrize("place", ["/", "/?id=chat", "?id=", "?conversation=chat", "//", "/chat/summaries/x", "/chat/"])
async def test_what_names_no_page_is_refused_and_deletes_nothing(stage: Stage, place: str) -> None:
    app = await started(stage)
    await kept(stage, RECORD)
    assert (await conversation_page(stage, app, "DELETE", place)).status in (400, 404)
    assert (await conversation_page(stage, app, "GET", "/chat/summaries")).status == 200


async def test_other_methods_are_told_which_are_allowed_and_nothing_goes_upstream(stage: Stage) -> None:
    app = await started(stage)
    allowed = {"": "GET, HEAD, DELETE", "/c": "GET, HEAD, DELETE", "/c/summaries": "GET, HEAD", "/c/summary": "POST"}
    for place, allow in allowed.items():
        for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"} - set(allow.split(", ")):
            refused = await conversation_page(stage, app, method, place)
            assert (refused.status, refused.headers["Allow"]) == (405, allow)
    assert not stage.provider.requests


async def test_nothing_is_kept_of_conversations_where_it_is_off(stage: Stage) -> None:
    app = await started(stage, mode="off")
    refused = await conversation_page(stage, app, "GET", "/chat/summaries")
    assert refused.status == 404
    assert "`mode`" in refused.json["error"]["message"]


async def test_f_a_store_in_trouble_is_counted_and_said(stage: Stage) -> None:
    stage.path.write_bytes(b"This is not a database. " * 500)
    app = await started(stage)
    for method, place in (("GET", "/chat/summaries"), ("DELETE", "/chat"), ("DELETE", "")):
        refused = await conversation_page(stage, app, method, place)
        assert (refused.status, refused.code) == (503, "store_trouble")
    assert b'narrows_store_trouble_total{operation="delete_tenant"}' in app.telemetry.metrics.page()

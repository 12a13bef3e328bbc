"""What was hidden, shown to people: exact, private, kept behind the request, and only where it is wanted."""

import asyncio
import json
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pytest

from policies.compact import compact
from policies.model.conversation import Conversation
from policies.model.edits import Edit, Fold, Replace
from policies.recall import original
from policies.text.stubs import recalled_output
from policies.tools import RECALL
from proxy.addons.archive.texts import Originals, hidden, named
from proxy.app import App
from proxy.identity.credential import owner_of
from proxy.memory import Key, StoredText, StoreTrouble, TextKind, open_store
from proxy.memory.forgetting import ForgetRegistry
from proxy.memory.opening import StoreAccess
from proxy.telemetry import Telemetry
from tests.kit.histories import CHEAP, EAGER, TIGHT, TOOLS
from tests.kit.stage import Stage, body_of, working
from tests.kit.stored_texts import put_originals
from tests.kit.visiting import BEHIND, Page, bearer, page

SESSION = working(8, 60)
REF = re.compile(r"\bref (\d{6,24}(?:\+\d+)?)")

pytestmark = pytest.mark.usefixtures("patient")


async def shown(
    stage: Stage, app: App, ref: str, *headers: tuple[str, str], method: str = "GET", query: str = ""
) -> Page:
    return await page(stage, app, f"originals/{ref}{query}", *headers, method=method)


async def kept(stage: Stage, app: App, ref: str, *headers: tuple[str, str], **more: Any) -> Page:
    """The page, once what is written behind the request has been written."""
    for _ in range(2_000):
        found = await shown(stage, app, ref, *headers, **more)
        if found.status != 404:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("it was never written")


def planned(messages: list[Any] = SESSION, **more: Any) -> tuple[Conversation, tuple[Edit, ...]]:
    done = compact(body_of(messages, tools=TOOLS), policies=EAGER, prices=CHEAP, recall=True, **more)
    return done.conversation, done.plan.edits


def references(messages: str) -> list[str]:
    return list(dict.fromkeys(REF.findall(messages)))


def rows(stage: Stage) -> int:
    with closing(sqlite3.connect(stage.path)) as database:
        ((count,),) = database.execute("SELECT count(*) FROM text WHERE kind = 'original'").fetchall()
    return int(count)


async def test_r1_every_reference_that_was_sent_has_a_page_with_the_exact_text(stage: Stage) -> None:
    app = await stage.start(originals=True)
    exchanges = await stage.grow(app, SESSION, tools=TOOLS)
    last = exchanges[-1]
    conversation, _ = planned(SESSION[:-1])
    refs = references(last.text)
    assert len(refs) > 5
    for ref in refs:
        found = await kept(stage, app, ref)
        expected = original(conversation, ref)
        assert expected is not None
        assert found.body == expected.encode()
        assert found.headers["x-narrows-conversation"] == last.headers["x-narrows-conversation"]
        assert found.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert found.headers["Cache-Control"] == "no-store"
        assert found.headers["X-Content-Type-Options"] == "nosniff"


async def test_r1_a_fold_is_kept_as_the_run_that_it_hides(stage: Stage) -> None:
    app = await stage.start(originals=True)
    exchanges = await stage.grow(app, working(14, 30), tools=TOOLS, model="small")
    folds = [ref for exchange in exchanges for ref in references(exchange.text) if "+" in ref]
    assert folds
    found = await kept(stage, app, folds[-1])
    assert b"== result bash ==\n" in found.body
    assert (await kept(stage, app, folds[-1].replace("+", "%2B"))).body == found.body


def test_a_reference_that_a_text_only_quotes_is_not_what_it_hides() -> None:
    conversation, edits = planned(budget=TIGHT)
    found = dict(hidden(conversation, edits))
    assert found == {ref: original(conversation, ref) for ref in found}
    assert any(isinstance(edit, Fold) for edit in edits)
    quoted = [*SESSION[:3], {"role": "tool", "tool_call_id": "call_0", "content": "[narrows: rest: ref 123456]\n" * 99}]
    conversation, edits = planned([*quoted, *SESSION[4:]])
    assert any("123456" in edit.text for edit in edits)
    assert "123456" not in dict(hidden(conversation, edits))


def test_r5_what_was_recalled_collapses_to_the_reference_of_its_original() -> None:
    said = "\n".join(f"value_{i} = {i}" for i in range(300))
    start = [*SESSION[:2], *_asked("bash", {"command": "cat a"}, said)]
    conversation, _ = planned(start)
    ref = conversation.ref(len(conversation.blocks) - 1)
    conversation, _ = planned([*start, *_asked(RECALL, {"ref": ref, "part": "find ref 123456"}, said[:99])])
    edit = Replace(conversation.blocks[-1].anchor, recalled_output(ref, "find ref 123456"), "collapse")
    assert named(conversation, edit) == ref
    assert dict(hidden(conversation, [edit])) == {ref: said}


def _asked(tool: str, arguments: dict[str, str], output: str) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": output},
    ]


async def test_x5_another_credential_gets_what_a_missing_reference_gets(stage: Stage) -> None:
    app = await stage.start(originals=True)
    mine, theirs = bearer("mine"), bearer("theirs")
    last = (await stage.grow(app, SESSION, *mine, tools=TOOLS))[-1]
    ref = references(last.text)[0]
    assert (await kept(stage, app, ref, *mine)).status == 200
    name = last.headers["x-narrows-conversation"]
    refusals = [
        await shown(stage, app, ref, *theirs),
        await shown(stage, app, ref, *theirs, query=f"?conversation={name}"),
        await shown(stage, app, ref),  # this machine is a tenant of its own
        await shown(stage, app, ref, *mine, query="?conversation=other"),
        await shown(stage, app, "000000", *mine),
        *[await shown(stage, app, bad, *mine) for bad in ("12345", "x" * 40, "%31/2", f"{ref}+", quote("٣") * 6)],
    ]
    assert {refusal.status for refusal in refusals} == {404}
    assert len({refusal.body for refusal in refusals}) == 1


@pytest.mark.parametrize("tenant", [None, "team"])
async def test_x5_within_a_tenant_each_sees_what_it_sent(stage: Stage, tenant: str | None) -> None:
    app = await stage.start(originals=True, tenant=tenant)
    last = (await stage.grow(app, SESSION, tools=TOOLS))[-1]
    ref = references(last.text)[0]
    assert (await kept(stage, app, ref)).status == 200
    assert (await shown(stage, app, ref, ("Authorization", "Bearer other"))).status == 404
    assert (await shown(stage, app, ref, ("Authorization", ""))).status == 404
    assert (await shown(stage, app, ref, *bearer("k"))).status == (200 if tenant else 404)


@pytest.mark.parametrize("tenant", [None, "team"])
async def test_x8_whoever_proves_nothing_sees_nothing(stage: Stage, tenant: str | None) -> None:
    app = await stage.start(originals=True, tenant=tenant)
    last = (await stage.grow(app, SESSION, ("Authorization", ""), tools=TOOLS))[-1]
    ref = references(last.text)[0]
    nobody = ("Authorization", "")
    assert (await kept(stage, app, ref, nobody)).status == 200
    assert (await shown(stage, app, ref, nobody, BEHIND)).status == 403
    assert (await shown(stage, app, ref, nobody, ("Host", "attacker.example"))).status == 403


async def test_r2_it_is_there_after_a_restart_and_goes_with_its_conversation(stage: Stage) -> None:
    app = await stage.start(originals=True)
    last = (await stage.grow(app, SESSION, tools=TOOLS))[-1]
    await app.close()
    again = await stage.start(originals=True)
    refs = references(last.text)
    assert {(await shown(stage, again, ref)).status for ref in refs} == {200}
    store = open_store(f"sqlite:///{stage.path}", patience=5)
    await store.open()
    assert await store.delete(Key("local", last.headers["x-narrows-conversation"])) == 1
    await store.close()
    assert {(await shown(stage, again, ref)).status for ref in refs} == {404}


async def test_several_conversations_that_differ_are_named_and_one_can_be_chosen(stage: Stage) -> None:
    app = await stage.start(originals=True)
    store = open_store(f"sqlite:///{stage.path}", patience=5)
    await store.open()
    mine = owner_of(await store.secret("tenant"), "k")
    await put_originals(store, Key("local", "one"), {f"{mine}.123456": "said here", f"{mine}.654321": "same"})
    await put_originals(store, Key("local", "two & three"), {f"{mine}.123456": "said there", f"{mine}.654321": "same"})
    await put_originals(store, Key("local", "\u4e00\n"), {f"{mine}.111111": "\ud800 \r\n\x00<script>"})
    await store.close()
    refused = await shown(stage, app, "123456")
    assert refused.status == 409
    assert "one, two & three" in refused.error["message"]
    assert refused.error["type"] == "invalid_request_error"
    chosen = await shown(stage, app, "123456", query="?conversation=two%20%26%20three")
    assert (chosen.body, chosen.headers["x-narrows-conversation"]) == (b"said there", "two & three")
    assert (await shown(stage, app, "654321")).body == b"same"
    odd = await shown(stage, app, "111111")
    assert odd.body == "\ud800 \r\n\x00<script>".encode("utf-8", "surrogatepass")
    assert odd.headers["x-narrows-conversation"] == r"\u4e00\n"


async def test_only_get_and_head_are_answered_and_nothing_goes_upstream(stage: Stage) -> None:
    app = await stage.start(originals=True)
    ref = references((await stage.grow(app, SESSION, tools=TOOLS))[-1].text)[0]
    whole, asked = await kept(stage, app, ref), len(stage.provider.requests)
    head = await shown(stage, app, ref, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(whole.body))
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        refused = await shown(stage, app, ref, method=method)
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")
    assert len(stage.provider.requests) == asked


async def test_nothing_is_kept_and_nothing_shown_where_it_is_off(stage: Stage) -> None:
    app = await stage.start()
    last = (await stage.grow(app, SESSION, tools=TOOLS))[-1]
    refused = await shown(stage, app, references(last.text)[0])
    assert refused.status == 404
    assert "`originals`" in refused.error["message"]
    await app.close()
    assert rows(stage) == 0


async def test_t9_observing_hides_nothing_and_keeps_nothing(stage: Stage) -> None:
    app = await stage.start(originals=True, mode="observe")
    await stage.grow(app, SESSION, tools=TOOLS)
    await app.close()
    assert rows(stage) == 0


async def test_what_is_sent_is_the_same_with_and_without(stage: Stage) -> None:
    off = await stage.grow(await stage.start(store="sqlite://"), SESSION, tools=TOOLS)
    on = await stage.grow(await stage.start(originals=True), SESSION, tools=TOOLS)
    assert [exchange.sent for exchange in on] == [exchange.sent for exchange in off]


async def test_x4_no_text_is_logged(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    app = await stage.start(originals=True, log_level="debug", log_format="json")
    ref = references((await stage.grow(app, SESSION, tools=TOOLS))[-1].text)[0]
    await kept(stage, app, ref)
    await app.close()
    assert "parse_line" not in capfd.readouterr().err


async def test_f_a_store_in_trouble_is_counted_and_said(stage: Stage) -> None:
    stage.path.write_bytes(b"This is not a database. " * 500)
    app = await stage.start(originals=True)
    exchanges = await stage.grow(app, SESSION, tools=TOOLS)
    assert {exchange.status for exchange in exchanges} == {200}
    refused = await shown(stage, app, "123456")
    assert (refused.status, refused.headers["Cache-Control"]) == (503, "no-store")
    assert "store does not answer" in refused.error["message"]
    metrics = app.telemetry.metrics.page()
    assert b'narrows_store_trouble_total{operation="original"}' in metrics
    assert b'narrows_store_trouble_total{operation="originals"}' in metrics


class _Faulty:
    """A store that fails so many times, and then keeps."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.kept: dict[str, str] = {}

    async def put_texts(self, key: Key, kind: TextKind, texts: Sequence[StoredText], limit: int | None) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreTrouble("not now")
        self.kept.update({each.name: each.text for each in texts})


@pytest.mark.parametrize(("failures", "found"), [(0, True), (1, True), (2, False)])
async def test_f_what_cannot_be_written_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, failures: int, found: bool
) -> None:
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 0.0)
    store, (conversation, edits) = _Faulty(failures), planned()
    originals = Originals(StoreAccess(store, Telemetry("error"), b"s", lambda: 0.0, ForgetRegistry()))  # type: ignore[arg-type]  # it needs no more of a store
    originals.keep(Key("t", "c"), "k", conversation, edits)
    await originals.queue.close()
    texts = {ref.partition(".")[2]: text for ref, text in store.kept.items()}
    assert texts == (dict(hidden(conversation, edits)) if found else {})


async def test_f_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.addons.archive.texts._QUEUED", 3)
    store, telemetry = _Faulty(0), Telemetry("error")
    originals = Originals(StoreAccess(store, telemetry, b"s", lambda: 0.0, ForgetRegistry()))  # type: ignore[arg-type]  # it needs no more of a store
    conversation, edits = planned()
    for edit in edits * 2:
        originals.keep(Key("t", "c"), "k", conversation, [edit])
    await originals.queue.close()
    assert 0 < len(store.kept) <= 3
    assert b'narrows_store_trouble_total{operation="originals_full"}' in telemetry.metrics.page()

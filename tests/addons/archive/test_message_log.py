"""The log of a conversation: every message as the client sent it, once, with its branches; the summary that
stands."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from policies.model.memory import Sent, StepRecord
from policies.model.summary_record import Criteria, SummaryRecord, SummaryUse
from proxy.addons.archive.message_log import MessageLog
from proxy.addons.archive.texts import ArchiveMemory
from proxy.addons.pages import log_pages
from proxy.app import App
from proxy.kernel.understand import RequestParser
from proxy.memory import MESSAGES, Key, Store, StoredText, StoreTrouble, TextKind
from proxy.memory.conversation import Conversations, ParsedRequest
from proxy.memory.forgetting import ForgetRegistry
from proxy.memory.opening import StoreAccess
from proxy.memory.sqlite.store import SqliteStore
from proxy.telemetry import Telemetry
from tests.addons.archive.test_artifacts import kept, rows
from tests.addons.pages.test_conversations import RECORD, opened
from tests.kit.apis import Api
from tests.kit.histories import TOOLS
from tests.kit.prefixes import ask
from tests.kit.redis_servers import soon
from tests.kit.stage import Stage, body_of, working
from tests.kit.visiting import Page, bearer, page

SESSION = working(4, 20)
HERE = ("x-narrows-conversation", "it")
LOG = "conversations/it/history"
MARKDOWN = ("Accept", "text/markdown")

pytestmark = pytest.mark.usefixtures("patient")


def said(page: Page) -> list[Any]:
    """The messages of a log, as they were sent."""
    return [row["message"] for row in rows(page)]


async def test_m10_the_whole_conversation_is_logged_each_message_once(stage: Stage) -> None:
    app = await stage.start(history=True)
    await stage.grow(app, SESSION, HERE, tools=TOOLS)
    found = await kept(stage, app, LOG, len(SESSION) - 1)
    assert said(found) == SESSION[:-1]
    head, *lines = [json.loads(line) for line in found.body.splitlines()]
    assert head == {"conversation": "it", "messages": len(lines), "earlier_gone": False}
    lines = [line for line in lines if line.get("returned", True)]
    assert [line["index"] for line in lines] == list(range(len(lines)))
    assert [line["role"] for line in lines] == [message["role"] for message in SESSION[:-1]]
    assert [line["parent"] for line in lines[:2]] == ["", ""]
    assert [line["parent"] for line in lines[2:]] == [line["name"] for line in lines[1:-1]]
    assert found.headers["Content-Type"] == "application/x-ndjson"
    assert (found.headers["Cache-Control"], found.headers["Vary"]) == ("no-store", "Accept")


async def test_m10_each_api_has_its_messages_logged_and_what_leads_them(stage: Stage, api: Api) -> None:
    app = await stage.start(history=True)
    bodies = [api.body(SESSION[:end]) for end in (3, len(SESSION) - 1)]
    for end in (3, len(SESSION) - 1):
        await ask(stage, app, api, SESSION[:end], HERE)
    sent = bodies[-1][api.history]
    lead = [bodies[-1][name] for name in ("system", "instructions") if name in bodies[-1]]
    assert said(await kept(stage, app, LOG, len(sent) + len(lead))) == lead + sent
    shown = await page(stage, app, LOG, MARKDOWN)
    assert all(f"    {line}".encode() in shown.body for line in ("You are careful.", "Please rename the parser."))


async def test_s1_after_a_restart_the_log_goes_on_where_it_was(stage: Stage) -> None:
    before = await stage.start(history=True)
    await stage.ask(before, SESSION[:5], HERE)
    await before.close()
    again = await stage.start(history=True)
    await stage.ask(again, SESSION[:5], HERE)
    await stage.ask(again, SESSION[:-1], HERE)
    assert said(await kept(stage, again, LOG, len(SESSION) - 1)) == SESSION[:-1]


async def test_m10_a_fork_and_an_edited_message_stand_beside_the_first(stage: Stage) -> None:
    app = await stage.start(history=True)
    edited = [*SESSION[:1], {"role": "user", "content": "Do something else."}]
    fork = [*SESSION[:4], {"role": "user", "content": "And now?"}]
    for messages in (SESSION[:4], edited, SESSION[:4], fork, SESSION[:7], [*fork]):
        await stage.ask(app, messages, HERE)
    found = rows(await kept(stage, app, LOG, 9))
    assert [row["message"] for row in found] == [*SESSION[:4], edited[1], fork[4], *SESSION[4:7]]
    names = [row["name"] for row in found]
    assert (found[4]["parent"], found[5]["parent"], found[6]["parent"]) == ("", names[3], names[3])


async def test_system_text_that_tells_the_time_and_marks_that_move_make_no_branch(stage: Stage) -> None:
    app = await stage.start(history=True)
    grown = []
    for minute, end in enumerate((2, 4, 7)):
        messages = [{"role": "system", "content": f"It is 12:0{minute}."}, *SESSION[1:end]]
        marked = {"type": "text", "text": messages[1]["content"], "cache_control": {"type": "ephemeral"}}
        messages[1] = {**messages[1], "content": [marked]} if minute == 1 else messages[1]
        grown.append(messages)
        await stage.ask(app, messages, HERE)
    found = said(await kept(stage, app, LOG, 9))
    assert found == [*grown[0], grown[1][0], *SESSION[2:4], grown[2][0], *SESSION[4:7]]


async def test_x6_the_oldest_go_first_and_the_log_says_so(stage: Stage) -> None:
    app = await stage.start(history=True, history_limit=6_000)
    for end in range(2, len(SESSION)):
        await stage.ask(app, SESSION[:end], HERE)
    await app.close()
    again = await stage.start(history=True, history_limit=6_000)
    for _ in range(2):  # what has gone is not logged again, though the client sends it again
        found = await kept(stage, again, LOG, 2)
        left = said(found)
        assert left == SESSION[:-1][-len(left) :]
        assert len(left) < len(SESSION) - 1
        assert json.loads(found.body.splitlines()[0])["earlier_gone"] is True
        assert b"The oldest messages are gone" in (await page(stage, again, LOG, MARKDOWN)).body
        await stage.ask(again, SESSION[:-1], HERE)


async def test_x5_x8_a_log_is_for_whoever_sent_it(stage: Stage) -> None:
    app = await stage.start(history=True)
    await stage.ask(app, SESSION[:2], HERE, *bearer("mine"))
    await stage.ask(app, SESSION[:1] + SESSION[1:2], HERE, ("Authorization", "Bearer other"))
    assert len(rows(await kept(stage, app, LOG, 2, *bearer("mine")))) == 2
    await kept(stage, app, LOG, 2, ("Authorization", "Bearer other"))
    refusals = [
        await page(stage, app, LOG, *bearer("theirs")),
        await page(stage, app, LOG),
        await page(stage, app, "conversations/absent/history", *bearer("mine")),
    ]
    assert {refusal.status for refusal in refusals} == {404}
    assert len({refusal.body for refusal in refusals}) == 1
    assert len(rows(await page(stage, app, LOG, ("Authorization", "")))) == 2  # this machine sees all of its tenant


async def test_x6_a_log_goes_with_its_conversation_and_begins_again(stage: Stage) -> None:
    app = await stage.start(history=True)
    await stage.ask(app, SESSION[:4], HERE)
    await kept(stage, app, LOG, 4)
    for status in (204, 404):
        assert (await page(stage, app, "conversations/it", method="DELETE")).status == status
        assert (await page(stage, app, LOG)).status == 404
    await stage.ask(app, SESSION[:7], HERE)
    assert said(await kept(stage, app, LOG, 7)) == SESSION[:7]


async def test_x8_no_text_can_pass_for_a_heading_of_the_log(stage: Stage) -> None:
    app = await stage.start(history=True)
    forged = "x\n## 1 user\r# Conversation\u2028## 2 user\x0b## 3\x85## 4\n\n    </code>\n```\n## 5 user"
    tool = {"id": "c\n## 6", "type": "function", "function": {"name": "a\n## 7", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": forged},
        {"role": "assistant", "content": None, "tool_calls": [tool]},
        {"role": "tool", "tool_call_id": "c\n## 6", "content": forged},
    ]
    await stage.post(app, body_of(messages), ("x-narrows-conversation", "# it ```"))
    place = "conversations/%23%20it%20%60%60%60/history"
    await kept(stage, app, place, 3)
    shown = (await page(stage, app, place, MARKDOWN)).body.decode()
    headings = [line for line in shown.splitlines() if line.lstrip().startswith("#") and not line.startswith("    ")]
    assert headings[:4] == ["# Conversation", "## 0 user", "## 1 assistant", "## 2 tool"]
    ours = ("# Conversation", "## ", "*", "Messages: ")
    plain = [line for line in shown.splitlines() if line and not line.startswith(("    ", *ours))]
    assert all(line.endswith("Z") for line in plain)
    assert "## 5 user" in shown


def _leaf(text: str, **about: str | int | float) -> StoredText:
    return StoredText(
        "n", text, {"index": 0, "role": "user", "parent": "", "dialect": "openai_chat", "at": 0.0, **about}
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('{"role": "user",\r\n "content": "a\\nb"}', {"role": "user", "content": "a\nb"}),
        ('{"role": "user", "content": "\\ud800"}', {"role": "user", "content": "\ud800"}),
        ('{"role": "user", "content": "\udcff"}', '{"role": "user", "content": "\ufffd"}'),
        ('{"content": "raw\nbreak"}', '{"content": "raw\nbreak"}'),
        ("[" * 5_000, "[" * 5_000),
    ],
)
def test_x9_whatever_was_sent_is_one_line_of_json(raw: str, message: Any) -> None:
    (line,) = log_pages.json_lines([_leaf(raw)]).splitlines()
    assert json.loads(line)["message"] == message
    assert log_pages.markdown([_leaf(raw, role="\ud800\n# x")]).startswith(b"\n## 0 _x\n")


def test_x8_a_log_as_markdown_holds_nothing_that_a_terminal_obeys() -> None:
    said = "\x1b]0;x\x07\x9b2J\x7f\u202eevil\u2066\ttab caf\u00e9 \U0001f469\u200d\U0001f52c"
    shown = log_pages.markdown([_leaf(json.dumps({"role": "user", "content": said}))]).decode()
    assert "    \u241b]0;x\u2407\ufffd2J\u2421\ufffdevil\ufffd\ttab caf\u00e9 \U0001f469\u200d\U0001f52c\n" in shown
    assert json.loads(log_pages.json_lines([_leaf(json.dumps(said))]))["message"] == said


async def _taken(messages: Sequence[Any]) -> ParsedRequest:
    taken = await _INTAKE.parse("openai_chat", body_of(messages), "t")
    assert taken is not None
    return taken


_INTAKE = RequestParser(Conversations())


class _Counting(SqliteStore):
    """Counts what it is handed, and fails so many times."""

    failures = 0
    asked = 0
    kept = 0

    async def list_texts(self, key: Key, kind: TextKind) -> Sequence[StoredText]:
        self.asked += 1
        return await super().list_texts(key, kind)

    async def put_texts(self, key: Key, kind: TextKind, texts: Sequence[StoredText], limit: int | None = None) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreTrouble("not now")
        self.kept += len(texts)
        await super().put_texts(key, kind, texts, limit)


@pytest.fixture
async def counting() -> AsyncIterator[_Counting]:
    store = _Counting(patience=10)
    await store.open()
    yield store
    await store.close()


async def _indexes(store: Store) -> list[object]:
    """The messages that are logged; tools and parameters stand beside them."""
    texts = await store.list_texts(Key("t", "c"), MESSAGES)
    return [text.about["index"] for text in texts if int(text.about["index"]) >= 0]


def _message_log(store: Store, telemetry: Telemetry, most: int = 2**30) -> MessageLog:
    access = StoreAccess(store, telemetry, b"s", lambda: 1.5, ForgetRegistry())
    return MessageLog(access, ArchiveMemory(access.forgets), most)


async def test_a_request_hands_over_what_is_new_in_it(counting: _Counting) -> None:
    message_log = _message_log(counting, Telemetry("error"))
    for end in (2, 2, 4, 6, 6, 8):
        message_log.keep(Key("t", "c"), "me", "openai_chat", await _taken(SESSION[:end]), came=0.0)
    await message_log.queue.close()
    assert (counting.kept, counting.asked) == (8 + 2, 1)  # with the tools and the parameters
    assert await _indexes(counting) == list(range(8))


async def test_x9_what_is_longer_than_a_log_drives_nothing_out(counting: _Counting) -> None:
    telemetry = Telemetry("error")
    message_log = _message_log(counting, telemetry, 5_000)
    said = [{"role": "user", "content": text} for text in ("a", "b", "x" * 10_000, "c")]
    for end in (2, 4):
        message_log.keep(Key("t", "c"), "me", "openai_chat", await _taken(said[:end]), came=0.0)
    await message_log.queue.close()
    assert await _indexes(counting) == [0, 1, 3]
    assert b'narrows_store_trouble_total{operation="history_large"} 1.0' in telemetry.metrics.page()


async def test_f_what_the_store_would_not_take_is_logged_with_the_next_request(
    counting: _Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.memory.cached._PAUSE", 0.0)
    counting.failures = 2
    message_log = _message_log(counting, Telemetry("error"))
    for end in (4, 5):  # what waits would leave a gap, and is given up with what it follows
        message_log.keep(Key("t", "c"), "me", "openai_chat", await _taken(SESSION[:end]), came=0.0)
    await soon(lambda: not counting.failures)
    await asyncio.sleep(0.01)
    assert await _indexes(counting) == []
    message_log.keep(Key("t", "c"), "me", "openai_chat", await _taken(SESSION[:6]), came=0.0)
    await message_log.queue.close()
    assert await _indexes(counting) == list(range(6))


# --- the summary that stands ---


async def _state(stage: Stage, app: App, *records: SummaryRecord, use: SummaryUse | None = None, at: float = 0) -> Any:
    """What a person is shown with these records more, and after a request that made this of them."""
    async with opened(f"sqlite:///{stage.path}") as store:
        for record in records:
            await store.put_summary(Key("local", "chat"), record)
        if use is not None:
            sent = Sent(1, "", 0, "", 1, "", "head", "settings", use)
            await store.remember([(Key("local", "chat"), StepRecord(f"a{at}", sent=sent, at=at))])
    found = await page(stage, app, "conversations/chat", ("Authorization", ""))
    return found.json if found.status == 200 else found.status


async def test_m3_the_summary_that_stands_is_readable_with_what_became_of_the_others(stage: Stage) -> None:
    app = await stage.start()
    assert await _state(stage, app) == 404
    made, lasting = RECORD.created_at, Criteria(RECORD.policy, RECORD.prompt, ttl=10**10)
    rejected = replace(RECORD, id="r", content="", rejected="short")
    empty = await _state(stage, app, rejected)
    assert (empty["summary"], empty["summaryUpdatedAt"]) == (None, None)
    assert empty["agent"] == {"summary": None, "summaryUpdatedAt": None, "summaryMessageCount": 0}
    waits = await _state(stage, app, RECORD, replace(RECORD, id="h", kind="history"))
    assert (waits["summary"], [row["state"] for row in waits["summaries"]]) == (None, ["rejected", "ready"])
    stands = await _state(stage, app, use=SummaryUse(RECORD.id, criteria=lasting), at=made + 10)
    at = "2023-11-14T22:13:20Z"
    agent = {"summary": RECORD.content, "summaryMessageCount": 2, "summaryUpdatedAt": at}
    rows = [
        {"id": "r", "state": "rejected", "reason": "short", "created_at": at},
        {"id": RECORD.id, "state": "stands", "reason": "", "created_at": at},
    ]
    summary = {"id": "chat", "summary": RECORD.content, "summaryUpdatedAt": at, "agent": agent, "summaries": rows}
    assert {**stands, **summary} == stands  # beside its requests
    later = replace(RECORD, id="s2", content="Later.", sources=("1:aa", "2:bb", "3:cc"), created_at=made + 100)
    both = await _state(stage, app, later)
    assert (both["summary"], both["summaries"][-1]["state"]) == (RECORD.content, "ready")
    newer = await _state(stage, app, use=SummaryUse("s2", criteria=lasting), at=made + 200)
    assert (newer["summary"], newer["agent"]["summaryMessageCount"]) == ("Later.", 3)
    assert [row["state"] for row in newer["summaries"]] == ["rejected", "superseded", "stands"]
    elsewhere = await _state(stage, app, use=SummaryUse(criteria=lasting), at=made + 300)
    assert (elsewhere["summary"], elsewhere["summaries"][-1]["state"]) == (None, "branch")
    edited = await _state(stage, app, use=SummaryUse("", "", "s2", "source", lasting), at=made + 400)
    assert (edited["summaries"][-1]["state"], edited["summaries"][-1]["reason"]) == ("stale", "source")
    short = SummaryUse("s2", criteria=replace(lasting, ttl=5))
    aged = await _state(stage, app, use=short, at=made + 500)
    assert (aged["summary"], aged["summaries"][-1]["reason"]) == (None, "age")


async def test_x5_a_summary_is_read_by_whoever_had_it_made(stage: Stage) -> None:
    app = await stage.start()
    await _state(stage, app, RECORD)
    refusals = [await page(stage, app, f"conversations/{name}", *bearer("theirs")) for name in ("chat", "absent")]
    refusals += [await page(stage, app, f"conversations/{name}") for name in ("chat", "absent")]
    assert {(refusal.status, refusal.body) for refusal in refusals} == {(404, refusals[0].body)}

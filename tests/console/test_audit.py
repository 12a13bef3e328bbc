"""`narrows audit`: what became of summaries and what was deleted, read from the store."""

import asyncio
import inspect
import json
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import pytest

from policies.model.memory import Sent, StepRecord
from policies.model.summary_record import Criteria, Reason, SummaryCost, SummaryRecord, SummaryUse
from policies.text import summary_checks
from policies.text.summary_checks import End
from proxy.console import output as cli_output
from proxy.console.audit import REASONS, Audit, AuditedSummary, print_audit
from proxy.memory import Event, Key, Store, open_store
from tests.console.test_cli import program, told
from tests.kit.redis_servers import Park

REMOTE = "0123456789abcdef" * 4
RECORD = SummaryRecord(
    id="s1",
    conversation="chat",
    first="a0",
    last="a9",
    sources=("3:aa11", "4:bb22", "5:cc33"),
    model="gpt-4o-mini",
    content="The parser was renamed.",
    tokens_before=12_345,
    tokens_after=678,
    created_at=1_700_000_000.0,
    policy="summarize",
    prompt="compaction-1",
    generation=2,
    spent=SummaryCost(1, 1_000, 200, 100, 130, 0.25),
)
MADE_DETAILS = {"id": "s1", "model": "gpt-4o-mini", "before": 12_345, "after": 678, "dollars": 0.25}
MADE = Event(1_700_000_000.0, "chat", "summary.made", MADE_DETAILS)
GONE = Event(1_700_000_060.0, "chat", "conversation.deleted", {})

Fill = Callable[[Store], Awaitable[None]]


def filled(url: str, fill: Fill) -> str:
    """The store at this URL, with what `fill` puts there."""

    async def run() -> None:
        store = open_store(url, patience=10)
        await store.open()
        try:
            await fill(store)
        finally:
            await store.close()

    asyncio.run(run())
    return url


async def some(store: Store) -> None:
    for tenant in ("local", REMOTE):
        await store.note(tenant, MADE)
        await store.put_summary(Key(tenant, "chat"), replace(RECORD, model=f"model of {tenant[:5]}"))
    await store.note("local", replace(MADE, conversation="other"))
    await store.note("local", GONE)


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A real store of either kind, with a few events and summaries."""
    if request.param == "sqlite":
        return filled(f"sqlite:///{tmp_path / 'narrows.db'}", some)
    return filled(f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}", some)


def audited(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code, out, err = told(capsys, "audit", *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_m1_the_audit_tells_events_oldest_first(capsys: pytest.CaptureFixture[str], url: str) -> None:
    found = audited(capsys, "--store", url)
    assert found["summaries"] == []
    assert {event["tenant"] for event in found["events"]} == {"local", REMOTE}
    mine = audited(capsys, "--store", url, "--tenant", "local")["events"]
    assert mine == [
        {
            "tenant": "local",
            "at": "2023-11-14T22:13:20Z",
            "conversation": "chat",
            "event": "summary.made",
            "details": MADE_DETAILS,
        },
        {**mine[0], "conversation": "other"},
        {
            "tenant": "local",
            "at": "2023-11-14T22:14:20Z",
            "conversation": "chat",
            "event": "conversation.deleted",
            "details": {},
        },
    ]
    newest = audited(capsys, "--store", url, "--tenant", "local", "--limit", "1")["events"]
    assert newest == mine[-1:]


def test_m1_of_a_conversation_it_tells_what_its_summaries_cover(capsys: pytest.CaptureFixture[str], url: str) -> None:
    found = audited(capsys, "chat", "--store", url)
    assert {event["conversation"] for event in found["events"]} == {"chat"}
    first, second = found["summaries"]
    assert (first["tenant"], second["tenant"]) == (REMOTE, "local")
    assert [source["index"] for source in second["messages"]] == [3, 4, 5]
    assert (second["model"], second["policy"], second["prompt"]) == ("model of local", "summarize", "compaction-1")
    assert (second["generation"], second["dollars"], second["usage"]["prompt"]) == (2, 0.25, 1_000)
    assert "content" not in second
    (only,) = audited(capsys, "chat", "--store", url, "--tenant", "local")["summaries"]
    assert only == second


def test_a_price_that_is_not_known_is_no_zero(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = replace(RECORD, spent=SummaryCost(1, 1_000))
    audit = Audit((), [AuditedSummary("local", unknown), AuditedSummary("local", RECORD)])
    assert [row["dollars"] for row in audit.as_json()["summaries"]] == [None, 0.25]
    print_audit(cli_output.console(), audit)
    report = capsys.readouterr().out
    assert "cost unknown price (1 call)" in " ".join(report.split())
    assert "cost $0.250 (1 call)" in " ".join(report.split())
    assert SummaryCost().known_dollars == 0.0


@pytest.fixture
def _two_hours_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "EAST-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_two_hours_east")
def test_m1_the_report_says_what_when_which_messages_and_at_what_cost(
    capsys: pytest.CaptureFixture[str], url: str
) -> None:
    code, out, err = told(capsys, "audit", "chat", "--store", url)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "Events (times: EAST)"
    words = " ".join(out.split())
    assert "2023-11-15 00:14:20 conversation.deleted, tenant local, conversation chat" in words
    assert "summary.made, id s1, model gpt-4o-mini, before 12,345, after 678, dollars 0.25, tenant local" in words
    assert "messages 3 to 5; 12,345 tokens became 678; cost $0.250 (1 call)" in words
    assert "2023-11-15 00:13:20 by model of local (tenant local)" in words
    assert "policy summarize, prompt compaction-1, generation 2" in words
    assert "01234567~" in out
    assert REMOTE not in out
    assert max(map(len, lines)) <= cli_output.WIDE
    assert "parser was renamed" not in out


def test_a_text_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert "| The parser was renamed." in told(capsys, "audit", "chat", "--store", url, "--text")[1]
    assert audited(capsys, "chat", "--store", url, "--text")["summaries"][0]["content"] == RECORD.content


def test_m2_what_became_of_each_summary_is_said_with_its_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of six summaries: as the newest request left them."""
    ids = ("old", "bad", "edited", "here", "far", "next")
    lasting = Criteria(RECORD.policy, RECORD.prompt, ttl=10**10)
    key, use = Key("local", "chat"), SummaryUse("here", "", "edited", "source", lasting)

    async def fill(store: Store) -> None:
        for at, id in enumerate(ids):
            record = replace(RECORD, id=id, created_at=RECORD.created_at + at)
            await store.put_summary(key, replace(record, content="", rejected="invented") if id == "bad" else record)
        for at in (2.5, 4.5):
            sent = Sent(1, "", 0, "", 1, "", "head", "settings", use if at > 4 else SummaryUse("old"))
            await store.remember([(key, StepRecord(f"a{at}", sent=sent, at=RECORD.created_at + at))])

    place = filled(f"sqlite:///{tmp_path / 'narrows.db'}", fill)
    rows = audited(capsys, "chat", "--store", place)["summaries"]
    assert [(row["id"], row["state"], row["reason"]) for row in rows] == [
        ("old", "superseded", ""),
        ("bad", "rejected", "invented"),
        ("edited", "stale", "source"),
        ("here", "stands", ""),
        ("far", "superseded", ""),
        ("next", "ready", ""),
    ]
    words = " ".join(told(capsys, "audit", "chat", "--store", place)[1].split())
    for phrase in (
        "old compaction superseded; messages",
        "bad compaction rejected: invented (it names something that the messages do not name)",
        "edited compaction stale: source (a message that it covers has changed)",
        "here compaction stands; messages",
        "next compaction ready; messages",
    ):
        assert phrase in words


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"reason": "rolling", "since": 3, "until": 41}, "reason rolling (from the summary before"),
        ({"id": "s1", "reason": "source"}, "id s1, reason source (a message that it covers has changed)"),
        ({"reason": "new word", "dollars": 0.25}, "summary.wanted, reason new word, dollars 0.25"),
        ({"characters": 12_000}, "characters 12,000"),
    ],
)
def test_an_event_is_told_with_its_details(
    capsys: pytest.CaptureFixture[str], details: dict[str, str | int | float], words: str
) -> None:
    print_audit(cli_output.console(), Audit([("local", Event(1.0, "chat", "summary.wanted", details))]))
    assert words in " ".join(capsys.readouterr().out.split())


def test_reasons_that_do_not_speak_for_themselves_have_words() -> None:
    verdicts = set(re.findall(r'return "([a-z]+)"', inspect.getsource(summary_checks.verdict))) | {*get_args(End)}
    plain = {"empty", "short", "long", "cut", "refusal", "calls", "reasoning", "other"}
    assert verdicts - {"stop", "length"} - plain <= REASONS.keys()
    assert set(get_args(Reason)) - {""} <= REASONS.keys()


def test_m4_a_summary_that_must_not_be_used_is_told_as_such(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async def fill(store: Store) -> None:
        rejected = replace(RECORD, content="", rejected="invented", sources=())
        await store.put_summary(Key("local", "chat"), rejected)

    place = filled(f"sqlite:///{tmp_path / 'narrows.db'}", fill)
    code, out, _ = told(capsys, "audit", "chat", "--store", place)
    assert code == 0
    assert "rejected: invented (it names something that the messages do not name)" in " ".join(out.split())


HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\n2023-11-14 22:13:20Z local conversation.deleted \u202e [bold]x[/] [/nosuch] :+1:"


def test_x8_nothing_in_a_name_moves_the_cursor_forges_a_line_or_changes_the_style(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def fill(store: Store) -> None:
        details: dict[str, str | int | float] = {"model": HOSTILE, "reason": "short"}
        await store.note("local", Event(1.0, HOSTILE, "summary.rejected", details))
        await store.put_summary(Key("local", HOSTILE), replace(RECORD, model=HOSTILE, prompt=HOSTILE))

    place = filled(f"sqlite:///{tmp_path / 'narrows.db'}", fill)
    code, out, err = told(capsys, "audit", HOSTILE, "--store", place)
    assert (code, err) == (0, "")
    assert all(line.isprintable() for line in out.split("\n"))
    assert not [line for line in out.splitlines() if line.startswith("2023-")]
    assert "[2J" in out
    assert "[/nosuch]" in "".join(out.split())
    assert audited(capsys, HOSTILE, "--store", place)["events"][0]["conversation"] == HOSTILE


def test_nothing_found_is_no_mistake_and_is_said(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, out, err = told(capsys, "audit", "nosuch", "--store", url)
    assert (code, out, err) == (0, "No summary has been made here, and nothing deleted.\n", "")
    assert audited(capsys, "--store", url, "--tenant", "nosuch") == {"events": [], "summaries": []}


def test_the_store_is_found_as_serve_finds_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By flag, environment, file and default, in that order; no other setting has a say."""

    def place(name: str) -> str:
        async def fill(store: Store) -> None:
            await store.note("local", replace(MADE, conversation=name))

        return filled(f"sqlite:///{tmp_path / name}", fill)

    def seen(*words: str) -> str:
        (event,) = audited(capsys, *words)["events"]
        return str(event["conversation"])

    (tmp_path / "state" / "narrows").mkdir(parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place("state/narrows/narrows.db")
    assert seen() == "state/narrows/narrows.db"
    file = tmp_path / "narrows.toml"
    file.write_text(f'store = "{place("by_file")}"\nport = "none"\n[[summarizers]]\nkey_env = "NOT_ON_THIS_MACHINE"\n')
    assert seen("--config", str(file)) == "by_file"
    monkeypatch.setenv("NARROWS_CONFIG", str(file))
    monkeypatch.setenv("NARROWS_HIGH", "7")
    assert seen() == "by_file"
    monkeypatch.setenv("NARROWS_STORE", place("by_environment"))
    assert seen() == "by_environment"
    assert seen("--store", place("by_flag")) == "by_flag"


def test_summaries_are_found_in_the_configured_tenant_without_any_event(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill(store: Store) -> None:
        await store.put_summary(Key("team", "chat"), RECORD)

    place = filled(f"sqlite:///{tmp_path / 'narrows.db'}", fill)
    monkeypatch.setenv("NARROWS_TENANT", "team")
    (summary,) = audited(capsys, "chat", "--store", place)["summaries"]
    assert summary["tenant"] == "team"


def test_a_file_that_is_not_there_is_not_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words in (
        [],
        ["--store", f"sqlite:///{tmp_path}/no/such.db"],
        ["--store", f"sqlite:///{tmp_path}/no.db?ttl=1d"],
    ):
        code, out, err = told(capsys, "audit", *words)
        assert (code, out) == (2, "")
        assert err.startswith("narrows: store: there is no file /")
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["audit"], ["usage"], ["export", "x"], ["keys", "list"], ["keys", "add", "x"]])
def test_a_file_that_is_no_store_is_not_made_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    other, old, empty, text = (tmp_path / name for name in ("other.db", "old.db", "empty.db", "text.toml"))
    for file, version in ((other, 0), (old, 3)):
        with closing(sqlite3.connect(file)) as database:
            database.execute("CREATE TABLE theirs (x)")
            database.execute(f"PRAGMA user_version = {version}")
    empty.touch()
    text.write_text("[project]\n" * 500)
    for file in (other, old, empty, text):
        before = file.read_bytes()
        code, out, err = told(capsys, *command, "--store", f"sqlite:///{file}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{file} is not a store of Narrows; name another" in err
        assert file.read_bytes() == before
    code, out, err = told(capsys, *command, "--store", f"sqlite:///{tmp_path}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{tmp_path} is a folder: name a file in it" in err


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--store", "sqlite://"], "in memory"),
        (["--store", "sqlite:///:memory:"], "in memory"),
        (["--store", "mongodb://h"], "there is no store mongodb://; give a URL such as sqlite:///FILE"),
        (["--store", "redis:/h"], "it names no server: write redis://HOST:PORT/DB"),
        (["--store", "narrows.db"], "a file is written sqlite:///narrows.db"),
        (["--store", "redis://h/x"], "store: "),
        (["--config", "/no/such.toml"], "cannot read /no/such.toml"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: list[str], advice: str
) -> None:
    code, out, err = told(capsys, "audit", *words)
    assert (code, out) == (2, "")
    assert err.startswith("narrows: ")
    assert advice in err
    assert err.count("\n") == 1


def test_a_file_with_a_wrong_store_is_one_clear_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "narrows.toml"
    file.write_text("store = 5\n")
    code, _, err = told(capsys, "audit", "--config", str(file))
    assert (code, err) == (2, f"narrows: store: Input should be a valid string ({file}, line 1)\n")


def test_f_a_store_that_does_not_answer_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, servers: Park
) -> None:
    server = servers.server()
    server.kill()
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"This is not a database. " * 500)
    for place in (
        server.url,
        "redis://someone:a-secret@127.0.0.1:1/0",
        f"sqlite:///{damaged}",
        f"sqlite:///{tmp_path}",
    ):
        code, out, err = told(capsys, "audit", "--store", place)
        assert (code, out) == (2, "")
        assert err.startswith("narrows: store: ")
        assert err.count("\n") == 1
        assert "a-secret" not in err


def test_the_audit_as_a_program(tmp_path: Path) -> None:
    place = filled(f"sqlite:///{tmp_path / 'narrows.db'}", some)
    done = program("audit", "--store", place, "--limit", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "conversation.deleted, tenant local" in " ".join(done.stdout.split())

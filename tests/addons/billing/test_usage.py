"""The report of usage: one report, and JSON, CSV and the table at a terminal say the same."""

import asyncio
import csv
import io
import json
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs
from rich.console import Console

from policies.money.bills import BillSums, RequestBill
from proxy.addons.access.keys import digest_of, new_key
from proxy.addons.pages.addon import USAGE
from proxy.config import KeyRow, Settings
from proxy.console.keys import as_toml
from proxy.console.serve import print_day
from proxy.console.usage import print_usage
from proxy.identity.credential import owner_of
from proxy.memory import DAYS, Key, Store
from proxy.memory.bills import day_of, row_of
from proxy.usage.report import BY, MOST, UsageQuery, as_csv, as_json, first_day, usage_by_conversation, usage_by_label
from tests.addons.pages.test_conversations import ADMIN, MINE, opened, started
from tests.console.test_audit import filled
from tests.console.test_cli import told
from tests.kit.stage import Stage
from tests.kit.visiting import BEHIND, NOBODY, bearer, page
from tests.memory.test_store_bills import bill

DAY = 86_400.0
NOW = time.time()
CSV = ("Accept", "text/csv")

pytestmark = pytest.mark.usefixtures("patient")


def bills(count: int = 40) -> list[RequestBill]:
    """Of two tenants, three models (one of them would be a formula) and eight days, one of which is not asked for."""
    chance = random.Random(17)
    made = []
    for i in range(count):
        baseline = chance.randrange(1, 100) / 1_024
        sums = BillSums(
            requests=1,
            original=chance.randrange(9_000),
            sent=chance.randrange(5_000),
            prompt=4_000,
            cached=3_000,
            paid=chance.randrange(1, 100) / 1_024,
            baseline=baseline,
            baseline_marked=baseline / 2,
            summaries=1 / 1_024 if i % 8 == 0 else 0.0,
            checked=i % 2,
            checked_paid=0.25 * (i % 2),
            checked_error=0.015625 * (i % 2),
        )
        names = {"model": ("gpt-5.4", "claude-sonnet-5", "=cmd()")[i % 3], "tenant": ("local", "t" * 64)[i % 2]}
        one = bill(i, conversation=f"c{i % 5}", prefix=("extended", "checkpoint:paid")[i % 2], owner=MINE, **names)
        made.append(structs.replace(one, at=NOW - (i % 8) * DAY - i / 64, sums=sums))
    return made


def in_time(made: Sequence[RequestBill]) -> list[RequestBill]:
    return [each for each in made if day_of(each.at) >= first_day("7d", NOW)]


def label(each: RequestBill, by: str) -> str:
    labels = each.labels
    return {"day": day_of(each.at), "credential": labels.owner}.get(by) or str(getattr(labels, by))


@pytest.mark.parametrize("by", [by for by in BY if by not in ("conversation", "tool")])
def test_each_row_is_the_sum_of_its_bills_in_every_form(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, by: str
) -> None:
    made = bills()

    async def fill(store: Store) -> None:
        await store.add_bills(made)

    store = filled(f"sqlite:///{tmp_path}/narrows.db", fill)
    forms = {}
    for form in ("--json", "--csv", ""):
        code, forms[form], err = told(capsys, "usage", "--by", by, "--store", store, *([form] if form else []))
        assert (code, err) == (0, "")
    rows = {row[by]: row for row in json.loads(forms["--json"])["rows"]}
    cells = {row[by].lstrip("'"): row for row in csv.DictReader(io.StringIO(forms["--csv"]))}
    assert set(rows) == set(cells) == {label(each, by) for each in in_time(made)}
    for name, row in rows.items():
        sums = sum((each.sums for each in in_time(made) if label(each, by) == name), BillSums())
        assert (row["requests"], row["original_tokens"]) == (sums.requests, sums.original)
        money = sums.paid, sums.baseline, sums.saved, sums.summaries
        names = ("paid_usd", "baseline_usd_estimate", "saved_usd_estimate", "summaries_usd")
        assert [row[each] for each in names] == pytest.approx(list(money), abs=1e-6)
        assert (row["cache_share"], row["baseline_error"]) == (0.75, 0.0625 if sums.checked else None)
        assert [cells[name][each] for each in names] == [str(row[each]) for each in names]
        assert name[:15] in forms[""]
    assert "'=cmd()" in forms["--csv"] or by != "model"
    assert forms[""].split("baseline and saved are estimates")[1:], "estimates are called so"
    assert "--help" in forms[""].splitlines()[-1], "the last line says where the columns are explained"


def test_x5_keys_of_the_gateway_go_by_their_names_in_a_report_by_credential(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = ("alice", "bob")
    rows = [KeyRow(name=name, sha256=digest_of(new_key())) for name in names]
    for configured in (None, "a secret"):

        async def fill(store: Store, configured: str | None = configured) -> None:
            secret = configured.encode() if configured else await store.secret("tenant")
            owners = [owner_of(secret, f"\0{name}") for name in names]
            await store.add_bills([bill(i, owner=owner) for i, owner in enumerate([*owners, "somebody"])])
            await store.add_key(rows[1])

        store = filled(f"sqlite:///{tmp_path}/{configured}.db", fill)
        file = tmp_path / "narrows.toml"
        secret = f'tenant_secret = "{configured}"\n' if configured else ""
        file.write_text(f'{secret}store = "{store}"\n{as_toml(rows[0])}\n')
        code, out, _ = told(capsys, "usage", "--by", "credential", "--since", "400d", "--json", "--config", str(file))
        assert (code, {row["credential"] for row in json.loads(out)["rows"]}) == (0, {*names, "somebody"})


async def test_x5_they_do_so_in_a_shell_that_does_not_know_the_secret(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, store = new_key(), f"sqlite:///{stage.path}"
    row = KeyRow(name="alice", sha256=digest_of(key))
    app = await stage.start(store=store, auth="both", keys=(row,), tenant_secret="known to serve alone")
    for credential in (key, "sk-somebody"):
        assert (await stage.ask(app, [{"role": "user", "content": "Hi."}], *bearer(credential))).status == 200
    await app.close(1)
    words = ("usage", "--by", "credential", "--json", "--store", store)
    code, out, _ = await asyncio.to_thread(told, capsys, *words)
    names = {each["credential"] for each in json.loads(out)["rows"]}
    assert code == 0
    assert "alice" in names
    assert sorted(map(len, names)) == [5, 24]  # who has no key of the gateway goes by a digest


def test_what_was_saved_may_be_negative_and_what_cannot_be_known_is_said() -> None:
    rows = [row_of(structs.replace(each, arm="holdout")) for each in bills(MOST + 1)]
    costs = BillSums(paid=0.5, baseline=0.25, unpriced=2, estimated=3, requests=5)
    report = usage_by_conversation([structs.replace(row, sums=costs) for row in rows], "2026-11-17", "2026-11-23")
    assert report.total.sums.saved == -0.25 * MOST
    assert as_json(report)["rows"][0]["saved_usd_estimate"] == -0.25
    shown = io.StringIO()
    print_usage(Console(file=shown, width=120), report)
    for part in ("-0.250", "prices are not known", "no usage was reported: 3,000", "counted whole", "Only 1,000 rows"):
        assert part in shown.getvalue()
    assert "chkp" not in shown.getvalue().partition("original and sent")[0]
    print_usage(Console(file=(narrow := io.StringIO()), width=80), report)
    tables = narrow.getvalue().partition("original and sent")[0]
    assert "…" not in tables
    assert [tables.count(f" {head}") for head in ("sent", "cached", "paid", "summaries", "recalls\n")] == [1] * 5
    assert len(as_csv(report).splitlines()) == MOST + 1


def test_nothing_billed_is_said_and_wrong_options_end_with_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def nothing(_: Store) -> None: ...

    store = filled(f"sqlite:///{tmp_path}/narrows.db", nothing)
    assert told(capsys, "usage", "--store", store)[1].startswith("Nothing was billed from ")
    wrong = {
        ("--by", "moon"): "`by` must be one of tenant, credential, model, preset, day, conversation",
        ("--since", "9w"): "'9w' is not a time; write 7d (up to 400d), or a day such as",
        ("--since", "401d"): "'401d' is not a time",
        ("--since", "9999-01-01"): "9999-01-01 is in the future; today is ",
        ("--json", "--csv"): "--json and --csv are two forms of the same",
        ("--store", f"sqlite:///{tmp_path}/none.db"): "there is no file",
    }
    for words, sentence in wrong.items():
        code, _, err = told(capsys, "usage", "--store", store, *words)
        assert (code, sentence in err) == (2, True), err


def test_the_time_of_a_report_is_days_of_utc() -> None:
    now = 1_900_000_000.0  # 2030-03-17, 17:46
    assert [first_day(text, now) for text in ("1d", "7d", "2030-01-31")] == ["2030-03-17", "2030-03-11", "2030-01-31"]
    assert first_day(f"{DAYS}d", now) == "2029-02-11"
    assert UsageQuery.read("", "", now) == UsageQuery("day", "2030-03-11", "2030-03-17")


async def test_the_day_is_two_lines_where_serve_ends(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = Settings(store=f"sqlite:///{tmp_path}/narrows.db")
    async with opened(settings.store) as store:
        await print_day(settings)
        assert capsys.readouterr().out == ""
        sums = BillSums(requests=2, original=27_200, sent=11_000, paid=0.5, baseline=0.75, summaries=0.125)
        await store.add_bills([structs.replace(bill(1), at=time.time(), sums=sums)])
        await store.add_bills([structs.replace(bill(2), at=time.time() - 2 * DAY)])
        await print_day(settings)
        await print_day(settings.model_copy(update={"config": tmp_path / "narrows.toml"}))
    first, second, _, named = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"Today \(\d{4}-\d\d-\d\d, UTC\): 2 requests, 27\.2k prompt tokens received, 11\.0k sent;"
        r" paid \$0\.500, and \$0\.125 for summaries",
        first,
    )
    assert second == "  by an estimate $0.125 less than without Narrows ($0.750); `narrows usage` says more"
    assert named.endswith(f"; `narrows usage --config {tmp_path}/narrows.toml` says more")


async def test_a_request_has_one_id_in_its_reply_its_log_line_and_its_bill(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    app = await stage.start(log_format="json", log_level="info", preset="structural")
    exchange = await stage.ask(app, [{"role": "user", "content": "What is the time?"}], model="gpt-5.4")
    await app.close(0)
    lines = map(json.loads, capfd.readouterr().err.splitlines())
    (line,) = (each for each in lines if each["event"] == "request")
    async with opened(f"sqlite:///{stage.path}") as store:
        (made,) = await store.request_bills(Key("local", line["conversation"]))
    assert exchange.headers["x-narrows-request-id"] == line["request_id"] == made.id
    assert UUID(made.id).version == 7
    assert (line["model"], line["paid"]) == (made.labels.model, round(made.sums.paid, 6))
    assert line["saved"] == pytest.approx(line["baseline"] - line["paid"], abs=2e-6)


async def test_x8_the_page_says_what_the_command_says_to_each_what_is_its_own(stage: Stage) -> None:
    app = await started(stage, admin_token=ADMIN)
    made = bills()
    async with opened(f"sqlite:///{stage.path}") as store:
        await store.add_bills(made)
        day_rows = await store.day_rows(first_day("7d", NOW))
    place = USAGE.removeprefix("/narrows/")
    whole = await page(stage, app, f"{place}?by=model&since=7d", NOBODY)
    expected = usage_by_label(day_rows, "model", first_day("7d", NOW), day_of(NOW))
    assert (whole.status, whole.json) == (200, {**as_json(expected), "holdout": whole.json["holdout"]})
    assert (await page(stage, app, f"{place}?by=model", *bearer(ADMIN))).json == whole.json
    table = await page(stage, app, f"{place}?by=model", NOBODY, CSV)
    assert (table.headers["Content-Type"], table.body.decode()) == ("text/csv; charset=utf-8", as_csv(expected))
    mine = (await page(stage, app, f"{place}?by=tenant")).json
    assert [row["tenant"] for row in mine["rows"]] == ["local"]
    assert (await page(stage, app, place, *bearer("theirs"))).json["rows"] == []
    assert (await page(stage, app, place, BEHIND, NOBODY)).status == 403
    for query in ("by=moon", "since=9w", "id=1", "&".join(["by=day"] * 9)):
        assert (await page(stage, app, f"{place}?{query}", NOBODY)).status == 400
    assert (await page(stage, app, place, NOBODY, method="POST")).status == 405
    talks = (await page(stage, app, f"{place}?by=conversation", NOBODY)).json
    assert talks["holdout"] == {
        "conversations": {"compacted": 10, "as_written": 0, "in_neither_arm": 0},
        "saved_share_measured": None,
        "interval_95": None,
    }
    assert len(talks["rows"]) == 10
    assert talks["total"]["requests"] == 40

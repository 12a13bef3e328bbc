"""Usage by tool: which definitions are sent, called and never called, and what they cost."""

import asyncio
import csv
import io
import json
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec import structs

from policies.dialects.tool_lists import tool_sizes
from policies.model.tokens import OTHER
from policies.money.bills import BillSums, ToolUse, head_price
from policies.money.prices import Prices, Usage
from proxy.lab.provider import Say
from proxy.memory import Store
from proxy.memory.bills import TOOL_PARTS, TOOL_ROWS, day_of
from proxy.memory.records import DAY as DAYS
from proxy.memory.records import Change
from tests.addons.billing.test_a_day import read_json
from tests.addons.pages.test_conversations import MINE, opened, started
from tests.addons.pages.test_live_pages import HTML, checked, figures
from tests.console.test_audit import filled
from tests.console.test_cli import told
from tests.kernel.test_deferral import EXPORT, FOUND, RESULT
from tests.kit.apis import Api
from tests.kit.deferring import ASK, DONE, MODELS, accepted, always, catalog, finding
from tests.kit.deferring import TOOLS as EVERY
from tests.kit.drawn import HOSTILE
from tests.kit.histories import Json
from tests.kit.recalling import BOTH, call
from tests.kit.speaking import speaking
from tests.kit.stage import Stage
from tests.kit.visiting import NOBODY, bearer, page
from tests.memory.test_store import Fresh, every_back_end, stores_made  # noqa: F401 - fixtures
from tests.memory.test_store_bills import DAY, bill

pytestmark = pytest.mark.usefixtures("patient")
TOOLS = catalog(["issue"])
PRICES = Prices(input=10.0, read=0.1, write=1.25, breakpoints=True, listed=True, longer=2.0)
PRICED = {name: {"input": 10.0, "output": 20.0, "read": 0.1, "write": 1.0} for name in MODELS.values()}
USE = ToolUse(definitions=(("grep", 100), ("read", 50)), calls=("read", "read", "late"), each=2e-6)
CALLED = [{"role": "tool", "tool_call_id": id, "content": "made"} for id in ("c1", "c2")]
FORMS: dict[str, tuple[list[Json], list[str]]] = {
    "openai_chat": ([], []),
    "anthropic_messages": ([{"type": "web_search_20250305", "name": "web_search"}], ["web_search"]),
    "openai_responses": (
        [
            {"type": "web_search"},
            {"type": "namespace", "name": "crm", "description": "x", "tools": [{"type": "function", "name": "inner"}]},
        ],
        ["web_search", "inner"],
    ),
}
"""Beside functions, what else may stand in a list, and the names of that."""


@pytest.fixture(params=["sqlite", "redis"])
def shared(request: pytest.FixtureRequest) -> dict[str, str]:
    url = f"{request.getfixturevalue('redis_url')}?prefix={uuid4().hex}" if request.param == "redis" else ""
    return {"store": url} if url else {}


async def rows_of(store: Store, **more: Any) -> dict[str, BillSums]:
    return {row.labels.tool: row.sums for row in await store.day_rows(DAY, of_tools=True, **more)}


async def test_requests_calls_and_cost_add_up_over_replicas_on_each_api(
    stage: Stage, api: Api, shared: dict[str, str]
) -> None:
    apps = [await stage.start(preset="lossless", recall="never", **shared) for _ in range(2)]
    stage.provider.answer = always(Say("I do.", [call(id, "list_issue", identifier="x") for id in ("c1", "c2")]))
    for app, name in zip(apps, ("one", "two"), strict=True):
        async with speaking(api, app.base_url) as speaker:
            await accepted(speaker)
            said, fields = [{**ASK, "content": f"{name}: {ASK['content']}"}], {"model": MODELS[api.dialect]}
            heard = await speaker.hear(said, tools=TOOLS, **fields)
            said += [heard.message(), *CALLED]
            await speaker.hear(said, tools=TOOLS, **fields)
    for app in apps:
        await app.close(1)
    app = await stage.start(**shared)
    report = await read_json(stage, app, "usage?by=tool")
    rows = {row["tool"]: row for row in report["rows"]}
    assert set(rows) == {each["function"]["name"] for each in TOOLS}
    assert {row["requests"] for row in rows.values()} == {4}
    assert {name: row["calls"] for name, row in rows.items() if row["calls"]} == {"list_issue": 4}
    assert [name for name, row in rows.items() if row["last_called"]] == ["list_issue"]
    assert report["notes"][-1].startswith("5 of 6 definitions were never called: $")
    by_day = await read_json(stage, app, "usage?by=day")
    assert by_day["total"]["requests"] == 6  # tools are in no other report
    assert 0 < report["total"]["cost_usd_estimate"] < by_day["total"]["paid_usd"]


async def tool_rows(stage: Stage) -> dict[str, BillSums]:
    async with opened(f"sqlite:///{stage.path}") as store:
        return {row.labels.tool: row.sums for row in await store.day_rows("2026-01-01", of_tools=True)}


async def test_definitions_that_a_search_has_found_are_counted_and_cost(stage: Stage, api: Api) -> None:
    """From the round on in which they were found; in chat completions their neighbours and what else it brings, too."""
    app = await stage.start(tools="defer", preset="lossless", models=PRICED)
    stage.provider.answer = finding("export the shipment", EXPORT)
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        fields = {"tools": EVERY, "model": MODELS[api.dialect]}
        heard = await speaker.hear([ASK], **fields)
        stage.provider.answer = always(DONE)
        await speaker.hear([ASK, heard.message(), RESULT], **fields)
    await app.close(1)
    rows = await tool_rows(stage)
    assert {*FOUND} <= rows.keys()
    assert {rows[name].requests for name in FOUND} == {2}
    assert all(rows[name].sent > 100 and rows[name].paid > 0 for name in FOUND)
    assert len(rows) < 20


@BOTH
async def test_calls_are_counted_with_the_reply_that_makes_them(stage: Stage, api: Api, stream: bool) -> None:
    """The last ones of a conversation, too; and once, whatever history shows them again."""
    app = await stage.start(preset="lossless", recall="always")
    stage.provider.answer = always(Say("I do.", [call(id, "list_issue", identifier="x") for id in ("c1", "c2")]))
    async with speaking(api, app.base_url) as speaker:
        await accepted(speaker)
        fields = {"tools": TOOLS, "model": MODELS[api.dialect]}
        heard = await speaker.hear([ASK], stream, **fields)
        await speaker.hear([ASK, heard.message(), *CALLED], stream, **fields)
    await app.close(1)
    assert {name: each.calls for name, each in (await tool_rows(stage)).items() if each.calls} == {"list_issue": 4}


async def test_a_very_large_list_is_not_kept_for_its_sizes(stage: Stage) -> None:
    app = await stage.start(preset="lossless")
    before = tool_sizes.cache_info().currsize
    large = [{**each, "function": {**each["function"], "description": "x" * 60_000}} for each in TOOLS]
    assert (await stage.ask(app, [ASK], tools=large)).status == 200
    assert tool_sizes.cache_info().currsize == before
    await stage.ask(app, [ASK], tools=[{**TOOLS[0], "x": uuid4().hex}])
    assert tool_sizes.cache_info().currsize == min(before + 1, tool_sizes.cache_info().maxsize or 0)
    await app.close(1)
    assert {each.requests for name, each in (await tool_rows(stage)).items() if name != "create_issue"} == {1}


def test_a_list_holds_functions_groups_and_hosted_tools(api: Api) -> None:
    more, names = FORMS[api.dialect]
    listed = api.body([ASK], tools=TOOLS)["tools"] + more
    deferred = {"type": "function", "name": "later", "defer_loading": True}
    body = json.dumps([*listed, deferred]).encode()
    sizes = tool_sizes(body, len)
    assert [*sizes] == [*(each["function"]["name"] for each in TOOLS), *names, "later"]
    assert sizes["create_issue"] == len(json.dumps(listed[0], separators=(",", ":")))
    assert [name for name, size in sizes.items() if not size] == ["later"]
    assert tool_sizes(b"nothing", len) == {}
    broken = body[:-1] + b',{"type":"function","name":"half \\ud83d","description":"\\udc00"}]'
    assert [*tool_sizes(broken, len)] == [*sizes, "half \ufffd"]


def test_a_list_that_was_seen_is_not_counted_again_and_names_are_bounded() -> None:
    counted = count()

    def counter(_: str) -> int:
        return next(counted) and 1

    hostile = [{"name": f"{'x' * 1_000}{n}"} for n in range(3)] + [{"name": f"n{n}"} for n in range(900)]
    for _ in range(3):
        sizes = tool_sizes(json.dumps(hostile).encode(), counter)
    assert next(counted) == 903
    assert (len(sizes), max(map(len, sizes)), sizes[OTHER]) == (501, 100, 903 - 502)


async def test_a_list_that_cannot_be_counted_leaves_the_bill(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError

    monkeypatch.setattr("proxy.addons.billing.addon.tool_sizes", broken)
    app = await stage.start()
    assert (await stage.ask(app, [ASK], tools=TOOLS)).status == 200
    await app.close(1)
    async with opened(f"sqlite:///{stage.path}") as store:
        (row,) = await store.day_rows("2026-01-01")
        assert (row.sums.requests, await store.day_rows("2026-01-01", of_tools=True)) == (1, [])


def test_definitions_cost_what_the_head_of_the_prompt_did() -> None:
    def price(*usages: Usage) -> float:
        return head_price(1_000, usages, PRICES) * 1e6 / PRICES.input

    assert price(Usage(5_000, 4_000, 1_000, 9)) == pytest.approx(100)
    assert price(Usage(5_000, 0, 5_000, 9)) == pytest.approx(1_250)
    assert price(Usage(5_000, 0, 5_000, 9, 5_000)) == pytest.approx(2_500)
    assert price(Usage(5_000, 0, 0, 9)) == pytest.approx(1_000)
    assert price(Usage(5_000, 400, 200, 9)) == pytest.approx(40 + 250 + 400)
    assert price(Usage(5_000, 0, 5_000, 9), Usage(6_000, 5_000, 0, 9)) == pytest.approx(1_350)
    assert head_price(1_000, [Usage(5_000, 0, 0, 9)], Prices()) == 0.0


async def test_a_write_that_is_repeated_counts_once_and_owners_and_tenants_stand_apart(store: Store) -> None:
    uses = [(bill(n, owner=f"o{n % 2}", tenant=f"t{n // 6}"), USE) for n in range(8)]
    for some in (uses[:6], uses[3:]):  # each of them is written twice, by two at once
        await asyncio.gather(*(store.add_tools(each) for each in (some, some[::-1])))
    assert await rows_of(store, tenant="t0", owner="o1") == {
        "grep": BillSums(requests=3, sent=300, paid=pytest.approx(6e-4)),
        "read": BillSums(requests=3, sent=150, paid=pytest.approx(3e-4), calls=6),
        "late": BillSums(calls=3),
    }
    assert (await rows_of(store, tenant="t1", owner="o0"))["read"].calls == 2
    assert await store.day_rows(DAY) == []
    await store.add_bills([bill(99)])
    assert [row.labels.tool for row in await store.day_rows(DAY)] == [""]
    assert {row.day for row in await store.day_rows(DAY, of_tools=True)} == {DAY}
    await store.delete_tenant("t0")
    assert await rows_of(store, tenant="t0") == {}


async def test_tools_are_written_at_once_and_read_by_whoever_asks_for_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    change = store._records.change

    async def counted(changes: Sequence[Change]) -> None:
        made.append(len(changes))
        await change(changes)

    monkeypatch.setattr(store._records, "change", counted)
    lists = [structs.replace(USE, definitions=((f"n{n}", 1),)) for n in range(30)]
    await store.add_tools([(bill(n, owner=f"o{n % 3}"), use) for n, use in enumerate(lists)])
    assert made == [3]
    await store.add_bills([bill(99)])
    assert [len(await store._records.search(DAYS, None, None, since=DAY, of_tools=each)) for each in (False, True)] == [
        1,
        30 + 2 * 3,
    ]


async def test_a_million_names_do_not_grow_the_store(store: Store) -> None:
    """Of one owner, whose names take the place of nobody else's; and of many."""
    for n in range(6):
        some = tuple((f"n{number}", 1) for number in range(500 * n, 500 * n + 500))
        await store.add_tools([(bill(n), ToolUse(definitions=some))])
    rows = await rows_of(store)
    assert (len(rows), rows[OTHER].requests) == (TOOL_ROWS + 1, 2_500)
    await store.add_tools([(bill(7, owner=MINE), USE)])
    assert (await rows_of(store, owner=MINE)).keys() == {"grep", "read", "late"}
    owners = [bill(8 + n, owner=f"o{n}") for n in range(900)]
    await store.add_tools([(each, ToolUse(definitions=tuple((f"m{n}", 1) for n in range(40)))) for each in owners])
    assert len(await store.day_rows(DAY, of_tools=True)) <= TOOL_PARTS * (TOOL_ROWS + 1)
    await store.add_bills([bill(n, model=f"m{n}") for n in range(3)])
    assert {row.labels.model for row in await store.day_rows(DAY)} == {"m0", "m1", "m2"}


async def fill(store: Store) -> None:
    """Of today and yesterday."""
    now = time.time()
    use = structs.replace(USE, definitions=(("=cmd()", 200), ("\x1b[31mred", 10)), calls=())
    for at, each in ((now, use), (now - 86_400.0, USE)):
        await store.add_tools([(structs.replace(bill(1), at=at), each)])


def test_the_table_json_and_csv_say_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = filled(f"sqlite:///{tmp_path}/narrows.db", fill)
    forms = {}
    for form in ("--json", "--csv", ""):
        words = ("usage", "--by", "tool", "--store", store, *([form] if form else []))
        code, forms[form], err = told(capsys, *words)
        assert (code, err) == (0, "")
    report = json.loads(forms["--json"])
    yesterday = day_of(time.time() - 86_400.0)
    names = ("tool", "requests", "definition_tokens", "cost_usd_estimate", "calls", "last_called")
    assert [tuple(row[name] for name in names) for row in report["rows"]] == [
        ("=cmd()", 1, 200, 0.0004, 0, None),
        ("grep", 1, 100, 0.0002, 0, None),
        ("read", 1, 50, 0.0001, 2, yesterday),
        ("\x1b[31mred", 1, 10, 0.00002, 0, None),
        ("late", 0, 0, 0.0, 1, yesterday),
    ]
    cells = [*csv.DictReader(io.StringIO(forms["--csv"]))]
    assert [row["definition_tokens"] for row in cells] == ["200", "100", "50", "10", "0"]
    assert cells[0]["tool"] == "'=cmd()"
    table = forms[""].splitlines()
    assert any(line.split()[:6] == ["read", "1", "50", "$0.0001", "2", yesterday] for line in table), forms[""]
    assert any(line.split()[-1:] == ["never"] for line in table)
    assert "3 of 5 definitions were never called: $0.0006" in " ".join(table)
    assert "\x1b" not in forms[""]


async def test_the_page_shows_tools_and_no_name_of_them_is_markup(stage: Stage) -> None:
    app = await started(stage)
    listed = ((HOSTILE, 700), *((f"t{n}", 10) for n in range(30)))
    use = structs.replace(USE, definitions=listed, calls=("t1",))
    async with opened(f"sqlite:///{stage.path}") as store:
        await store.add_tools([(structs.replace(bill(1, owner=MINE, tenant="local"), at=time.time()), use)])
    for headers in ((), (NOBODY,)):
        text = checked(await page(stage, app, "", *headers, HTML)).text
        assert "30 of 31 definitions were never called" in text
        assert HOSTILE[:30] in text
        rows = (await figures(stage, app, "", *headers))["tools"]
        assert (len(rows), rows[0]["tool"], rows[0]["definition_tokens"]) == (20, HOSTILE, 700)
    assert "never called" not in checked(await page(stage, app, "", *bearer("another"), HTML)).text

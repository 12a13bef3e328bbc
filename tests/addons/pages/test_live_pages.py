"""The pages of figures: who sees which, that page and JSON say the same, and the cookie of the admin."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec import structs
from yarl import URL

from policies.money.bills import BillSums, Labels, RequestBill
from policies.presets import PRESETS, Preset
from proxy.addons.pages.overview import sums_cells
from proxy.app import App
from proxy.identity.credential import owner_of
from proxy.identity.who import COOKIE, admin_cookie
from proxy.lab.provider import Say
from proxy.memory import Key
from tests.addons.pages.test_conversations import ADMIN, MINE, RECORD, SECRET, kept, opened, started
from tests.kit.drawn import HOSTILE, Drawn
from tests.kit.drawn import checked as well_drawn
from tests.kit.recalling import KEEPING, REPORT, TOOLS, hiding, plays, wants
from tests.kit.stage import Stage
from tests.kit.stored_texts import put_originals
from tests.kit.visiting import BEHIND, NOBODY, Page, bearer, page

HTML = ("Accept", "text/html,application/xhtml+xml")
JSON = ("Accept", "application/json")
CANARY = "sk-canary-5f0c61d2"
THEIRS = owner_of(SECRET.encode(), "theirs")
NOW = time.time()

pytestmark = pytest.mark.usefixtures("patient")


def bills(name: str = "chat", tenant: str = "local", owner: str = MINE, count: int = 3) -> list[RequestBill]:
    """A conversation whose last request was sent shorter, after a recall."""
    labels = Labels(tenant=tenant, owner=owner, model=HOSTILE, preset="eager", api="openai_chat")
    return [
        RequestBill(
            id=f"{tenant}{owner}{name}{at}",
            at=NOW - 60 + at,
            labels=labels,
            conversation=name,
            prefix=prefix,
            mode="compacted" if at else "untouched",
            sums=BillSums(
                requests=1,
                original=1_000 * (at + 1),
                sent=1_000,
                prompt=1_000,
                cached=500,
                paid=0.25,
                baseline=0.25 * (at + 1),
                baseline_marked=0.25 * (at + 1),
                rounds=at // 2,
                recalled=at // 2,
                rewritten=100 * at,
                checked=1 - min(at, 1),
                checked_paid=0.25 * (1 - min(at, 1)),
                checked_error=0.01 * (1 - min(at, 1)),
            ),
            edits=f"clip={at};dedupe=1" if at else "",
        )
        for at, prefix in enumerate(("first", "tail-cut", "checkpoint:paid")[:count])
    ]


def checked(answer: Page) -> Drawn:
    """The page, which is well-formed and leads to nowhere but others of Narrows' own."""
    return well_drawn(answer.body.decode(), "/narrows/.*")


async def stored(stage: Stage, *conversations: list[RequestBill]) -> None:
    async with opened(f"sqlite:///{stage.path}") as store:
        await store.add_bills([bill for each in conversations for bill in each])


async def figures(stage: Stage, app: App, place: str = "", *headers: tuple[str, str]) -> Any:
    answer = await page(stage, app, place, *headers, JSON)
    assert answer.status == 200, answer.body
    return answer.json


async def test_x8_all_figures_are_for_this_machine_and_its_own_for_a_credential(stage: Stage) -> None:
    app = await started(stage, admin_token=ADMIN)
    away = "f" * 64
    await stored(stage, bills(), bills("other", owner=THEIRS), bills("far", tenant=away, owner="x" * 24))
    whole = await figures(stage, app, "", NOBODY)
    assert (whole["today"]["requests"], whole["today"]["saved"]) == (9, pytest.approx(2.25))
    assert sorted(row["conversation"] for row in whole["conversations"]) == ["chat", "far", "other"]
    assert (await figures(stage, app, "", *bearer(ADMIN)))["today"] == whole["today"]
    mine = await figures(stage, app)
    assert (mine["today"]["requests"], [row["conversation"] for row in mine["conversations"]]) == (3, ["chat"])
    assert (await figures(stage, app, "", *bearer("theirs")))["today"]["requests"] == 0  # another tenant elsewhere
    assert (await page(stage, app, "", BEHIND, NOBODY, JSON)).status == 403
    for name, tenant in (("other", "local"), ("far", away), ("never", "local"), ("far", "no")):
        missing = await page(stage, app, f"conversations/{name}?tenant={tenant}", JSON)
        assert (missing.status, missing.code) == (404, "not_found")
        assert missing.body == (await page(stage, app, "conversations/never", JSON)).body
    assert (await figures(stage, app, f"conversations/far?tenant={away}", NOBODY))["sums"]["requests"] == 3


async def test_the_page_says_what_its_json_says_and_no_name_in_it_is_markup(stage: Stage) -> None:
    app = await started(stage)
    await stored(stage, bills(), bills(f"a/{HOSTILE}"))
    for place in ("", "conversations", "conversations/chat?tenant=local"):
        answer = await page(stage, app, place, NOBODY, HTML)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert (answer.headers["Cache-Control"], answer.headers["Vary"]) == ("no-store", "Accept")
        drawn = checked(answer)
        assert HOSTILE[:30] in drawn.text
        whole = await figures(stage, app, place, NOBODY)
        assert whole["version"] in drawn.text
        assert whole["covers"] in drawn.text
        assert whole["name"]
    live = checked(await page(stage, app, "", NOBODY, HTML)).text.replace(" ,", ",")
    assert "$1.50 saved today, an estimate, 50.0% of the baseline ($3.00); paid $1.50 for 6 requests." in live
    assert "Calibration error of the baseline: 4.0%, on 2 requests" in live
    one = await figures(stage, app, "conversations/chat", NOBODY)
    assert [row["edits"] for row in one["requests"]] == ["", "clip=1;dedupe=1", "clip=2;dedupe=1"]
    drawn = checked(await page(stage, app, "conversations/chat", NOBODY, HTML)).text
    assert "clip 2 (+1); dedupe 1; 200 tokens written again; 1 recall answered" in drawn
    why = "checkpoint:paid 1 request a rewrite costs less than sending the old text with each further request"
    assert why in " ".join(drawn.split())


async def test_pages_say_what_pauses_cost_and_what_was_kept_warm(stage: Stage) -> None:
    app = await started(stage)
    first, second, third = bills()
    seen = [
        structs.replace(second, sums=structs.replace(second.sums, expired=1, pause_cost=0.125)),
        structs.replace(third, sums=structs.replace(third.sums, bridged=1, pause_saving=0.0625)),
        structs.replace(third, id="ping", mode="ping", sums=BillSums(pings=3, paid=0.03125, ping_cost=0.03125)),
    ]
    await stored(stage, [first, *seen])
    words = (
        "Pauses : the provider's cache had expired before 1 request, which cost $0.125; pings or a longer lifetime kept"
        " the cache before 1 request, which saved about $0.0625; 3 pings cost $0.0312."
    )
    for place in ("", "conversations/chat"):
        assert words in checked(await page(stage, app, place, NOBODY, HTML)).text
    one = checked(await page(stage, app, "conversations/chat", NOBODY, HTML)).text
    assert "cache expired ($0.125)" in one
    assert "cache kept over a pause (about $0.0625 saved)" in one
    assert (await figures(stage, app, "", NOBODY))["today"]["pause_saving"] == 0.0625


async def test_a_loss_is_called_more_than_without_narrows_and_not_a_negative_saving(stage: Stage) -> None:
    app = await started(stage)
    first = bills()[0]
    await stored(stage, [structs.replace(first, sums=structs.replace(first.sums, paid=0.375))])
    live = checked(await page(stage, app, "", NOBODY, HTML)).text.replace(" ,", ",")
    assert "$0.125 more than without Narrows today, an estimate, 50.0% of the baseline ($0.250)" in live


def test_paid_is_without_summaries_on_the_page_as_in_every_other_figure() -> None:
    *_, bills_, saved = map(str, sums_cells(BillSums(requests=1, paid=0.25, baseline=0.75, summaries=0.125)))
    assert "$0.750 → $0.250" in bills_
    assert "plus summaries $0.125" in bills_
    assert saved == "$0.375"


async def test_every_conversation_is_on_one_of_the_pages_of_the_list_and_its_link_leads_to_it(stage: Stage) -> None:
    names = ["chat", "a/b", "..", "ü?&=#", "x" * 200]
    app = await started(stage)
    await stored(stage, *([bill] for name in names for bill in bills(name, count=1)))
    listed, place = [], "conversations?most=2"
    while place:
        part = await figures(stage, app, place, NOBODY)
        listed += [row["conversation"] for row in part["conversations"]]
        place = f"conversations?most=2&before={part['next']!r}" if part["next"] else ""
    assert len(listed) == len(set(listed)) <= len(names)
    drawn = checked(await page(stage, app, "", NOBODY, HTML))
    links = [link for link in drawn.values("href") if "tenant=" in str(link)]
    assert len(links) == len(names)
    for link in links:
        assert (await page(stage, app, str(link).removeprefix("/narrows/"), NOBODY, HTML)).status == 200
    for wrong in ("?before=x", "?most=0", "?most=501", "?ID=chat", "?before=inf"):
        assert (await page(stage, app, f"conversations{wrong}", NOBODY)).code == "bad_parameter"


async def test_the_links_to_the_log_of_a_conversation_lead_to_it(stage: Stage) -> None:
    app = await started(stage, history=True)
    for name in ("chat", "a/b?"):
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}] * 2
        await stage.ask(app, messages[:3], ("x-narrows-conversation", name))
        await stored(stage, bills(name))
        for _ in range(500):  # the log is written behind the request
            if (await page(stage, app, f"conversations/requests?{urlencode({'id': name})}", NOBODY)).status == 200:
                break
            await asyncio.sleep(0.01)
        drawn = checked(await page(stage, app, f"conversations?{urlencode({'id': name})}", NOBODY, HTML))
        links = [
            str(link) for link in drawn.values("href") if re.search("/(history|requests|session|changes)", str(link))
        ]
        assert len(links) == 4
        for link in links:
            assert (await page(stage, app, link.removeprefix("/narrows/"), NOBODY, HTML)).status == 200, link


async def test_texts_are_on_the_page_only_where_they_are_stored_for_people_and_may_be_read(stage: Stage) -> None:
    readable = "The parser was renamed."
    for settings in ({}, {"history": True}):
        app = await started(stage, **settings)
        await stored(stage, bills())
        await kept(stage, RECORD)
        async with opened(f"sqlite:///{stage.path}") as store:
            await put_originals(store, Key("local", "chat"), {f"{MINE}.123456": "hidden"})
        one = await page(stage, app, "conversations/chat", NOBODY, HTML)
        assert (readable in one.body.decode()) == bool(settings)
        assert ("The log has" in one.body.decode()) == bool(settings)
        assert one.body.decode().count("not on record (`history` keeps them)") == len(settings)  # not once a message
        texts = (await figures(stage, app, "conversations/chat?tenant=local", NOBODY))["summary_records"]
        assert (texts[0]["content"] is None) == (not settings)
        await app.close(0)
    app = await started(stage, history=True, admin_token=ADMIN)  # no tenant is configured: figures, but no texts
    one = await page(stage, app, "conversations/chat?tenant=local", *bearer(ADMIN), HTML)
    assert one.status == 200
    assert readable not in one.body.decode()
    assert "not for you to read" in one.body.decode()


async def test_what_a_holdout_measures_is_on_the_page_as_in_the_report_of_usage(stage: Stage) -> None:
    app = await started(stage)
    arms = {"on": 8, "holdout": 8, "left": 1}
    names = [(arm, f"{arm} {number}") for arm, count in arms.items() for number in range(count)]
    few, rest = names[3:], names[:3]
    for part, is_measured in ((few, False), (rest, True)):
        changed = [
            structs.replace(bill, arm=arm, sums=structs.replace(bill.sums, by_rules=1.0 if arm == "on" else 0.5))
            for arm, name in part
            for bill in bills(name, count=1)
        ]
        await stored(stage, changed)
        holdout = (await figures(stage, app, "", NOBODY))["holdout"]
        usage = await figures(stage, app, "usage", NOBODY)
        drawn = checked(await page(stage, app, "", NOBODY, HTML)).text
        assert (holdout["measured"] is not None, "Measured, not estimated" in drawn) == (is_measured, is_measured)
        assert ("not measured yet; this needs 8 conversations" in drawn) != is_measured
        assert holdout["conversations"]["holdout"] == 8
        assert usage["total"]["requests"] == (await figures(stage, app, "", NOBODY))["all_days"]["requests"]
    assert (holdout["conversations"], holdout["measured"]["share"]) == (arms, pytest.approx(0.5))
    assert "50.0% Holdout 8 conversations compacted, 8 passed as the client wrote them; 1 in neither arm" in drawn


async def test_what_was_recalled_is_on_the_page_with_its_text_where_originals_are_stored(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "keeping", Preset(KEEPING))
    app = await started(stage, preset="keeping", originals=True)
    stage.provider.answer = plays(wants("Let me look. ", part="lines 1-3"), Say("Seen."))
    exchange = await stage.ask(app, hiding(), tools=TOOLS)
    place = f"conversations/{exchange.headers['x-narrows-conversation']}"
    for _ in range(500):  # both are written behind the request
        answer = await page(stage, app, place, JSON)
        if answer.status == 200 and any(row["recalled_texts"] for row in answer.json.get("requests", ())):
            break
        await asyncio.sleep(0.01)
    (recalled,) = answer.json["requests"][-1]["recalled_texts"]
    assert (answer.json["sums"]["recalled"], recalled["part"]) == (1, "lines 1-3")
    assert recalled["text"] == f"{REPORT[:4_000]}\n… and {len(REPORT) - 4_000:,} more characters"
    drawn = checked(await page(stage, app, place, HTML)).text
    assert f"recalled {recalled['ref']} , lines 1-3 {' '.join(REPORT[:3_900].split())}" in drawn
    figures_alone = (await page(stage, app, place, ("Authorization", "Bearer theirs"), JSON)).status
    assert figures_alone == 404


# --- the cookie ---


async def log_in(stage: Stage, app: App, token: str, *headers: tuple[str, str]) -> Page:
    url = URL(app.base_url.removesuffix("/v1") + "/narrows/login")
    fields = {"token": token}
    async with stage.client.post(url, data=fields, headers=dict((BEHIND, *headers)), allow_redirects=False) as reply:
        return Page(reply.status, dict(reply.headers), await reply.read())


async def test_x8_the_admin_token_becomes_a_cookie_that_reads_and_does_nothing_else(stage: Stage) -> None:
    app = await started(stage, admin_token=ADMIN, tenant="team")
    await stored(stage, bills(tenant="team"))
    answer = await log_in(stage, app, ADMIN)
    assert (answer.status, answer.headers["Location"]) == (303, "/narrows/")
    cookie = answer.headers["Set-Cookie"]
    assert re.fullmatch(
        rf"{COOKIE}=\d+\.[0-9a-f]{{64}}; HttpOnly; Max-Age=43200; Path=/narrows; SameSite=Strict", cookie
    )
    assert "Secure" in (await log_in(stage, app, ADMIN, ("X-Forwarded-Proto", "https"))).headers["Set-Cookie"]
    asks = (BEHIND, NOBODY, ("Cookie", cookie.partition(";")[0]))
    drawn = await page(stage, app, "", *asks, HTML)
    assert (drawn.status, "Log out" in drawn.body.decode()) == (200, True)
    assert (await figures(stage, app, "conversations/chat", *asks))["sums"]["requests"] == 3
    assert (await page(stage, app, "conversations/chat", *asks, method="DELETE")).status == 403
    out = await page(stage, app, "logout", *asks, method="GET")
    assert (out.status, out.headers["Allow"]) == (405, "POST")
    assert ADMIN not in drawn.body.decode() + cookie


async def test_x8_a_cookie_that_is_old_forged_or_of_another_token_opens_nothing(stage: Stage) -> None:
    app = await started(stage, admin_token=ADMIN)
    good = (await log_in(stage, app, ADMIN)).headers["Set-Cookie"].partition(";")[0].partition("=")[2]
    until = int(good.partition(".")[0])
    settings, secret = app.settings, SECRET.encode()
    other = settings.model_copy(update={"admin_token": type(settings.admin_token)("another")})
    wrong = [
        admin_cookie(settings, secret, round(time.time()) - 1),
        admin_cookie(settings, secret, until + 10 * 86_400),  # nobody was given one for so long
        admin_cookie(other, secret, until),
        admin_cookie(settings, b"another secret", until),
        *(good[:-1], good + "0", f"{until + 1}{good[good.index('.') :]}", "", ".", "x.y", "9" * 90, "٣.x"),
    ]
    for value in wrong:
        refused = await page(stage, app, "", BEHIND, NOBODY, ("Cookie", f"{COOKIE}={value}"), JSON)
        assert (refused.status, refused.code) == (403, "forbidden"), value
    logged_in = (BEHIND, NOBODY, ("Cookie", f"{COOKIE}={good}"))
    assert (await page(stage, app, "", *logged_in, JSON)).status == 200
    no_tenant = await page(stage, app, "conversations/never", *logged_in, HTML)
    assert (no_tenant.status, checked(no_tenant).count("input")) == (403, 0)  # to log in again would not help


async def test_x8_wrong_tokens_forms_of_other_sites_and_long_bodies_are_refused(stage: Stage) -> None:
    app = await started(stage, admin_token=ADMIN)
    for headers in ((("Origin", "https://evil.example"),), (("Origin", "null"),), (("Sec-Fetch-Site", "same-site"),)):
        assert (await log_in(stage, app, ADMIN, *headers)).status == 403
    renamed = (
        ("Origin", "https://narrows.example"),
        ("Sec-Fetch-Site", "same-origin"),
    )  # a proxy in front has renamed it
    assert (await log_in(stage, app, ADMIN, *renamed)).status == 303
    assert (await log_in(stage, app, "x" * 9_000)).status == 413
    wrong = [await log_in(stage, app, token) for token in (*["", ADMIN[:-1], ADMIN + "x", "ü"] * 2, "a", "b")]
    assert {(each.status, each.code) for each in wrong} == {(403, "forbidden")}
    limited = await log_in(stage, app, ADMIN)
    assert (limited.status, limited.code, limited.headers["Retry-After"]) == (429, "too_many_tokens", "60")
    assert (await page(stage, app, "", *bearer(ADMIN), JSON)).status == 200  # whoever has it is not locked out
    await app.close(0)
    app = await started(stage)
    assert (await log_in(stage, app, ADMIN)).code == "no_admin_token"


async def test_every_conversation_in_a_list_has_a_link_that_leads_to_it(stage: Stage) -> None:
    app = await started(stage)
    names = [
        "plain",
        "ü",
        "a\u202eb",
        "%2e%2e%2f",
        "..",
        "\uff0e\uff0e",
        "a;..",
        "a b",
        "x\x01",
        "a/b",
        "%",
        "a?b#c&d",
    ]
    await stored(stage, *(bills(name, count=1) for name in names))
    links = re.findall(
        r'href="/narrows/(conversations[/?][^"]*)"', (await page(stage, app, "conversations", HTML)).body.decode()
    )
    assert len(links) == len(names)
    for link in links:
        assert (await page(stage, app, unescape(link), HTML)).status == 200, link


async def test_x8_wrong_tokens_that_come_at_once_are_no_more(stage: Stage) -> None:
    app = await started(stage, admin_token=ADMIN)
    url = URL(app.base_url.removesuffix("/v1") + "/narrows/login")
    begun = asyncio.Barrier(30)

    async def slowly() -> AsyncIterator[bytes]:
        yield b"token="
        await begun.wait()  # until all of them were let in
        await asyncio.sleep(0.1)
        yield b"wrong"

    async def attempt() -> int:
        async with stage.client.post(url, data=slowly(), headers=dict([BEHIND])) as reply:
            return reply.status

    statuses = await asyncio.gather(*(attempt() for _ in range(30)))
    assert statuses.count(403) == 10


async def test_who_may_not_see_a_page_gets_the_form_where_a_token_would_help(stage: Stage) -> None:
    for settings in ({"admin_token": ADMIN}, {}):
        app = await started(stage, **settings)
        refused = await page(stage, app, "", BEHIND, NOBODY, HTML)
        drawn = checked(refused)
        assert (refused.status, drawn.count("form")) == (403, len(settings))
        missing = await page(stage, app, "conversations/never", NOBODY, HTML)
        drawn = checked(missing)
        assert (missing.status, drawn.count("form"), "is not stored" in drawn.text) == (404, 0, True)
        await app.close(0)


# --- what no page holds ---


def strings(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from (name, *strings(each))
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    else:
        yield str(value)


async def test_x4_no_page_and_no_json_holds_a_credential(stage: Stage) -> None:
    app = await started(stage, history=True, originals=True, artifacts=True, admin_token=ADMIN)
    exchange = await stage.ask(app, [{"role": "user", "content": "hi"}], ("Authorization", f"Bearer {CANARY}"))
    name = exchange.headers["x-narrows-conversation"]
    await stored(stage, bills(name, owner=owner_of(SECRET.encode(), CANARY)))
    for place in ("", "conversations", f"conversations/{name}", "conversations/never", "login"):
        for form in (HTML, JSON):
            for who in (("Authorization", f"Bearer {CANARY}"), NOBODY):
                answer = await page(stage, app, place, who, form)
                text = answer.body.decode() + json.dumps(dict(answer.headers))
                for secret in (CANARY, ADMIN, CANARY.encode().hex(), SECRET):
                    assert secret not in text

"""The live pages in a real browser: a Narrows whose clients replay recorded sessions, one of them in a second tenant.

What is checked, besides what `page` checks of every page: the figures of page and JSON are those of an independent sum
of what the provider billed, a person logs in and out by keyboard, paper has all that is folded, and the credential of
the clients is on no page and in no JSON, in no encoding.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from playwright.async_api import Browser, Page

from policies.money.catalog import prices_for
from proxy.app import App
from proxy.lab import sessions
from proxy.lab.provider import Received, Say
from tests.kit.paths import TRANSCRIPTS
from tests.kit.stage import Stage, ends, staged

CANARY = "sk-proj-canary/5f0c61d2+b7"
ADMIN = "the admin's token"
BEHIND = {"X-Forwarded-For": "203.0.113.9"}
LONG = "mini-pytest-dev__pytest-6197.json"
"""A real session, where it is at hand."""
ENTRY = (
    "Renaming the parser\n\nThe person wanted the parser in src/parser.py to be called reader. It was renamed, and all "
    "482 tests pass. What is left to do is the documentation, which was asked for last and was not begun."
)
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Please rename the parser in src/parser.py to reader."},
    {"role": "assistant", "content": "The parser in src/parser.py is called reader now, and all 482 tests pass."},
    {"role": "user", "content": "Thank you. Please update the documentation too."},
]
PAGES = {
    "live": "",
    "list": "conversations?most=5",
    "day": "conversations/a%20long%20day?tenant=team",
    "real": "conversations/a%20real%20session?tenant=team",
    "chat": "conversations/a%20chat?tenant=team",
    "missing": "conversations/never",
}
NARROWS = {
    **{"preset": None, "floor": None, "models": None},  # the stage's own are for small texts
    **{"history": True, "originals": True, "tenant": "team", "admin_token": ADMIN, "holdout": 0.4},
}


@asynccontextmanager
async def replayed() -> AsyncIterator[tuple[App, Stage]]:
    """A Narrows with a day of conversations on record."""
    with TemporaryDirectory(prefix="narrows-live-") as folder:
        async with staged(Path(folder) / "store.db", models={}, keep=10_000) as stage:
            app = await stage.start(**NARROWS)
            await replay_all(stage, app)
            yield app, stage


async def replay_all(stage: Stage, app: App) -> None:
    day, short = sessions.load("long_day"), sessions.load("write_once")
    await replay(stage, app, "a long day", day)
    if (TRANSCRIPTS / LONG).exists():
        await replay(stage, app, "a real session", json.loads((TRANSCRIPTS / LONG).read_text()))
    else:
        await replay(stage, app, "a real session", sessions.load("follow_up"))
    for number in range(40):
        await replay(stage, app, f"run {number}", {**short, "messages": short["messages"][: 6 + number % 12]})
    await summarize(stage, app)
    await billed(stage, app)


async def replay(stage: Stage, app: App, name: str, session: dict[str, Any]) -> None:
    """Every request of a session, as its client sent it."""
    tools = session.get("tools")
    headers = (("x-narrows-conversation", name), ("Authorization", f"Bearer {CANARY}"))
    first = {"role": "user", "content": f"This is {name}."}  # no other has the same beginning in the provider's cache
    messages = [first, *session["messages"]]
    for end in ends(messages):
        await stage.ask(app, messages[:end], *headers, model="gpt-5.4", tools=tools)


async def summarize(stage: Stage, app: App) -> None:
    """A summary for people, whose sources are on record."""
    answer = stage.provider.answer
    headers = {"Authorization": f"Bearer {CANARY}", "x-narrows-conversation": "a chat", **BEHIND}
    body = json.dumps({"model": "gpt-5.4", "messages": CHAT})
    async with stage.client.post(f"{app.base_url}/chat/completions", data=body, headers=headers) as reply:
        assert reply.status == 200, await reply.read()

    def write(_: Received) -> Say:
        return Say(ENTRY)

    stage.provider.answer = write
    async with stage.client.post(f"{root(app)}conversations/a%20chat/summary", data=body, headers=headers) as reply:
        assert reply.status == 200, await reply.read()
    stage.provider.answer = answer


async def billed(stage: Stage, app: App) -> None:
    """Wait until all is on record, and compare it with the provider's own count."""
    usages = [(received.model, received.usage) for received in stage.provider.requests if received.usage]
    paid = sum(prices_for(model, {}).cost(usage).total for model, usage in usages)
    for _ in range(300):
        async with stage.client.get(root(app), headers={"Accept": "application/json"}) as reply:
            sums = (await reply.json())["all_days"]
        if abs(sums["paid"] + sums["summaries"] - paid) < 1e-6:
            assert sums["requests"] == len(usages) - 1  # one is the summary
            return
        await asyncio.sleep(0.1)
    raise AssertionError((sums, paid))


def root(app: App) -> str:
    return app.base_url.removesuffix("v1") + "narrows/"


async def check_login(
    browser: Browser, app: App, folder: Path, check_accessibility: Callable[[Page], Awaitable[str]]
) -> None:
    """Somebody elsewhere logs in by keyboard, sees the page, and logs out."""
    context = await browser.new_context(extra_http_headers=BEHIND)
    page = await context.new_page()
    await page.goto(root(app))
    assert await page.title() == "Narrows: log in"
    await page.screenshot(path=folder / "login.png")
    await check_accessibility(page)
    for token, title in (("wrong", "Narrows: log in"), (ADMIN, "Narrows: live")):
        await page.goto(root(app))
        await tab_to(page, "token")
        await page.keyboard.type(token)
        async with page.expect_navigation():
            await page.keyboard.press("Enter")
        assert await page.title() == title, (token, await page.content())
    (cookie,) = await context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/narrows")
    assert await page.evaluate("document.cookie") == ""
    assert ADMIN not in page.url + await page.content()
    async with page.expect_navigation():
        await page.get_by_role("button", name="Log out").press("Enter")
    assert await page.title() == "Narrows: log in"
    assert await context.cookies() == []
    await context.close()


async def tab_to(page: Page, name: str) -> None:
    """Move the focus by keyboard to the field of this name."""
    for _ in range(20):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.name") == name:
            return
    raise AssertionError(f"no keyboard reaches {name}")


async def check_paper(page: Page, folder: Path, name: str) -> None:
    """On paper everything that is folded is there, and nothing that one could only press."""
    await page.emulate_media(media="print", color_scheme="dark")
    await page.pdf(path=folder / f"{name}.pdf")
    await page.screenshot(path=folder / f"{name}-print.png", full_page=True)
    hidden = "[...document.querySelectorAll('details > *:last-child')].filter(each => !each.checkVisibility())"
    assert await page.evaluate(f"{hidden}.map(each => each.outerHTML.slice(0, 99))") == []
    assert await page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 254, 250)"
    assert not await page.locator("nav, form").first.is_visible()


async def check_secrets(stage: Stage, app: App) -> None:
    """No page and no JSON holds the credential, the token or the cookie's key, in any encoding."""
    secrets = [each for secret in (CANARY, ADMIN) for each in encodings(secret)]
    for place in PAGES.values():
        for form in ("text/html", "application/json"):
            for credential in ("", CANARY):
                headers = {"Accept": form, **({"Authorization": f"Bearer {credential}"} if credential else {})}
                async with stage.client.get(root(app) + place, headers=headers) as reply:
                    text = await reply.text() + str(reply.headers)
                assert not [secret for secret in secrets if secret in text], place


def encodings(secret: str) -> Sequence[str]:
    raw = secret.encode()
    return [
        *(secret, quote(secret, safe=""), json.dumps(secret)[1:-1], raw.hex(), secret[::-1]),
        *(base64.b64encode(raw[start:])[:-4].decode() for start in range(3)),
    ]

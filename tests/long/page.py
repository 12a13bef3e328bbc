"""`make page-test`: the pages of `explain` and `replay`, opened from the disk, and the live pages in a real browser.

What is checked: no request goes to any network, the browser reports no error, bars are as wide as the tokens that stand
beside them say, nothing is wider than a phone, the dark scheme has its own colours, what is folded opens by keyboard,
axe finds nothing serious, and no name of a file, a model or a tool becomes an element.
Needs a Chromium of the system (Playwright brings none). PAGE_TEST_DIR keeps pages and pictures.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from proxy.lab import sessions
from tests.kit.paths import ROOT
from tests.long import live_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDE, PHONE = 1280, 390
LOOKS = ((WIDE, "light"), (WIDE, "dark"), (PHONE, "light"), (PHONE, "dark"))
AXE = files("axe_playwright_python") / "axe.min.js"
SLACK = 1.0
"""Pixels by which a bar may miss its length."""
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror='alert(2)'><b style=\"color:red\">" + "long" * 30
FIGURES = re.compile(r"([\d,]+)(?: → ([\d,]+))?")


def write_pages(folder: Path) -> list[Path]:
    """Both pages, by the command, of sessions that are shipped; and of one whose every name is hostile."""
    short, long = (json.dumps(sessions.load(name)) for name in ("write_once", "long_day"))
    files = [folder / name for name in ("write_once.json", "long_day.json", f"{HOSTILE.replace('/', '')}.json")]
    for file, session in zip(files, (short, long, short.replace('"read_file"', json.dumps(HOSTILE))), strict=True):
        file.write_text(session)
    pages = [folder / f"{name}.html" for name in ("explain", "replay", "hostile")]
    command(["explain", files[1], "--html", pages[0]])
    chosen = ("--prices", "claude-sonnet-5", "--preset", "coding-agent", "--preset", "agent-summary")
    command(["replay", *files[:2], *chosen, "--html", pages[1]])
    command(["explain", files[2], "--html", pages[2], "--model", HOSTILE])
    return pages


def command(words: Sequence[str | Path]) -> None:
    """Run `narrows`; where that fails, show its output and exit."""
    result = subprocess.run(
        [sys.executable, "-m", "proxy.console.cli", *words], cwd=ROOT, capture_output=True, text=True
    )
    if result.returncode:
        sys.exit(f"page-test: narrows {words[0]} failed\n{result.stderr[-4000:]}")


async def check_page(browser: Browser, url: str, name: str, width: int, scheme: Any, folder: Path) -> None:
    """One page at one width, light or dark."""
    context = await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = await context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    reply = await page.goto(url)
    await page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True, caret="initial")
    if await page.locator("details > summary").count():
        await check_folding(page)
    await page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    await check_fit(page, width)
    drawn = await check_scale(page)
    assert await page.locator("script, img, iframe, object, link, [style], [onerror]").count() == 0
    assert requests == [url], requests
    assert complaints == [] or (reply is not None and reply.status == 404), complaints
    rules = await check_accessibility(page)
    if (width, scheme) == (WIDE, "dark"):
        await live_page.check_paper(page, folder, name)
    print(f"{name:<8} {width:>5} {scheme:<6} {drawn:,} bars to scale, {len(requests)} request, no error, axe: {rules}")
    await context.close()


async def check_accessibility(page: Page) -> str:
    """Nothing that axe calls serious or critical; how many of its rules passed."""
    await page.evaluate(AXE.read_text(encoding="utf-8"))
    result = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        (each["id"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in result["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == [], serious
    minor = [each["id"] for each in result["violations"]]
    return f"{len(result['passes'])} rules passed{f', minor: {minor}' if minor else ''}"


async def check_folding(page: Page) -> None:
    """The first thing that is folded opens and shuts by keyboard alone."""
    summary = page.locator("details > summary").first
    details = summary.locator("..")
    before = await details.get_attribute("open")
    await summary.focus()
    assert await page.evaluate("document.activeElement.tagName") == "SUMMARY"
    await page.keyboard.press("Enter")
    assert (await details.get_attribute("open") is None) == (before is not None)
    await page.keyboard.press("Space")
    assert await details.get_attribute("open") == before


async def check_fit(page: Page, width: int) -> None:
    """Nothing is wider than the window, folded or not, and no text runs out of its cell."""
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    beyond = await page.evaluate(
        """width => [...document.querySelectorAll('main *:not(.unseen)')]
            .filter(each => each.getBoundingClientRect().right > width + 0.5)
            .map(each => each.outerHTML.slice(0, 200))""",
        width,
    )
    assert beyond == [], beyond[:3]


async def check_scale(page: Page) -> int:
    """Bars are as wide as the tokens beside them say, in each picture by one scale; how many there were."""
    pictures: list[list[Any]] = await page.evaluate(MEASURED)
    drawn = 0
    for picture in pictures:
        lines = [(stated(text), lengths, room, stacked) for text, lengths, room, stacked in picture]
        most = max(max(tokens) for tokens, *_ in lines)
        for tokens, lengths, room, stacked in lines:
            assert abs(room - lines[0][2]) < SLACK, "all bars of a picture have the same room"
            solid = [sum(lengths)] if stacked else lengths
            expected = sorted(tokens)[-len(solid) :]  # what grows has one bar: as it is sent
            for count, length in zip(expected, sorted(solid), strict=True):
                assert abs(length - count / most * room) < SLACK, (count, most, length, room)
                drawn += 1
    return drawn


MEASURED = """() => [...document.querySelectorAll('ol.rows:not(.sight)')].map(picture =>
    [...picture.children].map(line => {
        const bar = line.querySelector('svg');
        const lengths = [...bar.children].map(each => each.getBoundingClientRect().width);
        return [line.querySelector('.n').textContent, lengths, bar.clientWidth, bar.classList.contains('stack')];
    }))"""
"""Of each line of each picture: its first figures, the lengths of its bars, their room, and whether it is a stack."""


def stated(text: str) -> list[int]:
    """The tokens that a line states."""
    match = FIGURES.match(text)
    assert match, text
    return [int(group.replace(",", "")) for group in match.groups() if group]


async def check_all(pages: Sequence[Path], folder: Path, chromium: str) -> None:
    """Every page in every look, and that light and dark differ."""
    async with async_playwright() as playwright:
        options = ["--no-sandbox", "--disable-background-networking"]
        async with await playwright.chromium.launch(executable_path=chromium, args=options) as browser:
            for file in pages:
                await check_looks(browser, file.as_uri(), file.stem, folder)
            async with live_page.replayed() as (app, stage):
                for name, place in live_page.PAGES.items():
                    await check_looks(browser, live_page.root(app) + place, name, folder)
                await live_page.check_login(browser, app, folder, check_accessibility)
                await live_page.check_secrets(stage, app)
                print(f"live: logged in by keyboard, and {live_page.CANARY} is on no page")


async def check_looks(browser: Browser, url: str, name: str, folder: Path) -> None:
    for width, scheme in LOOKS:
        await check_page(browser, url, name, width, scheme, folder)
    day, night = ((folder / f"{name}-{WIDE}-{scheme}.png").read_bytes() for scheme in ("light", "dark"))
    assert day != night


@contextmanager
def output_folder() -> Iterator[Path]:
    """Where pages and pictures are written: a folder of the environment, or one that is deleted with the test."""
    folder_name = os.environ.get("PAGE_TEST_DIR", "")
    with nullcontext(folder_name) if folder_name else TemporaryDirectory(prefix="narrows-page-") as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder).resolve()


def main() -> None:
    """Write the pages and check them; or say what is missing."""
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        sys.exit("page-test: no chromium; apt-get install --no-install-recommends chromium")
    with output_folder() as folder:
        asyncio.run(check_all(write_pages(folder), folder, chromium))


if __name__ == "__main__":
    main()

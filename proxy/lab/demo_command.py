"""`narrows demo`: its options, what it prints, and the page that it writes."""

import asyncio
from typing import Annotated

import typer

from proxy.lab.cli_arguments import Html, check_prices
from proxy.lab.cli_output import console, open_page, print_place, progress, refusing

NAME = "narrows-demo"


def demo(
    prices: Annotated[str, typer.Option(metavar="MODEL", help="Bill by this model's prices.")] = "gpt-5.4",
    store: Annotated[
        str, typer.Option(metavar="URL", help="Where the long chat's summaries are stored. Default: nowhere for long.")
    ] = "",
    html: Html = None,
    is_opened: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Run two shipped sessions and a long chat through Narrows.

    With the official client, streaming: bars before and after, the bills, and the proof that the prefix held. Then a
    chat whose old turns are summed up: a summary, an edit that makes it stale, another one. Needs no network and no
    key, and ends by itself; exit code 1 where the prefix did not hold.

    All of it is on a page, too: narrows-demo.html in this folder, unless --html names another file. No file that is
    there already is changed: the page then has a number in its name.
    """
    from proxy.lab import demo
    from proxy.lab.replay.comparison import averages, preset_results
    from proxy.lab.reports import page
    from proxy.lab.reports.page_file import new_page, writable, write
    from proxy.lab.reports.text import print_demo, print_long_chat

    with refusing():
        check_prices([prices])
        path = writable(html)
    with refusing(), progress(demo.total()) as advance:
        results = asyncio.run(demo.demonstrate(prices, advance))
        report = asyncio.run(demo.chat_at_length(prices, store, advance))
    print_demo(console(), results)
    print_long_chat(console(), report)
    reports = [*(result.report for result in results), report]
    drawn = page.replayed(reports, averages(reports), preset_results(reports))
    with refusing():
        if path is None:
            path = new_page(NAME, drawn)
        else:
            write(path, drawn)
    print_place(path)
    print("With a client of your own: narrows run -- COMMAND")
    if is_opened:
        open_page(path)
    raise typer.Exit(int(not all(result.is_held for result in results) or report.faults > 0))

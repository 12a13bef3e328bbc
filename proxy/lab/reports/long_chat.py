"""The demo's long chat on a terminal: its prompts and its bill over time, and what became of its summaries."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from proxy.drawing.figures import money
from proxy.lab.breakdown import BeforeAfter
from proxy.lab.replay.report import Report, RequestResult
from proxy.lab.reports.sentences import against_nothing, summaries
from proxy.lab.reports.terminal import columns, legend

_HEIGHT = 5
_MILLIONTHS = 1_000_000
_MARKS = {"pending": "?", "adopted": "^", "stale": "!"}
"""Below the columns: a summary is asked for, stands from here on, may no longer be used."""


def print_long_chat(console: Console, report: Report) -> None:
    """Two charts over its requests, what happened to its summaries, and what all of it cost."""
    plain, results = console.options.ascii_only, report.each_request
    prompts = [BeforeAfter(int(each.tokens_sent.without), int(each.tokens_sent.with_)) for each in results]
    bills = [_so_far(each) for each in results]
    title = f"\n{report.session}: {report.requests} requests by the preset {report.preset}, made by rule"
    console.print(Text(f"{title}   {legend(plain)}", style="bold"))
    _print_columns(console, "tokens of each prompt", f"{prompts[-1].after:,} of {prompts[-1].before:,}", prompts)
    console.print(Text("".join(_marks(results)).rstrip()))
    console.print(Text("(a summary: ? asked for  ^ adopted  ! stale)", style="dim"))
    bill = report.input_bill
    _print_columns(
        console, "the input bill so far", f"{money(bill.dollars_with)} of {money(bill.dollars_without)}", bills
    )
    for number, each, word in _events(results):
        console.print(Text(f"request {number:>3}  {word}: {each.tokens_sent.with_:,} tokens, {each.prefix}"))
    for line in (*summaries([report]), *against_nothing([report])):
        console.print(Text(line))
    if report.faults:
        console.print(Text(f"THE PREFIX DID NOT HOLD ({report.faults} faults)", style="red"))


def _print_columns(console: Console, title: str, last: str, sizes: Sequence[BeforeAfter]) -> None:
    console.print(Text(f"{title}; at the end {last}", style="dim"))
    for line in columns(sizes, _HEIGHT, console.options.ascii_only):
        console.print(Text(line))


def _so_far(result: RequestResult) -> BeforeAfter:
    """Both bills up to a request, in millionths, which columns can be drawn of."""
    bill = result.input_bill
    return BeforeAfter(int(bill.without * _MILLIONTHS), int(bill.with_ * _MILLIONTHS))


def _marks(results: Sequence[RequestResult]) -> list[str]:
    marks = [" "] * len(results)
    for number, _, word in _events(results):
        marks[number - 1] = _MARKS[word.partition(":")[0]]
    return marks


def _events(results: Sequence[RequestResult]) -> Iterator[tuple[int, RequestResult, str]]:
    """The requests at which something became of summaries, and what their replies said."""
    before = ""
    for number, result in enumerate(results, 1):
        word = result.summary
        is_new = word != before or (word == "adopted" and result.prefix.startswith("checkpoint:"))
        if is_new and word.partition(":")[0] in _MARKS:
            yield number, result, word
        before = word

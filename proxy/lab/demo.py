"""The first minute of a newcomer: the shipped sessions through a real Narrows, with the official client.

Each session is driven turn by turn, streaming, and its replies are checked as every replay's are. Beside the bills with
and without Narrows stands that of a naive sliding window, from the same cache arithmetic: it sends the fewest tokens
and still loses, because every request begins anew.

Then a long chat, made by rule, goes through the default preset: its old turns are summed up by a scripted summarizer,
an edit of an old message makes the summary stale, and another one is made.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import openai
import typer
from rich.console import Console
from rich.text import Text

from policies.dialects import DEFAULT, DIALECTS
from proxy.console.output import console, plain_table, printable, progress, refusing
from proxy.drawing.figures import dollars, money, percent
from proxy.lab import sessions
from proxy.lab.arguments import Html, check_prices
from proxy.lab.breakdown import BeforeAfter, Breakdown, break_down
from proxy.lab.generators.chats import chat
from proxy.lab.pages import replay_page
from proxy.lab.provider import APIS, PromptCache, PromptReader, rule_for
from proxy.lab.replay.bills import SessionBill
from proxy.lab.replay.display import against_nothing, summaries
from proxy.lab.replay.environment import Options, ReplayEnvironment, environment_for
from proxy.lab.replay.recorded import ClientEdit, Json, Session, requests
from proxy.lab.replay.report import Report, RequestResult, averages, preset_results
from proxy.lab.replay.runs import ClientReply, Progress, replay, replay_all
from proxy.lab.terminal import (
    columns,
    kind_bars,
    legend,
    message_bars,
    new_page,
    open_page,
    print_bars,
    print_notes,
    print_page,
    writable,
)

SHOWN = ("write_once", "long_day")
CHAT_SEED, CHAT_TURNS, CHAT_ANSWER = 5, 60, 780
"""The long chat: `narrows generate chat` prints it."""
EDITED_AT, EDITED = 44, 7
"""The request from which on the chat's client has changed an old message, and that message."""
WINDOW = 20
"""Messages that the naive sliding window keeps."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """One session of the demo: the sizes of its last request, and the bill of a naive sliding window beside its own."""

    report: Report
    window: SessionBill
    sizes: Breakdown

    @property
    def is_held(self) -> bool:
        """True where the prefix held: every request was answered, and every change of the prefix was declared."""
        return self.report.requests > 0 and not self.report.faults


async def demonstrate(model: str, progress: Progress = lambda: None) -> list[DemoResult]:
    async with environment_for(model, Options()) as environment:
        return [await _drive(recorded(name), environment, progress) for name in SHOWN]


async def chat_at_length(model: str, store: str = "", progress: Progress = lambda: None) -> Report:
    """Drive the long chat at the prices of a model; what became of it is stored there, or nowhere."""
    generated = chat(CHAT_SEED, CHAT_TURNS, CHAT_ANSWER)
    messages = tuple(generated["messages"])
    edit = ClientEdit(EDITED_AT, EDITED, f"{messages[EDITED]['content']} I have changed my mind since.")
    session = Session("long_chat", generated["model"], messages, (), edit=edit)
    (report,) = await replay_all([session], Options(prices=(model,), store=store), progress)
    return report


def recorded(name: str) -> Session:
    session = sessions.load(name)
    return Session(name, session["model"], tuple(session["messages"]), tuple(session["tools"]))


async def _drive(session: Session, environment: ReplayEnvironment, progress: Progress) -> DemoResult:
    run = session.name
    # without `trust_env`: no proxy of the environment stands between this process and itself
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    client = openai.AsyncOpenAI(base_url=environment.base_url, api_key=run, max_retries=0, http_client=http)
    completions: list[int] = []

    async def ask(body: Json, headers: Mapping[str, str]) -> ClientReply:
        reader = DIALECTS[DEFAULT].reply(None)
        # as `extra_body`: the client would look at every field of the history, which takes longer than all the rest
        create = client.chat.completions.with_raw_response.create
        try:
            raw = await create(model=body["model"], messages=[], stream=True, extra_headers=headers, extra_body=body)
            async for chunk in raw.parse():
                reader.feed(chunk.to_json().encode())
        except openai.APIStatusError as error:
            return ClientReply(error.status_code, error.response.headers, None, error.message)
        except openai.APIError as error:
            return ClientReply(0, {}, None, error.message)
        completions.append(reader.usage.completion if reader.usage else 0)
        refusal = "" if reader.usage else "the reply holds no usage"
        return ClientReply(raw.status_code, raw.headers, reader.usage, refusal)

    async with client:
        report = await replay(session, run, environment, ask, progress)
    last = environment.observer.newest[run]
    environment.forget(run)
    assert last is not None
    sizes = break_down(last.context.conversation, last.plan.edits, environment.count, last.tokens_received)
    return DemoResult(report, sliding_window(session, environment, completions), sizes)


def sliding_window(session: Session, environment: ReplayEnvironment, completions: list[int]) -> SessionBill:
    """The bill of the session where each request carries only the newest messages."""
    bill, rule = SessionBill(environment.prices), rule_for(environment.prices.model, environment.prices)
    read, cache = PromptReader(environment.count, APIS[DEFAULT]), PromptCache(environment.count)
    for body, completion in zip(requests(session, environment.model, environment.marks), completions, strict=False):
        usage = cache.charge("", read(newest_only(body)), rule)
        bill.add(replace(usage, completion=completion))
    return bill


def newest_only(body: Json) -> Json:
    """The request with the system text and the newest messages alone, cut where no result loses its call."""
    messages = body["messages"]
    lead = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    start = max(lead, len(messages) - WINDOW)
    while start > lead and messages[start]["role"] == "tool":
        start -= 1
    return {**body, "messages": [*messages[:lead], *messages[start:]]}


def total() -> int:
    return sum(len(recorded(name).turns) for name in SHOWN) + CHAT_TURNS


# --- the report ---

PLOT = "Two recorded sessions of a coding agent, by way of Narrows, to a provider that is built in:"
MORAL = (
    "Short sessions gain little: most of their tokens are new when they are sent. The sliding window sends the fewest "
    "tokens of a long one and pays for most of them in full, because its beginning is never the same twice."
)


def print_demo(console: Console, results: Sequence[DemoResult]) -> None:
    console.print(Text(PLOT))
    for result in results:
        tokens, messages = result.sizes.tokens, result.sizes.messages
        name, requests = result.report.session, result.report.requests
        head = f"{name}: the last of {requests} requests, {tokens.before:,} -> {tokens.after:,} tokens"
        console.print(Text(f"{head}   {legend(console.options.ascii_only)}", style="bold"))
        few = len(messages) <= 2 * WINDOW
        print_bars(console, message_bars(messages) if few else kind_bars(result.sizes.kinds), min(console.width, 100))
    first = results[0].report
    heads = ("session", "tokens", "cached", "peak", "input bill", "ratio", "whole bill", "ratio")
    table = plain_table(*heads, title=f"\nThe bill at the prices of {printable(first.prices)}")
    for result in results:
        baseline = result.report.baseline
        name = f"{result.report.session} as it is"
        rows = ((name, baseline), ("  by Narrows", result.report.bill), (f"  last {WINDOW} messages", result.window))
        for name, bill in rows:
            table.add_row(
                name,
                f"{bill.tokens:,}",
                percent(bill.share_cached),
                f"{bill.peak:,}",
                f"${dollars(bill.input)}",
                f"{bill.input / baseline.input if baseline.input else 1.0:.2f}",
                f"${dollars(bill.total)}",
                f"{bill.total / baseline.total if baseline.total else 1.0:.2f}",
            )
    console.print(table)
    print_notes(console, first.notes)
    for result in results:
        report, is_held = result.report, result.is_held
        words = ", ".join(f"{word} {times}" for word, times in report.prefix.items())
        changed, followers = report.prefix_changes, report.requests - 1
        declared = changed - report.undeclared_prefix_changes
        verdict = "The prefix held" if is_held else f"THE PREFIX DID NOT HOLD ({report.faults} faults)"
        refusal = f"\n  first refusal: {printable(report.first_refusal)}" if report.first_refusal else ""
        proof = (
            f"{verdict} in {report.session}: {words}.\n"
            f"  The provider itself saw {followers - changed} of {followers} requests begin with all of the one "
            f"before;\n  {declared} of the {changed} others were declared in the reply.{refusal}"
        )
        console.print(Text(proof, style="" if is_held else "red"))
    console.print(Text(MORAL, style="dim"))


# --- the demo's long chat on a terminal: its prompts and its bill over time, and what became of its summaries ---

_HEIGHT = 5
_MILLIONTHS = 1_000_000
"""Of dollars: columns are drawn of whole numbers."""
_MARKS = {"pending": "?", "adopted": "^", "stale": "!"}
"""Below the columns: a summary is asked for, stands from here on, may no longer be used."""


def print_long_chat(console: Console, report: Report) -> None:
    """Two charts over its requests, what happened to its summaries, and what all of it cost."""
    plain, results = console.options.ascii_only, report.each_request
    prompts = [BeforeAfter(int(each.tokens_sent.without), int(each.tokens_sent.with_)) for each in results]
    both = [each.input_bill for each in results]
    bills = [BeforeAfter(int(bill.without * _MILLIONTHS), int(bill.with_ * _MILLIONTHS)) for bill in both]
    title = f"\n{report.session}: {report.requests} requests by the preset {report.preset}, made by rule"
    console.print(Text(f"{title}   {legend(plain)}", style="bold"))
    _print_columns(console, "tokens of each prompt", f"{prompts[-1].after:,} of {prompts[-1].before:,}", prompts)
    console.print(Text("".join(_marks(results)).rstrip()))
    console.print(Text("(a summary: ? asked for  ^ adopted  ! stale)", style="dim"))
    last = f"{money(report.input_bill.dollars_with)} of {money(report.input_bill.dollars_without)}"
    _print_columns(console, "the input bill so far", last, bills)
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


# --- the command ---

PAGE = "narrows-demo"


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
    with refusing():
        check_prices([prices])
        path = writable(html)
    with refusing(), progress(total()) as advance:
        results = asyncio.run(demonstrate(prices, advance))
        report = asyncio.run(chat_at_length(prices, store, advance))
    print_demo(console(), results)
    print_long_chat(console(), report)
    reports = [*(result.report for result in results), report]
    page = replay_page(reports, averages(reports), preset_results(reports))
    path = path or new_page(PAGE, page)
    print_page(path, page, as_json=False)
    print("With a client of your own: narrows run -- COMMAND")
    if is_opened:
        open_page(path)
    raise typer.Exit(int(not all(result.is_held for result in results) or report.faults > 0))

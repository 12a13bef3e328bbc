"""The first minute of a newcomer: the shipped sessions through a real Narrows, with the official client.

Each session is driven turn by turn, streaming, and its replies are checked as every replay's are. Beside the bills with
and without Narrows stands that of a naive sliding window, from the same cache arithmetic: it sends the fewest tokens
and still loses, because every request begins anew.

Then a long chat, made by rule, goes through the default preset: its old turns are summed up by a scripted summarizer,
an edit of an old message makes the summary stale, and another one is made.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import openai
import typer

from policies.dialects import DEFAULT, DIALECTS
from proxy.console.output import console, progress, refusing
from proxy.lab import sessions
from proxy.lab.arguments import Html, check_prices
from proxy.lab.breakdown import Breakdown, break_down
from proxy.lab.generators.chats import chat
from proxy.lab.provider import APIS, PromptCache, PromptReader, rule_for
from proxy.lab.replay.bills import SessionBill
from proxy.lab.replay.environment import Options, ReplayEnvironment, environment_for
from proxy.lab.replay.recorded import ClientEdit, Json, Session, requests
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import ClientReply, Progress, replay, replay_all
from proxy.lab.reports.page_file import open_page, print_place

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
        """Whether the prefix held: every request was answered, and every change of the prefix was declared."""
        return self.report.requests > 0 and not self.report.faults


async def demonstrate(model: str, progress: Progress = lambda: None) -> list[DemoResult]:
    """Drive the shipped sessions at the prices of a model."""
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
    """A session that is shipped."""
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
    """What the session costs where each request carries only the newest messages."""
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
    """How many requests it makes."""
    return sum(len(recorded(name).turns) for name in SHOWN) + CHAT_TURNS


# --- the command ---

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

"""`narrows agree`: what is to be asked, what that would cost (known before anything is paid), and its options."""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import typer

from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from policies.money.prices import Prices, Usage
from proxy.config.presets import CustomPreset
from proxy.console.arguments import AsJson, Config
from proxy.console.output import explains_columns, progress, refusing
from proxy.event_loop import interruption
from proxy.lab.agree.asking import Answers, Asking, Spending, Turn, forecast_turns, sample_of
from proxy.lab.agree.report import AgreeReport, agreement_page, print_agreement, report_of
from proxy.lab.arguments import (
    PRESET,
    CredentialEnv,
    Files,
    Html,
    PresetNames,
    credential,
    custom_presets,
    presets_named,
)
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session, load_all
from proxy.lab.terminal import print_report, writable


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreePlan:
    sessions: Sequence[Session]
    presets: Sequence[str]
    own: Mapping[str, CustomPreset]
    upstream: str
    model: str
    samples: int
    seed: int
    budget: float
    most_requests: int | None
    concurrency: int
    key: str = ""

    @property
    def prices(self) -> Prices:
        return prices_for(self.model)

    @property
    def turns(self) -> int:
        return sum(len(session.turns) for session in self.sessions)

    @property
    def options(self) -> list[Options]:
        return [Options((self.model,), preset=preset, own=self.own) for preset in self.presets]

    def check(self) -> None:
        """Raise ValueError where nothing would limit what it costs."""
        if not self.model:
            raise ValueError("say which model is to be asked, with --model")
        if not self.prices.listed and self.most_requests is None:
            raise ValueError(
                f"nobody knows the prices of {self.model!r}, so --budget cannot limit it; give --max-requests N"
            )

    async def forecast(self, advance: Callable[[], None]) -> "Forecast":
        """Every turn as each preset would have it sent, the sample, and its price. Nothing is paid."""
        rows: list[list[Turn]] = []
        written = 0.0
        for options in self.options:
            turns, dollars = await forecast_turns(self.sessions, self.model, options, advance)
            rows.append(turns)
            written += dollars
        count, answers = await asyncio.to_thread(Counter, encoding_for(self.model)), dict[tuple[int, int], int]()
        for at, session in enumerate(self.sessions):
            for number, reply in enumerate(session.replies(count)):
                answers[at, number] = sum(part.tokens for part in reply)
        sample = sample_of(rows, self.samples, self.seed)
        dollars = self._cost(rows, sample, answers) + (written if sample else 0.0)
        wanted = len(sample)
        if self.prices.listed and dollars > self.budget:
            sample = sample_of(rows, max(1, int(wanted * self.budget / dollars)), self.seed)
        shortened = sum(any(turn.is_shortened for turn in row) for row in zip(*rows, strict=True))
        return Forecast(
            plan=self,
            sample=sample,
            wanted=wanted,
            shortened=shortened,
            dollars=self._cost(rows, sample, answers),
            summaries=written,
            whole=dollars,
        )

    def _cost(
        self, rows: Sequence[Sequence[Turn]], sample: Sequence[Turn], answers: Mapping[tuple[int, int], int]
    ) -> float:
        """Dollars for asking at these turns: twice what the client wrote, which is cached the second time, and once
        what each preset makes of it."""
        places = [{(turn.session, turn.number): turn for turn in row} for row in rows]
        total = 0.0
        for place in ((turn.session, turn.number) for turn in sample):
            size = places[0][place].before
            prompts = [(size, 0), (size, size), *((row[place].after, 0) for row in places)]
            usages = (Usage(tokens, cached, 0, answers[place]) for tokens, cached in prompts)
            total += sum(self.prices.cost(usage).total for usage in usages)
        return total


@dataclass(frozen=True, slots=True)
class Forecast:
    plan: AgreePlan
    sample: Sequence[Turn]
    wanted: int
    """Samples that there would be without a budget."""
    shortened: int
    """Turns that any preset shortens."""
    dollars: float
    summaries: float
    """Dollars that summaries and digests would cost, by those of the built-in provider."""
    whole: float
    """Dollars for all samples that are wanted."""

    @property
    def cost(self) -> str:
        plan = self.plan
        requests = len(self.sample) * (2 + len(plan.presets))
        asks = f"{requests:,} requests to {plan.model} at {len(self.sample):,} of {self.shortened:,} shortened turns"
        if not plan.prices.listed:
            most = f"at most {plan.most_requests:,}; their price is not known"
            return f"{asks}, and those of recalls and summaries: {most}"
        bill = f"about ${self.dollars + self.summaries:,.2f} with answers as long as recorded, less what a cache saves"
        budget = f"; it stops before ${plan.budget:,.2f}"
        if len(self.sample) < self.wanted:
            budget += f", which is why {self.wanted:,} samples (about ${self.whole:,.2f}) are not asked for"
        return f"{asks}: {bill}{budget}"

    async def ask(self, stop: asyncio.Event | None, advance: Callable[[], None]) -> AgreeReport:
        """Ask, until it is done, the budget is spent, or somebody stops it: with Ctrl-C where `stop` is None."""
        plan = self.plan
        spending = Spending(plan.model, plan.budget if plan.prices.listed else None, plan.most_requests)
        asking = Asking(
            plan.sessions, self.sample, plan.options, spending, concurrency=plan.concurrency, advance=advance
        )
        answers = await asking.run(plan.upstream, plan.key, stop or interruption()) if self.sample else Answers()
        stopped = "It was stopped: this is what was asked until then." if answers.is_stopped else ""
        if answers.is_hopeless:
            stopped = f"It was given up: {answers.failed:,} turns, and not one answer."
        if spending.is_spent:
            has_more = plan.most_requests is None or spending.requests < plan.most_requests
            limit = "the budget" if has_more else "--max-requests"
            stopped = f"It ended before {limit} was passed: this is what was asked until then; raise {limit} for more."
        return report_of(
            answers,
            plan.presets,
            [session.name for session in plan.sessions],
            upstream=plan.upstream,
            model=plan.model,
            seed=plan.seed,
            turns=plan.turns,
            turns_shortened=self.shortened,
            planned_samples=len(self.sample),
            requests=spending.requests,
            dollars=spending.dollars if plan.prices.listed else None,
            stopped=stopped,
        )


@explains_columns(
    """
    Columns: turns, how many were compared; model with itself, how often two replies to the same request agree; with
    Narrows, how often a reply to the shortened request agrees with them; difference, the second minus the first, in
    turns of 100; 95 % interval, which contains the true difference in 19 of 20 cases. Rows: next action, tool and
    target; tools alone; last checkpoint, by the requests since the prefix was rewritten.
    """
)
def agree(
    files: Files,
    upstream: Annotated[
        str, typer.Option(metavar="URL", show_default=False, help="Where the model is asked, /v1 included. It bills.")
    ] = "",
    model: Annotated[str, typer.Option(metavar="MODEL", show_default=False, help="The model to ask.")] = "",
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="At how many turns.")] = 200,
    preset: PresetNames = None,
    config: Config = None,
    budget: Annotated[
        float, typer.Option(min=0, metavar="DOLLARS", help="Ask nothing that might cost more than this.")
    ] = 5.0,
    max_requests: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Requests at most; needed where prices are not known.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Decides which turns are sampled.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Sessions that are run at the same time.")] = 4,
    credential_env: CredentialEnv = "",
    yes: Annotated[bool, typer.Option("--yes", help="Pay what it costs without being asked.")] = False,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model whether it does the same with Narrows.

    At sampled turns of recorded sessions: twice with what the client wrote, for the model's own noise, and once with
    what Narrows makes of it, recalls answered. The next actions are compared: same tool, same target (file, command,
    query), same kind of edit. It costs money: how much is said before anything is asked, and --budget is not passed.
    Ctrl-C ends it with the report so far. Exit code 1 where a preset loses agreement, 2 where nothing was compared.
    """

    with refusing():
        own = custom_presets(config)
        plan = AgreePlan(
            sessions=load_all(files),
            presets=presets_named(preset or [PRESET], own),
            own=own,
            upstream=_address(upstream),
            model=model,
            samples=samples,
            seed=seed,
            budget=budget,
            most_requests=max_requests,
            concurrency=concurrency,
            key=credential(credential_env),
        )
        plan.check()
        path = writable(html, files)
        with progress(plan.turns * len(plan.presets), "turns planned") as advance:
            forecast = asyncio.run(plan.forecast(advance))
        if forecast.sample:
            _confirm(forecast, yes)
    with progress(len(forecast.sample), "turns asked") as advance:
        report = asyncio.run(forecast.ask(None, advance))
    print_report(report, print_agreement, agreement_page, as_json, path)
    if not report.samples:
        raise typer.Exit(2)
    raise typer.Exit(int(any(each.verdict == "loss" for each in report.presets)))


def _address(upstream: str) -> str:
    parts = urlsplit(upstream)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"--upstream {upstream!r} is no address; name one such as https://api.openai.com/v1")
    return upstream.rstrip("/")


def _confirm(forecast: Forecast, yes: bool) -> None:
    """Say what it costs. Raises ValueError where nobody says that it may be paid."""
    print(f"narrows: {forecast.cost}", file=sys.stderr)
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("add --yes if that may be paid")
    if not typer.confirm("Ask?", err=True):
        raise typer.Exit(2)

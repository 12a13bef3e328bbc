"""What is to be asked, and what that would cost: known before anything is paid."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from policies.money.prices import Prices, Usage
from proxy.config.presets import CustomPreset
from proxy.lab.agree.asking import Answers, Asking
from proxy.lab.agree.figures import AgreeReport, report_of
from proxy.lab.agree.spending import Spending
from proxy.lab.agree.turns import Turn, forecast_turns, sample_of
from proxy.lab.replay.environment import Options
from proxy.lab.replay.recorded import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreePlan:
    """The options of `narrows agree`."""

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
        """Requests of all sessions."""
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
            turns, summaries = await forecast_turns(self.sessions, self.model, options, advance)
            rows.append(turns)
            written += summaries.dollars
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
            usages = [
                Usage(size, size, 0, answers[place]),
                *(Usage(row[place].after, 0, 0, answers[place]) for row in places),
            ]
            total += sum(self.prices.cost(usage).total for usage in (Usage(size, 0, 0, answers[place]), *usages))
        return total


@dataclass(frozen=True, slots=True)
class Forecast:
    """What will be asked, and what it costs."""

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
        """What it costs, in words."""
        plan = self.plan
        requests = len(self.sample) * (2 + len(plan.presets))
        asks = f"{requests:,} requests to {plan.model} at {len(self.sample):,} of {self.shortened:,} shortened turns"
        if not plan.prices.listed:
            return (
                f"{asks}, and those of recalls and summaries: at most {plan.most_requests:,}; their price is not known"
            )
        bill = f"about ${self.dollars + self.summaries:,.2f} with answers as long as recorded, less what a cache saves"
        budget = f"; it stops before ${plan.budget:,.2f}"
        if len(self.sample) < self.wanted:
            budget += f", which is why {self.wanted:,} samples (about ${self.whole:,.2f}) are not asked for"
        return f"{asks}: {bill}{budget}"

    async def ask(self, stop: asyncio.Event, advance: Callable[[], None]) -> AgreeReport:
        """Ask, until it is done, the budget is spent, or somebody stops it."""
        plan = self.plan
        spending = Spending(plan.model, plan.budget if plan.prices.listed else None, plan.most_requests)
        asking = Asking(
            plan.sessions, self.sample, plan.options, spending, concurrency=plan.concurrency, advance=advance
        )
        answers = await asking.run(plan.upstream, plan.key, stop) if self.sample else Answers()
        stopped = "It was stopped: this is what was asked until then." if answers.is_stopped else ""
        if answers.is_hopeless:
            stopped = f"It was given up: {answers.failed:,} turns, and not one answer."
        if spending.is_spent:
            limit = (
                "the budget"
                if plan.most_requests is None or spending.requests < plan.most_requests
                else "--max-requests"
            )
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

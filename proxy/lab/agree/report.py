"""Agreement against the noise of the model, with intervals, and what may be said of it.

A model asked the same thing twice does not always do the same. That is its noise: how often two answers without Narrows
agree. Agreement with Narrows is how often its answer does the same as each of those two, in the mean. The difference of
the two is 0 where what Narrows sends makes no difference, however noisy the model is.

Laws
  Intervals are of the difference, paired by turn (Bonett and Price, 2012: one more turn counted either way, so that no
  number of samples proves that there is no difference). Turns of a session may be alike: with five sessions or more,
  the interval by sessions counts where it is wider. With fewer, figures are of these very sessions, and say so.
  A loss is said only where the whole interval is below 0, and its absence only as what the interval leaves possible.
  Intervals of the rows by distance are those of each row alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from rich.console import Console

from policies.agreement import Action
from proxy.console.output import plain_table, print_last_line, printable
from proxy.drawing.charts import asides, folded, interval, row, rows, shortened
from proxy.drawing.figures import counted, money, percent
from proxy.drawing.html import Markup, element, headline, section, table
from proxy.lab.agree.asking import DISTANCES, Answers, ComparedTurn, WithNarrows
from proxy.lab.terminal import sheet

Z = 1.96
"""Of a 95 % interval."""
TOLERANCE = 0.05
"""A loss below this share of turns is not looked for by default: to exclude it takes some 200 samples or more."""
FEWEST = 10
"""Below so many samples nothing is said."""
FEWEST_SESSIONS = 5
"""Fewer cannot tell how much sessions differ."""
_EXAMPLES = 12
_LONGEST = 160
Verdict = Literal["loss", "no loss seen", "undecided"]
Same = Callable[[Action, Action], bool]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often the model did the same, as shares of turns."""

    samples: int
    noise: float
    """Two answers without Narrows."""
    with_: float
    """The answer with Narrows and each of those, in the mean."""
    difference: float
    low: float
    high: float
    """The 95 % interval of the difference."""
    by_sessions: bool
    """True where that is so wide because sessions differ: then more of them would say more than more turns."""


@dataclass(frozen=True, slots=True)
class Example:
    """A turn at which both answers without Narrows did the same, and the one with Narrows something else."""

    session: str
    request: int
    """Counted from 1."""
    distance: str
    without: str
    with_: str


@dataclass(frozen=True, slots=True)
class PresetAgreement:
    preset: str
    verdict: Verdict
    words: str
    action: Agreement
    """The same tools, targets and kinds of change; prose by its names and words."""
    tools: Agreement
    by_distance: dict[str, Agreement]
    recalled: int
    """Turns at which the model recalled something first."""
    recalls: int
    shortened: int
    """Turns whose request this preset shortened."""
    calls: int
    """Turns at which the model called tools without Narrows, and did not only speak."""
    examples: Sequence[Example]


@dataclass(frozen=True, slots=True)
class AgreeReport:
    DIGITS: ClassVar = 4
    upstream: str
    model: str
    seed: int
    sessions: int
    turns: int
    turns_shortened: int
    """Those that any preset shortens: samples are drawn from these."""
    planned_samples: int
    samples: int
    left_out: int
    """Samples of which an answer did not come."""
    first_failure: str
    requests: int
    """Requests to the model, those of recalls and summaries too."""
    dollars: float | None
    """None where the prices are not known."""
    stopped: str
    """Why it ended early, in a sentence; empty where it did not."""
    presets: Sequence[PresetAgreement]


def agreement(pairs: Sequence[tuple[float, float]], sessions: Sequence[int]) -> Agreement:
    """Noise and agreement over turns; `pairs` holds both for each, `sessions` where each comes from."""
    number = len(pairs)
    differences = [with_ - noise for noise, with_ in pairs]
    mean = sum(differences) / number if number else 0.0
    # one turn more that was lost by Narrows alone, and one by chance alone
    adjusted = sum(differences) / (number + 2)
    variance = (sum(each * each for each in differences) + 2) / (number + 2) - adjusted**2
    error = sqrt(variance / (number + 2))
    sums = dict.fromkeys(sessions, 0.0)
    for session, each in zip(sessions, differences, strict=True):
        sums[session] += each - mean
    by_sessions = False
    if len(sums) >= FEWEST_SESSIONS:
        between = sqrt(sum(each * each for each in sums.values()) * len(sums) / (len(sums) - 1)) / number
        by_sessions, error = between > error, max(error, between)
    low, high = max(-1.0, adjusted - Z * error), min(1.0, adjusted + Z * error)
    noise, with_ = (sum(pair[at] for pair in pairs) / number if number else 0.0 for at in (0, 1))
    return Agreement(
        samples=number,
        noise=noise,
        with_=with_,
        difference=mean,
        low=min(low, mean),
        high=max(high, mean),
        by_sessions=by_sessions,
    )


def compared(same: Same, sample: ComparedTurn, with_: WithNarrows) -> tuple[float, float]:
    """How often two actions at a turn are the same: without Narrows, and with it."""
    return float(same(*sample.without)), sum(same(each, with_.action) for each in sample.without) / 2


def preset_agreement(preset: str, at: int, samples: Sequence[ComparedTurn], names: Sequence[str]) -> PresetAgreement:
    """Agreement of a preset, whose answers stand at this place in each sample; `names` are those of the sessions."""
    rows = [(sample, sample.with_[at]) for sample in samples]

    def of(same: Same, distance: str = "") -> Agreement:
        chosen = [row for row in rows if not distance or row[1].distance == distance]
        return agreement([compared(same, *row) for row in chosen], [sample.session for sample, _ in chosen])

    action = of(Action.does_same)
    distances = {name: each for name in DISTANCES if (each := of(Action.does_same, name)).samples}
    verdict = _verdict(action)
    examples = [
        Example(
            names[sample.session], sample.number + 1, with_.distance, _short(sample.without[0]), _short(with_.action)
        )
        for sample, with_ in rows
        if compared(Action.does_same, sample, with_) == (1.0, 0.0)
    ]
    return PresetAgreement(
        preset=preset,
        verdict=verdict,
        words=_words(verdict, preset, action, len({sample.session for sample in samples})),
        action=action,
        tools=of(Action.has_tools_of),
        by_distance=distances,
        recalled=sum(with_.recalls > 0 for _, with_ in rows),
        recalls=sum(with_.recalls for _, with_ in rows),
        shortened=sum(with_.is_shortened for _, with_ in rows),
        calls=sum(bool(sample.without[0].calls) for sample in samples),
        examples=examples[:_EXAMPLES],
    )


def _verdict(action: Agreement) -> Verdict:
    if action.samples < FEWEST:
        return "undecided"
    if action.high < 0:
        return "loss"
    return "no loss seen" if action.low >= -TOLERANCE else "undecided"


def _words(verdict: Verdict, preset: str, action: Agreement, sessions: int) -> str:
    """The verdict in words: no more than the samples carry."""
    of = f"{counted(action.samples, 'turn')} of {counted(sessions, 'session')}"
    low, high, shift = _points(action.low), _points(action.high), _points(action.difference)
    beyond = (
        " That is of these sessions alone." if sessions < FEWEST_SESSIONS else " That holds for sessions like these."
    )
    if verdict == "loss":
        return (
            f"A loss: with {preset} the model does the same less often than by its own noise, by {shift} in 100 turns "
            f"({low} to {high} with 95 % confidence, by {of}).{beyond}"
        )
    if action.samples < FEWEST:
        return f"Nothing can be said of {preset} by {of}: it takes {FEWEST} at least, and 200 or more to say much."
    if verdict == "no loss seen":
        most = _points(min(0.0, action.low))
        return (
            f"No loss seen with {preset} by {of}: against the model's own noise the difference is {shift} in 100 "
            f"turns, and a loss of more than {most.removeprefix('-')} is excluded with 95 % confidence.{beyond}"
        )
    half = (action.high - action.low) / 2
    enough = f"Some {ceil(action.samples * (half / TOLERANCE) ** 2 / 10) * 10:,} samples would say it to within 5."
    more = "Sessions differ: more of them would say more than more turns." if action.by_sessions else enough
    return (
        f"Not decided for {preset} by {of}: the difference lies between {low} and {high} in 100 turns, with 95 % "
        f"confidence. {more}"
    )


def report_of(answers: Answers, presets: Sequence[str], names: Sequence[str], **facts: object) -> AgreeReport:
    """The report; `facts` holds what was known before anything was asked, or is counted elsewhere."""
    samples = sorted(answers.samples, key=lambda sample: (sample.session, sample.number))
    rows = [preset_agreement(preset, at, samples, names) for at, preset in enumerate(presets)]
    return AgreeReport(
        sessions=len(names),
        samples=len(samples),
        left_out=answers.failed,
        first_failure=answers.first_failure,
        presets=rows,
        **facts,  # type: ignore[arg-type]  # by the names of its fields
    )


def _short(action: object) -> str:
    text = " ".join(str(action).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_LAST_LINE = """
    model with itself: how often two replies to the same request agree, which is the model's noise; with Narrows: how
    often a reply to the shortened request agrees with them; difference: the second minus the first, in turns of
    100; last checkpoint: requests since the prefix was rewritten.
"""
HEADS = ("turns", "model with itself", "with Narrows", "difference", "95 % interval")
_STEP = 0.05
"""The axis of a picture ends at a multiple of this share."""
MEANING = (
    "Agreement is how often the model's next action is the same: the same tools, each at the same target (file, "
    "command or query), with the same kind of edit. Where it only speaks, two texts count as the same when both ask "
    "back or neither does, and they share half of their names and half of the words of the shorter one: a reader "
    "would call more of them the same. What an edit writes, and which lines are read, is not compared. Whether an "
    "action is right, or the task done in the end, is not looked at. The model's agreement with itself (the same "
    "request twice) is its noise; only the difference from it says something of Narrows."
)


def print_agreement(console: Console, report: AgreeReport) -> None:
    console.print(_lead(report), soft_wrap=True)
    for each in report.presets if report.samples else ():
        console.print()
        console.print(each.words, soft_wrap=True)
        grid = plain_table(each.preset, *HEADS)
        for label, figures in _rows(each).items():
            grid.add_row(label, *_cells(figures))
        console.print(grid)
        console.print(_beside(each), soft_wrap=True)
        for example in each.examples[:3]:
            place = f"{printable(example.session, 60)}, request {example.request}"
            console.print(f"  {place}: {printable(example.without)} | with: {printable(example.with_)}", soft_wrap=True)
    console.print()
    for note in _notes(report):
        console.print(note, soft_wrap=True)
    if report.samples:
        print_last_line(console, _LAST_LINE)


def agreement_page(report: AgreeReport) -> str:
    presets = report.presets if report.samples else ()
    return sheet(
        "agreement",
        f"Does {shortened(report.model)} do the same?",
        f"{counted(report.samples, 'turn')} of {counted(report.sessions, 'session')}",
        [
            headline(
                f"{_points(each.action.difference).replace('-', '−')} in 100",
                element("span", each.words, class_="fault" if each.verdict == "loss" else None),
            )
            for each in presets
        ],
        element("p", _lead(report), class_="lead"),
        asides(_notes(report)),
        [_preset_on_a_page(each) for each in presets],
        section("What agreement means", element("p", MEANING)),
    )


def _preset_on_a_page(each: PresetAgreement) -> Markup:
    figures = _rows(each)
    drawn = {label: agreement for label, agreement in figures.items() if agreement.samples >= FEWEST} or figures
    end = ceil(max(abs(end) for each in drawn.values() for end in (each.low, each.high, _STEP)) / _STEP) * _STEP
    lines = [
        row(
            _points(agreement.difference),
            element("b", label) if at < 2 else label,
            interval(agreement.low, agreement.difference, agreement.high, end),
            element("span", f"{agreement.samples:,}", element("span", " turns", class_="unseen"), class_="n"),
        )
        for at, (label, agreement) in enumerate(drawn.items())
    ]
    ends = [element("span", text) for text in (f"−{100 * end:.0f}", "0: as by its noise", f"+{100 * end:.0f}")]
    heads = ("in 100", "how often the same", element("span", ends, class_="ends"), "turns")
    examples = [
        (f"{shortened(example.session, 60)}, request {example.request}", [example.without, example.with_])
        for example in each.examples
    ]
    summary = f"Turns at which both answers without Narrows agreed, and the one with it did not: {len(examples):,}"
    others = folded(summary, table(("turn", "without", "with Narrows"), examples, "sessions actions"), len(examples))
    return section(
        each.preset,
        rows(heads, lines, "rows sight"),
        table(("", *HEADS), [(label, _cells(agreement)) for label, agreement in figures.items()], "sessions"),
        element("p", _beside(each), class_="aside"),
        others if examples else "",
    )


def _rows(each: PresetAgreement) -> Mapping[str, Agreement]:
    distances = {f"last checkpoint: {name}": agreement for name, agreement in each.by_distance.items()}
    return {"next action": each.action, "tools alone": each.tools, **distances}


def _cells(figures: Agreement) -> list[str]:
    interval = f"{_points(figures.low)} to {_points(figures.high)}"
    shares = (percent(figures.noise), percent(figures.with_))
    return [f"{figures.samples:,}", *shares, _points(figures.difference), interval]


def _lead(report: AgreeReport) -> str:
    sessions = counted(report.sessions, "session")
    if not report.turns_shortened:
        return (
            f"Nothing to compare: of {report.turns:,} requests of {sessions} Narrows shortens none, "
            "so the model reads what the client wrote."
        )
    if not report.samples:
        return f"Nothing was compared: at no sampled turn of {sessions} did all answers come."
    what = f"{counted(report.samples, 'sampled turn')} of {sessions}, asked of {printable(report.model)} at"
    place = printable(urlsplit(report.upstream).netloc)
    return f"{what} {place}: twice with what the client wrote, and once with what Narrows makes of it."


def _beside(each: PresetAgreement) -> str:
    shares = f"{each.calls:,} of {each.action.samples:,} turns call tools; {each.shortened:,} were sent shortened"
    recalls = (
        f"{each.recalls:,} recalls were answered first, at {each.recalled:,} turns" if each.recalls else "no recalls"
    )
    return f"{shares}; {recalls}. Differences are in turns of 100; rows by distance are intervals of each row alone."


def _notes(report: AgreeReport) -> Iterator[str]:
    if report.stopped:
        yield report.stopped
    if report.turns_shortened:
        others = report.turns - report.turns_shortened
        yield (
            f"Samples are drawn (seed {report.seed}) from the {report.turns_shortened:,} of {report.turns:,} requests "
            f"that are shortened; of the other {others:,} the model reads what the client wrote."
        )
    if report.left_out:
        yield f"{report.left_out:,} turns are left out, as an answer did not come: {printable(report.first_failure)}"
    if report.samples:
        yield f"{report.requests:,} requests to the model, recalls and summaries included: {money(report.dollars)}."


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"

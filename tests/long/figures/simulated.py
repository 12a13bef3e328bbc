"""Sessions without sockets: split, converse, plan, render, and the bill of a provider's cache, as a replay does them.

What does not depend on a preset is done once for all of them. Where a preset asks a model for a summary or a digest, or
recalls, only a real replay knows what comes of it: then there is no result here.

Law: a report has the figures that `replay_all` gives for the same session, preset and prices (a test compares them).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import orjson

from policies.assemble import PlanOptions, assemble
from policies.context import Summarizing
from policies.dialects import DIALECTS, Request
from policies.model.conversation import Conversation, Part
from policies.model.edits import Edit
from policies.model.summary_record import Criteria
from policies.model.tokens import Counter, encoding_for
from policies.money.catalog import prices_for
from policies.money.prices import Prices, Usage
from policies.planning.plan import plan
from policies.planning.state import PlanState
from policies.presets import PRESETS
from policies.render import body_of, render
from proxy.config import Settings
from proxy.lab.provider import APIS, PromptCache, PromptReader, rule_for
from proxy.lab.provider.answers import Say, call_texts
from proxy.lab.provider.prompt import ProviderPrompt
from proxy.lab.quality import tally
from proxy.lab.replay.bills import SessionBill
from proxy.lab.replay.recorded import RequestReader, Session, requests
from proxy.lab.replay.report import Report
from proxy.lab.replay.runs import MarksAlone
from proxy.summaries.models import siblings
from tests.long.figures.fixed import FIXED

_OWNER = "session"


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as the client sent it, its usage without Narrows, and what the model answers."""

    request: Request
    conversation: Conversation
    prompt: ProviderPrompt
    baseline: Usage
    marks_alone: Usage
    say: Say
    """The reply of the model."""
    answer: Sequence[Part]
    """The same as parts."""


class SimulatedProvider:
    """What a provider reads and bills; each prompt's blocks are looked up, as long as they are the same."""

    def __init__(self, dialect: str, model: str, prices: Prices, count: Counter) -> None:
        self.model = model
        self.read = PromptReader(count, APIS[dialect])
        self._rule, self._count = rule_for(prices.model, prices), count
        self.marks = bool(self._rule.mark) and not self._rule.endings
        self._caches: dict[str, PromptCache] = {}

    def charge(self, name: str, prompt: ProviderPrompt) -> Usage:
        """The usage of a prompt by the cache of this name."""
        return self._caches.setdefault(name, PromptCache(self._count)).charge(_OWNER, prompt, self._rule)


@dataclass
class Lane:
    """Whatever stands between client and provider, on its way through a session."""

    report: Report
    digests: list[bytes] = field(default_factory=list, init=False)
    """Of the blocks of the prompt before."""

    def bill(
        self, recorded: RecordedRequest, prompt: ProviderPrompt, edits: Sequence[Edit], provider: SimulatedProvider
    ) -> None:
        """Enter a request as it was sent, and count what was in sight with these edits."""
        report, completion = self.report, recorded.baseline.completion
        report.requests += 1
        report.baseline.add(recorded.baseline)
        report.marks_alone.add(recorded.marks_alone)
        report.bill.add(replace(provider.charge(report.preset, prompt), completion=completion))
        report.compare_bills()
        digests = [block.digest for block in prompt.blocks]
        report.prefix_changes += digests[: len(self.digests)] != self.digests
        self.digests = digests
        tally(recorded.conversation, edits, recorded.answer, report.used_by_later_turns)
        report.needs.add(recorded.conversation, edits, recorded.answer)


@dataclass
class _Preset(Lane):
    """One preset of Narrows."""

    options: PlanOptions
    state: PlanState | None = None
    asks_a_model: bool = False

    def send(self, recorded: RecordedRequest, provider: SimulatedProvider, dialect: str, count: Counter) -> None:
        """Plan a request, and enter it."""
        api = DIALECTS[dialect]
        planned = assemble(api, recorded.request, recorded.conversation, count, self.options)
        result = plan(recorded.conversation, planned.settings, None, self.state)
        self.state = result.state
        self.asks_a_model = bool(result.wants or result.digests)
        rendering = render(dialect, recorded.request, recorded.conversation, result)
        marks, tool, consent = planned.settings.marks, planned.tool, planned.consent
        sent = body_of(api, recorded.request, result, rendering, marks=marks, tool=tool, consent=consent)
        prompt = recorded.prompt if sent is recorded.request.body else provider.read(orjson.loads(sent))
        self.bill(recorded, prompt, result.edits, provider)


def simulated(session: Session, presets: Sequence[str], model: str) -> dict[str, Report]:
    """The report of each preset that asks no model anything, at the prices of a model."""
    prices, count = prices_for(model), Counter(encoding_for(model))
    provider = SimulatedProvider(session.dialect, model, prices, count)
    lanes = [
        _Preset(report_for(session, preset, model, prices), _options(session, preset, prices)) for preset in presets
    ]
    for recorded in recorded_requests(session, prices, provider, count):
        for lane in lanes:
            lane.send(recorded, provider, session.dialect, count)
        lanes = [lane for lane in lanes if not lane.asks_a_model]
    return {lane.report.preset: lane.report for lane in lanes}


def _options(session: Session, preset: str, prices: Prices) -> PlanOptions:
    """The options of a Narrows without configuration, whose models can be asked."""
    chosen = FIXED[preset] if preset in FIXED else PRESETS[preset]
    named = chosen.writing.model(DIALECTS[session.dialect].provider)
    writer = named or next(iter(siblings(prices.model, prices_for)), "")
    paid = prices_for(writer) if writer else prices
    most = chosen.writing.tokens or Settings.model_fields["summary_tokens"].default
    return PlanOptions(
        preset=chosen,
        prices=prices,
        summarizing=Summarizing(Criteria(preset, ""), paid, most, 0.0) if chosen.summarizes else None,
        digesting=paid if chosen.digests is not None and not chosen.exceptions.first_sight else None,
    )


def report_for(session: Session, preset: str, model: str, prices: Prices) -> Report:
    report = Report(session.name, model, SessionBill(prices), SessionBill(prices), preset=preset, kind=session.group)
    report.changes = session.changes
    return report


def recorded_requests(
    session: Session, prices: Prices, provider: SimulatedProvider, count: Counter
) -> Iterator[RecordedRequest]:
    """Every request of the session, in order."""
    reader, bodies = RequestReader(session.dialect, count), requests(session, provider.model, provider.marks)
    marks_alone = MarksAlone(session.dialect, prices, count) if prices.breakpoints else None
    outputs = APIS[session.dialect].recorded_answers(session.messages)
    for turn, (body, answer) in enumerate(zip(bodies, session.replies(count), strict=True)):
        request, conversation = reader.read(body)
        prompt = provider.read(body)
        usage = marked = provider.charge("", prompt)
        if marks_alone is not None:
            marked = provider.charge("marks alone", provider.read(marks_alone.sent(request, conversation)))
        say = outputs[turn] if turn < len(outputs) else Say("")
        texts = (say.content or "", *say.thinking, *(text for call in say.calls for text in call_texts(call)))
        completion = sum(map(count, texts))
        usage, marked = (replace(each, completion=completion) for each in (usage, marked))
        yield RecordedRequest(request, conversation, prompt, usage, marked, say, answer)

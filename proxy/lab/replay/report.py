"""What became of replayed sessions: what they cost with and without Narrows, their prefix, and what was in sight.

Law: both bills, with Narrows and without, come from the same arithmetic.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from policies.context import Aim
from policies.model.tokens import Calibration
from proxy.lab.breakdown import Breakdown, PolicyEffect
from proxy.lab.needs import Needs
from proxy.lab.quality import Visibility
from proxy.lab.replay.bills import ModelCalls, RecallCosts, SessionBill, SummaryCosts
from proxy.lab.replay.recorded import CHAIN
from proxy.lab.results import FIRST, MAX, Compared, ComparedBill, notes_on

LONG = 60
"""A session with so many requests is a long one."""
EARLY = 20
"""Up to this request the bills are too small for their ratio to say much."""
GROUPS: Mapping[str, str] = {
    "long": f"{LONG} or more requests, with tools",
    "short": f"fewer than {LONG} requests, with tools",
    "text": "text protocol, without tools",
    CHAIN: "sessions as one conversation, order by order",
}
"""What a session belongs to where it was given no group of its own."""
REFUSED = "refused"
"""In the place of what a reply says of the prefix, where there is no reply."""


@dataclass
class RecordedUsage:
    """What the provider itself counted when a session was recorded, beside what is counted here for its requests."""

    JSON: ClassVar = ("model", "requests", "ratio")

    model: str = ""
    """The model that was asked then."""
    requests: int = 0
    growth: Calibration = field(default_factory=Calibration)

    def add(self, reported: int, counted: int) -> None:
        """One more request."""
        self.requests += 1
        self.growth = self.growth.learn(counted, reported)

    @property
    def ratio(self) -> float | None:
        """Tokens that the provider reported for each one counted, of what requests grew by: a recording may lack what
        stood before it. None where nothing was recorded."""
        return self.growth.ratio if self.requests else None


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One request of a session."""

    prefix: str
    """What its reply said of the prefix; `REFUSED` where it was not answered."""
    tokens_sent: Compared = field(default_factory=Compared)
    """Of its prompt, those of recall rounds included."""
    cached_tokens_given_up: int = 0
    """Tokens that were in the provider's cache and had to be sent anew because of Narrows."""
    summary: str = ""
    """What its reply said of summaries."""
    input_bill: ComparedBill = field(default_factory=ComparedBill)
    """Of all requests so far, with what summaries cost."""


@dataclass
class Report:
    """What became of one session, in one run or in several. `baseline` is the bill of doing nothing."""

    JSON: ClassVar = (
        *("session", "group", "preset", "aim", "prices", "prices_known", "notes", "protocol", "runs", "requests"),
        *(
            "checkpoints",
            "checkpoints_per_100_requests",
            "prefix",
            "cached_tokens_given_up",
            "each_request",
            "layers_of_the_last_request",
        ),
        *(
            "tokens_sent",
            "mean_context",
            "peak_context",
            "input_bill",
            "input_bill_of_marks_alone",
            "input_bill_beside_marks_alone",
        ),
        *("whole_bill", "recall_share_of_input_bill"),
        *("worst_ratio_at_any_stop", "worst_ratio_past_request_20", "validity_errors", "unanswered", "first_refusal"),
        *("prefix_changes", "undeclared_prefix_changes", "failed_open", "recalls", "summaries"),
        *("recorded_usage", "used_by_later_turns", "needs"),
    )

    session: str
    prices: str
    bill: SessionBill
    baseline: SessionBill
    preset: str = ""
    aim: Aim = "bill"
    """With which it was planned: a preset may have another one for chats without tools."""
    kind: str = ""
    """The group that it was given; else `group` is by its protocol and its length."""
    changes: str = ""
    """What was left out of the recording, in a sentence."""
    protocol: str = "tools"
    runs: int = 1
    requests: int = 0
    validity_errors: int = 0
    """Requests that the provider refused as invalid."""
    unanswered: int = 0
    """Requests without a complete answer for another reason: a real upstream has many."""
    first_refusal: str | None = None
    """The provider's words at the first of these."""
    prefix_changes: int = 0
    """Requests, rounds included, that did not begin with the whole of the one before, as the provider received them."""
    undeclared_prefix_changes: int = 0
    """Those of them whose reply did not say so."""
    failed_open: int = 0
    prefix: Counter[str] = field(default_factory=Counter)
    cached_tokens_given_up: int = 0
    worst_ratio_at_any_stop: float = field(default=0.0, metadata=MAX)
    """The highest ratio of the bill so far to that of doing nothing so far, at any request."""
    worst_ratio_past_request_20: float = field(default=0.0, metadata=MAX)
    """The highest after more than `EARLY` requests; 0 where there are no more."""
    recorded_usage: RecordedUsage = field(default_factory=RecordedUsage, metadata=FIRST)
    used_by_later_turns: Visibility = field(default_factory=Visibility, metadata=FIRST)
    """By one run, as the one above and the three below: the others are alike."""
    needs: Needs = field(default_factory=Needs, metadata=FIRST)
    each_request: list[RequestResult] = field(default_factory=list, metadata=FIRST)
    last_request: Breakdown | None = field(default=None, metadata=FIRST)
    """None where its sizes are not known."""
    seconds: list[float] = field(default_factory=list)
    """What each request took."""
    added_ms: list[float] = field(default_factory=list)
    """What Narrows itself added to each."""
    recalls: RecallCosts = field(init=False)
    summaries: SummaryCosts = field(init=False)
    marks_alone: SessionBill = field(init=False)
    """The bill with cache marks of Narrows and nothing else of it."""

    def __post_init__(self) -> None:
        self.marks_alone = SessionBill(self.bill.prices)
        self.recalls = RecallCosts(SessionBill(self.bill.prices))
        self.summaries = SummaryCosts(SessionBill(self.bill.prices))

    @property
    def prices_known(self) -> bool:
        """Whether the prices are those of the model, and not a guess."""
        return self.bill.prices.listed and self.summaries.bill.prices.listed

    @property
    def notes(self) -> Sequence[str]:
        """What a reader has to know of the figures."""
        return [*notes_on(self.bill.prices), *([self.changes] if self.changes else [])]

    @property
    def tokens_sent(self) -> Compared:
        """All input tokens, those of summaries included."""
        return Compared(self.bill.tokens + self.summaries.bill.tokens, self.baseline.tokens)

    @property
    def mean_context(self) -> Compared:
        """Tokens of a prompt in the mean; each recall round has one of its own."""
        requests = self.requests + self.recalls.rounds
        return Compared(round(self.bill.tokens / (requests or 1)), round(self.baseline.tokens / (self.requests or 1)))

    @property
    def peak_context(self) -> Compared:
        """Tokens of the largest prompt."""
        return Compared(self.bill.peak, self.baseline.peak)

    @property
    def input_bill(self) -> ComparedBill:
        """The input side of the bill. All that summaries cost is on it: they are written to make it smaller."""
        with_narrows = self.bill.input + self.summaries.bill.total
        return ComparedBill(with_narrows, self.baseline.input, self.prices_known)

    @property
    def input_bill_of_marks_alone(self) -> ComparedBill:
        """What cache marks of Narrows alone would have made of it, compared with doing nothing."""
        return ComparedBill(self.marks_alone.input, self.baseline.input, self.prices_known)

    @property
    def marks_matter(self) -> bool:
        """Whether marks alone change the bill, so that both rows are worth a reader's time."""
        return self.marks_alone.input > 0 and abs(self.input_bill_of_marks_alone.ratio - 1) >= 0.005

    @property
    def input_bill_beside_marks_alone(self) -> ComparedBill:
        """The input bill compared with that of marks alone: what compaction saved."""
        return ComparedBill(self.input_bill.with_, self.marks_alone.input, self.prices_known)

    @property
    def whole_bill(self) -> ComparedBill:
        """The bill with the output, which Narrows does not change."""
        return ComparedBill(self.input_bill.with_ + self.bill.output, self.baseline.total, self.prices_known)

    @property
    def recall_share_of_input_bill(self) -> float:
        """What recall rounds cost, of the input bill."""
        return self.recalls.bill.input / self.input_bill.with_ if self.input_bill.with_ else 0.0

    def compare_bills(self) -> None:
        """Enter the ratio of the bills so far."""
        ratio = self.input_bill.ratio
        self.worst_ratio_at_any_stop = max(self.worst_ratio_at_any_stop, ratio)
        if self.requests > EARLY:
            self.worst_ratio_past_request_20 = max(self.worst_ratio_past_request_20, ratio)

    @property
    def model_calls(self) -> ModelCalls:
        """Those that the session itself did not make."""
        summaries = self.summaries
        digests = summaries.digests if summaries.batch else summaries.calls
        dollars = self.recalls.bill.input + summaries.bill.total if self.prices_known else None
        return ModelCalls(self.recalls.rounds, summaries.calls - digests, digests, dollars)

    @property
    def layers_of_the_last_request(self) -> Sequence[PolicyEffect]:
        """What each policy left of it; empty where its sizes are not known."""
        return self.last_request.layers if self.last_request else ()

    @property
    def checkpoints(self) -> int:
        """Declared rewrites that were not tail cuts."""
        return sum(times for word, times in self.prefix.items() if word.startswith("checkpoint"))

    @property
    def checkpoints_per_100_requests(self) -> float:
        return round(100 * self.checkpoints / self.requests, 1) if self.requests else 0.0

    @property
    def faults(self) -> int:
        """What must not be: of these, one is too many."""
        sent = self.validity_errors + self.unanswered + self.undeclared_prefix_changes + self.failed_open
        return sent + self.used_by_later_turns.all.lost + self.recalls.refused

    @property
    def group(self) -> str:
        """With which others it is compared."""
        if self.kind:
            return self.kind
        if self.protocol == "text":
            return "text"
        return "long" if self.requests >= LONG * self.runs else "short"

    def refuse(self, status: int, text: str) -> None:
        """Add a request without a complete answer; a provider answers 400 to what is not valid."""
        self.requests += 1
        self.validity_errors += status == 400
        self.unanswered += status != 400
        self.first_refusal = self.first_refusal or f"{status}: {text}"
        self.each_request.append(RequestResult(REFUSED))

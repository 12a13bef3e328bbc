"""The life of a summary: its record, its states, and the moves between them.

A summary is decided in the plan of one request, made beside requests, and adopted in the plan of a later one.

    state       begins when                                                 decided in
    wanted      a plan asks for it: turns are old enough, and it will pay   policies.rules.summarize (which and when),
                                                                            policies.planning.folding (does it pay)
    pending     a job for it runs, here or in another replica               proxy.summaries.background, .maker
    failed      no model gave an answer; a later plan wants it again        proxy.summaries.maker
    rejected    the answer must not be used; it is on the bill all the      policies.text.summary_checks
                same, and the next one is wanted after twice as many tokens
    ready       its record is stored, and waits for the moment that pays    policies.planning.folding
    adopted     it stands in the request, at a checkpoint; each later       policies.planning.step
                request repeats it
    superseded  a newer one stands, or is ready                             here
    branch      it covers messages that the newest request does not have    here
    stale       policy, prompt, model, age or sources are not those under   here
                which it was written: it is taken out of the request

    wanted -> pending -> ready -> adopted -> superseded       pending -> failed | rejected -> wanted
    ready | adopted -> stale | branch -> wanted               an adopted one may be extended: wanted beside it

A reply says the state of the newest one (`reply_word`), the pages that of each (`statuses`).

Laws
  A summary names its sources by anchors, which are digests: where a source message changed, nothing matches.
  A stale summary stands for nothing, and the reason why it is stale is reported.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import takewhile
from typing import Literal, NamedTuple

from policies.model.conversation import Conversation, Message
from policies.model.edits import Origin

Kind = Literal["compaction", "history", "digest"]
"""For the prompt, for people (a list of chats, say), or of a single output. None is ever used as another kind."""
Reason = Literal["", "source", "policy", "prompt", "model", "age"]


@dataclass(frozen=True, slots=True)
class SummaryCost:
    """Tokens as billed (`cached` and `written` are parts of `prompt`), and dollars where the price is known."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    written: int = 0
    completion: int = 0
    dollars: float = 0.0

    @property
    def known_dollars(self) -> float | None:
        """None where calls were made whose price is not known."""
        return self.dollars if self.dollars or not self.calls else None

    def __add__(self, other: "SummaryCost") -> "SummaryCost":
        return SummaryCost(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """A summary with its provenance. Immutable: another one takes its place."""

    id: str
    conversation: str
    first: str
    """The anchor of the first block that it covers: the same for all summaries of a history."""
    last: str
    """The anchor of the last block. It chains all blocks before it, so it is their fingerprint."""
    sources: tuple[str, ...]
    """The messages that it covers, as `INDEX:DIGEST`: those of the client's request, without recall exchanges."""
    model: str
    content: str
    tokens_before: int
    tokens_after: int
    created_at: float
    policy: str
    prompt: str
    """The version of the instructions."""
    kind: Kind = "compaction"
    generation: int = 1
    """1 where it was written from the original messages; one more than that of `previous` where it extends that."""
    previous: str = ""
    rejected: str = ""
    """Why it must not be used; such a record has no content."""
    owner: str = ""
    """A keyed hash of the credential that paid for it."""
    spent: SummaryCost = field(default_factory=SummaryCost)
    lines: tuple[int, int] = (0, 0)
    """In a digest of a file: the first and the last line that it leaves out, because they stay beside it."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """The conditions under which a summary counts; without `models` any model will do."""

    policy: str
    prompt: str
    models: tuple[str, ...] = ()
    ttl: float = float("inf")
    """Seconds that a summary counts."""


def stale(summary: Origin | SummaryRecord, criteria: Criteria, now: float) -> Reason:
    """Why a summary no longer counts; empty where it does. Changed sources are not looked for: they change anchors."""
    created_at = summary.at if isinstance(summary, Origin) else summary.created_at
    if summary.policy != criteria.policy:
        return "policy"
    if summary.prompt != criteria.prompt:
        return "prompt"
    if criteria.models and summary.model not in criteria.models:
        return "model"
    return "age" if now - created_at > criteria.ttl else ""


@dataclass(frozen=True, slots=True)
class SummaryUse:
    """Of the summaries of a conversation, for one request: the id of the one that is adopted (`stands`), of one that is
    ready, and of one that is stale, with the reason; and what they had to be made under."""

    stands: str = ""
    ready: str = ""
    stale: str = ""
    reason: str = ""
    criteria: Criteria | None = None


NO_USE = SummaryUse()


def reply_word(use: SummaryUse, job: Literal["", "pending", "failed"], *, is_wanted: bool) -> str:
    """The value of `x-narrows-summary`; `job`: of the summary in the making; `is_wanted`: by this request."""
    if use.reason:
        return f"stale:{use.reason}"
    if job == "pending" or (job and (is_wanted or not use.stands)):
        return job
    return "ready" if use.ready else "adopted" if use.stands else ""


class SummaryStatus(NamedTuple):
    """The state of a summary, in the words of the pages (`stands`: adopted); `reason`: why it is stale or rejected."""

    state: Literal["stands", "ready", "stale", "superseded", "branch", "rejected"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UsableSummaries:
    sound: tuple[SummaryRecord, ...] = ()
    """Those that may be used, oldest first."""
    tried: int = 0
    """The block before which a rejected summary ends: up to there none is asked for again."""
    rejected: int = 0
    """How many in a row were rejected, up to the newest."""
    records: tuple[SummaryRecord, ...] = ()
    """All that were made of this history, rejected and stale ones too: each was paid for."""
    stale: Reason = ""
    """The reason why the newest may not be used, where none may."""
    stale_id: str = ""


NO_SUMMARIES = UsableSummaries()


def source_of(conversation: Conversation, message: int) -> str:
    return f"{message}:{short_digest(conversation.messages[message])}"


def sources_of(conversation: Conversation, messages: Sequence[int], received: Conversation) -> tuple[str, ...]:
    """The entries of `SummaryRecord.sources` for these messages. Where recall exchanges were put back into what was
    received, each message counts by its place there; what has none there is left out."""
    if received is not conversation:
        indexes: dict[bytes, list[int]] = {}
        for at, message in enumerate(received.messages):
            indexes.setdefault(message.digest, []).append(at)
        places, after = dict[int, int](), 0
        for at, message in enumerate(conversation.messages):
            same = indexes.get(message.digest, [])
            if (nearest := bisect_left(same, after)) < len(same):
                places[at], after = same[nearest], same[nearest] + 1
        messages = [places[at] for at in messages if at in places]
    return tuple(source_of(received, at) for at in messages)


def short_digest(message: Message) -> str:
    """The digest by which a message is named among the sources of a summary, and in the log."""
    return message.digest.hex()[:16]


def usable_summaries(
    conversation: Conversation, summaries: Sequence[SummaryRecord], criteria: Criteria, now: float
) -> UsableSummaries:
    """The summaries that count for this history; `summaries` are given oldest first."""
    places = conversation.index
    ours = [record for record in summaries if record.kind == "compaction"]
    records = tuple(record for record in ours if record.last in places)
    counting = [record for record in records if not stale(record, criteria, now)]
    counting.sort(key=lambda record: places[record.last])
    sound = tuple(record for record in counting if not record.rejected)
    tried = max((places[record.last] + 1 for record in counting if record.rejected), default=0)
    rejected = sum(1 for _ in takewhile(lambda record: record.rejected, reversed(counting)))
    usable = UsableSummaries(sound, tried, rejected, records)
    newest = next((record for record in reversed(ours) if not record.rejected), None)
    if sound or newest is None:
        return usable
    if newest.last in places:
        return replace(usable, stale=stale(newest, criteria, now), stale_id=newest.id)
    # either a message that it covers has changed, or it is of a longer history than this one
    digests = {short_digest(message) for message in conversation.messages}
    sources = (source.partition(":") for source in newest.sources)
    changed = any(int(i) < len(conversation.messages) and digest not in digests for i, _, digest in sources)
    return replace(usable, stale="source", stale_id=newest.id) if changed else usable


def statuses(records: Sequence[SummaryRecord], use: SummaryUse, at: float, now: float) -> dict[str, SummaryStatus]:
    """The state of each summary for the prompt, by id. `records` are given oldest first; `use` and `at` (when it was
    served) are those of the newest request."""
    by_id: dict[str, SummaryStatus] = {}
    is_newer = False
    for record in reversed([record for record in records if record.kind == "compaction"]):
        reason = use.reason if record.id == use.stale else ""
        reason = reason or (stale(record, use.criteria, now) if use.criteria else "")
        if record.rejected:
            status = SummaryStatus("rejected", record.rejected)
        elif reason:
            status = SummaryStatus("stale", reason)
        elif record.id == use.stands:
            status = SummaryStatus("stands")
        elif not is_newer and (record.id == use.ready or record.created_at > at):
            status = SummaryStatus("ready")
        else:
            status = SummaryStatus("superseded" if is_newer else "branch")
        is_newer = is_newer or status.state in ("stands", "ready")
        by_id[record.id] = status
    return by_id

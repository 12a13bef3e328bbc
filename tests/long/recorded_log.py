"""What a provider's log tells of a recorded day: what each conversation has cost, and which prompts were kept warm by
whom. Times are seconds since 1970, by the clock of the day."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise

from policies.money.prices import Usage
from proxy.lab.provider import Abort, Provider, ProviderReply, Received, Say
from proxy.lab.replay.environment import PlanObserver, Player

LIFETIME = 300.0
"""Seconds that an entry of the provider's cache lasts where nothing longer was asked for."""
_APART = 0.8
"""Of a lifetime: two pings for one prompt that are nearer to each other are one too many."""


@dataclass(frozen=True, slots=True)
class Row:
    at: float
    credential: str
    replica: str
    """The address by which a replica knows the provider."""
    is_ping: bool
    prompt: bytes
    """A digest of the body."""
    usage: Usage | None
    """None where it was refused."""
    dollars: float
    is_beside: bool
    """True where Narrows has asked another model, for a summary."""

    @property
    def is_read(self) -> bool:
        return self.usage is not None and 2 * self.usage.cached >= self.usage.prompt


@dataclass
class LoggingProvider(Provider):
    """Answers each conversation, which has a credential of its own, as it was recorded."""

    model: str = ""
    log: list[Row] = field(default_factory=list)
    replies: Mapping[str, Sequence[Say]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._answered: dict[str, int] = defaultdict(int)
        self._writer = Player(PlanObserver(), 0.0, self.count)
        self.answer = self._recorded

    def reply(self, received: Received) -> ProviderReply | Abort:
        at, reply = self.clock(), super().reply(received)
        if received.method == "POST":
            prompt, host, usage = sha256(received.body).digest(), received.headers.get("Host", ""), received.usage
            dollars, is_beside = (
                self.prices(received.model).cost(usage).total if usage else 0.0,
                self._is_beside(received),
            )
            self.log.append(Row(at, received.credential, host, _is_ping(received), prompt, usage, dollars, is_beside))
        return reply

    def _is_beside(self, received: Received) -> bool:
        return received.model != self.model

    def _recorded(self, received: Received) -> Say | None:
        """By how many requests came before, because Narrows may have folded replies of the history."""
        if self._is_beside(received):
            return self._writer(received)
        replies, at = self.replies.get(received.credential, ()), self._answered[received.credential]
        if received.violation is not None or _is_ping(received) or at >= len(replies):
            return None
        self._answered[received.credential] += 1
        return replies[at]


def _is_ping(received: Received) -> bool:
    return bool(received.json and received.json.get("max_tokens") == 0)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Its requests and pings, in order."""

    rows: Sequence[Row]

    @property
    def requests(self) -> int:
        return sum(not (row.is_ping or row.is_beside) for row in self.rows)

    @property
    def pings(self) -> Sequence[Row]:
        return [row for row in self.rows if row.is_ping]

    @property
    def dollars(self) -> float:
        return sum(row.dollars for row in self.rows)

    def doubled(self) -> int:
        """Pings for a prompt that another had just kept warm."""
        by_prompt = defaultdict[bytes, list[float]](list)
        for row in self.pings:
            by_prompt[row.prompt].append(row.at)
        return sum(
            later - earlier < _APART * LIFETIME for each in by_prompt.values() for earlier, later in pairwise(each)
        )

    def late(self) -> int:
        """Pings for a prompt that was not the newest any more when they came."""
        newest, late = 0, 0
        for row in (row for row in self.rows if not row.is_beside):
            tokens = row.usage.prompt if row.usage is not None else 0
            newest, late = (newest, late + (tokens != newest)) if row.is_ping else (tokens, late)
        return late

    def is_struck(self, replica: str, killed: float, in_flight: float) -> bool:
        """Whether the end of a replica took something of it: a request that was on its way in the last so many seconds,
        or a ping that the replica owed."""
        before = [row for row in self.rows if row.at <= killed]
        after = next((row.at for row in self.rows if row.at > killed and not row.is_ping), None)
        if not before or before[-1].replica != replica:
            return False
        owes = after is not None and after - before[-1].at > LIFETIME * 0.9
        return owes or killed - before[-1].at <= in_flight


def conversations(log: Sequence[Row]) -> dict[str, Conversation]:
    """By credential."""
    rows = defaultdict[str, list[Row]](list)
    for row in log:
        rows[row.credential].append(row)
    return {credential: Conversation(each) for credential, each in rows.items()}


def problems(each: Mapping[str, Conversation]) -> Iterator[str]:
    for credential, conversation in each.items():
        if refused := sum(row.usage is None for row in conversation.rows):
            yield f"{credential}: {refused} requests were refused"
        if doubled := conversation.doubled():
            yield f"{credential}: {doubled} pings went twice"
        if written := sum(not row.is_read for row in conversation.pings):
            yield f"{credential}: {written} pings found nothing in the cache"
        if late := conversation.late():
            yield f"{credential}: {late} pings for a prompt that was not the newest"

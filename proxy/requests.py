"""What flows: the four values that one chat request becomes on its way, each holding the one before it.

    ClientRequest    what the client sent, decoded, and who sent it
    RequestContext   that request parsed, and all that it is planned under
    PlannedRequest   the plan, and the messages that it changes
    UpstreamRequest  the body and headers that go upstream, and the headers of the reply

All of it is data: what makes these values is in kernel/. They are structs because
each request makes all of them: one is made in a tenth of a dataclass's time.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct, field

from policies.context import Aim
from policies.dialects import Added, Consent, Dialect, Request
from policies.keep import Patterns
from policies.model.conversation import Conversation
from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.tokens import Calibration
from policies.money.bills import Arm
from policies.money.marks import MarkStyle
from policies.money.prices import Usage
from policies.planning.state import Plan, PlanSettings, PlanState
from policies.presets import UNSET, Preset, StaleOptions
from policies.recall import RecallAnswer
from policies.render import Rendering
from proxy.config.rules import Mode
from proxy.identity.who import Identity
from proxy.memory import Key
from proxy.memory.cached import StoreLookup
from proxy.memory.conversation import LiveConversation, ParsedRequest


def request_id() -> str:
    """A UUID of version 7: in the order of their ids requests are in the order of their times."""
    chance = secrets.randbits(74)
    first, last = chance >> 62, chance & (1 << 62) - 1
    return str(UUID(int=time.time_ns() // 1_000_000 << 80 | 7 << 76 | first << 64 | 2 << 62 | last))


class RequestOptions(NamedTuple):
    """How a request is served, by its headers and by a rule. What these do not say is as in the settings."""

    mode: Mode
    preset: str = ""
    """"" for that of the settings."""
    aim: Aim | None = None
    context_tokens: int | None = None
    """The size to keep below."""
    stale: StaleOptions = UNSET
    """What a rule says of stale summaries."""
    record: bool | None = None
    """Whether a rule wants it recorded."""
    upstream: str = ""
    """The one that a rule names."""
    keep: Patterns = ()
    """What is to stay as it is, besides what the settings say."""


class Proof(NamedTuple):
    """With what the client proves itself to the upstream: summaries are asked for in its name."""

    auth: Mapping[str, str]
    """The headers."""
    is_plain_key: bool = True
    """Whether the credential is a plain API key, and no token of a sign-in or subscription."""


class ClientRequest(Struct, frozen=True):
    """A request as its client sent it, decoded from its Content-Encoding."""

    dialect: str
    body: bytes
    sender: Identity
    conversation: str | None
    """The id that a header gives the conversation."""
    options: RequestOptions
    proof: Proof = Proof({})
    counting: bytes | None = None
    """Of a request that only asks for its number of tokens: a JSON member that its body cannot have in this API, though
    it holds for the request; mostly empty. None for any other."""
    is_accepted: bool = True
    """Whether an upstream last accepted the credential through this process."""
    upstream: str = ""
    """The name of the upstream that it goes to."""
    model: str = ""
    """The model that it asks, where somebody had to know that before it was read: of the body, or of a deployment."""
    may_plan: bool = True
    """Whether anything new may be decided for it. Where there is too much to do it may not: then the edits that stand
    are put back, and nothing else is done."""
    is_dry: bool = False
    """Whether it is planned for what would become of it: it goes as the client wrote it, and nobody else learns of the
    plan."""

    @property
    def only_counts(self) -> bool:
        return self.counting is not None

    @property
    def owner_there(self) -> str:
        """What its credential is called at its upstream: one that this knows may be unknown to another."""
        return f"{self.sender.owner} {self.upstream}"


class RequestContext(Struct, frozen=True, kw_only=True):
    """A request, parsed, with all that it is planned under."""

    client_request: ClientRequest
    dialect: Dialect
    live: LiveConversation
    """What is remembered of the conversation."""
    received: ParsedRequest
    """What the client sent."""
    request: Request
    """The same with earlier recall exchanges put back in their places: what is planned."""
    conversation: Conversation
    exchanges: Mapping[str, Sequence[Insert]] = field(default_factory=dict)
    """The recall exchanges behind earlier replies, by the anchor of what the client had sent."""
    lookup: StoreLookup
    """What the store was asked for them."""
    exchange_lost: bool
    """Whether a recall exchange could not be put back behind the newest reply."""
    answers: Sequence[RecallAnswer]
    """The recall calls that this very request answers."""
    plan_settings: PlanSettings
    tool: Added | None
    """The recall tool and its place in the body; None where it cannot be added."""
    consent: Consent
    """What the request must say beside its messages so that its provider takes an edited history."""
    lifetime: float
    """Seconds of disuse after which the provider has forgotten the prompt."""
    calibration: Calibration
    preset: Preset
    """With what is in force for this request: what a rule, the preset and the settings say of stale summaries."""
    policy: str
    """Summaries and digests are stored under this name: the preset and a digest of its parameters."""
    fingerprint: str
    """A digest of everything besides the history that decisions follow from."""
    head: str
    """A digest of what stands before the messages: model, tools and instructions."""

    @property
    def key(self) -> Key:
        return self.live.key

    @property
    def exchanges_complete(self) -> bool:
        """False where the store could not say all recall exchanges."""
        return self.lookup.complete


class PlannedRequest(Struct, frozen=True):
    """A request and its plan. Tokens are exact ones of the vocabulary, not calibrated."""

    context: RequestContext
    plan_state: PlanState | None
    """Where the planning of earlier requests left off; None where it began at the first step."""
    memory: Memory
    plan: Plan
    rendering: Rendering
    tokens_received: int
    tokens_sent: int
    previous: StepRecord | None
    """The record of the request before this one in the same history."""
    sent_last: bool
    """Whether it is certain without the store that this process sent that request, and the last one of its reply. Only
    looked into where the store did not say all."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing had to be decided, so that nothing was planned and nothing is stored."""
        return self.plan.state.step == 0


class UpstreamRequest(Struct, frozen=True):
    """A request ready to go upstream."""

    client_request: ClientRequest
    body: bytes
    headers: Mapping[str, str]
    """The x-narrows headers of the reply."""
    upstream_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that go upstream beside the client's own."""
    planned: PlannedRequest | None = None
    """None where the request was not read, or planning failed."""
    record: StepRecord | None = None
    """What is remembered of it."""
    recalls: bool = False
    """Whether its reply may hold recall calls to be answered here."""
    tokens_sent: int = 0
    """Tokens of `body`."""
    marks: MarkStyle = ""
    """The kind of cache marks of ours that `body` has; "" where it has none."""
    continues: "tuple[UpstreamRequest, int] | None" = None
    """In a later round of its reply, the request of the first one, and the tokens of the answer that earlier rounds
    took."""
    supersedes: bool = False
    """Whether it takes the place of one that its upstream refused."""
    left_out: bool = False
    """Whether what only a verified credential may cause was left out: nothing was claimed, adopted or begun for it."""
    arm: Arm = ""
    """Of a holdout: in which one its conversation is."""
    model: str | None = ""
    """Of a request that is not planned, where it is known; None where it is not billed either."""
    may_overflow: bool = False
    """Whether its upstream may find it too long, and something smaller may be sent then."""

    @property
    def may_change(self) -> bool:
        """Whether it may be changed where its upstream finds it too long; one of a holdout leaves that then."""
        return not self.client_request.is_dry or self.arm == "holdout"


class ReplyRound(Struct, frozen=True):
    """A round of a reply that is over."""

    request: UpstreamRequest
    status: int
    """The upstream's; 0 where no reply came."""
    usage: Usage | None
    """None where the provider has not reported any."""

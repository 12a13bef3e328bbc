"""The four values that one chat request becomes on its way, each holding the one before it.

    ClientRequest    what the client sent, decoded, and who sent it
    RequestContext   that request parsed, and all that it is planned under
    PlannedRequest   the plan, and the messages that it changes
    UpstreamRequest  the body and headers that go upstream, and the headers of the reply

All of it is data: what makes these values is in kernel/. They are structs because
each request makes all of them: one is made in a tenth of a dataclass's time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field, structs
from multidict import CIMultiDict

from policies.context import Aim
from policies.dialects import Added, Consent, Dialect, Request
from policies.dialects.deferring import DeferredTools
from policies.keep import Patterns
from policies.model.conversation import Conversation
from policies.model.edits import Insert
from policies.model.memory import Memory, StepRecord
from policies.model.tokens import Calibration
from policies.money.bills import Arm
from policies.money.caches import MarkStyle
from policies.money.prices import Usage
from policies.planning.state import Plan, PlanSettings, PlanState
from policies.presets import UNSET, Preset, StaleOptions
from policies.recall import RecallAnswer
from policies.render import Rendering
from policies.tools.deferral import ToolLists
from proxy.config import Settings
from proxy.config.rules import Mode
from proxy.identity.who import Identity
from proxy.memory import Key
from proxy.memory.cached import StoreLookup
from proxy.memory.conversation import LiveConversation, ParsedRequest


class RequestOptions(NamedTuple):
    """How a request is served, by its headers and by a rule. What these do not say is as in the settings."""

    mode: Mode
    preset: str = ""
    """"" for that of the settings."""
    aim: Aim | None = None
    context_tokens: int | None = None
    stale: StaleOptions = UNSET
    record: bool | None = None
    upstream: str = ""
    keep: Patterns = ()
    tools: ToolLists | None = None


class Proof(NamedTuple):
    """With what the client proves itself to the upstream: summaries are asked for in its name."""

    auth: Mapping[str, str]
    is_plain_key: bool = True
    """True where the credential is a plain API key, and no token of a sign-in or subscription."""


class RequestHead(Struct, frozen=True):
    """The head of a request, read but for the length of its body. As a rule all requests of a connection have one."""

    lines: tuple[tuple[bytes, bytes], ...]
    wishes: RequestOptions
    conversation: str | None
    access: Identity
    settings: Settings
    proof: Proof
    forwarded: CIMultiDict[str]
    """The headers that go upstream, but for the length of the body. To be copied, never changed."""


class ClientRequest(Struct, frozen=True):
    dialect: str
    body: bytes
    sender: Identity
    conversation: str | None
    options: RequestOptions
    proof: Proof = Proof({})
    counting: bytes | None = None
    """Of a request that only asks for its number of tokens: a JSON member that its body cannot have in this API, though
    it holds for the request; mostly empty. None for any other."""
    is_accepted: bool = True
    """True where an upstream last accepted the credential through this process."""
    upstream: str = ""
    model: str = ""
    """The model that it asks, where somebody had to know that before it was read: of the body, or of a deployment."""
    may_plan: bool = True
    """True where anything new may be decided for it. Where there is too much to do it may not: then the edits that
    stand are put back, and nothing else is done."""
    is_dry: bool = False
    """True where it is planned to see what becomes of it: it goes as it came, and nobody else learns of the plan."""


class ToolDecision(NamedTuple):
    """What was decided of the tools that a request brings."""

    tools: DeferredTools | None = None
    """None where the list stays whole."""
    record: StepRecord | None = None
    """What is to be claimed before it counts; None where it does."""
    alone: str = ""
    """The decision that follows from the request alone, where nothing can be claimed."""
    is_gone: bool = False
    """True where nobody knows how the list was sent before."""


WHOLE = ToolDecision()


class RequestContext(Struct, frozen=True, kw_only=True):
    """A request, parsed, with all that it is planned under."""

    client_request: ClientRequest
    dialect: Dialect
    live: LiveConversation
    received: ParsedRequest
    request: Request
    """The same with earlier recall exchanges put back in their places: what is planned."""
    conversation: Conversation
    exchanges: Mapping[str, Sequence[Insert]] = field(default_factory=dict)
    lookup: StoreLookup
    exchange_lost: bool
    answers: Sequence[RecallAnswer]
    plan_settings: PlanSettings
    tool: Added | None
    """The recall tool and its place in the body; None where it cannot be added."""
    consent: Consent
    """The words that the request must have beside its messages so that its provider takes an edited history."""
    lifetime: float
    """Seconds of disuse after which the provider has forgotten the prompt, by the marks of the client."""
    calibration: Calibration
    tools: ToolDecision
    preset: Preset
    """With what is in force for this request: what a rule, the preset and the settings say of stale summaries."""
    policy: str
    """Summaries and digests are stored under this name: the preset and a digest of its parameters."""
    fingerprint: str
    head: str

    @property
    def key(self) -> Key:
        return self.live.key


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
    sent_last: bool
    """True where it is certain without the store that this process sent that request, and the last one of its reply.
    Only looked into where the store did not say all."""

    is_quiet: bool
    """True where nothing had to be decided, so that nothing was planned and nothing is stored."""

    @property
    def lifetime(self) -> float:
        """Seconds of disuse after which the provider has forgotten the prompt, by the marks that are sent."""
        lifetimes = self.context.plan_settings.lifetimes
        is_longer, usual = self.plan.state.life.is_longer, self.context.lifetime
        return max(usual, lifetimes.longer) if is_longer and lifetimes else usual


class Notes(Struct, frozen=True):
    """Facts that count once its upstream answers: for its record, its bill, and the request that follows it."""

    record: StepRecord | None = None
    is_read: bool = False
    """True where its reply is read: for recall calls, a summary, or an error in the place of a reply."""
    supersedes: bool = False
    """True where it takes the place of one that its upstream refused."""
    left_out: bool = False
    """True where what only a verified credential may cause was left out: nothing was claimed, adopted or begun."""
    may_overflow: bool = False
    """True where its upstream may find it too long, and something smaller may be sent then."""
    continues: "tuple[UpstreamRequest, int] | None" = None
    """In a later round of its reply, the first round's request, and the tokens of earlier rounds' answers."""
    arm: Arm = ""


NO_NOTES = Notes()


class UpstreamRequest(Struct, frozen=True):
    client_request: ClientRequest
    body: bytes
    headers: Mapping[str, str]
    upstream_headers: Mapping[str, str] = field(default_factory=dict)
    planned: PlannedRequest | None = None
    """None where the request was not read, or planning failed."""
    marks: MarkStyle = ""
    """The kind of cache marks of ours that `body` has; "" where it has none."""
    model: str | None = ""
    """Of a request that is not planned, where it is known; None where it is not billed either."""
    notes: Notes = NO_NOTES

    def noting(self, **changes: Any) -> "UpstreamRequest":
        """The same request with other notes."""
        return structs.replace(self, notes=structs.replace(self.notes, **changes))

    @property
    def tokens_sent(self) -> int:
        """Tokens of the request as it is sent; 0 where it was not planned."""
        if self.planned is None:
            return 0
        return self.planned.tokens_received if self.client_request.is_dry else self.planned.tokens_sent

    @property
    def may_change(self) -> bool:
        """True where it may be changed where its upstream finds it too long; one of a holdout leaves that then."""
        is_held_out, planned = self.notes.arm == "holdout", self.planned
        return planned is not None and (is_held_out or not planned.context.client_request.is_dry)


class ReplyRound(Struct, frozen=True):
    """A round of a reply that is over."""

    request: UpstreamRequest
    status: int
    usage: Usage | None

"""What flows: the values that one request becomes on its way."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from policies.dialects import Added, Consent, Dialect, Request
from policies.model.conversation import Conversation
from policies.model.tokens import Calibration, Counter
from policies.planning.state import PlanSettings
from policies.presets import Preset, described
from proxy.store import Key


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request as it came in, undone from its encoding."""

    dialect: str
    body: bytes
    tenant: str
    conversation: str | None
    mode: Literal["on", "off", "observe"]
    credential: str
    auth: Mapping[str, str] = field(default_factory=dict)
    """The headers with which the client proves itself to the upstream: summaries are asked for in its name."""
    unsaid: bytes = b""
    """A member that the body cannot have, though it may be about one that has it."""
    counts: bool = False
    """Whether it only asks for its tokens."""
    preset: str = ""
    """The preset that was chosen for it; that of the settings where none was."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request, and the conversation it carries, counted with one vocabulary."""

    request: Request
    count: Counter
    conversation: Conversation


@dataclass(frozen=True, slots=True)
class RequestContext:
    """A request in hand: what the client sent, with every recall exchange back in its place."""

    client_request: ClientRequest
    dialect: Dialect
    request: Request
    conversation: Conversation
    setup: PlanSettings
    key: Key
    calibration: Calibration
    tool: Added | None
    """Where the recall tool goes; None where it cannot be there."""
    lost: bool = False
    """Whether a recall exchange could not be put back behind the newest reply."""
    lifetime: float = 0.0
    """Seconds of disuse after which the provider has forgotten the prompt: what a person says, else by its model."""
    consent: Consent = field(default_factory=Consent)
    """What has to be said so that the history may be edited."""
    preset: Preset = field(default_factory=lambda: Preset(()))
    policy: str = ""
    """What summaries and digests are kept under: the preset and its parameters."""

    @property
    def fingerprint(self) -> str:
        """What decisions follow from besides the history."""
        setup = self.setup
        said = (setup.prices, setup.budget, setup.marks, setup.slots, setup.head, setup.text_protocol)
        tools = [sorted(kinds.items()) for kinds in (setup.toolbox.configured, setup.toolbox.schemas)]
        ways = (self.client_request.dialect, setup.recall, setup.only_to_fit, setup.exceptions, tools)
        return sha256(repr((said, ways, described(setup.policies), self.client_request.mode)).encode()).hexdigest()[:32]

    @property
    def head(self) -> str:
        """What stands before the messages in the prompt."""
        tool = self.tool[1] if self.tool else b""
        parts = (self.request.model.encode(), self.request.tool_list, tool, self.request.instructions)
        return sha256(b"\0".join(parts)).hexdigest()[:32]

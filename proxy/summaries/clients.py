"""What is asked of a model that writes, and its answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.dialects import DEFAULT
from policies.money.prices import Usage
from policies.presets import AS_CONFIGURED, WritingOptions
from policies.text.summary_checks import End
from proxy.summaries.payments import EVERYTHING, Payment


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """For which conversation a model is wanted, who pays, and what is to be written."""

    model: str
    """The model of the conversation."""
    auth: Mapping[str, str] = field(repr=False)
    """The client's own headers that prove who it is."""
    owner: str = ""
    """The name of whoever has that credential."""
    payment: Payment = EVERYTHING
    dialect: str = DEFAULT
    """The API of the conversation."""
    upstream: str = ""
    """The upstream of the conversation, by its name; "" for the first one of its API."""
    writing: WritingOptions = AS_CONFIGURED
    instructions: str = ""
    """What to write over the material; empty as long as there is none yet."""
    text: str = ""
    """The material."""
    tokens: int = 0
    """The size of both."""
    most: int = 0
    """Tokens that the answer may have."""


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer. One that is not `readable` was billed all the same."""

    text: str
    end: End
    usage: Usage | None
    readable: bool = True

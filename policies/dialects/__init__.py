"""One package for each API: everything about its JSON. To add one: a package that keeps the contract of base.py; a
row."""

from collections.abc import Mapping

from policies.dialects import anthropic_messages, openai_chat, openai_responses
from policies.dialects.base import Added, ChoiceResult, Consent, Dialect, Fault, Reply, Request
from policies.dialects.limits import TooManyError
from policies.money.prices import Usage

DIALECTS: Mapping[str, Dialect] = {
    "openai_chat": openai_chat,
    "anthropic_messages": anthropic_messages,
    "openai_responses": openai_responses,
}

__all__ = [
    "DIALECTS",
    "Added",
    "ChoiceResult",
    "Consent",
    "Dialect",
    "Fault",
    "Reply",
    "Request",
    "TooManyError",
    "Usage",
]

"""Anthropic Messages."""

from typing import Any

from proxy.lab.provider.api import as_it_is as resolved
from proxy.lab.provider.api import nothing as kept
from proxy.lab.provider.messages.bound import entries, headless
from proxy.lab.provider.messages.prompt import spoken, tool, top_mark
from proxy.lab.provider.messages.reply import answered, answers, choices_of, meant, overflow, refused, reply
from proxy.lab.provider.messages.rules import CHECKS, COUNT_CHECKS

__all__ = [
    "CHECKS", "COUNTED", "COUNTING", "COUNT_CHECKS", "PATH", "answered", "answers", "choices_of", "entries",
    "headless", "kept", "meant", "overflow", "refused", "reply", "resolved", "spoken", "tool", "top_mark",
]  # fmt: skip

PATH = "/v1/messages"
COUNTING = "/v1/messages/count_tokens"
COUNTED: dict[str, Any] = {}

"""OpenAI chat completions."""

from typing import Any

from proxy.lab.provider.api import any_headers as headless
from proxy.lab.provider.api import as_it_is as resolved
from proxy.lab.provider.api import nothing as kept
from proxy.lab.provider.chat.prompt import entries, spoken, tool, top_mark
from proxy.lab.provider.chat.reply import answered, answers, choices_of, meant
from proxy.lab.provider.chat.reply import spoken as reply
from proxy.lab.provider.chat.rules import CHECKS
from proxy.lab.provider.rules import Check, Violation, refused

__all__ = [
    "CHECKS", "COUNTED", "COUNTING", "COUNT_CHECKS", "PATH", "answered", "answers", "choices_of", "entries",
    "headless", "kept", "meant", "overflow", "refused", "reply", "resolved", "spoken", "tool", "top_mark",
]  # fmt: skip

PATH = "/v1/chat/completions"
COUNTING = ""
COUNTED: dict[str, Any] = {}
COUNT_CHECKS: tuple[Check, ...] = ()


def overflow(tokens: int, window: int) -> Violation:
    """The prompt does not fit the window."""
    said = f"This model's context window is {window} tokens, and the messages and tools hold {tokens}."
    return Violation(said, "messages", "context_length_exceeded")

"""OpenAI Responses."""

from typing import Any

from proxy.lab.provider.api import any_headers as headless
from proxy.lab.provider.responses.kept import kept, resolved
from proxy.lab.provider.responses.output import answered, answers
from proxy.lab.provider.responses.prompt import entries, spoken, tool, top_mark
from proxy.lab.provider.responses.reply import choices_of, meant, overflow, reply
from proxy.lab.provider.responses.rules import CHECKS, COUNT_CHECKS
from proxy.lab.provider.rules import refused

__all__ = [
    "CHECKS", "COUNTED", "COUNTING", "COUNT_CHECKS", "PATH", "answered", "answers", "choices_of", "entries",
    "headless", "kept", "meant", "overflow", "refused", "reply", "resolved", "spoken", "tool", "top_mark",
]  # fmt: skip

PATH = "/v1/responses"
COUNTING = "/v1/responses/input_tokens"
COUNTED: dict[str, Any] = {"object": "response.input_tokens"}

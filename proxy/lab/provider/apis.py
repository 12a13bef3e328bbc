"""The APIs that the provider speaks: to add one, a package that keeps the contract of api.py, and a row."""

from collections.abc import Mapping

from policies.money.caches import PREFIX, CacheRule
from proxy.lab.provider import chat, messages, prompt, responses
from proxy.lab.provider.api import Api
from proxy.lab.provider.prompt import Count
from proxy.lab.provider.rules import Violation, first

CHAT = "openai_chat"
APIS: Mapping[str, Api] = {CHAT: chat, "openai_responses": responses, "anthropic_messages": messages}
"""By the name of its dialect."""


def violations(body: object, rule: CacheRule = PREFIX, dialect: str = CHAT) -> Violation | None:
    """The first reason to refuse a request, if there is one."""
    return first(APIS[dialect].CHECKS, body, rule)


class PromptReader(prompt.PromptReader):
    """Reads the requests of one API."""

    def __init__(self, count: Count, dialect: str = CHAT, capacity: int = 64_000_000) -> None:
        super().__init__(count, APIS[dialect], capacity)

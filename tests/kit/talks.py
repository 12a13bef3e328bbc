"""Conversations for the tests of presets that summarise: plain talk, as long as one likes."""

from collections.abc import Sequence
from typing import Any

from tests.kit.histories import Json
from tests.kit.rolling import PRICED

SYSTEM = {"role": "system", "content": "You are the assistant of this space. Answer in short sentences."}
"""A client's own instructions."""
MODELS: dict[str, dict[str, Any]] = {
    **PRICED,
    "m": {"input": 1, "output": 1, "read": 1.0, "write": 1.0, "window": 200_000},
    "gpt-4.1": {"input": 1, "output": 1, "read": 1.0, "write": 1.0},
}
"""Without a cache, as the documents of these presets think of models: what may go, goes at once."""


def talk(turns: int, words: int = 60) -> list[Json]:
    """Questions and answers, with the answer of the last; each answer has about so many times four tokens."""
    messages: list[Json] = [SYSTEM]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}: what comes after step {turn}?"})
        messages.append({"role": "assistant", "content": f"After step {turn} comes the next of them. " * words})
    return messages


def roles(messages: Sequence[Json]) -> str:
    """The roles of messages, one letter each."""
    return "".join(message["role"][0] for message in messages)

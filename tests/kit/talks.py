"""Conversations for the tests of presets that summarise: plain talk, as long as one likes."""

from collections.abc import Sequence
from typing import Any

from tests.kit.histories import Json

SYSTEM = {"role": "system", "content": "You are the assistant of this space. Answer in short sentences."}
"""A client's own instructions."""
WRITER = "gpt-5.4-mini"
"""Who writes summaries where a test names a model for that."""
REAL: dict[str, Any] = {"models": None, "summarizers": [{"model": WRITER}], "floor": None}
"""Settings of a Narrows that has the listed prices and windows of all models, and no others."""


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

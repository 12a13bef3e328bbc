"""The kinds of tool that there are: they decide how an output is shortened, and how soon."""

from collections.abc import Mapping
from typing import Literal

ToolKind = Literal["file", "search", "listing", "command", "data", "web"]

Kinds = Mapping[str, ToolKind]
"""Kinds by the name of the tool."""

RECALL = "narrows_recall"
"""The name of the one tool that is ours."""

HEAD: Mapping[ToolKind, float] = {
    "file": 0.7,
    "search": 0.5,
    "listing": 0.3,
    "command": 0.6,
    "data": 0.5,
    "web": 0.5,
}
"""The share of a shortened output that comes from its beginning."""


def word_set(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())

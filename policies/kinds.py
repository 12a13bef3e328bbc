"""The kinds of tool that there are: they decide how an output is shortened, and how soon."""

from collections.abc import Mapping
from typing import Literal

ToolKind = Literal["file", "search", "listing", "command", "data", "web"]

Kinds = Mapping[str, ToolKind]
"""Kinds by the name of the tool."""


def word_set(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())

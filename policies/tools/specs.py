"""The tools that a request defines, and the kinds of output that follow from their definitions.

Only a bounded part of a definition is searched.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from policies.tools import arguments as keys
from policies.tools.kinds import Kinds, ToolKind

_PARAMETERS = 200
"""Parameters of a tool that are looked at."""
_LOOKED_AT = 400
"""Characters of a description that are looked at."""
_SENTENCE_END = re.compile(r"[.!?]\s|\n")

_BUILT_IN: Mapping[ToolKind, tuple[str, ...]] = {
    "web": ("web_search", "web_fetch", "browser"),
    "search": ("file_search", "tool_search"),
    "file": ("text_editor", "str_replace", "memory"),
    "command": ("bash", "local_shell", "shell", "code_", "computer", "apply_patch"),
}
"""Tools of a provider, by the beginning of their names or types: they have no parameters of their own."""
_BY_PARAMETERS: tuple[tuple[ToolKind, frozenset[str], frozenset[str]], ...] = (
    ("command", frozenset(keys.SHELL), keys.PATHS),
    ("file", keys.LINES, keys.PATTERNS | keys.SQL),
    ("command", keys.CHANGES | keys.CHANGES_OF_A_FILE | keys.CONTENT, frozenset()),
    ("web", keys.URLS, frozenset()),
    ("data", keys.SQL, frozenset()),
    ("listing", keys.GLOBS, keys.PATTERNS | keys.QUERIES),
    ("listing", keys.DEPTHS, keys.PATTERNS | keys.QUERIES),
    ("command", keys.CODE, frozenset()),
)
"""A kind, the parameters that determine it, and those beside which they do not."""
_BY_DESCRIPTION: Mapping[ToolKind, re.Pattern[str]] = {
    "command": re.compile(
        r"\b(?:runs?|executes?)\b[^.]{0,60}\b(?:command|shell|bash|code|script|program|tests?|lint)", re.I
    ),
    "web": re.compile(r"\b(?:web|internet|urls?|browser|online)\b", re.I),
    "data": re.compile(r"\b(?:databases?|sql|tables?|records?)\b", re.I),
    "listing": re.compile(r"\blists?\b[^.]{0,40}\b(?:files|director|folder)|\bglob\b|\bfinds? files\b", re.I),
    "search": re.compile(r"\b(?:search(?:es)?|grep|ripgrep)\b", re.I),
    "file": re.compile(r"\b(?:reads?|opens?|views?|contents?)\b[^.]{0,40}\bfiles?\b", re.I),
}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a request defines it."""

    name: str
    """Its type, for a tool of the provider that has no name."""
    description: str
    parameters: Mapping[str, object]
    """A JSON schema of its arguments; empty where they are free text, or the provider's own."""


def kind_by_schema(name: str, description: str, parameters: Mapping[str, object]) -> ToolKind | None:
    """What kind of output a tool has by its definition; None where that may be any."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        if built_in := next((kind for kind, starts in _BUILT_IN.items() if name.startswith(starts)), None):
            return built_in
        properties = {}
    names = {keys.spelled(key) for key in islice(properties, _PARAMETERS) if isinstance(key, str)}
    for kind, telling, apart in _BY_PARAMETERS:
        if not names.isdisjoint(telling) and names.isdisjoint(apart):
            return kind
    description = description[:_LOOKED_AT]
    # the first sentence counts first: others also say when not to use the tool
    for text in (_SENTENCE_END.split(description, 1)[0], description):
        if by_words := next((kind for kind, words in _BY_DESCRIPTION.items() if words.search(text)), None):
            return by_words
    if names & (keys.PATTERNS | keys.QUERIES):
        return "search"
    return "listing" if names & keys.DIRECTORIES else "file" if names & (keys.PATHS | keys.SEVERAL) else None


def kinds_by_schema(specs: Iterable[ToolSpec]) -> Kinds:
    """The kinds of the tools whose definitions determine them."""
    kinds = ((spec.name, kind_by_schema(spec.name, spec.description, spec.parameters)) for spec in specs)
    return {name: kind for name, kind in kinds if kind}

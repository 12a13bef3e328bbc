"""The tools that a request defines, and what kinds their definitions tell.

Laws: of a definition, a bounded part is looked at; where nothing tells, nothing is said.
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


_BUILT_IN: tuple[tuple[str, ToolKind], ...] = (
    ("web_search", "web"),
    ("web_fetch", "web"),
    ("browser", "web"),
    ("file_search", "search"),
    ("tool_search", "search"),
    ("text_editor", "file"),
    ("str_replace", "file"),
    ("memory", "file"),
    ("bash", "command"),
    ("local_shell", "command"),
    ("shell", "command"),
    ("code_", "command"),
    ("computer", "command"),
    ("apply_patch", "command"),
)
"""Tools that a provider brings, by how their names, or their types, begin: they have no parameters of their own."""
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
"""A kind, the parameters that tell it, and those beside which they do not."""
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
_ELSE: tuple[tuple[ToolKind, frozenset[str]], ...] = (
    ("search", keys.PATTERNS | keys.QUERIES),
    ("listing", keys.DIRECTORIES),
    ("file", keys.PATHS | keys.SEVERAL),
)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a request defines it."""

    name: str
    """Its type, where the provider brings it and it has no name."""
    description: str
    parameters: Mapping[str, object]
    """A JSON schema of its arguments; empty where they are free text, or the provider's own."""


def kind_by_schema(name: str, description: str, parameters: Mapping[str, object]) -> ToolKind | None:
    """What kind of output a tool has by its definition; None where that may be any."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        if built_in := next((kind for start, kind in _BUILT_IN if name.startswith(start)), None):
            return built_in
        properties = {}
    known = {keys.spelled(key) for key in islice(properties, _PARAMETERS) if isinstance(key, str)}
    rows = ((kind, telling, apart) for kind, telling, apart in _BY_PARAMETERS if not known.isdisjoint(telling))
    if by_parameters := next((kind for kind, _, apart in rows if known.isdisjoint(apart)), None):
        return by_parameters
    return _kind_by_words(description[:_LOOKED_AT]) or next(
        (kind for kind, telling in _ELSE if not known.isdisjoint(telling)), None
    )


def _kind_by_words(description: str) -> ToolKind | None:
    """What a description says: its first sentence before the others, which tell when not to use the tool, too."""
    for text in (_SENTENCE_END.split(description, 1)[0], description):
        if found := next((kind for kind, words in _BY_DESCRIPTION.items() if words.search(text)), None):
            return found
    return None


def kinds_by_schema(specs: Iterable[ToolSpec]) -> Kinds:
    """The kinds of the tools whose definitions tell them."""
    found = ((spec.name, kind_by_schema(spec.name, spec.description, spec.parameters)) for spec in specs)
    return {name: kind for name, kind in found if kind}

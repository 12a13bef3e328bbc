"""Tool outputs made short by what they are: each form of text knows what matters in it.

Laws: a digest is never longer than the text; errors come before anything else, the last one and the exit status stay
always; what is left out is counted; the same text gives the same digest everywhere.
"""

from collections.abc import Callable, Sequence

from policies.digests.diffs import changed
from policies.digests.failures import failed
from policies.digests.html import as_text
from policies.digests.json import json_digest
from policies.digests.listings import by_directory
from policies.digests.logs import merged
from policies.digests.rows import Source
from policies.digests.search_hits import by_file
from policies.text.excerpt import Cost, excerpt
from policies.tools import HEAD, ToolKind

_FORMS: Sequence[tuple[Callable[[Source], str], frozenset[ToolKind]]] = (
    (json_digest, frozenset()),
    (changed, frozenset()),
    (as_text, frozenset({"file", "search"})),
    (failed, frozenset({"file"})),
    (by_file, frozenset({"file"})),
    (by_directory, frozenset({"file"})),
    (merged, frozenset()),
)
"""The forms, in the order in which they are tried, and the kinds of tools whose outputs they are not made for."""
_CHARACTERS = 16
"""Characters that a token may stand for: what is longer is not worth counting."""


def digested(text: str, kind: ToolKind, budget: int, mentioned: frozenset[str], cost: Cost) -> str:
    """`text` made short to about `budget` tokens (as `cost` counts) by what it is."""
    if len(text) <= _CHARACTERS * budget and cost(text) <= budget:
        return text
    source = Source(text, kind, budget, mentioned, cost)
    found = (_tried(form, source) for form, others in _FORMS if kind not in others)
    short = next(filter(None, found), "") or excerpt(text, budget, HEAD[kind], mentioned, cost)
    return min(text, short, key=len)


def _tried(form: Callable[[Source], str], source: Source) -> str:
    """What a form makes of a text; "" where it stumbles: a text made to break one costs its own form, no more."""
    try:
        return form(source)
    except (ValueError, AssertionError, RecursionError):
        return ""

"""Tool outputs shortened according to their form: each form of text has a module that knows what matters in it.

Laws: a digest is never longer than the text; errors come before anything else, and the last error and the exit status
always stay; omissions are counted; the same text gives the same digest everywhere.
"""

from collections.abc import Callable, Sequence

from policies.digests.groups import hits_digest, listing_digest
from policies.digests.html import html_digest
from policies.digests.json import json_digest
from policies.digests.rows import Source, diff_digest, failure_digest, log_digest
from policies.text.excerpt import Cost, excerpt
from policies.tools import HEAD, ToolKind

Form = tuple[Callable[[Source], str], frozenset[ToolKind]]
"""What shortens texts of one form ("" for others), and the kinds of output in which it is not looked for."""

FORMS: Sequence[Form] = (
    (json_digest, frozenset()),
    (diff_digest, frozenset()),
    (html_digest, frozenset({"file", "search"})),
    (failure_digest, frozenset({"file"})),
    (hits_digest, frozenset({"file"})),
    (listing_digest, frozenset({"file"})),
    (log_digest, frozenset()),
)


def digested(
    text: str, kind: ToolKind, budget: int, mentioned: frozenset[str], cost: Cost, forms: Sequence[Form] = FORMS
) -> str:
    """`text` shortened to about `budget` tokens (as `cost` counts) according to the first of `forms` that it has."""
    if len(text) <= 16 * budget and cost(text) <= budget:  # a token has at most 16 characters
        return text
    source = Source(text, kind, budget, mentioned, cost)
    for form, others in forms:
        try:
            short = "" if kind in others else form(source)
        except (ValueError, AssertionError, RecursionError):
            continue  # a text made to break one form is left to the next
        if short:
            break
    else:
        short = excerpt(text, budget, HEAD[kind], mentioned, cost)
    return min(text, short, key=len)

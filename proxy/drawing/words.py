"""Meanings of the terms on a page: each has a tooltip, and all are listed below the page."""

from collections.abc import Mapping

from policies.planning.rereads import REREAD
from policies.presets import POLICIES
from proxy.drawing.html import Markup, element

WHY: Mapping[str, str] = {name: policy.why for name, policy in POLICIES.items()} | {
    REREAD: "it points at an earlier result that is hidden, so it gets that text"
}
"""Why each policy edits what it edits."""
REASONS: Mapping[str, str] = {
    "": "nothing new is shortened in this request; earlier edits stay",
    "tail-cut": "outputs that the model has just answered are cut; nothing older changes",
    "checkpoint:paid": "a rewrite costs less than sending the old text with each further request",
    "checkpoint:window": "the request comes near the window or a price tier, so older text is shortened",
    "checkpoint:context": "a trigger of the preset holds, or the configured prompt size is reached",
    "checkpoint:cold": "the provider's cache of this prompt has expired, so a rewrite costs nothing",
    "checkpoint:summary": "a summary of old turns pays and replaces them from now on",
    "checkpoint:summary-stale": "the summary is no longer valid, so its turns are sent again",
    "checkpoint:recall": "a recall of an earlier reply is no longer stored, so it cannot be put back",
    "checkpoint:replayed": "it is no longer known what was sent before, so the history is planned again",
    "checkpoint:shed": "there was no time to plan, so earlier edits stay and nothing new is decided",
    "checkpoint:tools": "definitions of tools were found, or are no longer deferred, and the history follows them",
    "checkpoint:config": "the settings, or the release, are not those of the request before",
    "checkpoint:failed-open": "planning failed, so the request is sent as the client wrote it",
}
"""Why a request is sent as it is sent."""
OUTCOMES: Mapping[str, str] = {
    **REASONS,
    "": "the reply did not say what became of the prefix",
    "first": "the first request of its conversation: nothing was sent before",
    "extended": "the request begins with all of the one before, so the provider's cache can be used",
    "client-changed": "the client changed its own history, model or tools",
    "bypassed": "the request was sent as the client wrote it, without planning",
}
"""Outcomes of the prefix of a request."""
TERMS: Mapping[str, str] = {
    "any stop": "the worst ratio of the bills if the session had ended at any of its requests",
    "baseline": "an estimate: what the same requests would have cost without edits, with the cache they would have had",
    "breaks": "requests that did not begin with all of the request before",
    "cache share": "the share of the prompt tokens that the provider read from its cache, at a lower price",
    "calibration error": "how far the baseline was from the true bill of requests that were not edited",
    "checkpoint": "a request in which earlier text is rewritten; behind that place the provider's cache cannot be used",
    "end": "the worst ratio of the input bills at the end of a session",
    "estimate": "calculated from the baseline, not measured",
    "holdout": "a share of the conversations that is not edited, so that the saving can be measured",
    "input bill": "the cost of prompts, without replies",
    "lines": "lines of old text that later turns quote: the share that stayed visible",
    "lines at risk": "of these lines, those that last occurred more than five turns before",
    "lost": "it is not in the prompt, and nothing leads back to it",
    "original": "tokens of the prompt as the client wrote it",
    "paid": "dollars by the provider's own token counts and prices, with recalls",
    "past 20": "the worst ratio of the bills if the session had ended at any request after the 20th",
    "pauses": "times without a request: the provider forgets a prompt that it has not seen for minutes",
    "peak": "tokens of the largest prompt",
    "prefix": "the beginning of a prompt: as long as it stays the same, the provider reads it from its cache",
    "preset": "a named list of policies; each policy shortens something",
    "quoted": "old text that later edits quote: the share that stayed visible",
    "rare": "names and numbers with at most three earlier occurrences: the share that stayed visible",
    "rare at risk": "of the rare ones, those that last occurred more than five turns before",
    "ratio": "the bill with Narrows divided by the bill without: below 1, Narrows saves",
    "recall": "the model asks for text that was left out and gets it",
    "recalls": "the share of recall rounds in the input bill",
    "recoverable": "it was left out, and the model can get it by a recall or by running a tool again",
    "saved": "baseline minus paid minus summaries: an estimate, which may be negative",
    "sent": "tokens of the prompt that the provider received",
    "stands": "the summary is in the newest request, in place of the turns that it covers",
    "stubbed": "a short text replaces it and names no way to get it back",
    "summaries": "dollars for summaries and digests that a model wrote, in addition to the requests",
    "tail-cut": "only outputs at the end of the request before were cut, so nearly all of the prefix stays",
    "visible": "it is in the prompt as it was written",
    "whole": "the ratio of the whole bills: prompts, replies, recalls and summaries",
    "whole bill": "the cost of prompts, replies, recalls and summaries",
    "written again": "tokens that were in the provider's cache and had to be paid for as new",
}


def term(name: str, text: str = "") -> Markup:
    """A word that explains itself; `text` is how it is written here."""
    return element("abbr", text or name, title=TERMS[name])


def head_of(name: str) -> Markup:
    """The head of a column, which explains itself where it is a term."""
    return term(name) if name in TERMS else element("span", name)


def outcome(prefix: str) -> Markup:
    """An outcome of a prefix, which explains itself."""
    return element("abbr", prefix or "not reported", title=OUTCOMES.get(prefix))


def glossary(*names: str) -> Markup:
    """Meanings of these terms, for who has no pointer, and for paper."""
    items = [(element("dt", element("b", name)), element("dd", TERMS[name])) for name in sorted(names)]
    return element("details", element("summary", "Terms on this page"), element("dl", items), class_="words")

"""What the words on a page mean: each of them explains itself under the pointer, and below the page."""

from collections.abc import Mapping

from policies.presets import POLICIES
from proxy.drawing.html import Markup, element

WHY: Mapping[str, str] = {name: policy.why for name, policy in POLICIES.items()}
"""Why each policy shortens what it shortens."""
REASONS: Mapping[str, str] = {
    "": "nothing new in this request; what was shortened in earlier ones stays as it is",
    "tail-cut": "outputs that the model has just answered are cut; nothing older moves",
    "checkpoint:paid": "a rewrite costs less than carrying the old text along",
    "checkpoint:window": "the request comes near the window or a price tier, so room is made",
    "checkpoint:context": "a moment that the preset names has come, or the size that was set is reached",
    "checkpoint:cold": "the provider has forgotten this prompt, so a rewrite costs nothing",
    "checkpoint:summary": "a summary of old turns has paid for itself and stands from now on",
    "checkpoint:summary-stale": "the summary does not count any more, so the turns stand for themselves again",
    "checkpoint:recall": "what was recalled behind an earlier reply is not known any more",
    "checkpoint:replayed": "what was sent before is not known any more",
    "checkpoint:shed": "there was no time to plan, so nothing new is decided",
    "checkpoint:config": "it is planned by other settings than the request before",
    "checkpoint:failed-open": "planning failed, so it goes as the client wrote it",
}
"""Why a request is sent as it is sent."""
OUTCOMES: Mapping[str, str] = {
    **REASONS,
    "": "the request did not say what became of its prefix",
    "first": "the first request of its conversation: nothing was sent before",
    "extended": "all that was sent before is the beginning of this request, and the provider's cache can be used",
    "client-changed": "the client changed its own history, model or tools",
    "bypassed": "the request went as the client wrote it, without being planned",
}
"""What became of the prefix of a request."""
TERMS: Mapping[str, str] = {
    "any stop": "the worst ratio of the bills, had the session ended at any of its requests",
    "baseline": "an estimate of what the same requests would have cost unedited, with the cache they would have had",
    "breaks": "requests that did not begin with the whole of the one before",
    "cache share": "the part of the prompt tokens that the provider read from its cache, at a lower price",
    "calibration error": "by how much the baseline missed the true bill of requests that went unedited",
    "checkpoint": "a request whose earlier text is rewritten, so that the provider's cache is of no use behind it",
    "end": "the worst ratio of the input bills of these sessions, at their ends",
    "estimate": "reckoned from the baseline, not measured",
    "holdout": "a share of the conversations that passes as the client wrote it, so that the saving can be measured",
    "input bill": "dollars for prompts alone, replies left out",
    "lines": "lines of old text that later turns quote, as far as they stayed visible",
    "lines at risk": "of these lines, those that were last said more than five turns before",
    "lost": "it stands nowhere any more",
    "original": "tokens of the prompt as the client wrote it",
    "paid": "dollars by the provider's own count of tokens, at its prices; recalls included",
    "past 20": "the worst ratio of the bills, had the session ended at any request after the 20th",
    "peak": "tokens of the largest prompt",
    "prefix": "how a prompt begins: as long as it stays the same, the provider reads it from its cache",
    "preset": "a named list of policies, each of which shortens something",
    "quoted": "old text that later edits quote, as far as it stayed visible",
    "rare": "what was said three times at most, as far as it stayed visible",
    "rare at risk": "of what is rare, what was last said more than five turns before",
    "ratio": "the bill with Narrows divided by the bill of doing nothing: below 1 it saves",
    "recall": "the model asks for text that was left out, and gets it",
    "recalls": "the share of recall rounds in the input bill",
    "recoverable": "it was left out, and the model can get it back by a recall or by running a tool again",
    "saved": "baseline less paid less summaries; an estimate, and it may be negative",
    "sent": "tokens of the prompt that the provider received",
    "stands": "the summary is in the newest request, in the place of the turns that it covers",
    "stubbed": "a short text stands in its place, which names no way back",
    "summaries": "dollars for summaries and digests that a model wrote, beside what requests cost",
    "tail-cut": "only outputs at the end of a request were cut, so that nearly all of the prefix holds",
    "visible": "it stands in the prompt as it was written",
    "whole": "the ratio of the whole bills: prompts, replies, recalls and summaries",
    "whole bill": "dollars for prompts and replies, recalls and summaries included",
    "written again": "tokens that were in the provider's cache and had to be paid as new",
}


def term(name: str, text: str = "") -> Markup:
    """A word that explains itself; `text` is how it is written here."""
    return element("abbr", text or name, title=TERMS[name])


def head_of(name: str) -> Markup:
    """The head of a column: with what it means, where it is a term."""
    return term(name) if name in TERMS else element("span", name)


def outcome(prefix: str) -> Markup:
    """What became of a prefix, which explains itself."""
    return element("abbr", prefix or "not said", title=OUTCOMES.get(prefix))


def glossary(*names: str) -> Markup:
    """What these terms mean, for who has no pointer, and for paper."""
    items = [(element("dt", element("b", name)), element("dd", TERMS[name])) for name in sorted(names)]
    return element("details", element("summary", "The words of this page"), element("dl", items), class_="words")

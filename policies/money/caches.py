"""How providers' prompt caches match, for how long they keep, and what they ask for: one table, by model.

A model's row is the first whose pattern is found in its name, among those that match only at marks or among those that
match any prefix. The economics, the pause after which a cache counts as cold and the built-in provider all read it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from policies.model.rawjson import Span, UnreadableError, items, members
from policies.money.prices import Prices

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Lifetime:
    """For how long an entry is kept after it was last used, where a request asks for it in such words."""

    pattern: re.Pattern[bytes]
    """How it is said: never found in a text, because there its quotes are escaped."""
    seconds: float
    write: float = 1.0
    """What writing then costs, relative to what it costs else."""
    by_mark: bool = False
    """Whether each mark may ask for it."""


@dataclass(frozen=True, slots=True)
class CacheRule:
    """How a kind of cache matches. Without a `mark` any prefix does, in steps of `step` tokens."""

    mark: Literal["", "cache_control", "prompt_cache_breakpoint"] = ""
    """The key by which a request marks the end of a content block as a boundary."""
    step: int = 1
    least: int = 1_024
    """Shorter prefixes are neither written nor read."""
    lookback: int = 0
    """How many positions, its own included, are looked up before each mark."""
    endings: int = 0
    """How many of the newest message ends are boundaries without a mark; the newest of them is written."""
    reads: int = 4
    """How many of the newest marks are looked up."""
    writes: int = 4
    """How many boundaries one request can write, the newest first."""
    automatic: bool = False
    """Whether a mark at the top level of a request stands for one at its last block."""
    seconds: float = HOUR
    """How long after its last use an entry may still be there: later it is gone."""
    lifetimes: tuple[Lifetime, ...] = ()
    """For how long else a request may have its entries kept."""
    explicit: re.Pattern[bytes] | None = None
    """How a request says that it wants no boundary but its marks."""

    def lifetime(self, asks: "CacheRequest") -> float:
        """Seconds of disuse after which nothing of the request's messages is cached any more."""
        term = self.requested(asks)
        return self.seconds if term is None else term.seconds

    def charged(self, prices: Prices, asks: "CacheRequest") -> Prices:
        """What the cache costs the request. Where only marks make an entry and there is none, nothing is cached, and
        all of it is plain input each time."""
        if self.mark and not asks.marked and not self._ends_by_itself(asks):
            return replace(prices, read=1.0, write=1.0, breakpoints=False)
        term = self.requested(asks)
        return prices if term is None else replace(prices, write=prices.write * term.write)

    def takes_marks(self, asks: "CacheRequest") -> bool:
        """Whether a mark that asks for no time may be added: where marks do themselves, it must not stand before one
        that is to be kept for longer."""
        term = self.requested(asks)
        return term is None or not term.by_mark

    def _ends_by_itself(self, asks: "CacheRequest") -> bool:
        return self.endings > 0 and not (self.explicit and asks.says(self.explicit))

    def requested(self, asks: "CacheRequest") -> Lifetime | None:
        """What the request asks for."""
        found = (
            term
            for term in self.lifetimes
            if asks.says(term.pattern) or (term.by_mark and asks.marks_say(term.pattern))
        )
        return next(found, None)


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """What a request asks of the cache for its messages."""

    body: bytes
    beside: Sequence[Span]
    """Where the request speaks of itself: neither in its messages nor in what stands before them, because marks there
    concern only that."""
    messages: Sequence[Span]
    """The messages that carry marks."""
    marked: bool
    """Whether any mark is set at all."""

    @classmethod
    def of(
        cls, body: bytes, apart: Iterable[Span], messages: Sequence[Span], marks: Iterable[int], marked: bool
    ) -> Self:
        """What a body asks for. `apart` stands before its messages, each of which carries so many `marks`."""
        taken = sorted([*apart, (messages[0][0], messages[-1][1])] if messages else apart)
        ends, starts = [0, *(end for _, end in taken)], [*(start for start, _ in taken), len(body)]
        beside = [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]
        return cls(body, beside, [span for span, count in zip(messages, marks, strict=True) if count], marked)

    def says(self, words: re.Pattern[bytes]) -> bool:
        """Whether the request says so of itself."""
        return any(words.search(self.body, *span) for span in self.beside)

    def marks_say(self, words: re.Pattern[bytes]) -> bool:
        """Whether a mark in one of its messages says so."""
        return any(_says(self.body, message, words) for message in self.messages)


def _says(body: bytes, message: Span, words: re.Pattern[bytes]) -> bool:
    """Whether a message says so, but for what a tool is called with: that may look like anything."""
    if words.search(body, *message) is None:
        return False
    inputs = _inputs(body, message)
    ends, starts = [message[0], *(end for _, end in inputs)], [*(start for start, _ in inputs), message[1]]
    return any(words.search(body, end, start) for end, start in zip(ends, starts, strict=True))


def _inputs(body: bytes, message: Span) -> list[Span]:
    """Where a message says what tools are called with, as JSON and not as a text that holds it."""
    try:
        blocks = [members(body, *block) for block in items(body, *members(body, *message)["content"])]
    except (UnreadableError, KeyError):
        return []
    return [block["input"] for block in blocks if "input" in block]


# Anthropic, "Prompt caching": at most 4 breakpoints, at most 20 positions per breakpoint, the breakpoint itself being
# the first; 5 minutes from the last use, or an hour where the mark says so, and then a write costs 2 instead of 1.25. A
# `cache_control` at the top level is applied to the last cacheable block.
_ONE_HOUR = Lifetime(re.compile(rb'"cache_control"\s*:\s*\{[^{}]*"ttl"\s*:\s*"1h"'), HOUR, 2.0 / 1.25, by_mark=True)
ANTHROPIC = CacheRule("cache_control", lookback=20, automatic=True, seconds=5 * MINUTE, lifetimes=(_ONE_HOUR,))
# OpenAI from GPT-5.6: by the API reference the latest 80 breakpoints are looked up and four are written, the
# implicit one included; by the guide, in implicit mode also up to 20 earlier endings of eligible messages. 30 minutes
# are the least it keeps an entry, and 24 hours (`prompt_cache_retention`, the only value there is) the most.
_EXPLICIT = re.compile(rb'"prompt_cache_options"\s*:\s*\{[^{}]*"mode"\s*:\s*"explicit"')
# Responses only; 12 hours, too, are the least. A write costs 1.25, and no other price for this time is named.
_TWELVE_HOURS = Lifetime(re.compile(rb'"prompt_cache_options"\s*:\s*\{[^{}]*"ttl"\s*:\s*"12h"'), DAY)
OPENAI = CacheRule(
    "prompt_cache_breakpoint", endings=21, reads=80, seconds=DAY, lifetimes=(_TWELVE_HOURS,), explicit=_EXPLICIT
)
# OpenAI before GPT-5.6, "Prompt caching": hits come in steps of 128 tokens. In memory an entry is always gone one hour
# after its last use; where a model knows extended retention that is the default, and it ends after 24 hours.
_IN_MEMORY = Lifetime(re.compile(rb'"prompt_cache_retention"\s*:\s*"in[_-]memory"'), HOUR)
_EXTENDED = Lifetime(re.compile(rb'"prompt_cache_retention"\s*:\s*"24h"'), DAY)
PREFIX = CacheRule(step=128, lifetimes=(_EXTENDED,))
_KEPT_A_DAY = replace(PREFIX, seconds=DAY, lifetimes=(_IN_MEMORY,))
# Gemini API, "Context caching": implicit from 2.5 on, its least by model; how long is not said.
_GEMINI = CacheRule(least=4_096)
# DeepSeek API, "Context caching": units of 64 tokens, cleared within a few hours to a few days.
_DEEPSEEK = CacheRule(step=64, least=64, seconds=DAY)

_MARKED = (
    # Anthropic, "Prompt caching", "Cache limitations": the least by model
    (r"claude-(opus|fable|mythos)-5", replace(ANTHROPIC, least=512)),
    (r"claude-opus-4[.-]7", replace(ANTHROPIC, least=2_048)),
    (r"claude-(opus-4[.-][56]|haiku-4[.-]5)", replace(ANTHROPIC, least=4_096)),
    (r"claude-(3[.-]5-haiku|3-haiku|haiku-3)", replace(ANTHROPIC, least=2_048)),
    (r"claude", ANTHROPIC),
    (r"", OPENAI),
)
"""Caches that match only at marks."""
_UNMARKED = (
    # OpenAI, "Prompt caching", "Extended prompt cache retention"
    (r"gpt-(4\.1|5)", _KEPT_A_DAY),
    (r"gemini-2\.5", replace(_GEMINI, least=2_048)),
    (r"gemini", _GEMINI),
    (r"deepseek", _DEEPSEEK),
    (r"", PREFIX),
)
"""Caches that match any prefix."""


def marks_only(model: str, writes_cost: bool) -> bool:
    """Whether the cache of a model matches only at marks: Anthropic's always; OpenAI's where writing has a price, which
    is from GPT-5.6 on."""
    return "claude" in model or ("gpt-" in model and writes_cost)


def longer_write(prices: Prices) -> float:
    """What a write for the longer lifetime costs relative to any other."""
    terms = rule_for(prices.model, prices).lifetimes if prices.breakpoints else ()
    return max((term.write for term in terms), default=1.0)


def rule_for(model: str, prices: Prices) -> CacheRule:
    """How the cache of a model matches that has these prices."""
    rows = _MARKED if prices.breakpoints else _UNMARKED
    return next(rule for pattern, rule in rows if re.search(pattern, model.lower()))

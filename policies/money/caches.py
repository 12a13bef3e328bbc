"""How providers' prompt caches match, how long they keep an entry, what a request asks of them, by model, and where an
added mark helps.

What a write costs, for the longer lifetime too ("1h": `_ONE_HOUR` below), is in the row's `lifetimes`; Prices.cost
(policies.money.prices) applies it. A model's row is the first whose pattern is found in its name, among the caches that
match only at marks or among those that match any prefix. The ledger, the pause after which a cache counts as cold and
the built-in provider all read this table.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from policies.model.conversation import Conversation
from policies.model.rawjson import Span, UnreadableError, items, members
from policies.money.lifetimes import Lifetimes
from policies.money.prices import Prices

MarkLifetime = Literal["own", "auto", "usual"]
"""The marks whose lifetime follows the pauses of their conversation: those of Narrows, where the client sets none;
the client's as well; or none."""

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Lifetime:
    """An entry's time after its last use, where a request asks for it by the pattern: outside of JSON strings."""

    pattern: re.Pattern[bytes]
    seconds: float
    write: float = 1.0
    """The price of a write then, relative to a write for the usual lifetime."""
    by_mark: bool = False
    """True where each mark may ask for it."""
    by_default: bool = False
    """True where marks of Narrows may ask for it without a person's word."""


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """The wishes of a request to the cache for its messages."""

    body: bytes
    settings: Sequence[Span]
    """Top-level settings of the body: neither messages nor what stands before them, whose marks concern only that."""
    messages: Sequence[Span]
    marked: bool

    @classmethod
    def of(
        cls, body: bytes, apart: Iterable[Span], messages: Sequence[Span], bearing: Sequence[Span], marked: bool
    ) -> Self:
        """Read a body. `apart` are its parts before the messages; `bearing` are the messages that carry marks."""
        others = sorted([*apart, (messages[0][0], messages[-1][1])] if messages else apart)
        return cls(body, _between((0, len(body)), others), bearing, marked)

    def matches(self, pattern: re.Pattern[bytes], by_mark: bool = False) -> bool:
        """True where the settings match; with `by_mark` also whether a marked message does outside the input of tool
        calls, which is JSON that may look like anything."""
        spans = list(self.settings)
        for message in self.messages if by_mark else ():
            if pattern.search(self.body, *message):
                try:
                    content = items(self.body, *members(self.body, *message)["content"])
                    blocks = [members(self.body, *block) for block in content]
                except (UnreadableError, KeyError):
                    blocks = []
                spans += _between(message, [block["input"] for block in blocks if "input" in block])
        return any(pattern.search(self.body, *span) for span in spans)


def _between(span: Span, others: Sequence[Span]) -> list[Span]:
    """The parts of a span outside of others, which are sorted and lie within it."""
    starts, ends = [span[0], *(end for _, end in others)], [*(start for start, _ in others), span[1]]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


@dataclass(frozen=True, slots=True)
class CacheRule:
    mark: Literal["", "cache_control", "prompt_cache_breakpoint"] = ""
    """The key by which a request marks the end of a content block as a boundary."""
    step: int = 1
    least: int = 1_024
    """Tokens of the shortest prefix that is written or read."""
    lookback: int = 0
    """How many positions, its own included, are looked up before each mark. Each content block is one."""
    joins_runs: bool = False
    """True where a run of calls is one position, and a run of results."""
    endings: int = 0
    """How many of the newest message ends are boundaries without a mark; the newest of them is written."""
    reads: int = 4
    """How many of the newest marks are looked up."""
    writes: int = 4
    """How many boundaries one request can write, the newest first."""
    automatic: bool = False
    """True where a mark at the top level of a request is applied to its last block."""
    seconds: float = HOUR
    """How long after its last use an entry may still be there; later it has expired."""
    lifetimes: tuple[Lifetime, ...] = ()
    """Other lifetimes that a request may ask for."""
    explicit: re.Pattern[bytes] | None = None
    """How a request asks for no boundaries but its marks."""

    def lifetime(self, request: CacheRequest) -> float:
        """Seconds without use after which nothing of the request's messages is cached any more."""
        return self._requested(request).seconds

    def charged(self, prices: Prices, request: CacheRequest) -> Prices:
        """The model's prices as the cache charges this request. Where only marks make an entry and there is none,
        nothing is cached, and all of it is plain input each time."""
        ends_count = self.endings > 0 and not (self.explicit and request.matches(self.explicit))
        if self.mark and not request.marked and not ends_count:
            return replace(prices, read=1.0, write=1.0, breakpoints=False)
        return replace(prices, write=prices.write * self._requested(request).write)

    def takes_marks(self, request: CacheRequest) -> bool:
        """True where a mark without a lifetime may be added: never before a mark with a longer one."""
        return not self._requested(request).by_mark

    def _requested(self, request: CacheRequest) -> Lifetime:
        usual = Lifetime(re.compile(b""), self.seconds)
        return next((each for each in self.lifetimes if request.matches(each.pattern, each.by_mark)), usual)


# Anthropic, "Prompt caching": at most 4 breakpoints; 5 minutes from the last use, or an hour where the mark says so; a
# write then costs 2 instead of 1.25. A `cache_control` at the top level is applied to the last cacheable block. "The
# lookback window is 20 blocks. The system checks at most 20 positions per breakpoint, counting the breakpoint itself as
# the first." "On the Claude API, a run of consecutive `tool_use` blocks counts as one position, and so does a run of
# consecutive `tool_result` blocks, so a turn with many parallel tool calls doesn't push the previous request's entry
# out of the window on its own." Of other platforms it does not say so, and neither do they: Amazon's "Prompt caching
# for faster model inference" looks back "approximately 20 content blocks". So each block counts there, which is dearer.
_ONE_HOUR = Lifetime(re.compile(rb'"cache_control"\s*:\s*\{[^{}]*"ttl"\s*:\s*"1h"'), HOUR, 2.0 / 1.25, True, True)
ANTHROPIC = CacheRule(
    "cache_control", lookback=20, joins_runs=True, automatic=True, seconds=5 * MINUTE, lifetimes=(_ONE_HOUR,)
)
_CLAUDE_API = re.compile(r"claude[^/@:]*")
"""Names of models on the Claude API itself; with a vendor, a region or a version behind `@` they are another's."""
# OpenAI from GPT-5.6: by the API reference the latest 80 breakpoints are looked up and four are written, the
# implicit one included; by the guide, in implicit mode also up to 20 earlier endings of eligible messages. "A cached
# prefix remains eligible for reuse for 30 minutes after its most recent write or reuse, though OpenAI may retain it
# longer." These models take `prompt_cache_retention`, and it changes nothing.
_EXPLICIT = re.compile(rb'"prompt_cache_options"\s*:\s*\{[^{}]*"mode"\s*:\s*"explicit"')
# Responses only, and a write then costs 2.5 instead of 1.25
_TWELVE_HOURS = Lifetime(re.compile(rb'"prompt_cache_options"\s*:\s*\{[^{}]*"ttl"\s*:\s*"12h"'), 12 * HOUR, 2.0)
_TWELVE_HOURS_BY_MARK = replace(
    _TWELVE_HOURS, pattern=re.compile(rb'"prompt_cache_breakpoint"\s*:\s*\{[^{}]*"ttl"\s*:\s*"12h"'), by_mark=True
)
OPENAI = CacheRule(
    "prompt_cache_breakpoint",
    endings=21,
    reads=80,
    seconds=30 * MINUTE,
    lifetimes=(_TWELVE_HOURS, _TWELVE_HOURS_BY_MARK),
    explicit=_EXPLICIT,
)
# OpenAI before GPT-5.6, "Prompt caching": hits come in steps of 128 tokens. In memory an entry is always gone one hour
# after its last use; where a model knows extended retention that is the default, and it ends after 24 hours.
_IN_MEMORY = Lifetime(re.compile(rb'"prompt_cache_retention"\s*:\s*"in[_-]memory"'), HOUR)
_EXTENDED = Lifetime(re.compile(rb'"prompt_cache_retention"\s*:\s*"24h"'), DAY)
PREFIX = CacheRule(step=128, lifetimes=(_EXTENDED,))
_PREFIX_FOR_A_DAY = replace(PREFIX, seconds=DAY, lifetimes=(_IN_MEMORY,))
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
_UNMARKED = (
    # OpenAI, "Prompt caching", "Extended prompt cache retention"
    (r"gpt-(4\.1|5)", _PREFIX_FOR_A_DAY),
    (r"gemini-2\.5", replace(_GEMINI, least=2_048)),
    (r"gemini", _GEMINI),
    (r"deepseek", _DEEPSEEK),
    (r"", PREFIX),
)


def marks_only(model: str, writes_cost: bool) -> bool:
    """True where a cache matches only at marks: Anthropic's; OpenAI's where writing has a price (from GPT-5.6 on)."""
    return "claude" in model or ("gpt-" in model and writes_cost)


def lifetimes_of(rule: CacheRule, prices: Prices, wish: MarkLifetime, *, ours: bool) -> Lifetimes | None:
    """The longer lifetime that its marks may ask for; None where they may not. `ours`: the client sets none itself."""
    longer = next((each for each in rule.lifetimes if each.by_mark), None)
    if longer is None or not (wish == "auto" or (wish == "own" and ours and longer.by_default)):
        return None
    return Lifetimes(longer.seconds, prices.write * longer.write)


def longer_write(prices: Prices) -> float:
    """The price of a write for the longer lifetime, relative to one for the usual lifetime."""
    lifetimes = rule_for(prices.model, prices).lifetimes if prices.breakpoints else ()
    return max((each.write for each in lifetimes), default=1.0)


def rule_for(model: str, prices: Prices) -> CacheRule:
    rows, name = _MARKED if prices.breakpoints else _UNMARKED, model.lower()
    rule = next(rule for pattern, rule in rows if re.search(pattern, prices.assumed or name))
    return replace(rule, joins_runs=False) if rule.joins_runs and not _CLAUDE_API.fullmatch(name) else rule


# --- where an added cache mark helps, on caches that match only at marks ---
# There are three places. At the end of what will stay as it is: where the client marks the end of its requests itself,
# that is before the newest result, whose entry survives when the result is cut one step later; where it does not,
# before the first block that will be cut, or at the very end. And where a rewrite begins, or nothing was found for a
# while: at the end of the newest entry that stands, because a provider looks back only so far from a mark

MarkStyle = Literal["", "cache_control", "prompt_cache_breakpoint"]
LONGER_TTL: Mapping[str, bytes] = {"cache_control": b'"1h"', "prompt_cache_breakpoint": b'"12h"'}
"""The longer lifetime that a mark asks for, as JSON."""
OwnMarks = Literal["auto", "beside", "never"]
"""Where marks of ours are set: wherever the cache matches only at marks, beside the client's, or nowhere."""

_MARKABLE: Mapping[MarkStyle, frozenset[str]] = {
    "cache_control": frozenset({"user", "result", "assistant"}),
    # OpenAI takes breakpoints on system, user and tool content only
    "prompt_cache_breakpoint": frozenset({"user", "result"}),
}


def newest_input(conversation: Conversation, step: int) -> int:
    """Where the newest input of the model begins: what came after its last words and calls."""
    at = conversation.ends[step]
    while at and conversation.blocks[at - 1].kind in ("user", "result", "system"):
        at -= 1
    return at


def own_marks(
    conversation: Conversation, *, entry: int, stays: int, style: MarkStyle, slots: int, tail: bool = False
) -> tuple[int, ...]:
    """The blocks at whose end a mark is to be added. `entry` is the end of the newest cache entry where a mark is
    needed to find it (0: none is), `stays` that of the blocks that will stay as they are. `slots` is how many marks are
    free: a single one goes to the entry, except in a `tail` cut, whose own tail is soon cut again."""
    if not style or slots <= 0:
        return ()
    places = set[int]()
    for end in (entry, stays):
        # the last block before it that can carry a mark and ends its message's content
        for at in range(end - 1, conversation.head - 1, -1):
            block = conversation.blocks[at]
            following = conversation.blocks[at + 1] if at + 1 < len(conversation.blocks) else None
            ends_content = following is None or following.message != block.message or following.kind == "call"
            if block.kind in _MARKABLE[style] and block.text and ends_content:
                places.add(at)
                break
    marks = sorted(places)
    return tuple(marks[-slots:] if tail else marks[:slots])

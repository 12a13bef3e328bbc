"""Old turns fold into a rolling summary, made in the background: when one is wanted, of what, and how it stands.

Laws
  A summary covers whole turns outside the keep window; a call stays with its results. The window is narrower once a
  summary stands.
  It is made of the one before and the turns since; after so many generations of the originals again.
  What people wrote is repeated verbatim up to a budget, rules and the newest first; what exceeds the budget stays where
  it is. So do the first and the newest message of a person, and all system text.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby

from policies.context import Context, Summarizing, Want
from policies.laws import protected_users
from policies.model.conversation import Block, Conversation
from policies.model.edits import Fold, Origin
from policies.model.parameters import parameter
from policies.model.summary_record import SummaryRecord, source_of
from policies.model.windows import Keep, Trigger, amounts, begin_of
from policies.rules.base import ConfiguredPolicy, Conflict, never_due, policy
from policies.text.stubs import Frame, framed, summarized, summary
from policies.text.transcript import size

_ASKING = 700
"""Tokens of the prompt around what is summarised."""
_USUAL = 0.75
"""The usual length of a summary, as a share of the tokens that it may have."""
_SHARE = 0.8
"""How much of the summariser's window is used: it may count tokens in another way."""
_PROFIT = 60
"""Tokens that each run after the first must save, because it is one more stub."""
_RULE = re.compile(
    r"\b(must|never|always|don'?t|do not|only|prefer|avoid|make sure|remember|rules?|required?|should|from now on)\b",
    re.I,
)
"""Words in a message that sets a rule."""


@policy
class Summarize(ConfiguredPolicy):
    """Offers the newest summary in the place of what it covers, and asks for the next one."""

    keep: Keep = parameter("turns", "the newest turns, which stay as they are")
    keep_after: Keep = parameter("turns", "the newest turns, once a summary stands")
    when: Sequence[Trigger] = parameter("triggers", "from when on a summary is asked for")
    batch: int = parameter("tokens", "what a new summary takes out of sight, at least")
    verbatim_tokens: int = parameter("tokens", "messages of people that are repeated verbatim, at most")
    generations: int = parameter("summaries", "each made of the one before, until one is made of the originals again")
    long_message: int = parameter("tokens", "no summary is asked for while a person's newest message has more")
    as_system: bool = parameter("yes or no", "whether the summary is a system message", default=False)
    frame: Frame = parameter("name", "the marks around the summary", default="narrows_summary")

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Fold | Want]:
        """The summary that can stand from now on, and the one that would help."""
        latest = context.summaries[-1] if context.summaries else None
        if context.summarizing is None or context.step < 2:
            return
        if conversation.is_text_protocol and not context.text_protocol:
            return
        if latest is not None and _is_news(conversation, context, latest):
            yield from self._folds(conversation, context, latest, context.summarizing)
        start = conversation.ends[0]
        outside = _outside(conversation, context, self.keep_after if context.summary or latest else self.keep)
        end = _end(conversation, outside)
        if end < start or _newest_words(conversation, context) > self.long_message:
            return
        covered = max(_covered(conversation, context, latest), context.tried)
        new = sum(context.sizes[max(start, covered) : end + 1])
        if new >= self.batch and any(context.holds(conversation, trigger) for trigger in self.when):
            yield self._want(conversation, context, context.summarizing, range(start, end + 1), latest)

    def _want(
        self,
        conversation: Conversation,
        context: Context,
        summarizing: Summarizing,
        span: range,
        latest: SummaryRecord | None,
    ) -> Want:
        """A want for a summary of `span`, made of the `latest` one and what is new, or of the originals where that one
        has reached the last generation. It covers as much as the summariser can read in one call."""
        room = int((summarizing.prices.window or context.budget.window) * _SHARE) - _ASKING - summarizing.tokens
        if latest is not None and latest.generation >= self.generations and _fits(conversation, context, span, room):
            latest = None
        since = conversation.index[latest.last] + 1 if latest else span.start
        before = latest.tokens_after if latest else 0
        new = range(since, span.stop)
        if not _fits(conversation, context, new, room - before):
            new = _beginning(conversation, new, room - before)
        words = conversation.person_tokens[new.stop] - conversation.person_tokens[span.start]
        return Want(
            first=conversation.blocks[span.start].anchor,
            last=conversation.blocks[new.stop - 1].anchor,
            reason="rolling" if latest else "originals",
            since=conversation.blocks[since].anchor,
            previous=latest.id if latest else "",
            generation=latest.generation + 1 if latest else 1,
            tokens=int(summarizing.tokens * _USUAL) + min(words, self.verbatim_tokens),
            cost=_cost(conversation, context, summarizing, new, before) if context.newest else 0.0,
        )

    def _folds(
        self, conversation: Conversation, context: Context, record: SummaryRecord, summarizing: Summarizing
    ) -> Iterator[Fold]:
        """The summary in the place of what it covers: one message for each run between messages that stay."""
        span = range(conversation.index[record.first], conversation.index[record.last] + 1)
        carried = _carried(conversation, span, protected_users(conversation, context.step), self.verbatim_tokens)
        system = _system(conversation, context, record)
        origin = _origin(record, context, summarizing)
        content = record.content
        for run in _runs(conversation, context, (*sorted(i for i in system if i not in span), *span), carried, system):
            first, last = conversation.blocks[run.start], conversation.blocks[run.stop - 1]
            words = [_text(conversation, m) for m in sorted(carried) if first.message <= m <= last.message]
            ref = conversation.run_ref(run.start, run.stop - 1) if context.recall else ""
            count = last.message - first.message + 1
            text = summary(count, content, words, ref, self.frame) if content else summarized(count, words, ref)
            if content or context.count(text) + _PROFIT <= sum(conversation.blocks[i].tokens for i in run):
                yield Fold(first.anchor, last.anchor, text, "summarize", origin, system=self.as_system)
            content = ""

    def conflicts(self) -> Iterator[Conflict]:
        """A window that is wider once a summary stands, and triggers that hold before anything has left the window."""
        before, after = amounts(self.keep), amounts(self.keep_after)
        if all(after.get(unit, -1) >= amount for unit, amount in before.items()):
            for unit in [unit for unit, amount in before.items() if after[unit] > amount][:1]:
                yield ("keep_after",), f"{after[unit]:g} {unit} are more than `keep` says ({before[unit]:g}); lower it"
        yield from never_due(self.keep, self.when)


def _is_news(conversation: Conversation, context: Context, record: SummaryRecord) -> bool:
    """Whether the summary covers more than the one that stands."""
    origin = context.summary.origin if context.summary else None
    return origin is None or conversation.index[record.last] > conversation.index[origin.last]


def _outside(conversation: Conversation, context: Context, keep: Keep) -> int:
    """How many whole turns stand outside the window."""
    if isinstance(keep, int):
        return context.step - keep
    first = begin_of(conversation, keep, context.step, context.budget.window)
    return conversation.blocks[min(first, len(conversation.blocks) - 1)].turn


def _end(conversation: Conversation, turns: int) -> int:
    """The last block of the first `turns` turns; of fewer where one leaves a call open."""
    while turns > 0 and _last(conversation, turns) + 1 in conversation.no_cut_before:
        turns -= 1
    return _last(conversation, turns)


def _last(conversation: Conversation, turns: int) -> int:
    """The last block of the first `turns` turns; what a person wrote after it leads to the next one."""
    if turns < 1:
        return -1
    at = conversation.ends[turns] - 1
    while at >= 0 and conversation.blocks[at].turn >= turns:
        at -= 1
    return at


def _covered(conversation: Conversation, context: Context, latest: SummaryRecord | None) -> int:
    """How many blocks summaries cover already."""
    origin = context.summary.origin if context.summary else None
    lasts = (each.last for each in (origin, latest) if each is not None)
    return max((conversation.index[last] + 1 for last in lasts if last in conversation.index), default=0)


def _newest_words(conversation: Conversation, context: Context) -> int:
    """Tokens of what a person wrote last, where that is new with this request."""
    start = conversation.ends[context.step - 1]
    arrived = conversation.blocks[start : conversation.ends[context.step]]
    return sum(block.tokens for block in arrived if block.from_person)


def _fits(conversation: Conversation, context: Context, blocks: range, room: int) -> bool:
    """Whether these blocks can be summarised in one call. Only the request at hand is asked: steps before it ask for
    nothing."""
    return not context.newest or size(conversation, blocks) <= room


def _beginning(conversation: Conversation, blocks: range, room: int) -> range:
    """As many of the first whole turns as can be summarised in one call; one at least."""
    between = range(conversation.blocks[blocks.start].turn + 1, conversation.blocks[blocks.stop - 1].turn + 1)
    turns = [turn for turn in between if _last(conversation, turn) + 1 not in conversation.no_cut_before]
    fitting = bisect_right(
        turns, room, key=lambda turn: size(conversation, range(blocks.start, _last(conversation, turn) + 1))
    )
    return range(blocks.start, _last(conversation, turns[max(0, fitting - 1)]) + 1) if turns else blocks


def _cost(conversation: Conversation, context: Context, summarizing: Summarizing, blocks: range, before: int) -> float:
    """What a summary of these blocks costs, with `before` tokens of the one before it, in input tokens of the model at
    hand."""
    prices, output = summarizing.prices, int(summarizing.tokens * _USUAL)
    prompt = _ASKING + size(conversation, blocks) + before
    dollars = prompt * prices.input + output * prices.output
    return dollars / context.prices.input if context.prices.input else 0.0


def _origin(record: SummaryRecord, context: Context, summarizing: Summarizing) -> Origin:
    spent, prices = record.spent, summarizing.prices
    dollars = spent.prompt * prices.input + spent.completion * prices.output
    return Origin(
        id=record.id,
        model=record.model,
        policy=record.policy,
        prompt=record.prompt,
        at=record.created_at,
        last=record.last,
        generation=record.generation,
        cost=dollars / context.prices.input if context.prices.input else 0.0,
    )


def _carried(conversation: Conversation, span: range, protected: frozenset[int], room: int) -> frozenset[int]:
    """The messages of people that the summary repeats verbatim, in `room` tokens: what sounds like a rule first, then
    the newest."""
    messages: dict[int, list[int]] = {}
    for i in span:
        if not conversation.blocks[i].from_tool:
            messages.setdefault(conversation.blocks[i].message, []).append(i)
    candidates = [m for m, blocks in messages.items() if _can_be_carried(conversation, blocks, protected)]
    carried = set[int]()
    for m in sorted(candidates, key=lambda m: (not _RULE.search(_text(conversation, m)), -m)):
        tokens = sum(conversation.blocks[i].tokens for i in messages[m])
        if tokens <= room:
            room -= tokens
            carried.add(m)
    return frozenset(carried)


def _can_be_carried(conversation: Conversation, blocks: Sequence[int], protected: frozenset[int]) -> bool:
    """Whether a message is text of a person alone: no image, no name, nothing that looks like a summary's marks."""
    return all(
        block.from_person and i not in protected and not block.tool and not framed(block.text)
        for i, block in ((i, conversation.blocks[i]) for i in blocks)
    )


def _text(conversation: Conversation, message: int) -> str:
    """What a person says in a message."""
    return "\n".join(part.text for part in conversation.messages[message].parts if part.kind == "user")


def _system(conversation: Conversation, context: Context, record: SummaryRecord) -> frozenset[int]:
    """The system text that the summary was made of, too, and may stand for."""
    if not context.exceptions.system:
        return frozenset()
    before = range(conversation.index[record.last])
    named = (i for i in before if context.exceptions.may_fold_system(conversation.blocks[i]))
    return frozenset(i for i in named if source_of(conversation, conversation.blocks[i].message) in record.sources)


def _runs(
    conversation: Conversation, context: Context, span: Sequence[int], carried: frozenset[int], system: frozenset[int]
) -> Iterator[range]:
    """Runs of blocks in the span that go. A run at whose edge a call is open stays."""
    going = [i for i in span if i in system or _goes(conversation, context, conversation.blocks[i], carried)]
    for _, run in groupby(enumerate(going), key=lambda pair: pair[1] - pair[0]):
        blocks = [i for _, i in run]
        if conversation.no_cut_before.isdisjoint((blocks[0], blocks[-1] + 1)):
            yield range(blocks[0], blocks[-1] + 1)


def _goes(conversation: Conversation, context: Context, block: Block, carried: frozenset[int]) -> bool:
    role = conversation.messages[block.message].role
    if role in ("assistant", "tool", "function") or block.from_tool:
        return True
    return role == "user" and (block.message in carried or context.is_output(block))

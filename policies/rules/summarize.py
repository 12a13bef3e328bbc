"""Old turns fold into a rolling summary, made in the background: when one is wanted, of what, and how it stands.

Laws
  A summary covers whole turns outside the keep window; a call stays with its results. The window is narrower once a
  summary stands.
  It is made of the one before and the turns since; after so many generations of the originals again.
  What people wrote is carried word for word up to a budget, rules and the newest first; what is beyond it stays where
  it is. So do the first and the newest message of a person, and all system text.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from policies.context import Context, Summarizing, Want
from policies.laws import protected_users
from policies.model.conversation import Block, Conversation
from policies.model.edits import Fold, Origin
from policies.model.summary_record import SummaryRecord, source_of
from policies.model.windows import Keep, Trigger, begin_of
from policies.text.stubs import Frame, framed, summarized, summary
from policies.text.transcript import size

_ASKING = 700
"""Tokens of the prompt around what is summarised."""
_USUAL = 0.75
"""The share of the tokens it may have that a summary usually has."""
_SHARE = 0.8
"""How much of the summariser's window is used: its own count may be another one."""
_PROFIT = 60
"""Tokens that a further run must save: each is one more stub."""
_RULE = re.compile(
    r"\b(must|never|always|don'?t|do not|only|prefer|avoid|make sure|remember|rules?|required?|should|from now on)\b",
    re.I,
)
"""How a message sounds that lays something down."""


def summarize(
    conversation: Conversation,
    context: Context,
    *,
    keep: Keep,
    keep_after: Keep,
    when: Sequence[Trigger],
    batch: int,
    words: int,
    generations: int,
    long: int,
    system: bool = False,
    frame: Frame = "narrows_summary",
) -> Iterator[Fold | Want]:
    """The summary that can stand from now on, and the one that would help.

    The window `keep` stays without a summary, `keep_after` with one; at least `batch` tokens have to go for a call;
    `words` tokens of people are carried along; nothing is asked for while a person's newest message has over `long`
    tokens. It stands as `system` text, or as a message of the history, in a `frame` of that name.
    """
    made = context.summaries[-1] if context.summaries else None
    if context.summarizing is None or context.step < 2:
        return
    if conversation.is_text_protocol and not context.text_protocol:
        return
    if made is not None and _is_news(conversation, context, made):
        for fold in _folds(conversation, context, made, context.summarizing, words, frame):
            yield replace(fold, system=system)
    start = conversation.ends[0]
    end = _end(conversation, _outside(conversation, context, keep_after if context.summary or made else keep))
    if end < start or _newest_words(conversation, context) > long:
        return
    done = max(_covered(conversation, context, made), context.tried)
    fresh = sum(context.sizes[max(start, done) : end + 1])
    if fresh >= batch and any(context.holds(conversation, trigger) for trigger in when):
        yield _want(conversation, context, context.summarizing, range(start, end + 1), made, words, generations)


def _is_news(conversation: Conversation, context: Context, made: SummaryRecord) -> bool:
    """Whether the summary covers more than the one that stands."""
    return (
        context.summary is None
        or context.summary.origin is None
        or (conversation.index[made.last] > conversation.index[context.summary.origin.last])
    )


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


def _covered(conversation: Conversation, context: Context, made: SummaryRecord | None) -> int:
    """How many blocks summaries cover already."""
    origin = context.summary.origin if context.summary else None
    lasts = (each.last for each in (origin, made) if each is not None)
    return max((conversation.index[last] + 1 for last in lasts if last in conversation.index), default=0)


def _newest_words(conversation: Conversation, context: Context) -> int:
    """Tokens of what a person wrote last, where that is new with this request."""
    start = conversation.ends[context.step - 1]
    arrived = conversation.blocks[start : conversation.ends[context.step]]
    return sum(block.tokens for block in arrived if block.from_person)


def _want(
    conversation: Conversation,
    context: Context,
    summarizing: Summarizing,
    span: range,
    made: SummaryRecord | None,
    words: int,
    generations: int,
) -> Want:
    room = int((summarizing.prices.window or context.budget.window) * _SHARE) - _ASKING - summarizing.tokens
    if made is not None and made.generation >= generations and _fits(conversation, context, span, room):
        made = None
    since = conversation.index[made.last] + 1 if made else span.start
    before = made.tokens_after if made else 0
    fresh = range(since, span.stop)
    if not _fits(conversation, context, fresh, room - before):
        fresh = _beginning(conversation, fresh, room - before)
    written = int(summarizing.tokens * _USUAL)
    said = conversation.person_tokens[fresh.stop] - conversation.person_tokens[span.start]
    return Want(
        first=conversation.blocks[span.start].anchor,
        last=conversation.blocks[fresh.stop - 1].anchor,
        reason="rolling" if made else "originals",
        since=conversation.blocks[since].anchor,
        previous=made.id if made else "",
        generation=made.generation + 1 if made else 1,
        tokens=written + min(said, words),
        cost=_cost(conversation, context, summarizing, fresh, before) if context.newest else 0.0,
    )


def _fits(conversation: Conversation, context: Context, fresh: range, room: int) -> bool:
    """Whether so much can be summarised in one call. Of the request at hand only: steps before it ask for nothing."""
    return not context.newest or size(conversation, fresh) <= room


def _beginning(conversation: Conversation, fresh: range, room: int) -> range:
    """As many of the first whole turns as can be summarised in one call; one at least."""
    between = range(conversation.blocks[fresh.start].turn + 1, conversation.blocks[fresh.stop - 1].turn + 1)
    turns = [turn for turn in between if _last(conversation, turn) + 1 not in conversation.no_cut_before]
    taken = bisect_right(
        turns, room, key=lambda turn: size(conversation, range(fresh.start, _last(conversation, turn) + 1))
    )
    return range(fresh.start, _last(conversation, turns[max(0, taken - 1)]) + 1) if turns else fresh


def _cost(conversation: Conversation, context: Context, summarizing: Summarizing, fresh: range, before: int) -> float:
    """What a summary of these blocks costs, with `before` tokens of the one before it, in input tokens of the model at
    hand."""
    prices, written = summarizing.prices, int(summarizing.tokens * _USUAL)
    asked = _ASKING + size(conversation, fresh) + before
    dollars = asked * prices.input + written * prices.output
    return dollars / context.prices.input if context.prices.input else 0.0


def _folds(
    conversation: Conversation,
    context: Context,
    made: SummaryRecord,
    summarizing: Summarizing,
    words: int,
    frame: Frame,
) -> Iterator[Fold]:
    """The summary in the place of what it covers: one message for each run between messages that stay."""
    span = range(conversation.index[made.first], conversation.index[made.last] + 1)
    carried = _carried(conversation, span, protected_users(conversation, context.step), words)
    system = _system(conversation, context, made)
    origin = _origin(made, context, summarizing)
    content = made.content
    for run in _runs(conversation, context, (*sorted(i for i in system if i not in span), *span), carried, system):
        first, last = conversation.blocks[run.start], conversation.blocks[run.stop - 1]
        said = [_text(conversation, m) for m in sorted(carried) if first.message <= m <= last.message]
        ref = conversation.run_ref(run.start, run.stop - 1) if context.recall else ""
        count = last.message - first.message + 1
        text = summary(count, content, said, ref, frame) if content else summarized(count, said, ref)
        if content or context.count(text) + _PROFIT <= sum(conversation.blocks[i].tokens for i in run):
            yield Fold(first.anchor, last.anchor, text, "summarize", origin)
        content = ""


def _origin(made: SummaryRecord, context: Context, summarizing: Summarizing) -> Origin:
    spent, prices = made.spent, summarizing.prices
    dollars = spent.prompt * prices.input + spent.completion * prices.output
    cost = dollars / context.prices.input if context.prices.input else 0.0
    return Origin(
        id=made.id,
        model=made.model,
        policy=made.policy,
        prompt=made.prompt,
        at=made.created_at,
        last=made.last,
        generation=made.generation,
        cost=cost,
    )


def _carried(conversation: Conversation, span: range, protected: frozenset[int], words: int) -> frozenset[int]:
    """The messages of people that the summary says word for word: what sounds like a rule first, then the newest."""
    messages: dict[int, list[int]] = {}
    for i in span:
        if not conversation.blocks[i].from_tool:
            messages.setdefault(conversation.blocks[i].message, []).append(i)
    said = [m for m, blocks in messages.items() if _can_be_carried(conversation, blocks, protected)]
    left, carried = words, set[int]()
    for m in sorted(said, key=lambda m: (not _RULE.search(_text(conversation, m)), -m)):
        tokens = sum(conversation.blocks[i].tokens for i in messages[m])
        if tokens <= left:
            left -= tokens
            carried.add(m)
    return frozenset(carried)


def _can_be_carried(conversation: Conversation, blocks: Sequence[int], protected: frozenset[int]) -> bool:
    """Words of a person alone: no image, no name, nothing that looks like our frame."""
    return all(
        block.from_person and i not in protected and not block.tool and not framed(block.text)
        for i, block in ((i, conversation.blocks[i]) for i in blocks)
    )


def _text(conversation: Conversation, message: int) -> str:
    """What a person says in a message."""
    return "\n".join(part.text for part in conversation.messages[message].parts if part.kind == "user")


def _system(conversation: Conversation, context: Context, made: SummaryRecord) -> frozenset[int]:
    """The system text that the summary was made of, too, and may stand for."""
    if not context.exceptions.system:
        return frozenset()
    before = range(conversation.index[made.last])
    named = (i for i in before if context.exceptions.may_fold_system(conversation.blocks[i]))
    return frozenset(i for i in named if source_of(conversation, conversation.blocks[i].message) in made.sources)


def _runs(
    conversation: Conversation, context: Context, span: Sequence[int], carried: frozenset[int], system: frozenset[int]
) -> Iterator[range]:
    """The blocks of the span that go, those together that have nothing between them; none where what stays parts a
    call from its answer."""
    going = [i for i in span if i in system or _goes(conversation, context, conversation.blocks[i], carried)]
    for _, run in groupby(enumerate(going), key=lambda pair: pair[1] - pair[0]):
        blocks = [i for _, i in run]
        if _is_whole(conversation, range(blocks[0], blocks[-1] + 1)):
            yield range(blocks[0], blocks[-1] + 1)


def _is_whole(conversation: Conversation, run: range) -> bool:
    """Whether no call is open at its edges."""
    return conversation.no_cut_before.isdisjoint((run.start, run.stop))


def _goes(conversation: Conversation, context: Context, block: Block, carried: frozenset[int]) -> bool:
    role = conversation.messages[block.message].role
    if role in ("assistant", "tool", "function") or block.from_tool:
        return True
    return role == "user" and (block.message in carried or context.is_output(block))

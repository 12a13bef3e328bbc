"""Old turns are replaced by a rolling summary, which a model writes in the background.

Laws
  A summary covers whole turns outside the keep window; a call stays with its results. The window is narrower near the
  hard mark.
  It is made of the one before and the turns since; after so many generations of the originals again.
  What people wrote is repeated verbatim up to a budget, rules and the newest first; what exceeds the budget stays where
  it is. So do the first and the newest message of a person, all system text, and turns with anything that people want
  left as it is.
  What people wrote is never system text, not even where the summary is.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Sequence, Set
from dataclasses import replace
from itertools import groupby, takewhile

from policies.context import Context, Summarizing, Want
from policies.laws import protected_users
from policies.model.conversation import Conversation
from policies.model.edits import Fold, Origin
from policies.model.parameters import Keep, Trigger, begin_of, parameter
from policies.model.summary_record import short_digest
from policies.rules.base import ConfiguredPolicy, policy
from policies.text.stubs import Frame, framed, summarized, summary, words_of_people
from policies.text.summary_checks import Rank, without
from policies.text.transcript import size

_PROMPT_TOKENS = 700
_USUAL = 0.75
"""The usual length of a summary, as a share of the tokens that it may have."""
_SHARE = 0.8
"""How much of the summarizer's window is used: it may count tokens in another way."""
_KEPT, _AHEAD = 3, 4
"""Near the hard mark the newest turns have a third of it at most, and so much less that 4 more turns have room: that in
which the summary is made, and three until the next one."""
_EXPECTED_SUMMARY = 800
_LEAST, _THIRD = 150, 3
"""Tokens that a summary may always have, and what it may have of its material: a third."""
_PROFIT = 60
"""Tokens that each run after the first must save, because it is one more stub."""
_NO_LINES = "(nothing of the assistant)"
_UNREPEATED = 30
"""Tokens of that stub, at least: there is one for each message of a person that the summary does not repeat."""
_SETS_RULE = re.compile(
    r"\b(must|never|always|don'?t|do not|only|prefer|avoid|make sure|remember|rules?|required?|should|from now on)\b",
    re.I,
)


@policy
class Summarize(ConfiguredPolicy):
    why = "old turns: a summary and the words of people replace them; the rest can be recalled"

    keep: Keep = parameter("turns", "newest turns that stay as they are when a summary is adopted")
    when: Sequence[Trigger] = parameter("triggers", "when the first summary is requested")
    when_after: Sequence[Trigger] = parameter(
        "triggers",
        "when each later one is requested; turns and messages count from the previous summary on",
        default=(),
        empty="as `when`",
    )
    when_chat: Sequence[Trigger] = parameter(
        "triggers", "the same for chats without tools, in place of both", default=(), empty="as `when` and `when_after`"
    )
    batch: int = parameter("tokens", "how much a new summary must replace, at least")
    verbatim_tokens: int = parameter("tokens", "how much of people's messages is repeated word for word, at most")
    generations: int = parameter(
        "summaries", "made from the previous summary, before one is made from the original messages again"
    )
    long_message: int = parameter("tokens", "no summary is requested while a person's newest message is longer")
    as_system: bool = parameter("yes or no", "whether the summary is a system message", default=False)
    frame: Frame = parameter("name", "the tags around the summary", default="narrows_summary")

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Fold | Want]:
        summarizing, index = context.summarizing, conversation.index
        if summarizing is None or context.step < 2 or (conversation.is_text_protocol and not context.text_protocol):
            return
        latest = context.summaries[-1] if context.summaries else None
        adopted = context.summary.origin if context.summary else None
        if latest is not None and (adopted is None or index[latest.last] > index[adopted.last]):
            yield from self._folds(conversation, context, summarizing)
        arrived = conversation.blocks[conversation.ends[context.step - 1] : conversation.ends[context.step]]
        if sum(block.tokens for block in arrived if block.from_person) > self.long_message:
            return
        start, end = conversation.ends[0], self._end(conversation, context, summarizing)
        covered = [index[each.last] for each in (adopted, latest) if each is not None and each.last in index]
        first = max(start, context.tried, *(last + 1 for last in covered))
        new = context.tokens_of(first, end + 1) - _staying(conversation, context, range(first, end + 1))
        # what stays anyway is no reason to ask again
        tokens = context.tokens - context.protection.tokens_in(conversation, range(context.step))
        if end >= start and self.is_wanted(conversation, context, new, tokens, max(covered, default=None)):
            yield self._want(conversation, context, summarizing, range(start, end + 1))

    def is_wanted(
        self, conversation: Conversation, context: Context, new: int, tokens: int, since: int | None = None
    ) -> bool:
        """True where it is time to ask for a summary that replaces so many new tokens, in a history of so many.
        `since`: the last block that the summary before it stands for."""
        # a summarizer whose answers are rejected is asked at growing distances
        if new < max(1, context.budget.bounded(self.batch)) * 2**context.rejected:
            return False
        when = self.triggers(is_chat=context.is_chat, is_first=since is None)
        return context.pressed or any(context.holds(conversation, each, None, tokens, since) for each in when)

    def triggers(self, *, is_chat: bool, is_first: bool) -> Sequence[Trigger]:
        return (self.when_chat if is_chat else ()) or (() if is_first else self.when_after) or self.when

    def _end(self, conversation: Conversation, context: Context, summarizing: Summarizing) -> int:
        """The last block that a summary asked for now covers: all outside the window `keep`, as it will be once the
        summary is adopted, which is with the next request unless this one waits for it. Near the hard mark the window
        is smaller, so that some turns pass until the next summary. No record of old turns is covered in part."""
        turns = context.step - _turns_inside(conversation, _earlier(self.keep, not summarizing.waits), context)
        if context.pressed:
            turns = max(turns, context.step - _turns_with_room(conversation, context))
        elif context.sight is not None:  # it takes all at once, also what is in use: from a window twice as wide
            turns = min(turns, context.sight.now[1])
        last = _last_whole(conversation, min(turns, context.step - summarizing.waits))
        while run := _run_around(context, last):
            last = _last_whole(conversation, conversation.blocks[run.start].turn)
        return last

    def _want(self, conversation: Conversation, context: Context, summarizing: Summarizing, span: range) -> Want:
        """A want for a summary of `span`, made of the latest one and what is new, or of the originals where that one
        has reached the last generation. It covers as much as the summarizer can read in one call."""
        latest = context.summaries[-1] if context.summaries else None
        prices = summarizing.prices
        room = int((prices.window or context.budget.window) * _SHARE) - _PROMPT_TOKENS - summarizing.tokens

        def fits(blocks: range, room: int) -> bool:
            # steps before the request at hand only repeat what was decided: nothing is asked for there
            return not context.newest or size(conversation, blocks) <= room

        if latest is not None and latest.generation >= self.generations and fits(span, room):
            latest = None
        since = conversation.index[latest.last] + 1 if latest else span.start
        before = latest.tokens_after if latest else 0
        new = range(since, span.stop)
        if not fits(new, room - before):  # as many of the first whole turns as one call can read; one at least
            turns = range(conversation.blocks[since].turn + 1, conversation.blocks[span.stop - 1].turn + 1)
            stops = [_last(conversation, turn) + 1 for turn in turns]
            inside = {at for run in context.runs for at in range(run.start + 1, run.stop)}
            stops = [at for at in stops if at not in conversation.no_cut_before and at not in inside] or [new.stop]
            fitting = bisect_right(stops, room - before, key=lambda stop: size(conversation, range(since, stop)))
            new = range(since, stops[max(0, fitting - 1)])
        most, output, cost = summarizing.tokens, int(summarizing.tokens * _USUAL), 0.0
        if context.newest and context.prices.input:
            material = size(conversation, new) + before
            most = min(context.budget.bounded(most), max(_LEAST, material // _THIRD))
            prompt, output = _PROMPT_TOKENS + material, int(most * _USUAL)
            cost = (prompt * prices.input + output * prices.output) / context.prices.input
        words = conversation.person_tokens[new.stop] - conversation.person_tokens[span.start]
        staying = _staying(conversation, context, range(span.start, new.stop))
        beyond = max(0.0, 1.0 - self.verbatim_tokens / words) if words else 0.0
        users = conversation.kinds.get("user", ())
        runs = bisect_left(users, new.stop) - bisect_left(users, span.start)
        return Want(
            first=conversation.blocks[span.start].anchor,
            last=conversation.blocks[new.stop - 1].anchor,
            reason="rolling" if latest else "originals",
            since=conversation.blocks[since].anchor,
            previous=latest.id if latest else "",
            generation=latest.generation + 1 if latest else 1,
            tokens=output + words + int(beyond * runs) * _UNREPEATED + staying,
            cost=cost,
            most=most,
        )

    def _folds(self, conversation: Conversation, context: Context, summarizing: Summarizing) -> Iterator[Fold]:
        """The latest summary in the place of what it covers: one message for each run between messages that stay."""
        record, protection = context.summaries[-1], context.protection
        origin = Origin(
            id=record.id,
            model=record.model,
            policy=record.policy,
            prompt=record.prompt,
            at=record.created_at,
            last=record.last,
            generation=record.generation,
            cost=summarizing.cost(record, context.prices),
        )
        span = range(conversation.index[record.first], conversation.index[record.last] + 1)
        candidates = span if protection.is_any else range(0)
        staying = frozenset(i for i in candidates if protection.keeps_turn_of(conversation, i))
        protected = protected_users(conversation, context.step) | staying
        carried = _carried(conversation, span, protected, self.verbatim_tokens)
        before = range(span.stop - 1 if context.exceptions.system else 0)
        texts = (i for i in before if context.exceptions.may_fold_system(conversation.blocks[i]))
        texts = (i for i in texts if not protection.keeps(conversation, i))
        # of system text, what the summary was made of, too
        sources = {source.partition(":")[2] for source in record.sources}
        system = {i for i in texts if short_digest(conversation.messages[conversation.blocks[i].message]) in sources}
        # no text of people or tools gains rank
        hidden: Sequence[Rank] = ("user", "tool") if self.as_system else () if context.exchanges else ("tool",)
        content = without(record.content, hidden) or _NO_LINES
        for run in _runs(conversation, context, [i for i in span if i not in staying], carried, system):
            first, last = conversation.blocks[run.start], conversation.blocks[run.stop - 1]
            words = [text for m, text in sorted(carried.items()) if first.message <= m <= last.message]
            ref = conversation.run_ref(run.start, run.stop - 1) if context.recall else ""
            count = last.message - first.message + 1
            text = summary(count, content, ref, self.frame) if content else summarized(count, ref)
            repeated = f"\n{words_of_people(words)}" if words else ""
            text += repeated
            if content or context.count(text) + _PROFIT <= sum(conversation.blocks[i].tokens for i in run):
                answers = ref if context.exchanges else ""
                ends = first.anchor, last.anchor
                yield Fold(*ends, text, "summarize", origin, self.as_system, words=len(repeated), ref=answers)
            content = ""


def _run_around(context: Context, at: int) -> range | None:
    """The fold among `context.runs` that a block is in, and not as its last."""
    after = bisect_right(context.runs, at, key=lambda run: run.start)
    run = context.runs[after - 1] if after else range(0)
    return run if at in run[:-1] else None


def _earlier(keep: Keep, one_turn: bool) -> Keep:
    """The window that has to stay now so that `keep` stays one turn later: a turn adds two messages at least."""
    if not one_turn:
        return keep
    if isinstance(keep, int):
        return max(0, keep - 1)
    return replace(keep, turns=max(0, keep.turns - 1), messages=max(0, keep.messages - 2))


def _turns_inside(conversation: Conversation, keep: Keep, context: Context) -> int:
    """How many of the newest turns a window holds."""
    if isinstance(keep, int):
        return keep
    first = begin_of(conversation, keep, context.step, context.budget.window)
    return context.step - conversation.blocks[min(first, len(conversation.blocks) - 1)].turn


def _turns_with_room(conversation: Conversation, context: Context) -> int:
    """How many of the newest turns may stay near the hard mark: whatever a summary covers, words of people, what they
    want left as it is and the summary itself stay, and further turns as large as the newest need room."""
    ends, sizes = conversation.ends, context.sizes
    newest = [sum(sizes[ends[step] : ends[step + 1]]) for step in range(max(1, context.step - _AHEAD), context.step)]
    users = takewhile(ends[context.step].__gt__, conversation.kinds.get("user", ()))
    staying = sum(sizes[i] for i in users if conversation.blocks[i].from_person)
    staying += context.protection.tokens_in(conversation, range(max(0, context.step - _AHEAD)))
    summary_tokens = sizes[conversation.index[context.summary.first]] if context.summary else 0
    left = context.budget.high - context.head - staying - max(summary_tokens, context.budget.bounded(_EXPECTED_SUMMARY))
    room = min(context.budget.high // _KEPT, left - _AHEAD * max(newest, default=0))
    for turns, step in enumerate(range(context.step, 0, -1)):
        room -= sum(sizes[ends[step - 1] : ends[step]])
        if room < 0:
            return turns
    return context.step


def _staying(conversation: Conversation, context: Context, span: range) -> int:
    """Tokens of turns in a span that a summary leaves as they are."""
    if not (context.protection.is_any and span):
        return 0
    first, last = (conversation.blocks[i].turn for i in (span[0], span[-1]))
    return context.protection.tokens_in(conversation, range(first, last + 1))


def _last_whole(conversation: Conversation, turns: int) -> int:
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


def _carried(conversation: Conversation, span: range, protected: frozenset[int], room: int) -> dict[int, str]:
    """The messages of people that the summary repeats verbatim, in `room` tokens: what sounds like a rule first, then
    the newest. They are text alone: no image, no name, nothing that looks like the marks of a summary."""
    messages: dict[int, list[int]] = {}
    for i in span:
        if not conversation.blocks[i].from_tool:
            messages.setdefault(conversation.blocks[i].message, []).append(i)
    texts = {}
    for m, indices in messages.items():
        blocks = [conversation.blocks[i] for i in indices]
        if protected.isdisjoint(indices) and all(b.from_person and not b.tool and not framed(b.text) for b in blocks):
            texts[m] = "\n".join(part.text for part in conversation.messages[m].parts if part.kind == "user")
    carried = {}
    for m in sorted(texts, key=lambda m: (not _SETS_RULE.search(texts[m]), -m)):
        tokens = sum(conversation.blocks[i].tokens for i in messages[m])
        if tokens <= room:
            room -= tokens
            carried[m] = texts[m]
    return carried


def _runs(
    conversation: Conversation, context: Context, span: Sequence[int], carried: Container[int], system: Set[int]
) -> Iterator[range]:
    """Runs of blocks that go, of the span and of system text. A run at whose edge a call is open stays."""
    going = []
    for i in (*sorted(system - set(span)), *span):
        block = conversation.blocks[i]
        role = conversation.messages[block.message].role
        of_model = role in ("assistant", "tool", "function") or block.from_tool
        if of_model or i in system or (role == "user" and (block.message in carried or context.is_output(block))):
            going.append(i)
    for _, run in groupby(enumerate(going), key=lambda pair: pair[1] - pair[0]):
        blocks = [i for _, i in run]
        if conversation.no_cut_before.isdisjoint((blocks[0], blocks[-1] + 1)):
            yield range(blocks[0], blocks[-1] + 1)

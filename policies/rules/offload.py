"""Large tool results are shortened once the model has answered them, and become pointers once they are old.

Outputs of commands, listings and searches are cut as soon as the model has answered them, down to the share that costs
nothing at the provider's cache prices (read/write, see policies.money.ledger). What may be edited next (file reads, the
output of edits) waits for a checkpoint; so do documents, within windows of sight. A result that the model still works
with is looked at again when it is twice as old.
"""

from collections.abc import Iterator, Sequence

from policies.context import Context
from policies.digests import digested
from policies.digests.first_sight import NEVER_SHORT, seen_first
from policies.model.conversation import Conversation
from policies.model.edits import Replace
from policies.model.identifiers import identifiers_in, in_use, mentioned
from policies.model.parameters import Keep, Large, Trigger, begin_of, parameter
from policies.rules.base import ConfiguredPolicy, large_outputs, policy, unreferenced
from policies.sight import DOUBLINGS
from policies.text.excerpt import hidden_identifiers
from policies.text.stubs import way_back
from policies.tools import FILES, writes

_POINTER_TOKENS = 27
_RELEVANT_OF_FILES, _RELEVANT = 0.12, 0.07
"""The share of an old result that is spent on its relevant lines."""
_NAMES, _FEW_LINES = 0.6, 3
"""The share of a first cut that lists names where a text has fewer lines: hardly one could stay whole."""
_RECENT, _FEWEST_NAMES = 4, 2
"""A result is in use when the last 4 turns named 2 things that only it shows."""


@policy
class Offload(ConfiguredPolicy):
    why = "old output: what matters stays; the rest can be recalled"

    over: Large = parameter("tokens", "larger outputs are shortened")
    keep: Keep = parameter("turns", "newest outputs that do not become pointers yet")
    keep_files: Keep = parameter("turns", "newest outputs of files and edits that do not become pointers yet")
    relevant_tokens: int = parameter("tokens", "minimum size of the relevant lines beside a pointer; 0: no such lines")
    first_cut_share: float = parameter(
        "share of the output", "how much stays once the model has answered, at most", default=0.5
    )
    first_cut_files: bool = parameter("yes or no", "whether files and edits are shortened then, too", default=False)
    first_sight_over: int = parameter(
        "tokens", "with `first_sight`: larger outputs are shortened before the model sees them", default=0
    )
    first_sight_share: float = parameter(
        "share of the output", "with `first_sight`: how much of such an output stays", default=0.25
    )
    first_sight_least: int = parameter(
        "tokens", "with `first_sight`: how much of such an output stays, at least", default=0
    )
    when: Sequence[Trigger] = parameter("triggers", "when outputs begin to be shortened", default=())

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Replace]:
        yield from self._first_cuts(conversation, context)
        relevant = self.relevant_tokens
        for window, files in ((self.keep, False), (self.keep_files, True)):
            for i in self._old(conversation, context, window, files):
                if context.may_save(i) and _waits(conversation, context, i) == files:
                    share = _RELEVANT_OF_FILES if context.kind(conversation, i) in FILES else _RELEVANT
                    tokens = context.text_at(conversation, i).tokens
                    budget = _POINTER_TOKENS + max(relevant, int(share * tokens) if relevant else 0)
                    yield _shortened(conversation, context, i, budget, names=budget // 2 if relevant else 0)

    def due(self, conversation: Conversation, context: Context, step: int) -> Iterator[int]:
        """The outputs that the model has answered by then, and large unseen ones where the preset says so."""
        for age in range(context.first_cut_age, 2):
            aged = context.aged(conversation, age, self.when, step=step)
            for i in large_outputs(conversation, context, aged, self.over):
                is_due = self._is_cut_unseen(conversation, context, i) == (age == 0)
                if is_due and (self.first_cut_files or not _waits(conversation, context, i)):
                    yield i

    def _is_cut_unseen(self, conversation: Conversation, context: Context, at: int) -> bool:
        is_large = context.text_at(conversation, at).tokens > self.first_sight_over
        return context.exceptions.first_sight and is_large and context.kind(conversation, at) not in NEVER_SHORT

    def _first_cuts(self, conversation: Conversation, context: Context) -> Iterator[Replace]:
        """Outputs down to the share at which a rewrite is free; unseen ones were never sent: what matters in them."""
        cached_share = min(self.first_cut_share, context.prices.read / context.prices.write)
        for i in self.due(conversation, context, context.step):
            tokens, text = context.text_at(conversation, i).tokens, conversation.blocks[i].text
            unseen = self._is_cut_unseen(conversation, context, i)
            share, least = (self.first_sight_share, self.first_sight_least) if unseen else (cached_share, 0)
            budget = max(_POINTER_TOKENS, least, int(tokens * share))
            lists_names = self.relevant_tokens and text.count("\n") < _FEW_LINES and identifiers_in(text)
            names = int(_NAMES * budget) if lists_names else 0
            if not unseen:
                yield _shortened(conversation, context, i, budget, names)
            else:
                yield from _seen_first(conversation, context, i, budget, names)

    def _old(self, conversation: Conversation, context: Context, window: Keep, files: bool) -> Iterator[int]:
        """The large outputs that leave the window with this step. Of a window in turns only those that are not in use;
        the others are looked at again whenever they are twice as old. And what is no more in force, behind it."""
        lapsed = context.protection.in_force.gone
        begin = begin_of(conversation, window, context.step, context.budget.window) if lapsed else 0
        yield from large_outputs(conversation, context, (i for i in lapsed if i < begin), self.over)
        if not isinstance(window, int) or self.when:
            gone = unreferenced(context, context.aged(conversation, window, self.when))
            yield from large_outputs(conversation, context, gone, self.over)
            return
        for doubling in range(DOUBLINGS + 1):
            turns = context.turns_gone(window, doubling, in_sight=files)
            if not turns:
                continue
            aged = range(conversation.ends[turns.start], conversation.ends[turns.stop])
            for i in large_outputs(conversation, context, unreferenced(context, aged), self.over):
                half, at = context.step - (window << doubling >> 1), context.rereads.get(i, i)
                if doubling and not in_use(conversation, at, half, _RECENT, _FEWEST_NAMES):
                    continue  # it was offered when it was half as old
                if doubling == DOUBLINGS or not in_use(conversation, at, context.step, _RECENT, _FEWEST_NAMES):
                    yield i


def _waits(conversation: Conversation, context: Context, at: int) -> bool:
    """True where a result is needed for longer than the answer to it: a file or what an edit made of it, which may be
    edited next; within windows of sight a document too, by which the model works."""
    block, kind = conversation.blocks[at], context.kind(conversation, at)
    call = conversation.blocks[block.answers].text if block.answers is not None else ""
    return kind in FILES or (kind == "web" and context.sight is not None) or writes(block.tool, call)


def _seen_first(conversation: Conversation, context: Context, at: int, budget: int, names: int) -> Iterator[Replace]:
    """What the model first sees of an output, by the names of its last turns and of what a person last wrote; nothing
    where all of it should stay."""
    block, kind = context.text_at(conversation, at), context.kind(conversation, at)
    since = conversation.ends[max(0, context.step - _RECENT)] - 1
    people = [i for i in conversation.kinds.get("user", ()) if i < at][-1:]
    spoken = mentioned(conversation, since, context.step).union(
        *(identifiers_in(conversation.blocks[i].text) for i in people)
    )
    visible = seen_first(block.text, kind, budget - 10 - names, spoken, context.count)
    if visible != block.text:
        yield _with_way_back(conversation, context, at, visible, spoken, names)


def _shortened(conversation: Conversation, context: Context, at: int, budget: int, names: int) -> Replace:
    block, kind = context.text_at(conversation, at), context.kind(conversation, at)
    mentions = mentioned(conversation, at, context.step)
    visible = digested(block.text, kind, budget - 10 - names, mentions, context.count)
    return _with_way_back(conversation, context, at, visible, mentions, names)


def _with_way_back(
    conversation: Conversation, context: Context, at: int, visible: str, mentions: frozenset[str], names: int
) -> Replace:
    block = context.text_at(conversation, at)
    listed = hidden_identifiers(block.text, visible, mentions, names, context.count)
    back = way_back(context.way_back(conversation, at), context.ref(conversation, at))
    return Replace(conversation.blocks[at].anchor, "\n".join(filter(None, (visible.rstrip(), listed, back))), "offload")

"""The last resort near the window: the oldest turns are left out in one batch; a stub says what they were.

What people wrote stays where it is: runs of turns are folded between user messages.
"""

from collections.abc import Iterator
from dataclasses import replace

from policies.context import Context
from policies.keep import NOTHING
from policies.model.conversation import Conversation
from policies.model.edits import Fold, Replace
from policies.model.parameters import parameter
from policies.recall import call_answered_by, stands_for_text
from policies.rules.base import ConfiguredPolicy, policy, turn_runs
from policies.text.excerpt import excerpt
from policies.text.stubs import left_out_turns, way_back
from policies.tools import HEAD, OURS

_SHORTEST_RESULT = 200
_SHORTEST_STUB = 20
_CALL_TOKENS = 20


@policy
class Trim(ConfiguredPolicy):
    why = "the request would not fit the window otherwise; it can be recalled"

    keep: int = parameter("turns", "newest turns that are not left out")

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Fold | Replace]:
        """The oldest turns outside the window, until what is in excess has gone; then the largest newest results, and
        turns inside the window but for the newest; then those with what is in force."""
        left = context.excess
        if left <= 0:  # before anything is looked at: nearly always
            return
        outside, newest = max(0, context.step - self.keep), max(0, context.step - 1)
        while outside < newest and not context.sizes[conversation.ends[outside]]:
            outside += 1  # a fold that reaches into the window goes whole into another: of its parts none is left out
        for edit, saved in self._left_out(conversation, context, range(outside), left):
            left -= saved
            yield edit
        for shorter, saved in self._squeezed(conversation, context, left):
            left -= saved
            yield shorter
        for edit, saved in self._left_out(conversation, context, range(outside, newest), left):
            left -= saved
            yield edit
        anyway = replace(context, protection=replace(context.protection, in_force=NOTHING))
        for turn in sorted(turn for turn in context.protection.in_force.turns if turn < newest):
            for edit, saved in self._left_out(conversation, anyway, range(turn, turn + 1), left):
                left -= saved
                yield edit

    def _left_out(
        self, conversation: Conversation, context: Context, turns: range, left: int
    ) -> Iterator[tuple[Fold, int]]:
        for run in turn_runs(conversation, context, turns, context.summarized):
            if left <= 0:
                return
            going, saved = list[int](), 0
            for turn in run:
                if saved >= left and any(context.sizes[i] for i in turn):  # turns without a size are in a fold: all go
                    break
                going += turn
                saved += sum(context.sizes[i] for i in turn)
            if saved <= _SHORTEST_STUB:
                continue
            blocks = [conversation.blocks[i] for i in going]
            tools = sorted({block.tool for block in blocks if block.kind == "call" and block.tool not in OURS})
            ref = conversation.run_ref(going[0], going[-1]) if context.recall else ""
            text = left_out_turns(len({block.turn for block in blocks}), ", ".join(tools[:12]), ref)
            answers = ref if context.exchanges else ""
            saved -= context.count(text) + blocks[0].frame + (_CALL_TOKENS if answers else 0)
            if saved > 0:
                left -= saved
                yield Fold(blocks[0].anchor, blocks[-1].anchor, text, "trim", ref=answers), saved

    def _squeezed(self, conversation: Conversation, context: Context, left: int) -> Iterator[tuple[Replace, int]]:
        recent = range(conversation.ends[max(0, context.step - self.keep)], conversation.ends[context.step])
        for i in sorted(recent, key=lambda i: -context.sizes[i]):
            block = conversation.blocks[i]
            if left <= 0 or context.sizes[i] <= 2 * _SHORTEST_RESULT:
                return
            if not context.is_output(block) or context.protection.keeps(conversation, i):
                continue
            # a recalled text is named as its call named it: the result may be new in this very reply, and calls of a
            # reply are answered from the history before it
            call = call_answered_by(conversation, i) if context.recall else None
            if call and not stands_for_text(conversation, call.ref):
                continue
            ref, part = (call.ref, call.part) if call else (context.ref(conversation, i), "")
            kind, budget = context.kind(conversation, i), max(_SHORTEST_RESULT, context.sizes[i] - left)
            saved = context.sizes[i] - budget
            left -= saved
            text = excerpt(context.text_at(conversation, i).text, budget - 10, HEAD[kind], frozenset(), context.count)
            back = way_back(context.way_back(conversation, i), ref, part)
            yield Replace(block.anchor, f"{text.rstrip()}\n{back}", "trim"), saved

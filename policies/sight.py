"""How far back the calls of a model reach, and from which turn on texts stay for it.

A name that a call uses was last sent some turns before: so far the call reaches. A model that reads ten files and then
edits them one after the other reaches back for forty turns, one that works in a shell for few. The window holds as many
turns as all calls so far needed, but for a share of them; at first, as many as is usual. A recall reaches back to what
it asks for, and was surely needed.

Laws
  It follows from the history, the prices and the recall exchanges in it alone: where these are lost with the store, a
  request says `checkpoint:replayed`.
  It only moves forward, and `TOGETHER` turns leave it at once: to wait costs less than a rewrite for each.
  What a step costs here grows with what arrives at it.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from policies.model.conversation import Block, Conversation, Index
from policies.model.identifiers import identifiers_in
from policies.money.prices import Prices
from policies.tools import OURS, RECALL, recalled_ref, shell_command

TOGETHER = 8
DOUBLINGS = 4
"""How often the window is doubled, for what is still in use when it leaves it."""
_NARROWEST_WINDOW = 8
_SEEN_ANYWAY, _RATIO = 2.0, 0.1
"""Of so many actions that reach beyond the window one needs something out of sight, where a read from the cache costs
this share of a write: stubs, records and the model's words hold the rest, and texts that wait for a rewrite to pay.
Chosen at gpt-5.4 on ten recordings and ten sessions by rule: of their 588 edits 45 needed what was hidden, with 3.0 it
were 59. At reads of 0.04 of a write the root makes it 3.2."""
_CHEAPEST = 0.01
"""The lowest such share: there are models whose reads are free."""
_RECALL_COUNTS = 3
"""As so many actions: most that reach so far find what they need in sight, and a recall is made by one that did not."""
_USUAL: Mapping[int, int] = {4: 28, 12: 10, 20: 6, 36: 10, 60: 4, 90: 2}
_USUAL_IN_SHELL: Mapping[int, int] = {4: 26, 12: 2, 20: 1, 40: 1}
"""How far actions of a coding agent reach, in turns: 60 with files as arguments, 30 in a shell alone."""
_ESCAPED = re.compile(r"\\+[nrt\"]")
_ROUND_OR_SHORT = re.compile(r".{0,3}|.*000", re.S)
"""Numbers that nobody looks up."""


@dataclass(frozen=True, slots=True)
class SightWindow:
    """The first turns inside the window at the step before and now; and inside windows twice as wide, and so on."""

    before: Sequence[int]
    now: Sequence[int]


class _Reach:
    """How far the actions reached up to the newest step that was looked at, and the windows at each step."""

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, share: float) -> None:
        self.share, self.step, self.end, self.in_shell, self.names_read = share, -1, 0, True, 0
        self.last: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        """The names that the newest action uses, with the step at which each was sent last."""
        self.reached = Counter[int]()
        self.begins: list[tuple[int, ...]] = []

    def go_on(self, conversation: Conversation) -> None:
        """Look at the blocks that came with the next step: the calls of the last action, then what they returned."""
        self.step, self.end = self.step + 1, conversation.ends[self.step + 1]
        calls = [block for block in _arrived(conversation, self.step) if block.kind == "call"]
        self.newest = {}
        if calls:
            while self.names_read < self.step:  # nobody needs them before: prose without a call is never read
                names = frozenset[str]().union(*map(_names, _arrived(conversation, self.names_read)))
                self.last |= dict.fromkeys(names, self.names_read)
                self.names_read += 1
            self.in_shell &= all(shell_command(block.text) for block in calls)
            used = frozenset[str]().union(*map(_names, calls))
            if self.step:
                self.newest = {name: self.last[name] for name in used if name in self.last}
                self.reached[self.step - 1 - min(self.newest.values(), default=self.step - 1)] += 1
        for source in steps_recalled(conversation, self.step):
            self.reached[max(0, self.step - 1 - source)] += _RECALL_COUNTS
        window = max(_NARROWEST_WINDOW, self._turns())
        before = self.begins[-1] if self.begins else (0,) * (DOUBLINGS + 1)
        aims = [self.step - (window << doubling) for doubling in range(DOUBLINGS + 1)]
        self.begins.append(tuple(aim if aim - at >= TOGETHER else at for at, aim in zip(before, aims, strict=True)))

    def _turns(self) -> int:
        """The fewest turns beyond which no more actions reached than may."""
        reached = self.reached + Counter(_USUAL_IN_SHELL if self.in_shell else _USUAL)
        left = int(self.share * reached.total())
        for turns in sorted(reached, reverse=True):
            left -= reached[turns]
            if left < 0:
                return turns
        return 0


def _arrived(conversation: Conversation, step: int) -> Sequence[Block]:
    """The blocks that came with a step, but for recalls: these are no actions of the agent."""
    arrived = (conversation.blocks[at] for at in conversation.arrived(step))
    return [block for block in arrived if block.tool not in OURS]


def steps_recalled(conversation: Conversation, step: int) -> Iterator[int]:
    """The steps at which the texts came that the model recalls at a step. What comes later has no say in it."""
    for block in (conversation.blocks[at] for at in conversation.arrived(step)):
        if block.kind == "call" and block.tool == RECALL:
            ref = recalled_ref(block.text)
            places = conversation.references.places.get(ref), conversation.runs.get(ref.partition("+")[0])
            at = next((at for at in places if at is not None and at < conversation.start(step)), None)
            if at is not None:
                yield bisect_right(conversation.ends, at)


def _names(block: Block) -> frozenset[str]:
    return identifiers_in(_ESCAPED.sub(" ", block.text) if block.kind == "call" else block.text)


_REACH = Index[Block, _Reach](_Reach, lambda *_: None, lambda reach, *_: reach.begin(reach.share))


def sight_window(conversation: Conversation, step: int, sight: float, prices: Prices) -> SightWindow:
    """The window at a step, with which the share `sight` of actions may need something out of sight. Where reads are
    cheap, a rewrite pays late: what has left the window stands for longer, so that it may be narrower."""
    share = sight * _SEEN_ANYWAY * sqrt(_RATIO / max(_CHEAPEST, prices.read / prices.write))
    reach = _REACH.of(conversation)
    grown = reach.step >= 0 and conversation.ends[reach.step] != reach.end  # more came with a step that was looked at
    if reach.share != share or grown:
        reach.begin(share)
    while reach.step < step:
        reach.go_on(conversation)
    return SightWindow(reach.begins[max(0, step - 1)], reach.begins[step])


def names_reached(conversation: Conversation) -> Mapping[str, int] | None:
    """The names that the newest calls use, with the step at which each was sent last; round and short numbers apart,
    which nobody looks up. None where the window of the newest step was not asked for in this process."""
    reach = _REACH.of(conversation)
    if reach.step != conversation.steps - 1:
        return None
    names = reach.newest.items()
    return {name: at for name, at in names if not (name.isdigit() and _ROUND_OR_SHORT.fullmatch(name))}

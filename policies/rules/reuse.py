"""Lines of a new output that repeat lines of an earlier one become a reference to them when the output arrives.

Nothing goes out of sight and nothing that was sent before changes, so no cached prefix is lost. A run of lines has to
stand word for word in one output, among those of its lines that the request still shows, or in what one call wrote;
numbers that a tool prints before lines may differ. Where that text is shortened later, recall gives the new one whole.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, pairwise

from policies.context import Context
from policies.model.conversation import Block, Conversation, Index
from policies.model.edits import Replace
from policies.model.parameters import parameter
from policies.rules.base import ConfiguredPolicy, large_outputs, policy
from policies.text.lines import Line, LineLayout, is_json, layout_of, lines_of, written_by
from policies.text.stubs import lines_above, named_call
from policies.tools import FILES, OURS

_MOST_LINES = 50_000
"""Lines of one output that are looked up, and remembered."""
_AROUND = 3
"""Lines of a file next to new ones that stand whole."""
_PLAIN = str.maketrans({'"': "'", "\\": "/"})
"""For a reference inside a string with escapes."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Lines of an output, from `first` until before `stop`, that stand in `block` from the line numbered `line` on:
    as that is printed there, or else as they are counted."""

    first: int
    stop: int
    block: int
    line: int


@policy
class Reuse(ConfiguredPolicy):
    why = "the same lines stand in an earlier output of the request"

    lines: int = parameter("lines", "shortest run of repeated lines that becomes a reference", minimum=1)
    saves: int = parameter("tokens", "what a reference must save, at least")

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Replace]:
        changed = dict(context.edits)
        for i in large_outputs(conversation, context, context.aged(conversation, 0), self.saves):
            block = conversation.blocks[i]
            if conversation.outputs_by_text[block.text][0] < i:  # a copy as a whole: lines are those of the first
                changed[i] = Replace(block.anchor, "", "reuse")
            layout = layout_of(block.text)
            lines = [*islice(lines_of(block.text, layout), _MOST_LINES)]
            every_run = _runs(conversation, context, changed, i, lines)
            runs = [run for run in every_run if run.stop - run.first >= self.lines]
            if runs and context.kind(conversation, i) in FILES:
                runs = [run for run in _narrowed(runs) if run.stop - run.first >= self.lines]
            text, uses = self._referring(conversation, context, i, lines, runs, layout) if runs else ("", ())
            if uses and (is_json(text) or not layout.json):
                changed[i] = Replace(block.anchor, text, "reuse", uses=uses, lossless=True)
                yield changed[i]

    def _referring(
        self,
        conversation: Conversation,
        context: Context,
        at: int,
        lines: Sequence[Line],
        runs: Iterable[Passage],
        layout: LineLayout,
    ) -> tuple[str, tuple[str, ...]]:
        output, pieces, end, newest = conversation.blocks[at].text, list[str](), 0, -1
        again, uses, names = context.way_back(conversation, at), list[str](), dict[int, str]()
        for run in runs:
            source, first, last = conversation.blocks[run.block], lines[run.first], lines[run.stop - 1]
            text = output[first.start : last.end]
            if len(text) < self.saves:
                continue
            if run.block not in names:  # once for each, because to read a long call takes long
                names[run.block] = _name(conversation, run.block, at)
            call = names[run.block] if run.block != newest else ""
            back = ("", None) if uses else (context.ref(conversation, at), again)
            above = range(run.line, run.line + run.stop - run.first)
            note = lines_above(above, call, *back, here=first.number, written=source.kind == "call")
            note = note.translate(_PLAIN) if layout.escaped else note
            if context.count(text) - context.count(note) >= self.saves:
                pieces += [output[end : first.start], note]
                newest, end = run.block, last.end
                uses.append(source.anchor)
        return "".join([*pieces, output[end:]]), tuple(dict.fromkeys(uses))


def _runs(
    conversation: Conversation, context: Context, changed: dict[int, Replace], at: int, lines: Sequence[Line]
) -> Iterator[Passage]:
    """The runs of lines that stand above, in order; none overlap. What was compared once is not looked at again, so
    the work grows with the lines of the output, whatever they repeat."""
    first, above = 0, _PLACES_OF_LINES.of(conversation)
    while first < len(lines):
        best: Passage | None = None
        words = lines[first].words
        places = above.before(at, words) if words and len(words.strip()) >= _SHORT else ()
        for block, start, line in places:
            source, edit = conversation.blocks[block], changed.get(block)
            if block in context.folded or source.tool in OURS or not _may_show(context, source, edit):
                continue
            layout = above.layouts[block]
            visible = _words_of(edit.text, layout) if edit else None
            there = lines_of(_text_of(source), layout, start)
            stop = _end(lines, first, there, visible)
            if stop > (best.stop if best else first):
                own_number = next(lines_of(_text_of(source), layout, start)).number
                best = Passage(first, stop, block, own_number or line)
        if best:
            yield best
        first = best.stop if best else first + 1


def _narrowed(runs: Sequence[Passage]) -> Iterator[Passage]:
    """The runs without the lines next to a change inside one source: an edit of what is new there quotes them."""
    changes = [one.block == two.block and one.stop < two.first for one, two in pairwise(runs)]
    for run, before, after in zip(runs, [False, *changes], [*changes, False], strict=True):
        first, stop = run.first + _AROUND * before, run.stop - _AROUND * after
        yield Passage(first, stop, run.block, run.line + first - run.first)


def _may_show(context: Context, source: Block, edit: Replace | None) -> bool:
    return edit is None if source.kind == "call" else context.is_output(source)


def _text_of(block: Block) -> str:
    """The text whose lines a block shows: an output, or what a call wrote."""
    return written_by(block.text) if block.kind == "call" else block.text


def _end(lines: Sequence[Line], first: int, source: Iterator[Line], visible: frozenset[str | None] | None) -> int:
    """Where the run ends that begins with the line `first`, if the lines of the source say the same; `first` itself
    where they do not. `visible`: the lines of the source that are in sight, where not all are. Numbers printed before
    lines rise by one, so that the first tells the others."""
    stop, expected = first, (0, 0)
    for line, there in zip(islice(lines, first, None), source, strict=False):
        numbers = line.number, there.number
        if line.words is None or line.words != there.words or (visible is not None and there.words not in visible):
            break
        if stop > first and numbers != expected:
            break
        stop, expected = stop + 1, (line.number and line.number + 1, there.number and there.number + 1)
    return stop


@lru_cache(maxsize=64)  # a pure function, so the cache changes nothing but the time it takes
def _words_of(text: str, layout: LineLayout) -> frozenset[str | None]:
    return frozenset(line.words for line in islice(lines_of(text, layout), _MOST_LINES))


def _name(conversation: Conversation, at: int, before: int) -> str:
    """The name by which the model can tell an output: its call, and which one of several equal calls."""
    block = conversation.blocks[at]
    if block.kind == "call":
        return named_call(block.tool, block.text)
    call: Block | None = conversation.blocks[block.answers] if block.answers is not None else None
    arguments = call.text if call else ""
    same = conversation.outputs_by_call[block.tool, arguments.strip()]
    nth = same.index(at) + 1 if len(same) > 1 and same[1] < before else 0
    return named_call(block.tool, arguments, nth)


# --- an index of the lines in the outputs of a history, by which a new output finds lines that it repeats ---
# Laws: what is found before a block follows from the blocks before it alone, whatever comes later; each output is read
# once, and a request that extends another reads what is new

_SHOWING = ("call", "result")
_SHORT = 4
"""A line with fewer characters (a bracket, `else`) is no landmark: it may stand anywhere."""
_NEWEST_PLACES = 6

Place = tuple[int, int, int]
"""A block, the character at which a line begins there, and the number of that line, from 1 on."""
_BLOCK, _START = 2**52, 2**20
"""A place is one integer in memory, and most lines have one place: a long session has some ten thousand of them."""


@dataclass(frozen=True, slots=True)
class LinePlaces:
    """One place of each line in each output, by the hash of the line: what is found has to be compared."""

    places: dict[int, int | list[int]] = field(default_factory=dict)
    layouts: dict[int, LineLayout] = field(default_factory=dict)

    def add(self, block: int, text: str) -> None:
        first = block * _BLOCK
        layout = self.layouts[block] = layout_of(text)
        for start, number, line in landmarks(text, layout):
            key, place = hash(line), first + start * _START + number
            before = self.places.setdefault(key, place)
            if before is place:
                continue
            if isinstance(before, list):
                if before[-1] < first:
                    before.append(place)
            elif before < first:
                self.places[key] = [before, place]

    def remove(self, block: int, text: str) -> None:
        for key in {hash(line) for _, _, line in landmarks(text, self.layouts.pop(block))}:
            places = self.places.pop(key)
            if isinstance(places, list):
                self.places[key] = places[:-1] if len(places) > 2 else places[0]

    def before(self, block: int, line: str) -> Sequence[Place]:
        """Where a line may stand in the blocks before this one: the newest places and the first."""
        there = self.places.get(hash(line))
        places = there if isinstance(there, list) else () if there is None or there >= block * _BLOCK else (there,)
        end = bisect_left(places, block * _BLOCK)
        nearest = (*reversed(places[max(0, end - _NEWEST_PLACES) : end]), *places[: end > _NEWEST_PLACES])
        return [(place // _BLOCK, place % _BLOCK // _START, place % _START) for place in nearest]


def landmarks(text: str, layout: LineLayout) -> Iterator[tuple[int, int, str]]:
    """The first lines of a text that are long enough, each with the character at which it begins, and its number."""
    for number, line in enumerate(islice(lines_of(text, layout), _MOST_LINES), 1):
        if line.words and len(line.words.strip()) >= _SHORT:
            yield line.start, number, line.words


def _add_lines(lines: LinePlaces, blocks: Sequence[Block], start: int) -> None:
    for at in range(start, len(blocks)):
        if blocks[at].kind in _SHOWING:
            lines.add(at, _text_of(blocks[at]))


def _cut_lines(lines: LinePlaces, blocks: Sequence[Block], end: int) -> None:
    for at in reversed(range(end, len(blocks))):
        if blocks[at].kind in _SHOWING:
            lines.remove(at, _text_of(blocks[at]))


_PLACES_OF_LINES = Index[Block, LinePlaces](LinePlaces, _add_lines, _cut_lines)

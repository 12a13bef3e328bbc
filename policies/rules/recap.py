"""Old turns become one short record of what was done, seen and concluded in them; no model writes it.

The record has the commands and files of each turn, with a reference for what was shown of each file, and of its texts
the lines that tell most: the last errors of commands, what the model has named since and no newer text shows, what is
rare in the history, errors, definitions, how a text begins and ends. Turns go in batches, each with a record of its own
that is never written again. What people wrote stays where it is. Lines of tools are in a record only where it can be
sent as an answer of the recall tool.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, chain, pairwise
from math import fsum, sqrt

from msgspec import Struct

from policies.context import Context
from policies.model.conversation import Block, Conversation, Index
from policies.model.edits import Fold
from policies.model.identifiers import identifiers_in, identifiers_of_lines, in_use
from policies.model.parameters import parameter
from policies.rules.base import ConfiguredPolicy, policy, turn_runs
from policies.text.excerpt import DEFINES, ERROR, line_cost, lines_of, matching, readable
from policies.text.stubs import framed, recorded_turns
from policies.tools import FILES, OURS, arguments_of, known_by, path_of, paths_of, shell_command, writes

_MENTIONED, _RARE = 4.0, 3.0
"""The worth of a name used since; and of others, shared by their blocks and the names of their form (`value_#`)."""
_FIRST, _ERROR, _DEFINES = 1.0, 1.5, 0.5
"""The worth of a line beside its names: of the beginning of the model's prose, of an error, of a definition."""
_OUTLINE = 0.25
"""The share of a record that calls and conclusions may fill before all else."""
_DIGITS = re.compile(r"\d+")
_SENTENCE = re.compile(r"\s(?<=[.!?:]\s)\s*")
_SHORT_PROSE = 160
_LONGEST_LINE = 400
_BESIDE = 0.33
"""How much may stand beside the record, as a share of it, to name the files. On four autonomous recordings at gpt-5.4,
6.5 % of actions need what is hidden, at a bill of 0.597; without, 7.6 % at 0.580."""
_CALL_CHARACTERS = 60
_LINES_AT_EITHER_END = 1_000
_LARGE = 250
"""An output or a write with more tokens may keep its turn from becoming a record; a shorter one never does."""
_RECENT, _FEWEST_NAMES = 4, 2
"""It does so where the last 4 turns named 2 things that only this output shows."""
_SHORTEST_RECORD = 100
_LEFT_OUT = "[...]"
_GAP, _REF = 3, 5
"""Tokens of that, and of a reference."""
_AT_ONCE, _REREAD = 64, 16
"""Blocks that are read together, and how many that were read before take as long as a new one."""


@policy
class Recap(ConfiguredPolicy):
    why = "old turns: a record of them stays; the rest can be recalled"

    keep: int = parameter("turns", "newest turns that stay as they are")
    batch: int = parameter("turns", "number of old turns that become one record", minimum=1)
    keep_share: float = parameter(
        "share of what is sent", "size of the record, but for the names of its files", below=1
    )

    def __call__(self, conversation: Conversation, context: Context) -> Iterator[Fold]:
        gone = context.turns_gone(self.keep, in_sight=True)
        if gone.stop <= 0 or context.excess or not context.recall:
            return
        if context.newest:  # of steps that are replayed one after the other, a whole batch is read at once
            _read_ahead(conversation, context, range((gone.stop - 1) // self.batch * self.batch, gone.stop))
        for end in range((gone.start // self.batch + 1) * self.batch, gone.stop + 1, self.batch):
            yield from self._record_of(conversation, context, range(end - self.batch, end))

    def _record_of(self, conversation: Conversation, context: Context, turns: range) -> Iterator[Fold]:
        for run in turn_runs(conversation, context, turns, _in_use(conversation, context, turns)):
            places = [i for turn in run for i in turn]
            budget = int(self.keep_share * sum(context.sizes[i] for i in places))
            # in the model's rank a record holds nothing that a tool returned
            of_model = (i for i in places if conversation.blocks[i].kind in ("assistant", "call"))
            sources = places if context.exchanges else [*of_model]
            if budget >= _SHORTEST_RECORD and sources:
                ref = conversation.run_ref(places[0], places[-1])
                text = "\n".join([recorded_turns(len(run), ref), *_record(conversation, context, sources, budget)])
                first, last = conversation.blocks[places[0]].anchor, conversation.blocks[places[-1]].anchor
                yield Fold(first, last, text, "recap", ref=ref if context.exchanges else "")

    def read_ahead(self, conversation: Conversation) -> None:
        for block in conversation.blocks:
            identifiers_in(block.text)


def _in_use(conversation: Conversation, context: Context, turns: range) -> frozenset[int]:
    """The blocks of those turns that stay: in use still or, where sight counts, with long writes into files."""
    places = range(conversation.ends[turns.start], conversation.ends[turns.stop])
    turn_of = {i: conversation.blocks[i].turn for i in places}
    outputs = [i for i in places if conversation.blocks[i].kind == "result" and context.sizes[i] > _LARGE]
    busy = {turn_of[i] for i in outputs if in_use(conversation, i, context.step, _RECENT, _FEWEST_NAMES)}
    calls = [i for i in places if context.sight and conversation.blocks[i].kind == "call" and context.sizes[i] > _LARGE]
    busy |= {turn_of[i] for i in calls if writes(conversation.blocks[i].tool, conversation.blocks[i].text)}
    return frozenset(i for i in places if turn_of[i] in busy)


class _Candidate(Struct, frozen=True, gc=False):
    """A line that a record may have; `worth`: beside its names; `outline`: a call or a conclusion."""

    text: str
    names: frozenset[str]
    cost: int
    worth: float = 0.0
    outline: bool = False
    is_call: bool = False
    is_error: bool = False


def _record(conversation: Conversation, context: Context, places: Sequence[int], budget: int) -> Iterator[str]:
    """The lines of these blocks that tell most per token, in their order. A name counts once."""
    ahead = _READING.of(conversation).lines
    read = _read(conversation, context, [i for i in places if i not in ahead])
    of_blocks = [(at, ahead[at] if at in ahead else read[at]) for at in places]
    lines = list(chain.from_iterable(each for _, each in of_blocks))
    refs, errors = _files(conversation, context, of_blocks), _last_errors(conversation, context, of_blocks)
    worths = _worths(conversation, context, places, frozenset().union(*(line.names for line in lines)))
    outline = [i for i, line in enumerate(lines) if line.outline]
    chosen, covered = set[int](), set[str]()
    left = budget

    def choose(i: int, room: int) -> int:
        gap = _GAP * (i - 1 not in chosen and i + 1 not in chosen)
        cost = lines[i].cost + gap + _REF * (i in refs)
        if i in chosen or cost > room:
            return 0
        chosen.add(i)
        covered.update(lines[i].names)
        return cost

    def merit(i: int) -> float:
        line = lines[i]
        names = fsum(map(worths.__getitem__, line.names - covered)) if line.names else 0.0  # whatever their order
        return (line.worth + names) / (line.cost + 2)

    for i in reversed(errors):
        left -= choose(i, left)
    beside = int(budget * _BESIDE)
    for i in reversed(refs):
        beside -= choose(i, beside)
    rest = max(0, left - int(budget * _OUTLINE))
    left -= rest
    for i in outline:
        left -= choose(i, left)
    left += rest
    waiting = [(-worth, i) for i in range(len(lines)) if i not in chosen and (worth := merit(i)) > 0]
    heapify(waiting)
    while waiting and left > 0:
        i = waiting[0][1]
        if (now := -merit(i)) > waiting[0][0]:  # others have covered its names meanwhile
            heapreplace(waiting, (now, i))
            continue
        heappop(waiting)
        if now < 0:
            left -= choose(i, left)
    before = -1
    for i in sorted(chosen):
        if i > before + 1 and not lines[i].is_call:
            yield _LEFT_OUT
        yield f"{lines[i].text}, ref {refs[i]}" if i in refs else lines[i].text
        before = i


_Lines = Sequence[tuple[int, Sequence[_Candidate]]]


def _files(conversation: Conversation, context: Context, of_blocks: _Lines) -> dict[int, str]:
    """The lines that name files of calls, with the reference of the result or the write; of equal reads, the newest."""
    newest, start = dict[str, tuple[int, str]](), 0
    for at, lines in of_blocks:
        if lines and lines[0].is_call and (source := _shows_file(conversation, context, at)) is not None:
            subject = str(at) if source == at else lines[0].text
            newest.pop(subject, None)
            newest[subject] = start, context.ref(conversation, source)
        start += len(lines)
    return dict(newest.values())


def _shows_file(conversation: Conversation, context: Context, at: int) -> int | None:
    """The block that shows a file that a call read (its result) or wrote (itself); None for other calls."""
    block = conversation.blocks[at]
    results: Sequence[int] = conversation.results.get(at, ())
    if writes(block.tool, block.text):
        return at if paths_of(block.text) else None
    is_read = results and path_of(block.tool, block.text) and context.kind(conversation, results[0]) in FILES
    return results[0] if is_read else None


def _last_errors(conversation: Conversation, context: Context, of_blocks: _Lines) -> list[int]:
    places, start = list[int](), 0
    for at, lines in of_blocks:
        wrong = [i for i, line in enumerate(lines, start) if line.is_error]
        if wrong and conversation.blocks[at].kind == "result" and context.kind(conversation, at) == "command":
            places.append(wrong[-1])
        start += len(lines)
    return places


def _worths(
    conversation: Conversation, context: Context, places: Sequence[int], names: frozenset[str]
) -> Mapping[str, float]:
    """The worth of each name: nothing where a newer output or message shows it."""
    inside = frozenset(places)
    counts, mentioned, newer = _blocks_with_names(conversation, context), set[str](), set[str]()
    for i in range(places[0], conversation.ends[context.step]):
        if i not in inside:
            block = conversation.blocks[i]
            context.pause(i % _REREAD == 0)
            present = identifiers_in(block.text) & names
            (mentioned if block.kind in ("assistant", "call") else newer).update(present)
    form = {name: _DIGITS.sub("#", name) for name in names}
    series = Counter(form.values())
    worths = dict.fromkeys(names, 0.0)
    for name in names - newer:
        others = max(1, counts[name], sqrt(series[form[name]]))
        worths[name] = _MENTIONED if name in mentioned else _RARE / others
    return worths


class _Reading:
    """The readings that records are made of, as far as the history was read: in how many of its first `end` blocks each
    identifier stands, and the lines of blocks that come into the next record."""

    def __init__(self) -> None:
        self.end = 0
        self.counts = Counter[str]()
        self.lines: dict[int, Sequence[_Candidate]] = {}

    def count(self, blocks: Sequence[Block], end: int, context: Context) -> None:
        for at in range(self.end, end):
            context.pause(1)
            self.counts.update(identifiers_in(blocks[at].text))
            self.end = at + 1

    def cut(self, _: Sequence[Block], end: int) -> None:
        if end < self.end:
            self.end, self.counts = 0, Counter()
        self.lines = {at: lines for at, lines in self.lines.items() if at < end}


_READING = Index[Block, _Reading](_Reading, lambda *_: None, _Reading.cut)


def _read_ahead(conversation: Conversation, context: Context, turns: range) -> None:
    """Read the lines of turns for the next record, so that the step with that record need not read all of them."""
    reading, places = _READING.of(conversation), range(conversation.ends[turns.start], conversation.ends[turns.stop])
    lines = _read(conversation, context, [at for at in places if at not in reading.lines])
    reading.lines = {at: read for at, read in reading.lines.items() if at in places} | lines


def _read(conversation: Conversation, context: Context, places: Sequence[int]) -> dict[int, Sequence[_Candidate]]:
    read = dict[int, Sequence[_Candidate]]()
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        context.pause(len(some))
        read |= zip(some, _lines([conversation.blocks[at] for at in some]), strict=True)
    return read


def _blocks_with_names(conversation: Conversation, context: Context) -> Counter[str]:
    """In how many blocks of the request each identifier stands."""
    reading, end = _READING.of(conversation), conversation.ends[context.step]
    if end < reading.end:  # this step was planned before
        reading = _Reading()
    reading.count(conversation.blocks, end, context)
    return reading.counts


class _TextLine(Struct, frozen=True, gc=False):
    """A line of a block, before it is weighed: its `worth` and `outline` are those of the candidate."""

    text: str
    worth: float = 0.0
    outline: bool = False
    is_output: bool = True
    """True where words for errors tell of errors: not where the model itself speaks."""
    is_call: bool = False


def _lines(blocks: Sequence[Block]) -> list[Sequence[_Candidate]]:
    """The lines of each block; of a call first what it does, then those of its arguments. None has marks of ours. Names
    and errors are looked for in all of them at once, which takes half the time."""
    lines = [_lines_of_block(block) for block in blocks]
    every = [*chain.from_iterable(lines)]
    texts = [line.text for line in every]
    if framed("\n".join(texts)):
        lines = [[line for line in each if not framed(line.text)] for each in lines]
        every = [*chain.from_iterable(lines)]
        texts = [line.text for line in every]
    errors = {i for i in matching([f"{text}\n" for text in texts], ERROR) if every[i].is_output}
    names = identifiers_of_lines(texts)
    candidates = []
    for i, (text, line) in enumerate(zip(texts, every, strict=True)):
        worth = line.worth + (_ERROR if i in errors else 0.0)
        worth += _DEFINES if not line.is_call and DEFINES.match(text) else 0.0
        candidates.append(
            _Candidate(
                text=text,
                names=names[i],
                cost=line_cost(text),
                worth=worth,
                outline=line.outline,
                is_call=line.is_call,
                is_error=i in errors,
            )
        )
    ends = [0, *accumulate(map(len, lines))]
    return [candidates[start:end] for start, end in pairwise(ends)]


def _lines_of_block(block: Block) -> list[_TextLine]:
    if block.tool in OURS:
        return []
    if block.kind != "call":
        return _lines_of(block.text, prose=block.kind == "assistant")
    command = shell_command(block.text).strip()
    called = f"{block.tool}: {known_by(block.tool, block.text, _CALL_CHARACTERS)}"
    lines = [_TextLine(called, outline=True, is_output=False, is_call=True)]
    for value in arguments_of(block.text).values():
        if isinstance(value, str):
            lines += _lines_of(command.partition("\n")[2] if value.strip() == command else value)
    return lines


def _lines_of(text: str, prose: bool = False) -> list[_TextLine]:
    """The lines of a text; of prose long ones sentence by sentence; its first and its last one are of the outline."""
    lines = [line.rstrip() for line in readable(lines_of(text)) if line.strip()]
    if prose:
        parts = ([line] if len(line) <= _SHORT_PROSE else _SENTENCE.split(line) for line in lines)
        lines = list(chain.from_iterable(parts))
    if len(lines) > 2 * _LINES_AT_EITHER_END:
        lines = lines[:_LINES_AT_EITHER_END] + lines[-_LINES_AT_EITHER_END:]
    if not prose:
        return [_TextLine(line) for line in lines if len(line) <= _LONGEST_LINE]
    last = len(lines) - 1
    return [
        _TextLine(each, _FIRST * (i == 0), i in (0, last), False)
        for i, each in enumerate(lines)
        if len(each) <= _LONGEST_LINE
    ]

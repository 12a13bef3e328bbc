"""Answers of a tool that make the model go back to an earlier result get its text where that is hidden: those that say
a file is unchanged, for such a tool does not show it again; and those to an edit whose old text was not found, for the
model misremembers the file and would guess once more.

Laws
  An answer gets its text when it arrives, and was never sent; or, while it is new, at the checkpoint that folds the
  earlier result, which stands above it. So no prefix moves for it.
  While an answer points at a result that stands, that result is as new as the answer.
  What a step costs here grows with what arrives at it, and with the few answers that are new.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from policies.context import Context
from policies.laws import may_edit
from policies.model.conversation import Block, Conversation, Places
from policies.model.edits import Replace
from policies.planning.state import PlanState, Pointers
from policies.text.stubs import earlier_result, hidden_output, last_read, way_back
from policies.tools import path_of
from policies.tools.arguments import BESIDE, PATHS, call_of, old_texts
from policies.tools.kinds import kind_by_look

REREAD = "reread"
MOST = 25_000
"""Tokens of the earlier result that an answer gets, at most."""
_LEAST = 100
"""Where there is room for fewer, it gets the reference alone."""
_STEP = 1_000
"""The text is cut at multiples of so many tokens, where there is room for that many."""
_NOTE_TOKENS = 60
_NEW_TURNS = 8
_LOOK_BACK = 64
"""Results of the same path and range that are looked at."""
_LONGEST_TEXT = 1_000
_UNCHANGED = re.compile(r"(?:\bunchanged|(?:\bnot|n't|\bno) (?:been |any )?(?:chang(?:ed|es?)|modified))\b", re.I)
_FAILED = re.compile(
    r"\b(?:not found|no (?:match|replacement|occurrence)|not unique|failed to (?:find|apply|match)"
    r"|found \d+ (?:matches|occurrences)"
    r"|(?:did|does|could|can)(?: not|n[o']t) [\w ]{0,20}(?:find|found|match|appear|locate))",
    re.I,
)
_FIRST_CHARACTERS = 300
_EARLIER = re.compile(r"\b(?:since|last|earlier|previous(?:ly)?|already|above)\b", re.I)
"""Claude Code says "File unchanged since last read. The content from the earlier Read tool_result in this conversation
is still current" or "Wasted call - file unchanged since your last Read"; others "already read (content unchanged)"."""


def says_unchanged(text: str) -> bool:
    """True where an answer holds no file, but says that it is as an earlier result has it."""
    if len(text) > _LONGEST_TEXT or not _UNCHANGED.search(text) or not _EARLIER.search(text):
        return False
    return kind_by_look(text) != "file"


def says_edit_failed(text: str) -> bool:
    """True where an answer to an edit says that its old text was not found, or not once."""
    return len(text) <= _LONGEST_TEXT and bool(_FAILED.search(text[:_FIRST_CHARACTERS]))


def _read_part(blocks: Sequence[Block], at: int) -> tuple[str, ...] | None:
    """The tool, the path and the part of the file that a result is of; None where it answers no plain read."""
    block = blocks[at]
    if block.kind != "result" or block.answers is None or len(text := blocks[block.answers].text) > _LONGEST_TEXT:
        return None
    call, path = call_of(text), path_of(block.tool, text)
    if not path or call.command or call.changes:
        return None
    part = (f"{name} {value}" for name, value in call.values.items() if name not in PATHS | BESIDE)
    return block.tool, path, *sorted(part)


_READS = Places[Block, tuple[str, ...]](_read_part)
_READS_OF_FILES = Places[Block, str](lambda blocks, at: (_read_part(blocks, at) or (None, None))[1])


def enter_answers(conversation: Conversation, context: Context, state: PlanState, pointers: Pointers) -> None:
    """Enter the answers of this step that point at an earlier result, before anything is decided."""
    for at in conversation.arrived(context.step):
        source = _looked_for(conversation, context, state, at)
        if source is not None:
            state.rereads[at] = source
            state.refer(at, [each for each in _places(state, source) if pointers.shows(each)])


def _looked_for(conversation: Conversation, context: Context, state: PlanState, at: int) -> int | None:
    """The earlier result that an answer makes the model go back to."""
    block = conversation.blocks[at]
    if block.kind != "result" or block.answers is None or len(block.text) > _LONGEST_TEXT:
        return None
    if says_unchanged(block.text):
        return _earlier(conversation, state, at) if context.kind(conversation, at) == "file" else None
    arguments = conversation.blocks[block.answers].text
    if says_edit_failed(block.text) and (old := old_texts(arguments)):
        return _as_read(conversation, at, path_of(block.tool, arguments), old)
    return None


def _as_read(conversation: Conversation, at: int, path: str, old: Sequence[str]) -> int | None:
    """The result that shows most of the lines that an edit of this file looked for, the newest of equals."""
    reads = _READS_OF_FILES.of(conversation).get(path, [])
    before = bisect_left(reads, at)
    lines = {line.strip() for text in old for line in text.split("\n")[:_LOOK_BACK]}
    fits = ((sum(line in conversation.blocks[i].text for line in lines), i) for i in reads[max(0, before - 8) : before])
    plain = (each for each in fits if not says_unchanged(conversation.blocks[each[1]].text))
    return max(plain, default=(0, None))[1]


def _earlier(conversation: Conversation, state: PlanState, at: int) -> int | None:
    """The result that an answer points at: the longest part of the newest one of the same path and range."""
    key = _read_part(conversation.blocks, at)
    reads = _READS.of(conversation)[key] if key else []
    before = bisect_left(reads, at)
    for i in reversed(reads[max(0, before - _LOOK_BACK) : before]):
        if i in state.rereads:
            return state.rereads[i]
        if not says_unchanged(conversation.blocks[i].text):
            parts = conversation.results[conversation.blocks[i].answers or 0]
            return max((each for each in parts if each <= i), key=lambda each: len(conversation.blocks[each].text))
    return None


def _places(state: PlanState, source: int) -> set[int]:
    """Where the text of a result may stand: there, or in the newest answer that got it."""
    return {source, state.text_in.get(source, source)}


def texts_given(
    conversation: Conversation,
    context: Context,
    state: PlanState,
    pointers: Pointers,
    was_folded: Mapping[int, bool],
    room: int,
) -> Iterator[Replace]:
    """Edits that give answers the text they point at, where it stands nowhere: those that arrived, and new ones whose
    text this step has folded, within so many tokens. Each must be made before the next one is asked for. `was_folded`:
    the blocks that this step folded or brought back, with whether they were folded before."""
    arrived = conversation.start(context.step)
    first = conversation.start(max(0, context.step - _NEW_TURNS)) if was_folded else arrived
    for at in reversed([*takewhile(lambda at: at >= first, reversed(state.rereads))]):
        places = _places(state, state.rereads[at])
        stood = (each for each in places if (edit := state.edits.get(each)) is None or edit.lossless)
        is_due = at >= arrived or (at not in state.edits and any(not was_folded.get(each, True) for each in stood))
        if not is_due or at in state.folded or any(map(pointers.shows, places)):
            continue
        text = _with_text(conversation, context, at, state.rereads[at], room)
        if text and may_edit(conversation, at, REREAD, context, lossless=True):
            room -= context.count(text)
            yield Replace(conversation.blocks[at].anchor, text, REREAD, lossless=True)


def _with_text(conversation: Conversation, context: Context, at: int, source: int, room: int) -> str:
    """The answer with the earlier result behind it, or with its reference; empty where there is neither."""
    answer, earlier = conversation.blocks[at], conversation.blocks[source]
    kind, ref = context.way_back(conversation, at), context.ref(conversation, at)
    # the room follows what was learned of the provider's counting; in whole thousands it mostly comes out the same
    most = min(MOST, room - answer.tokens - _NOTE_TOKENS)
    most = most - most % _STEP if most >= _STEP else most
    if most < min(_LEAST, earlier.tokens):
        return f"{answer.text}\n{hidden_output(kind, ref)}" if ref else ""
    end, size = len(earlier.text), earlier.tokens
    while size > most:
        end = end * most * 97 // (size * 100)
        end = earlier.text.rfind("\n", end // 2, end) + 1 or end
        size = context.count(earlier.text[:end])
    note = earlier_result if says_unchanged(answer.text) else last_read
    lines = [answer.text, note(ref), earlier.text[:end]]
    if end < len(earlier.text):
        lines.append(way_back(kind, ref, f"chars {end}-{len(earlier.text)}"))
    return "\n".join(lines)

"""What shortening costs in sight, measured without a model.

At each assistant turn of a recorded session, look at what that turn goes on to use: paths, identifiers, numbers, and
the old text that its edits quote. Was it visible in what was sent, recoverable (it stood in a block whose stub names a
way back), stubbed (it stood in one whose stub names none), or lost?

Laws: an item counts only where the history held it before; "visible" means verbatim.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from policies.conversation import Conversation
from policies.edits import Edit, Fold, Replace
from policies.stubs import MARK, names_way_back
from policies.terms import terms
from policies.tools import arguments_of, shell_command, writes

RARE = 3
"""An item with at most so many earlier occurrences is rare."""

_OLD = ("old_string", "old_str", "search", "old_text", "find")
_REPLACED = re.compile(r"replace\(\s*(?P<q>'''|\"\"\"|'|\")(?P<old>.{1,8000}?)(?P=q)\s*,", re.S)
_LITERAL = re.compile(r"""(?<=[\s(\[=,{])(?P<q>["'])(?P<old>(?:(?!(?P=q))[^\n]){20,400})(?P=q)(?=[\s)\],:}])""")
_SED = re.compile(r"(?<![\w])s(?P<d>[/|#@])(?P<old>(?:\\.|(?!(?P=d))[^\\\n])+)(?P=d)")


@dataclass(slots=True)
class Tally:
    """How many of the items that turns used were visible, recoverable or lost."""

    used: int = 0
    visible: int = 0
    recoverable: int = 0
    stubbed: int = 0
    """Behind a stub that says something was left out, but not how to see it."""
    lost: int = 0

    def add(self, visible: bool, recoverable: bool, stubbed: bool = False) -> None:
        """Count one item."""
        self.used += 1
        self.visible += visible
        self.recoverable += not visible and recoverable
        self.stubbed += not visible and not recoverable and stubbed
        self.lost += not visible and not recoverable and not stubbed

    @property
    def share(self) -> float:
        """Visible items per item used; 1 where nothing was used."""
        return self.visible / self.used if self.used else 1.0


@dataclass(slots=True)
class Sight:
    """The three tallies of a session."""

    all: Tally
    rare: Tally
    quoted: Tally


def sight() -> Sight:
    """Tallies with nothing in them."""
    return Sight(Tally(), Tally(), Tally())


def look(conversation: Conversation, turn: int, edits: Sequence[Edit], found: Sight) -> None:
    """Tally what the assistant turn `turn` uses against what the request it answers carried under these edits."""
    end = conversation.ends[turn]
    said = [block for block in conversation.blocks[end:] if block.turn == turn and block.kind in ("assistant", "call")]
    originals = "\n".join(block.text for block in conversation.blocks[:end])
    sent = "\n".join(_sent(conversation, end, edits))
    hidden = "\n".join(_hidden(conversation, end, edits, names_way_back))
    stubbed = "\n".join(_hidden(conversation, end, edits, lambda text: MARK in text))
    for item in sorted(frozenset().union(*(terms(block.text) for block in said))):
        count = originals.count(item)
        if count:
            found.all.add(item in sent, item in hidden, item in stubbed)
            if count <= RARE:
                found.rare.add(item in sent, item in hidden, item in stubbed)
    for block in said:
        for old in quoted(block.tool, block.text) if block.kind == "call" else ():
            if old in originals:
                found.quoted.add(old in sent, old in hidden, old in stubbed)


def quoted(tool: str, arguments: str) -> Iterable[str]:
    """The old text that an edit may quote: `old_string` and its like; in shell edits every text to be replaced, and
    every string of 20 characters or more. What the history did not hold before is no old text: `look` leaves it out.
    """
    found = arguments_of(arguments)
    for key in _OLD:
        value = found.get(key)
        if isinstance(value, str) and value.strip():
            yield value
    command = shell_command(arguments)
    if command and writes(tool, arguments):
        for pattern in (_REPLACED, _SED, _LITERAL):
            for match in pattern.finditer(command):
                old = match["old"].replace("\\n", "\n").replace("\\/", "/").replace("\\'", "'").replace('\\"', '"')
                if len(old) >= 12:
                    yield old


def _sent(conversation: Conversation, end: int, edits: Sequence[Edit]) -> Iterable[str]:
    replaced, folded = _changes(conversation, edits)
    for i in range(end):
        if i in replaced:
            yield replaced[i]
        elif i not in folded:
            yield conversation.blocks[i].text


def _hidden(
    conversation: Conversation, end: int, edits: Sequence[Edit], counts: Callable[[str], bool]
) -> Iterable[str]:
    """The originals of blocks whose text in the request counts, and of those inside folds."""
    replaced, folded = _changes(conversation, edits)
    for i in range(end):
        if (i in replaced and counts(replaced[i])) or i in folded:
            yield conversation.blocks[i].text


def _changes(conversation: Conversation, edits: Sequence[Edit]) -> tuple[Mapping[int, str], frozenset[int]]:
    replaced, folded = {}, set[int]()
    for edit in edits:
        if isinstance(edit, Replace):
            replaced[conversation.index[edit.at]] = edit.text
        elif isinstance(edit, Fold):
            first, last = conversation.index[edit.first], conversation.index[edit.last]
            folded.update(range(first, last + 1))
            replaced[first] = edit.text
    return replaced, frozenset(folded)

"""The next actions of a model, and whether two replies do the same.

Laws
  Compared is what a reply does, not how it is worded: its calls by tool, target and kind of change, in any order. Text
  beside calls, thoughts, and what a call says beside its target (line ranges, limits, the new text of an edit) do not
  count.
  A reply without calls is compared as prose, cautiously: two readers may find the same in two texts that count as
  different here, hardly the reverse. So the figure means something only beside how often the model agrees with itself.
  What cannot be read is not compared.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from policies.dialects import DIALECTS
from policies.dialects.common import as_json
from policies.model.conversation import Part
from policies.model.identifiers import identifiers_in
from policies.tools import path_of, rewrites, writes
from policies.tools.arguments import GLOBS, PATTERNS, QUERIES, SQL, URLS, VERBS, call_of

_SEARCHES = (PATTERNS, QUERIES, GLOBS, URLS, SQL)
_SHARED = 0.5
"""Of the names, and of the words of the shorter text, the share that two texts have in common to count as the same."""
_SHORTEST_WORD = 4
_LONGEST_TARGET = 4_000


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, as far as it counts."""

    tool: str
    target: str
    """The file, the command or what is looked for; all arguments where none of these can be told."""
    change: str
    """The kind of its change to a file; empty where it changes nothing."""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.tool, self.change and f"({self.change})", self.target)))


@dataclass(frozen=True, slots=True)
class Action:
    """The calls of a reply, or its text where it makes none."""

    calls: tuple[Call, ...]
    text: str = ""

    def __str__(self) -> str:
        return "; ".join(map(str, self.calls)) or (f"says: {self.text}" if self.text else "nothing")

    def has_tools_of(self, other: "Action") -> bool:
        return Counter(call.tool for call in self.calls) == Counter(call.tool for call in other.calls)

    def does_same(self, other: "Action") -> bool:
        if self.calls or other.calls:
            return Counter(self.calls) == Counter(other.calls)
        return says_same(self.text, other.text)


def action_of(parts: Sequence[Part]) -> Action:
    calls = tuple(_call(part) for part in parts if part.kind == "call")
    text = "\n".join(part.text for part in parts if part.kind == "assistant")
    return Action(calls, "" if calls else text.strip())


def action_in(dialect: str, reply: bytes) -> Action | None:
    """The action of a reply, streamed or not; None where it is not whole, or says nothing."""
    api = DIALECTS[dialect]
    parts = [part for message in api.messages_in(reply) for part in api.read(message, len).parts]
    return action_of(parts) if parts else None


def _call(part: Part) -> Call:
    call, tool = call_of(part.text), part.tool
    change = ""
    if writes(tool, part.text):
        verbs = (verb for name in VERBS if isinstance(verb := call.values.get(name), str))
        change = "" if call.command else next((verb for verb in verbs if len(verb) < 20), "")
        change = change or ("whole file" if rewrites(tool, part.text) else "edit")
    searched = (value for names in _SEARCHES for name, value in call.values.items() if name in names and value)
    target = path_of(tool, part.text) or call.command or next((_text(value) for value in searched), "")
    return Call(
        tool,
        " ".join((target or _text(dict(sorted(call.values.items()))) or part.text).split())[:_LONGEST_TARGET],
        change,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else as_json(value).decode() if value else ""


def says_same(one: str, other: str) -> bool:
    """True where two texts say the same, as far as names and words tell: both ask back or neither does, and they share
    at least half of all names (paths, identifiers, numbers) and of the longer words of the shorter one."""
    if one == other:
        return True
    if one.endswith("?") != other.endswith("?"):
        return False
    names = [identifiers_in(text) for text in (one, other)]
    words = [{word.strip(".,;:!?()[]*`\"'").lower() for word in text.split()} for text in (one, other)]
    words = [{word for word in each if len(word) >= _SHORTEST_WORD} or each for each in words]
    shared_names = len(names[0] & names[1]) >= _SHARED * len(names[0] | names[1])
    return shared_names and len(words[0] & words[1]) >= _SHARED * max(1, min(map(len, words)))

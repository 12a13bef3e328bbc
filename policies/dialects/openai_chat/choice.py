"""One choice of a reply, over all rounds in which its recall calls are answered.

A round ends with a finish reason, and with one of these:
  no call of ours                 the choice is over as it came
  calls of ours and the client's  over; ours are answered when the client returns
  ours alone                      the choice waits for its next round, and the client hears of no end
  ours alone, no round left       over, for `length`; so with calls that the provider cut off, for its own reason
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_

from policies.dialects.base import ChoiceResult
from policies.dialects.common import as_json
from policies.dialects.events import Json, joined_text
from policies.dialects.openai_chat.calls import Call, Calls
from policies.dialects.openai_chat.pieces import gathered, of_a_message
from policies.model.edits import Exchange

_CUT = ("length", "content_filter", "error")
_READ = frozenset({"role", "content", "tool_calls"})


@dataclass(slots=True)
class Allowance:
    """How many more rounds a reply may take, over all its choices."""

    left: int


class _Round:
    """What the model says in one round."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.over = False
        self.finish: object = None
        self._text: list[str] = []
        self._others: list[Json] = []

    def hear(self, said: Json) -> None:
        content = said.get("content")
        if isinstance(content, str):
            self._text.append(content)
        if not said.keys() <= _READ:
            self._others.append({key: value for key, value in said.items() if key not in _READ})

    @property
    def text(self) -> str:
        return joined_text(self._text)

    @property
    def says_nothing(self) -> bool:
        """Whether its text is there, and empty."""
        return bool(self._text) and not any(self._text)

    @property
    def fields(self) -> str:
        """What the message carried besides text and calls, as JSON; empty fields say nothing."""
        whole = gathered(self._others, of_a_message)
        said = {key: value for key, value in whole.items() if not _is_blank(value)} if isinstance(whole, dict) else {}
        return as_json(said).decode() if said else ""


class Choice:
    """Takes the pieces of one choice, and says what the client gets of each."""

    def __init__(self, index: int, allowance: Allowance) -> None:
        self.index = index
        self.waiting = False
        self.exchanges: list[Exchange] = []
        self._allowance = allowance
        self._round = _Round()
        self._said: list[str] = []
        self._has_role = False

    def resume(self) -> None:
        """What comes now is the next round."""
        self._said.append(self._round.text)
        self._round = _Round()
        self.waiting = False

    def take(self, piece: Json, key: str) -> Json:
        """What the client gets of one piece, which has its content at `key`; the piece itself where all of it."""
        finish = piece.get("finish_reason")
        final = bool(finish) or key == "message"
        found = piece.get(key)
        said = found if isinstance(found, dict) else {}
        shown = self._shown(said, final)
        changes: Json = {} if shown is said else {key: shown}
        if final and (ended := self._ended(finish)) != finish:
            changes["finish_reason"] = ended
        if finish and key == "delta" and self._owes_text():
            changes[key] = {**shown, "content": ""}
        if piece.get("index", self.index) != self.index:
            changes["index"] = self.index
        return {**piece, **changes} if changes else piece

    def _shown(self, said: Json, final: bool) -> Json:
        """A message, or a piece of it, without calls of ours and without a second role; itself where nothing goes."""
        self._round.hear(said)
        found = said.get("tool_calls")
        entries = found if isinstance(found, list) else []
        visible = self._round.calls.take(entries, final) if entries or final else entries
        second = self._has_role and "role" in said and (self.waiting or bool(self._said))
        if second or not is_same(visible, entries):
            said = {key: value for key, value in said.items() if key not in self._gone()}
            said |= {"tool_calls": visible} if visible else {}
        self._has_role = self._has_role or "role" in said
        return said

    def _owes_text(self) -> bool:
        """Whether all that the model said is an empty text, which went with an earlier piece: a message without text
        and without calls is not valid when the client returns it."""
        said_nothing = not any(self._said) and self._round.says_nothing
        return bool(self._said) and not self.waiting and said_nothing and not self._round.calls.theirs

    def _gone(self) -> Sequence[str]:
        return ("tool_calls", "role") if self._has_role else ("tool_calls",)

    def _ended(self, finish: object) -> object:
        """The finish reason as the client gets it; None while there are rounds to come. A round ends once."""
        if not self._round.over:
            self._round.over = True
            self._round.finish = self._end(finish)
        return self._round.finish if self._round.calls.ours else finish

    def _end(self, finish: object) -> object:
        calls = self._round.calls
        if not calls.ours:
            return finish
        if calls.theirs:
            self._end_mixed(finish)
            return finish
        if finish in _CUT:
            return finish
        if not self._allowance.left:
            return "length"
        self._allowance.left -= 1
        self.waiting = True
        self._note(calls.ours, {call: at for at, call in enumerate(calls.ours)}, alone=True)
        return None

    def _end_mixed(self, finish: object) -> None:
        calls = self._round.calls
        cut = [call for call in calls.ours if finish == "length" and call.arguments is None]
        kept = [call for call in calls.ours if call not in cut]
        if kept:
            self._note(kept, calls.places(cut), alone=False)

    def _note(self, calls: Sequence[Call], places: Mapping[Call, int], alone: bool) -> None:
        written = tuple(call.written(places[call]) for call in calls)
        stood = () if alone else tuple(places[call] for call in calls)
        last = alone and not self._allowance.left
        self.exchanges.append(Exchange(len(self._round.text), written, stood, self._round.fields, last))

    @property
    def over(self) -> bool:
        """Whether the round at hand has ended."""
        return self._round.over

    @property
    def unsettled(self) -> bool:
        """Whether the round has not ended, and the client has not got all of it."""
        return not self.over and bool(self._round.calls.ours or self._round.calls.undecided)

    @property
    def said(self) -> ChoiceResult:
        """What the client got, and the exchanges behind it."""
        ids = tuple(call.id for call in self._round.calls.theirs)
        return ChoiceResult("".join([*self._said, self._round.text]), ids, tuple(self.exchanges))


def is_same(left: Sequence[object], right: Sequence[object]) -> bool:
    """Whether both hold the very same objects."""
    return len(left) == len(right) and all(map(is_, left, right))


def is_bare(piece: Json, key: str) -> bool:
    """Whether a piece tells the client nothing."""
    said = piece.get(key)
    return not piece.get("finish_reason") and all(map(_is_blank, said.values() if isinstance(said, dict) else ()))


def _is_blank(value: object) -> bool:
    return value is None or value in ("", [], {})

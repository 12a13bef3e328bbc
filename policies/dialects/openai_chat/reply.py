"""The reply of OpenAI chat completions, streamed or not, over all its rounds.

The client gets one reply: the envelope is the first round's, completion tokens are summed, and what no recall touches
is the very bytes that came. A chunk that is written anew keeps its data only: comments and the like are not repeated.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from policies.dialects.base import ChoiceResult
from policies.dialects.common import as_json
from policies.dialects.events import Json, framed, is_plain, read_event, text_of
from policies.dialects.openai_chat.choice import Allowance, Choice, is_bare, is_same
from policies.dialects.openai_chat.pieces import gathered, of_a_message
from policies.dialects.openai_chat.usage import WORDS, read_usage
from policies.dialects.usage import Spent
from policies.money.prices import Usage

_ENVELOPE = ("id", "created", "model", "system_fingerprint", "service_tier")
_GROWING = ("message", "logprobs")
_DONE = b"[DONE]"


class ChatReply:
    """Takes out the recall calls and joins the rounds; without the recall tool it only reads the usage."""

    def __init__(self, rounds: int | None = None) -> None:
        self.usage: Usage | None = None
        self._only_reads = rounds is None
        self._allowance = Allowance(rounds or 0)
        self._choices: dict[int, Choice] = {}
        self._resumed: int | None = None
        self._envelope: Json = {}
        self._spent = Spent(WORDS)
        self._billed: Json = {}
        self._whole: dict[int, Json] = {}
        """The choices of a plain reply, as far as they are said."""
        self._failed = False
        """Whether the round at hand said that it broke."""

    @property
    def pending(self) -> Sequence[int]:
        """The choices that ended in recall calls alone and wait for their next round, by index."""
        return sorted(index for index, choice in self._choices.items() if choice.waiting)

    @property
    def over(self) -> Sequence[int]:
        """The choices that have come to their end, by index."""
        return sorted(index for index, choice in self._choices.items() if choice.over and not choice.waiting)

    @property
    def completion(self) -> int:
        """Tokens that the provider billed for answers so far, over all rounds; 0 where it did not say."""
        return self._spent.completion + (self.usage.completion if self.usage else 0)

    def last_event(self, failure: bytes) -> bytes:
        """The body of an error reply as the event with which the stream breaks off."""
        return b"data: " + failure + b"\n\n"

    def result(self, choice: int) -> ChoiceResult:
        """What one choice has said so far, and asked of the recall tool."""
        return self._choices[choice].said if choice in self._choices else ChoiceResult("", (), ())

    def resume(self, choice: int) -> None:
        """What is fed from now on is the next round, for this pending choice alone."""
        self._spent.add(self._billed)
        self._billed, self.usage, self._failed = {}, None, False
        self._choices[choice].resume()
        self._resumed = choice

    def feed(self, event: bytes) -> list[bytes]:
        """One server-sent event, or the whole of a JSON reply: what the client gets of it now."""
        if self._only_reads and b'"usage"' not in event:
            return [event]
        said = read_event(event)
        if said is None:
            return self._done(event) if text_of(event).strip() == _DONE else [event]
        self._bill(said.get("usage"))
        self._failed = self._failed or "error" in said
        choices = _choices_of(said)
        if self._only_reads or choices is None:
            return [event]
        try:
            return self._plain(said, choices, event) if is_plain(event) else self._streamed(said, choices, event)
        except RecursionError:  # nested deeper than can be written
            return [event]

    def _bill(self, usage: object) -> None:
        if isinstance(usage, dict):
            self._billed = usage
            self.usage = read_usage(usage) or self.usage

    def _choice(self, piece: Json, position: int) -> Choice | None:
        """The choice that a piece belongs to; None for one that was not asked for."""
        index = piece.get("index", position)
        assert isinstance(index, int)
        if self._resumed is not None:
            return None if index else self._choices[self._resumed]
        if index not in self._choices:
            self._choices[index] = Choice(index, self._allowance)
        return self._choices[index]

    def _streamed(self, chunk: Json, pieces: list[Json], event: bytes) -> list[bytes]:
        if pieces and not self._envelope:
            self._envelope = {key: chunk[key] for key in _ENVELOPE if key in chunk}
        usage = chunk.get("usage")
        billed = isinstance(usage, dict)
        shown = [piece for at, given in enumerate(pieces) for piece in self._passed(given, at, billed)]
        if not shown and (pieces or self.pending):
            return []
        if self._resumed is None and is_same(shown, pieces) and not (billed and self.pending):
            return [event]
        return [framed({**chunk, **self._envelope, "choices": shown, **self._usage_shown(chunk)})]

    def _passed(self, piece: Json, position: int, billed: bool) -> list[Json]:
        """The piece as the client gets it. One that tells nothing is left out, unless it brings the bill after the
        end."""
        choice = self._choice(piece, position)
        if choice is None:
            return []
        shown = choice.take(piece, "delta")
        if (shown is piece or (billed and choice.over)) and not choice.waiting:
            return [shown]
        return [] if is_bare(shown, "delta") else [shown]

    def _usage_shown(self, said: Json) -> Json:
        """The usage as the client gets it: not before the last round, and none that the provider did not give."""
        usage = said.get("usage")
        if isinstance(usage, dict) and self.pending:
            return {"usage": None}
        if isinstance(usage, dict) and self._resumed is not None:
            return {"usage": self._spent.onto(usage)}
        return {"usage": usage} if "usage" in said else {}

    def _done(self, event: bytes) -> list[bytes]:
        """The end of a stream. It ends what has no finish reason of its own and is not whole with the client."""
        unsettled = [index for index, choice in self._choices.items() if choice.unsettled and not self._failed]
        closing = [self._closed(index) for index in unsettled]
        return [*chain.from_iterable(closing), *(() if self.pending else (event,))]

    def _closed(self, index: int) -> list[bytes]:
        piece: Json = {
            "index": index if self._resumed is None else 0,
            "delta": {},
            "finish_reason": "tool_calls",
        }
        chunk: Json = {"object": "chat.completion.chunk", **self._envelope, "choices": [piece]}
        return self._streamed(chunk, [piece], framed(chunk))

    def _plain(self, body: Json, pieces: list[Json], event: bytes) -> list[bytes]:
        found = ((self._choice(piece, position), piece) for position, piece in enumerate(pieces))
        shown = [(choice.index, choice.take(piece, "message")) for choice, piece in found if choice is not None]
        if self._resumed is None and is_same([piece for _, piece in shown], pieces):
            return [event]
        for index, piece in shown:
            self._whole[index] = _continued(self._whole.get(index), piece)
        self._envelope = self._envelope or {key: value for key, value in body.items() if key != "usage"}
        if self.pending:
            return []
        return [as_json({**self._envelope, "choices": list(self._whole.values()), **self._usage_shown(body)})]


def _choices_of(said: Json) -> list[Json] | None:
    """The choices in a chunk or a body; None where they are not as we know them."""
    found = said.get("choices")
    if found is None and "usage" in said and "error" not in said:
        return []
    if not isinstance(found, list):
        return None
    for piece in found:
        if not isinstance(piece, dict) or not isinstance(piece.get("index", 0), int):
            return None
    return found


def _continued(before: Mapping[str, object] | None, piece: Json) -> Json:
    """A choice of a plain reply with the next round's, which brings its end."""
    if before is None:
        return piece
    grown = {key: gathered([before.get(key), piece[key]], of_a_message) for key in _GROWING if key in piece}
    return {**piece, **grown}


def reply(rounds: int | None = None) -> ChatReply:
    """A fresh reader."""
    return ChatReply(rounds)

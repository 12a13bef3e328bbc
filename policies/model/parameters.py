"""Parameters of policies: dataclass fields that state their unit, bounds and meaning, one line each; and the measures
that they are given in: sizes of texts, windows of the newest, triggers.

    over: Large = parameter("tokens", "outputs with more are shortened")

Laws
  Whatever checks, prints or documents a parameter is derived from its field.
  What is measured is the history as the client wrote it, except that a trigger's tokens are those of what is sent.
  A window only moves forward, and what stands before the first answer is never inside.
"""

from bisect import bisect_left
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from policies.model.conversation import Conversation

MOST = 1_000_000_000
"""The largest number that means anything, whatever it counts."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a dataclass. Whole numbers lie between `minimum` and MOST; fractions are shares of a whole, between
    0 and 1, and less than `below` where that is stated."""

    name: str
    type: Any
    default: Any
    unit: str
    """The unit of a number alone; the kind of other values."""
    meaning: str
    minimum: int = 0
    below: float | None = None
    empty: str = "always"
    """The meaning of no trigger at all."""


def parameter(
    unit: str,
    meaning: str,
    *,
    default: Any = MISSING,
    minimum: int = 0,
    below: float | None = None,
    empty: str = "always",
) -> Any:
    metadata = {"unit": unit, "meaning": meaning, "minimum": minimum, "below": below, "empty": empty}
    return field(default=default, metadata=metadata)


def parameters_of(kind: Any) -> tuple[Parameter, ...]:
    return tuple(Parameter(each.name, each.type, each.default, **each.metadata) for each in fields(kind))


@dataclass(frozen=True, slots=True)
class Size:
    tokens: int = parameter("tokens", "a text with more is large", default=0)
    chars: int = parameter("characters", "a text with more is large", default=0)
    bytes: int = parameter("bytes", "a text with more, in UTF-8, is large", default=0)


Large = int | Size
"""A number alone is tokens."""


def is_large(text: str, tokens: int, large: Large) -> bool:
    if isinstance(large, int):
        return tokens > large
    if (large.tokens and tokens > large.tokens) or (large.chars and len(text) > large.chars):
        return True
    if not large.bytes or len(text) * 4 <= large.bytes:  # a character has 4 bytes at most
        return False
    return len(text) > large.bytes or len(text.encode("utf-8", "surrogatepass")) > large.bytes


@dataclass(frozen=True, slots=True)
class Window:
    """The newest part of a history, by the widest of several measures; the newest turn is always inside."""

    turns: int = parameter("turns", "the newest turns", default=0)
    messages: int = parameter("messages", "the newest messages; system text is none", default=0)
    share: float = parameter("of the window", "the newest tokens, of the model's window", default=0.0)


Keep = int | Window
"""A number alone is turns."""


def begin_of(conversation: Conversation, keep: Keep, step: int, room: int) -> int:
    """The first block inside the window at the request of `step`; the model's window has `room` tokens."""
    if isinstance(keep, int):
        return conversation.ends[max(0, step - keep)]
    newest = conversation.ends[max(0, step - max(1, keep.turns))]
    by_messages = _messages_back(conversation, keep.messages, step) if keep.messages else newest
    by_tokens, sums = newest, conversation.client_tokens
    if keep.share:
        end = conversation.ends[step]
        by_tokens = bisect_left(sums, sums[end] - int(keep.share * room), 0, end)
    return max(conversation.ends[0], min(newest, by_messages, by_tokens))


def _messages_back(conversation: Conversation, messages: int, step: int) -> int:
    """The first block of the newest so many messages. One reply in several pieces counts once."""
    at = conversation.ends[step]
    while at > 0:
        position = conversation.blocks[at - 1].message
        while at > 0 and conversation.blocks[at - 1].message == position:
            at -= 1
        message = conversation.messages[position]
        goes_on = message.partial and position > 0 and conversation.messages[position - 1].role == "assistant"
        if message.role not in ("system", "developer") and not goes_on:
            messages -= 1
            if messages <= 0:
                break
    return at


_LATEST = 0.95
"""The share of the high mark at which a trigger in tokens holds at the latest: beyond it, it comes too late."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """From when on something is wanted: once all of these hold. 0 always holds."""

    tokens: int = parameter("tokens", "the history as it is sent has at least so many", default=0)
    share: float = parameter("of the window", "they fill this much of the model's window", default=0.0)
    messages: int = parameter("messages", "the history has at least so many", default=0)
    turns: int = parameter("turns", "the history has at least so many", default=0)

    def holds(
        self, conversation: Conversation, step: int, tokens: int, room: int, high: int, since: int | None = None
    ) -> bool:
        """True where all hold at the request of `step`, whose history has so many `tokens` as it is sent; `room` and
        `high` are the model's window and the high mark in tokens. `since`: the last block that a summary stands for;
        messages and turns are those behind it."""
        end = conversation.ends[step]
        messages = conversation.blocks[end - 1].message + 1 if end else 0
        turns = step
        if since is not None:
            messages -= conversation.blocks[since].message + 1
            turns -= conversation.blocks[since].turn + 1
        return tokens >= self.lowest_tokens(room, high) and messages >= self.messages and turns >= self.turns

    def lowest_tokens(self, room: int, high: int) -> float:
        """The tokens from which on it may hold."""
        return min(max(self.tokens, self.share * room), _LATEST * high)


def amounts(value: Size | Window | Trigger | int) -> dict[str, float]:
    """The amounts that are not 0, by their unit; a number alone is turns."""
    if isinstance(value, int):
        return {"turns": value}
    every = ((each.unit, getattr(value, each.name)) for each in parameters_of(value))
    return {unit: amount for unit, amount in every if amount}

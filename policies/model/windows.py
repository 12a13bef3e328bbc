"""How much is much, and how long is long: sizes of texts, windows of the newest, marks from which a policy acts.

Laws
  What is measured is the history as the client wrote it, but for a trigger's tokens: those are of what is sent.
  A window only ever moves on, and what was said before the first answer has always left it.
"""

from dataclasses import dataclass

from policies.model.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Size:
    """What a large text has more of than this, in any of the three; 0 says nothing."""

    tokens: int = 0
    chars: int = 0
    bytes: int = 0


_WIDEST = 4
"""Bytes of a character, at most."""

Large = int | Size
"""A number alone is tokens."""


def is_large(text: str, tokens: int, large: Large) -> bool:
    """Whether a text of so many tokens is larger than that."""
    if isinstance(large, int):
        return tokens > large
    if (large.tokens and tokens > large.tokens) or (large.chars and len(text) > large.chars):
        return True
    if not large.bytes or len(text) * _WIDEST <= large.bytes:
        return False
    return len(text) > large.bytes or len(text.encode("utf-8", "surrogatepass")) > large.bytes


@dataclass(frozen=True, slots=True)
class Window:
    """The newest that stays as it is: so many turns, messages (system text is none), or the share of the model's window
    that they fill. Of several the widest holds; the newest turn is always inside."""

    turns: int = 0
    messages: int = 0
    share: float = 0.0


Keep = int | Window
"""A number alone is turns."""


def begin_of(conversation: Conversation, keep: Keep, step: int, room: int) -> int:
    """The first block that is inside the window at the request of `step`, where the model's window is `room` tokens."""
    if isinstance(keep, int):
        return conversation.ends[max(0, step - keep)]
    newest = conversation.ends[max(0, step - max(1, keep.turns))]
    by_messages = _messages_back(conversation, keep.messages, step) if keep.messages else newest
    by_tokens = _tokens_back(conversation, int(keep.share * room), step) if keep.share else newest
    return max(conversation.ends[0], min(newest, by_messages, by_tokens))


def _messages_back(conversation: Conversation, messages: int, step: int) -> int:
    """The first block of the newest so many messages. What one reply is in pieces counts once."""
    at = conversation.ends[step]
    while at > 0:
        message = conversation.blocks[at - 1].message
        while at > 0 and conversation.blocks[at - 1].message == message:
            at -= 1
        said = conversation.messages[message]
        goes_on = said.partial and message > 0 and conversation.messages[message - 1].role == "assistant"
        if said.role not in ("system", "developer") and not goes_on:
            messages -= 1
            if messages <= 0:
                break
    return at


def _tokens_back(conversation: Conversation, tokens: int, step: int) -> int:
    """The first block of the newest so many tokens."""
    at = conversation.ends[step]
    while at > 0:
        tokens -= conversation.blocks[at - 1].tokens + conversation.blocks[at - 1].frame
        if tokens < 0:
            break
        at -= 1
    return at


_LATEST = 0.95
"""The share of the high mark beyond which nothing is left to be triggered: there room must be made."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """From where on something is wanted, where all of these hold: tokens of the history as it stands, the share of the
    model's window that they fill, its messages, its turns. 0 always holds. Tokens that lie so near the high mark that
    what is wanted would come too late count as reached before it."""

    tokens: int = 0
    window: float = 0.0
    messages: int = 0
    turns: int = 0

    def holds(self, conversation: Conversation, step: int, tokens: int, room: int, high: int) -> bool:
        """Whether they hold at the request of `step`, whose history has so many tokens."""
        end = conversation.ends[step]
        messages = conversation.blocks[end - 1].message + 1 if end else 0
        least = min(max(self.tokens, self.window * room), _LATEST * high)
        return tokens >= least and messages >= self.messages and step >= self.turns

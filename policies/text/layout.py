"""The messages that stand for a fold: what a tool returned keeps the rank of a tool, and roles alternate as before.

Laws
  Only what a person wrote, and marks of ours, stand in a user's message.
  No two messages of one role meet where the client sent none that did.
  The same fold in the same history becomes the same messages. What stands beside it counts as the client sent it, also
  where another fold stands for that.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Literal, NamedTuple

from policies.context import TokenCounter
from policies.model.conversation import Block, Conversation
from policies.model.edits import Fold
from policies.text.stubs import MARK, framed
from policies.tools import RECALL

Role = Literal["system", "user", "assistant", "tool"]

_REPLY = f"{MARK} earlier messages left out]"
"""Between two messages of people, where nothing of the model's is at hand."""
_GOES_ON = f"{MARK} the messages after these follow]"
_LONGEST_CLOSING = 200


class Piece(NamedTuple):
    """One message; with the role of a tool two: a call of the recall tool, and its answer."""

    role: Role
    text: str


def call_id(fold: Fold) -> str:
    """The id of the recall call that a fold becomes; every API takes its form (Mistral: 9 letters or digits)."""
    return sha256(f"{fold.first}{fold.last}".encode()).hexdigest()[:9]


def pieces_of(conversation: Conversation, fold: Fold, *, system: bool = True, joins: bool = False) -> Sequence[Piece]:
    """The messages that a fold becomes. `system`: whether the API takes system text in the middle. `joins`: whether two
    messages of the model may meet behind it, because they count as one."""
    first, last = conversation.index[fold.first], conversation.index[fold.last]
    end = len(fold.text) - fold.words
    ours: Role = "system" if fold.system and system else "tool" if fold.ref else "assistant"
    pieces, after = [Piece(ours, fold.text[:end].strip())], _role(conversation, last + 1, 1)
    if words := fold.text[end:].strip():
        is_last = ours == "system" or (ours == "assistant" and after != "user")
        pieces.insert(len(pieces) if is_last else 0, Piece("user", words))
    began, ended = _role(conversation, first, 1), _role(conversation, last, -1)
    before, woven = _role(conversation, first - 1, -1), list[Piece]()
    for piece in pieces:
        if piece.role != "system":
            opens = "assistant" if piece.role == "tool" else piece.role
            if _meet(before, opens) and (woven or opens != began):
                woven.append(Piece("user", _GOES_ON) if opens == "assistant" else Piece("assistant", _REPLY))
            before = piece.role
        woven.append(piece)
    if _meet(before, after) and before != ended and not (joins and after == "assistant"):
        is_reply = after == "user"
        closing = Piece("assistant", _last_line(conversation, last)) if is_reply else Piece("user", _GOES_ON)
        woven.append(closing)
    return woven


def edited_tokens(block: Block, text: str, count: TokenCounter) -> int:
    """Tokens of a block with another text. The name that a call has counts, too."""
    return count(text) + (count(block.tool) if block.kind == "call" else 0) + block.frame


def fold_tokens(conversation: Conversation, fold: Fold, count: TokenCounter) -> int:
    """Tokens of the messages that a fold becomes; the call that one of them answers counts as a message, too."""
    pieces = pieces_of(conversation, fold)
    calls = [RECALL, f'{{"ref":"{fold.ref}"}}'] if fold.ref else []
    framing = conversation.blocks[conversation.index[fold.first]].frame
    return sum(map(count, [*calls, *(piece.text for piece in pieces)])) + framing * (len(pieces) + bool(calls))


def _role(conversation: Conversation, at: int, step: int) -> str:
    """The role of a block, or of the nearest one in this direction that is no system text; "tool" for results."""
    while 0 <= at < len(conversation.blocks):
        block = conversation.blocks[at]
        role = conversation.messages[block.message].role
        if role not in ("system", "developer"):
            return "tool" if role == "function" or (role == "user" and block.from_tool) else role
        at += step
    return ""


def _meet(before: str, after: str) -> bool:
    """True where two neighbours are of one role; behind results, a person speaks once the model has answered them."""
    return before == after == "assistant" or (after == "user" and before in ("user", "tool"))


def _last_line(conversation: Conversation, last: int) -> str:
    block = conversation.blocks[last]
    line = block.text.rstrip().rpartition("\n")[2].strip() if block.kind == "assistant" else ""
    return line if 0 < len(line) <= _LONGEST_CLOSING and not framed(line) else _REPLY

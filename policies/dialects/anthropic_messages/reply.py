"""The reply of Anthropic Messages, streamed or not, over all its rounds.

The client gets one message: the envelope is the first round's, the tokens of the answers are summed, and what no recall
touches is the very bytes that came. An event that is written anew keeps its data only: comments are not repeated.
"""

from collections.abc import Callable, Mapping, Sequence

from policies.dialects.anthropic_messages.round import CUT, Block, Round
from policies.dialects.anthropic_messages.usage import Bill, read_usage
from policies.dialects.base import ChoiceResult
from policies.dialects.common import as_json
from policies.dialects.events import Json, is_plain, read_event, text_of
from policies.model.edits import Exchange
from policies.model.rawjson import Path, UnreadableError, find, items, members, replaced
from policies.money.prices import Usage

_ENVELOPE = ("id", "model")


class MessagesReply:
    """Takes out the recall calls and joins the rounds; without the recall tool it only reads the usage."""

    def __init__(self, rounds: int | None = None) -> None:
        self.usage: Usage | None = None
        self._only_reads = rounds is None
        self._left = rounds or 0
        """How many more rounds there may be."""
        self._round = Round()
        self._resumed = False
        self._waiting = False
        self._bill = Bill()
        self._said: list[str] = []
        self._exchanges: list[Exchange] = []
        self._first = 0
        """The place of the round's first block in the client's message."""
        self._seen = 0
        """How many blocks the client has had."""
        self._whole: list[bytes] = []
        """The blocks of a reply that is not streamed, as far as they are said."""
        self._envelope: dict[str, bytes] = {}
        self._takes: Mapping[str, Callable[[Json, bytes], list[bytes]]] = {
            "message_start": self._begin,
            "content_block_start": self._start,
            "content_block_delta": self._delta,
            "content_block_stop": self._stop,
            "message_delta": self._end,
            "message_stop": self._close,
        }

    @property
    def pending(self) -> Sequence[int]:
        """The only choice there is, if it ended in recall calls alone and waits for its next round."""
        return [0] if self._waiting else []

    @property
    def over(self) -> Sequence[int]:
        """The only choice there is, if it has come to its end."""
        return [0] if self._round.over and not self._waiting else []

    @property
    def completion(self) -> int:
        """Tokens that the provider billed for answers so far, over all rounds; 0 where it did not say."""
        return self._bill.spent + (self.usage.completion if self.usage else 0)

    def last_event(self, failure: bytes) -> bytes:
        """The body of an error reply as the event with which the stream breaks off."""
        return b"event: error\ndata: " + failure + b"\n\n"

    def result(self, choice: int) -> ChoiceResult:
        """What has been said so far, and asked of the recall tool."""
        if choice:
            return ChoiceResult("", (), ())
        ids = tuple(block.id for block in self._round.theirs)
        return ChoiceResult("".join([*self._said, self._round.text]), ids, tuple(self._exchanges))

    def resume(self, choice: int) -> None:
        """What is fed from now on is the next round."""
        self._said.append(self._round.text)
        self._bill.close()
        self._round, self.usage = Round(), None
        self._first, self._resumed, self._waiting = self._seen, True, False

    def feed(self, event: bytes) -> list[bytes]:
        """One server-sent event, or the whole of a JSON reply: what the client gets of it now."""
        if self._only_reads and b'"usage"' not in event:
            return [event]
        said = read_event(event)
        if said is None:
            return [event]
        self._hear_usage(said)
        if self._only_reads:
            return [event]
        try:
            if is_plain(event):
                return self._plain(said, event) if isinstance(said.get("content"), list) else [event]
            take = self._takes.get(str(said.get("type")))
            return take(said, event) if take else [event]
        except (RecursionError, UnreadableError):  # nested deeper than can be written, or with a key that is repeated
            return [event]

    def _hear_usage(self, said: Json) -> None:
        message = said.get("message")
        usage = message.get("usage") if isinstance(message, dict) else said.get("usage")
        if isinstance(usage, dict):
            self._bill.hear(usage)
            self.usage = read_usage(self._bill.round) or self.usage

    def _begin(self, _: Json, event: bytes) -> list[bytes]:
        return [] if self._resumed else [event]

    def _start(self, said: Json, event: bytes) -> list[bytes]:
        index, found = _index(said), said.get("content_block")
        if index < 0 or not isinstance(found, dict):
            return [event]
        self._round.blocks[index] = block = Block(found)
        if block.is_ours:
            return []
        self._seen = max(self._seen, self._place(index) + 1)
        return self._shown(said, index, event)

    def _delta(self, said: Json, event: bytes) -> list[bytes]:
        block, delta = self._round.blocks.get(_index(said)), said.get("delta")
        if block is not None and isinstance(delta, dict):
            block.hear(delta)
        return self._stop(said, event)

    def _stop(self, said: Json, event: bytes) -> list[bytes]:
        index = _index(said)
        block = self._round.blocks.get(index)
        if block is not None and block.is_ours:
            return []
        return self._shown(said, index, event) if index >= 0 else [event]

    def _place(self, index: int) -> int:
        """Where a block of this round stands in the client's message."""
        return self._first + index - self._round.below(index)

    def _shown(self, said: Json, index: int, event: bytes) -> list[bytes]:
        place = self._place(index)
        return [event] if place == index else [_framed({**said, "index": place})]

    def _end(self, said: Json, event: bytes) -> list[bytes]:
        delta, usage = said.get("delta"), said.get("usage")
        delta = delta if isinstance(delta, dict) else {}
        reason = delta.get("stop_reason")
        ended = self._ended(reason) if reason else reason
        if self._waiting:
            return []
        if ended == reason and not self._resumed:
            return [event]
        changes: Json = {"delta": {**delta, "stop_reason": ended}} if ended != reason else {}
        if self._resumed and isinstance(usage, dict):
            changes["usage"] = self._bill.onto(usage)
        return [_framed({**said, **changes})]

    def _close(self, _: Json, event: bytes) -> list[bytes]:
        if not self._round.over and self._round.ours:  # a server that gives no reason
            self._ended("tool_use")
        return [] if self._waiting else [event]

    def _ended(self, reason: object) -> object:
        """The stop reason as the client gets it. A round ends once."""
        calls = self._round
        if calls.over:
            return reason
        calls.over = True
        if not calls.ours:
            return reason
        if calls.theirs:
            exchange = calls.mixed(reason in CUT)
            self._exchanges += [exchange] if exchange else []
            return reason
        if reason in CUT:
            return reason
        if not self._left:
            return "max_tokens"
        self._left -= 1
        self._waiting = True
        self._exchanges.append(calls.alone(not self._left))
        return None

    def _plain(self, said: Json, event: bytes) -> list[bytes]:
        body = text_of(event)
        self._take_whole(said, body)
        fields = members(body)
        self._envelope = self._envelope or {key: body[slice(*fields[key])] for key in _ENVELOPE if key in fields}
        reason = said.get("stop_reason")
        ended = self._ended(reason or "tool_use")
        if self._waiting:
            return []
        if not self._resumed and not self._round.ours:
            return [event]
        changes: dict[Path, bytes] = {(key,): raw for key, raw in self._envelope.items() if key in fields}
        changes["content",] = b"[" + b",".join(self._whole) + b"]"
        if reason and ended != reason:
            changes["stop_reason",] = as_json(ended)
        usage = said.get("usage")
        if isinstance(usage, dict):
            changes["usage",] = as_json(self._bill.onto(usage))
        return [replaced(body, changes)]

    def _take_whole(self, said: Json, body: bytes) -> None:
        """The blocks of a reply that is not streamed: those that the client gets are kept as they are written."""
        found = said["content"]
        spans = items(body, *find(body, ("content",)))
        blocks = enumerate(found) if isinstance(found, list) else ()
        self._round.blocks = {at: Block(block) for at, block in blocks if isinstance(block, dict)}
        ours = [at for at, block in self._round.blocks.items() if block.is_ours]
        self._whole += [body[start:end] for at, (start, end) in enumerate(spans) if at not in ours]


def _index(said: Json) -> int:
    """Which block an event is of; -1 where it does not say."""
    index = said.get("index")
    return index if isinstance(index, int) else -1


def _framed(event: Json) -> bytes:
    """The event as a server-sent one, under its name."""
    return b"event: " + str(event.get("type")).encode() + b"\ndata: " + as_json(event) + b"\n\n"


def reply(rounds: int | None = None) -> MessagesReply:
    """A fresh reader."""
    return MessagesReply(rounds)

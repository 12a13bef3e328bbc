"""The reply of Anthropic Messages, streamed or not, over all its rounds.

The client gets one message: the envelope is the first round's, the tokens of the answers are summed, and what no recall
touches is the very bytes that came. An event that is written anew keeps its data only: comments are not repeated.
"""

from collections.abc import Callable, Mapping

from policies.dialects.anthropic_messages.round import ContentBlock, MessageRound
from policies.dialects.common import as_json
from policies.dialects.events import Json, is_plain, text_of
from policies.dialects.rounds import ChoiceRounds, RoundsReply
from policies.dialects.usage import ANTHROPIC_MESSAGES
from policies.model.rawjson import Path, find, items, members, replaced

_ENVELOPE = ("id", "model")
_CUT = ("max_tokens", "stop_sequence", "refusal", "pause_turn", "model_context_window_exceeded", "compaction")
"""Reasons for which a round ends that are no calls: a call that stands there is not to be answered."""


class MessagesReply(RoundsReply[ChoiceRounds[MessageRound]]):
    """Takes out the recall calls and joins the rounds."""

    def __init__(self, rounds: int | None = None) -> None:
        super().__init__(ANTHROPIC_MESSAGES, rounds)
        self._rounds = self._choices[0] = ChoiceRounds(MessageRound, self._allowance)
        self._first = 0
        """The place of the round's first block in the client's message."""
        self._blocks = 0
        """How many blocks the client has had."""
        self._whole: list[bytes] = []
        """The blocks of a reply that is not streamed, as far as they have come."""
        self._envelope: dict[str, bytes] = {}
        self._by_type: Mapping[str, Callable[[Json, bytes], list[bytes]]] = {
            "message_start": self._message_start,
            "content_block_start": self._block_start,
            "content_block_delta": self._block_delta,
            "content_block_stop": self._of_block,
            "message_delta": self._message_delta,
            "message_stop": self._message_stop,
        }

    def last_event(self, failure: bytes) -> bytes:
        return b"event: error\ndata: " + failure + b"\n\n"

    def resume(self, choice: int) -> None:
        super().resume(choice)
        self._first = self._blocks

    def _usage_in(self, content: Json, event: bytes) -> object:
        message = content.get("message")
        return message.get("usage") if isinstance(message, dict) else content.get("usage")

    def _feed_json(self, content: Json, event: bytes) -> list[bytes]:
        if is_plain(event):
            return self._plain(content, event) if isinstance(content.get("content"), list) else [event]
        receive = self._by_type.get(str(content.get("type")))
        return receive(content, event) if receive else [event]

    def _message_start(self, _: Json, event: bytes) -> list[bytes]:
        return [] if self._rounds.resumed else [event]

    def _block_start(self, content: Json, event: bytes) -> list[bytes]:
        index, start = _index(content), content.get("content_block")
        if index < 0 or not isinstance(start, dict):
            return [event]
        self._rounds.round.blocks[index] = block = ContentBlock(index, start)
        if not block.ours:
            self._blocks = max(self._blocks, self._place(index) + 1)
        return self._of_block(content, event)

    def _block_delta(self, content: Json, event: bytes) -> list[bytes]:
        block, delta = self._rounds.round.blocks.get(_index(content)), content.get("delta")
        if block is not None and isinstance(delta, dict):
            block.receive(delta)
        return self._of_block(content, event)

    def _of_block(self, content: Json, event: bytes) -> list[bytes]:
        """An event about a block, as the client gets it: none of a call of ours."""
        index = _index(content)
        block = self._rounds.round.blocks.get(index)
        if block is not None and block.ours:
            return []
        place = self._place(index)
        return [event] if index < 0 or place == index else [_framed({**content, "index": place})]

    def _place(self, index: int) -> int:
        """Where a block of this round stands in the client's message."""
        return self._first + index - self._rounds.round.ours_before(index)

    def _message_delta(self, content: Json, event: bytes) -> list[bytes]:
        delta, usage = content.get("delta"), content.get("usage")
        delta = delta if isinstance(delta, dict) else {}
        reason = delta.get("stop_reason")
        end = self._end(reason) if reason else reason
        if self._rounds.waiting:
            return []
        if end == reason and not self._rounds.resumed:
            return [event]
        changes: Json = {"delta": {**delta, "stop_reason": end}} if end != reason else {}
        if self._rounds.resumed and isinstance(usage, dict):
            changes["usage"] = self._usage.whole(usage)
        return [_framed({**content, **changes})]

    def _message_stop(self, _: Json, event: bytes) -> list[bytes]:
        if self._rounds.round.has_ours:  # a server may give no reason
            self._end("tool_use")
        return [] if self._rounds.waiting else [event]

    def _end(self, reason: object) -> object:
        """The stop reason as the client gets it. A round ends once."""
        if self._rounds.ended:
            return reason
        is_cut = reason in _CUT
        return "max_tokens" if self._rounds.end(broken=is_cut, cut=is_cut) == "limit" else reason

    def _plain(self, body: Json, event: bytes) -> list[bytes]:
        """A reply that is not streamed: the blocks that the client gets stay as they are written."""
        text, round_ = text_of(event), self._rounds.round
        blocks = body["content"]
        assert isinstance(blocks, list)
        round_.blocks = {at: ContentBlock(at, block) for at, block in enumerate(blocks) if isinstance(block, dict)}
        for at, (start, end) in enumerate(items(text, *find(text, ("content",)))):
            if at not in round_.blocks or not round_.blocks[at].ours:
                self._whole.append(text[start:end])
        fields = members(text)
        self._envelope = self._envelope or {key: text[slice(*fields[key])] for key in _ENVELOPE if key in fields}
        reason = body.get("stop_reason")
        stop_reason = self._end(reason or "tool_use")
        if self._rounds.waiting:
            return []
        if not self._rounds.resumed and not round_.has_ours:
            return [event]
        changes: dict[Path, bytes] = {(key,): raw for key, raw in self._envelope.items() if key in fields}
        changes["content",] = b"[" + b",".join(self._whole) + b"]"
        if reason and stop_reason != reason:
            changes["stop_reason",] = as_json(stop_reason)
        usage = body.get("usage")
        if isinstance(usage, dict):
            changes["usage",] = as_json(self._usage.whole(usage))
        return [replaced(text, changes)]


def _index(content: Json) -> int:
    """Which block an event is of; -1 where it does not say."""
    index = content.get("index")
    return index if isinstance(index, int) else -1


def _framed(content: Json) -> bytes:
    """The event as a server-sent one, under its name."""
    return b"event: " + str(content.get("type")).encode() + b"\ndata: " + as_json(content) + b"\n\n"


reply = MessagesReply

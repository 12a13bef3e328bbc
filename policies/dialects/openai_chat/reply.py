"""The reply of OpenAI chat completions, streamed or not, over all its rounds.

The client gets one reply: the envelope is the first round's, completion tokens are summed, and what no recall touches
is the very bytes that came. A chunk that is written anew keeps its data only: comments and the like are not repeated.
"""

from collections.abc import Sequence
from operator import is_

import msgspec

from policies.dialects.common import as_json, list_at, object_at
from policies.dialects.events import Json, framed, is_plain, text_of
from policies.dialects.openai_chat.round import ChatRound, gathered, is_blank, of_a_message
from policies.dialects.rounds import Allowance, ChoiceRounds, RoundsReply
from policies.dialects.usage import UsageNames

USAGE = UsageNames(
    prompt=("prompt_tokens",),
    completion="completion_tokens",
    cached=("prompt_tokens_details", "cached_tokens"),
    cache_write=("prompt_tokens_details", "cache_write_tokens"),
    # how LiteLLM gives what Anthropic's usage gives; OpenAI knows no longer time here
    long_cache_write=("prompt_tokens_details", "cache_creation_token_details", "ephemeral_1h_input_tokens"),
    summed=("completion_tokens_details",),
)
_ENVELOPE = ("id", "created", "model", "system_fingerprint", "service_tier")
_GROWING = ("message", "logprobs")
_CUT = ("length", "content_filter", "error")


class _ChoicePiece(msgspec.Struct, gc=False):
    """A piece of a choice that does not end it."""

    index: int
    delta: Json
    finish_reason: None = None


class _Chunk(msgspec.Struct, gc=False):
    """An event that may pass as it came."""

    choices: list[_ChoicePiece]
    usage: None = None
    error: object = msgspec.UNSET


_CHUNKS = msgspec.json.Decoder(_Chunk)


class ChatChoice(ChoiceRounds[ChatRound]):
    """One choice: receives its pieces, and returns what the client gets of each."""

    def __init__(self, index: int, allowance: Allowance) -> None:
        super().__init__(ChatRound, allowance)
        self.index = index
        self._has_role = False
        self._finish: object = None

    @property
    def is_unsettled(self) -> bool:
        """Whether the round has not ended, and the client has not got all of it."""
        return not self.ended and (self.round.has_ours or self.round.is_undecided)

    def passes(self, delta: Json) -> bool:
        """Receive a piece if the client surely gets it as it came: its text, and the next piece of a call of the
        client's."""
        entries = delta.get("tool_calls")
        if self.waiting or not (entries is None or self.round.continues_theirs(entries)):
            return False
        self.round.receive(delta)
        self._has_role = self._has_role or "role" in delta
        return True

    def receive(self, piece: Json, key: str) -> Json:
        """What the client gets of a piece, which has its content at `key`; the piece itself where all of it."""
        finish = piece.get("finish_reason")
        is_final = bool(finish) or key == "message"
        content = object_at(piece, key)
        visible = self._visible(content, is_final)
        changes: Json = {} if visible is content else {key: visible}
        if is_final and (end := self._end(finish)) != finish:
            changes["finish_reason"] = end
        # a message without text or calls is invalid when the client returns it; an empty text went with another piece
        owes_text = self.resumed and not (self.waiting or self.round.has_theirs or self.result.text)
        if finish and key == "delta" and owes_text and self.round.texts:
            changes[key] = {**visible, "content": ""}
        if piece.get("index", self.index) != self.index:
            changes["index"] = self.index
        return {**piece, **changes} if changes else piece

    def _visible(self, content: Json, is_final: bool) -> Json:
        """A message, or a piece of it, without calls of ours and without a second role; itself where nothing goes."""
        self.round.receive(content)
        entries = list_at(content, "tool_calls")
        visible = self.round.receive_calls(entries, is_final) if entries or is_final else entries
        repeats_role = self._has_role and "role" in content and (self.waiting or self.resumed)
        if repeats_role or not is_same(visible, entries):
            dropped = ("tool_calls", "role") if self._has_role else ("tool_calls",)
            content = {key: value for key, value in content.items() if key not in dropped}
            content |= {"tool_calls": visible} if visible else {}
        self._has_role = self._has_role or "role" in content
        return content

    def _end(self, finish: object) -> object:
        """The finish reason as the client gets it; None while there are rounds to come. A round ends once."""
        if not self.ended:
            end = self.end(broken=finish in _CUT, cut=finish == "length")
            self._finish = {"as it came": finish, "waiting": None, "limit": "length"}[end]
        return self._finish if self.round.has_ours else finish


class ChatReply(RoundsReply[ChatChoice]):
    def __init__(self, rounds: int | None = None) -> None:
        super().__init__(USAGE, rounds)
        self._resumed: int | None = None
        """The choice that the round at hand is for; None in the first round."""
        self._envelope: Json = {}
        self._whole: dict[int, Json] = {}
        """The choices of a plain reply, as far as they have come."""
        self._failed = False
        """Whether the round at hand reported an error."""

    def resume(self, choice: int) -> None:
        super().resume(choice)
        self._failed = False
        self._resumed = choice

    def _receive(self, text: bytes) -> bool:
        if self._resumed is not None or not self._envelope:
            return False
        chunk = _CHUNKS.decode(text)
        if chunk.error is not msgspec.UNSET or len(chunk.choices) != 1:
            return False
        (piece,) = chunk.choices
        choice = self._choices.get(piece.index)
        return choice is not None and choice.passes(piece.delta)

    def _feed_json(self, content: Json, event: bytes) -> list[bytes]:
        self._failed = self._failed or "error" in content
        pieces = content.get("choices")
        if pieces is None and "usage" in content and "error" not in content:
            pieces = []
        if not isinstance(pieces, list):
            return [event]
        if not all(isinstance(piece, dict) and isinstance(piece.get("index", 0), int) for piece in pieces):
            return [event]
        return self._plain(content, pieces, event) if is_plain(event) else self._streamed(content, pieces, event)

    def _feed_other(self, event: bytes) -> list[bytes]:
        """The end of a stream ends what has no finish reason of its own and has not reached the client as a whole."""
        if text_of(event).strip() != b"[DONE]":
            return [event]
        closing: list[bytes] = []
        for index, choice in self._choices.items():
            if choice.is_unsettled and not self._failed:
                place = index if self._resumed is None else 0
                piece: Json = {"index": place, "delta": {}, "finish_reason": "tool_calls"}
                chunk: Json = {"object": "chat.completion.chunk", **self._envelope, "choices": [piece]}
                closing += self._streamed(chunk, [piece], framed(chunk))
        return closing if self.pending else [*closing, event]

    def _choice(self, piece: Json, position: int) -> ChatChoice | None:
        """The choice that a piece belongs to; None for one that was not asked for."""
        index = piece.get("index", position)
        assert isinstance(index, int)
        if self._resumed is not None:
            return None if index else self._choices[self._resumed]
        if index not in self._choices:
            self._choices[index] = ChatChoice(index, self._allowance)
        return self._choices[index]

    def _streamed(self, chunk: Json, pieces: list[Json], event: bytes) -> list[bytes]:
        if pieces and not self._envelope:
            self._envelope = {key: chunk[key] for key in _ENVELOPE if key in chunk}
        has_usage = isinstance(chunk.get("usage"), dict)
        visible: list[Json] = []
        for position, piece in enumerate(pieces):
            choice = self._choice(piece, position)
            if choice is None:
                continue
            received = choice.receive(piece, "delta")
            # one that tells nothing is left out, unless it brings the usage after the end
            as_it_came = received is piece or (has_usage and choice.ended)
            if (as_it_came and not choice.waiting) or not is_bare(received):
                visible.append(received)
        if not visible and (pieces or self.pending):
            return []
        if self._resumed is None and is_same(visible, pieces) and not (has_usage and self.pending):
            return [event]
        return [framed({**chunk, **self._envelope, "choices": visible, **self._visible_usage(chunk)})]

    def _visible_usage(self, content: Json) -> Json:
        """The usage as the client gets it: not before the last round, and none that the provider did not give."""
        usage = content.get("usage")
        if isinstance(usage, dict) and self.pending:
            return {"usage": None}
        if isinstance(usage, dict) and self._resumed is not None:
            return {"usage": self._usage.whole(usage)}
        return {"usage": usage} if "usage" in content else {}

    def _plain(self, body: Json, pieces: list[Json], event: bytes) -> list[bytes]:
        choices = ((self._choice(piece, position), piece) for position, piece in enumerate(pieces))
        visible = [(choice.index, choice.receive(piece, "message")) for choice, piece in choices if choice is not None]
        if self._resumed is None and is_same([piece for _, piece in visible], pieces):
            return [event]
        for index, piece in visible:
            before = self._whole.get(index, {})
            grown = {key: gathered([before.get(key), piece[key]], of_a_message) for key in _GROWING if key in piece}
            self._whole[index] = {**piece, **grown}
        self._envelope = self._envelope or {key: value for key, value in body.items() if key != "usage"}
        if self.pending:
            return []
        return [as_json({**self._envelope, "choices": list(self._whole.values()), **self._visible_usage(body)})]


def is_same(left: Sequence[object], right: Sequence[object]) -> bool:
    """Whether both hold the very same objects."""
    return len(left) == len(right) and all(map(is_, left, right))


def is_bare(piece: Json) -> bool:
    """Whether a piece tells the client nothing."""
    return not piece.get("finish_reason") and all(map(is_blank, object_at(piece, "delta").values()))

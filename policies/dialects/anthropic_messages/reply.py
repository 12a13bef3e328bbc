"""The reply of Anthropic Messages, streamed or not, over all its rounds.

The client gets one message: the envelope is the first round's, the tokens of the answers are summed, and what no recall
touches is the very bytes that came. An event that is written anew keeps its data only: comments are not repeated.

Law: a reply that broke off, failed or has several choices has no messages; nothing here raises.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from policies.dialects.anthropic_messages.exchange import stored_fields
from policies.dialects.common import RECALL_ALONE, Fault, Ours, as_json, list_at, object_at, text_at
from policies.dialects.replies import (
    ChoiceRounds,
    Json,
    Round,
    RoundsReply,
    UsageNames,
    document,
    framed,
    is_plain,
    joined_text,
    text_of,
)
from policies.model.rawjson import Path, items, members, replaced

# --- one round of a reply as it comes, block by block, and which blocks are calls of ours ---

_WHOLE = frozenset({"signature_delta", "compaction_delta"})
"""Deltas that bring a value whole, where others bring the next piece of it (SDK, accumulation of a message)."""


class ContentBlock:
    def __init__(self, index: int, start: Json, ours: Collection[str] = ()) -> None:
        self.index = index
        self.is_call = start.get("type") == "tool_use"
        self.id = str(start.get("id") or "")
        self.name = text_at(start, "name")
        self.ours: bool | None = self.is_call and start.get("name") in ours
        self._start = start
        self._pieces: dict[str, list[str]] = {}
        self._values: Json = {}
        self._citations: list[object] = []
        self._json: list[str] = []

    def receive(self, delta: Json) -> None:
        """The next piece of it. In kinds that are not known, texts are taken for pieces."""
        for key, value in delta.items():
            if key == "partial_json" and isinstance(value, str):
                self._json.append(value)
            elif key == "citation":
                self._citations.append(value)
            elif key != "type" and isinstance(value, str) and text_at(delta, "type") not in _WHOLE:
                self._pieces.setdefault(key, []).append(value)
            elif key != "type":
                self._values[key] = value

    @property
    def text(self) -> str:
        text = self.whole.get("text") if self._start.get("type") == "text" else None
        return text if isinstance(text, str) else ""

    @property
    def whole(self) -> Json:
        block = {**self._start, **self._values}
        for key, pieces in self._pieces.items():
            begun = block.get(key)
            block[key] = joined_text([begun, *pieces] if isinstance(begun, str) else pieces)
        if self._citations:
            block["citations"] = self._citations
        if self._json:
            block["input"] = document("".join(self._json).encode("utf-8", "surrogatepass"))
        return block

    @property
    def arguments(self) -> str | None:
        arguments = self.whole.get("input")
        return as_json(arguments).decode() if isinstance(arguments, dict) else None

    def as_json(self, place: int) -> str:
        whole = self.whole
        return as_json(whole if isinstance(whole.get("input"), dict) else {**whole, "input": {}}).decode()


class MessageRound(Round[ContentBlock]):
    def fields(self, entries: Sequence[ContentBlock], alone: bool) -> str:
        return stored_fields([None if block.ours else block.whole for block in entries]) if alone else ""


_ERROR_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
USAGE = UsageNames(
    prompt=("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
    completion="output_tokens",
    cached=("cache_read_input_tokens",),
    cache_write=("cache_creation_input_tokens",),
    long_cache_write=("cache_creation", "ephemeral_1h_input_tokens"),
    summed=("output_tokens_details", "server_tool_use"),
    listed="iterations",
    in_pieces=True,
)
_ENVELOPE = ("id", "model")
_CUT = ("max_tokens", "stop_sequence", "refusal", "pause_turn", "model_context_window_exceeded", "compaction")
"""Reasons for which a round ends that are no calls: a call that stands there is not to be answered."""


class _Delta(msgspec.Struct, gc=False):
    type: Literal["content_block_delta"]
    index: int
    delta: Json
    usage: object = msgspec.UNSET
    message: object = msgspec.UNSET


_DELTAS = msgspec.json.Decoder(_Delta)


class MessagesReply(RoundsReply[ChoiceRounds[MessageRound]]):
    def __init__(self, rounds: int | None = None, ours: Ours = RECALL_ALONE) -> None:
        super().__init__(USAGE, rounds)
        self._ours = ours.names
        self._rounds = self._choices[0] = ChoiceRounds(MessageRound, self._allowance)
        self._first = 0
        """The place of the round's first block in the client's message."""
        self._blocks = 0
        """How many blocks the client has had."""
        self._whole: list[bytes] = []
        """The blocks of a reply that is not streamed, as far as they have come."""
        self._envelope: dict[str, bytes] = {}
        self._has_ours = False
        """True where a call of ours was streamed, in any round."""

    def last_event(self, failure: bytes) -> bytes:
        return b"event: error\ndata: " + failure + b"\n\n"

    def resume(self, choice: int) -> None:
        super().resume(choice)
        self._first = self._blocks

    def _usage_in(self, content: Json, event: bytes) -> object:
        message = content.get("message")
        whole = message if isinstance(message, dict) else content
        reason = object_at(object_at(whole, "diagnostics"), "cache_miss_reason")
        self.cache_miss = text_at(reason, "type") or self.cache_miss
        return whole.get("usage")

    def _receive(self, text: bytes) -> bool:
        if self._rounds.resumed or self._has_ours:
            return False
        delta = _DELTAS.decode(text)
        if delta.usage is not msgspec.UNSET or delta.message is not msgspec.UNSET:
            return False
        if delta.index in self._rounds.round.by_index:
            self._rounds.round.by_index[delta.index].receive(delta.delta)
        return True

    def _feed_content(self, content: Json | None, event: bytes) -> list[bytes]:
        if content is None:
            return [event]
        if is_plain(event):
            return self._plain(content, event) if isinstance(content.get("content"), list) else [event]
        match content.get("type"):
            case "message_start":
                return [] if self._rounds.resumed else [event]
            case "content_block_start" | "content_block_delta" | "content_block_stop":
                return self._block(content, event)
            case "message_delta":
                return self._message_delta(content, event)
            case "message_stop":
                if self._rounds.round.has_ours:  # a server may give no reason
                    self._end("tool_use")
                return [] if self._rounds.waiting else [event]
        return [event]

    def _block(self, content: Json, event: bytes) -> list[bytes]:
        index, kind, round_ = content.get("index"), content.get("type"), self._rounds.round
        if not isinstance(index, int) or index < 0:
            return [event]
        if kind == "content_block_start":
            start = content.get("content_block")
            if not isinstance(start, dict):
                return [event]
            round_.by_index[index] = ContentBlock(index, start, self._ours)
            self._has_ours = self._has_ours or bool(round_.by_index[index].ours)
        block = round_.by_index.get(index)
        if block is not None and kind == "content_block_delta":
            block.receive(object_at(content, "delta"))
        if block is not None and block.ours:
            return []
        place = self._first + index - round_.ours_before(index)
        if kind == "content_block_start":
            self._blocks = max(self._blocks, place + 1)
        return [event] if place == index else [framed({**content, "index": place}, named=True)]

    def _message_delta(self, content: Json, event: bytes) -> list[bytes]:
        delta, usage = object_at(content, "delta"), content.get("usage")
        reason = delta.get("stop_reason")
        end = self._end(reason) if reason else reason
        if self._rounds.waiting:
            return []
        if end == reason and not self._rounds.resumed:
            return [event]
        changes: Json = {"delta": {**delta, "stop_reason": end}} if end != reason else {}
        if self._rounds.resumed and isinstance(usage, dict):
            changes["usage"] = self._usage.whole(usage)
        return [framed({**content, **changes}, named=True)]

    def _end(self, reason: object) -> object:
        """The stop reason as the client gets it. A round ends once."""
        if self._rounds.ended:
            return reason
        is_cut = reason in _CUT
        return "max_tokens" if self._rounds.end(broken=is_cut, cut=is_cut) == "limit" else reason

    def _plain(self, body: Json, event: bytes) -> list[bytes]:
        """A reply that is not streamed: the blocks that the client gets stay as they are written."""
        text, round_ = text_of(event), self._rounds.round
        blocks = enumerate(list_at(body, "content"))
        round_.by_index = {at: ContentBlock(at, block, self._ours) for at, block in blocks if isinstance(block, dict)}
        fields = members(text)
        for at, (start, end) in enumerate(items(text, *fields["content"])):
            if at not in round_.by_index or not round_.by_index[at].ours:
                self._whole.append(text[start:end])
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


def failure(fault: Fault) -> bytes:
    kind = _ERROR_KINDS.get(fault.status, "api_error" if fault.status >= 500 else "invalid_request_error")
    details = {"error_code": fault.code, **({"param": fault.param} if fault.param else {})}
    return as_json({"type": "error", "error": {"type": kind, "message": fault.message, "details": details}})


# --- the messages of a whole reply, as a client returns them with its next request ---


def whole_messages(reply: Json) -> list[Json]:
    content = reply.get("content")
    is_whole = isinstance(content, list) and bool(content) and bool(reply.get("stop_reason"))
    return [{"role": "assistant", "content": content}] if is_whole else []


def streamed_messages(events: list[Json]) -> list[Json]:
    blocks: dict[int, ContentBlock] = {}
    for event in events:
        index = event.get("index")
        index = index if isinstance(index, int) else -1
        match event.get("type"):
            case "content_block_start":
                blocks[index] = ContentBlock(index, object_at(event, "content_block"))
            case "content_block_delta" if index in blocks:
                blocks[index].receive(object_at(event, "delta"))
            case "error":
                return []
            case "message_stop":
                wholes = (block.whole for _, block in sorted(blocks.items()))
                # an input that is cut off cannot be returned
                content = [{**each, "input": each["input"] or {}} if "input" in each else each for each in wholes]
                return [{"role": "assistant", "content": content}] if content else []
    return []

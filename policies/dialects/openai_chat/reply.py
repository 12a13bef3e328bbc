"""The reply of OpenAI chat completions, streamed or not, over all its rounds.

The client gets one reply: the envelope is the first round's, completion tokens are summed, and what no recall touches
is the very bytes that came. A chunk that is written anew keeps its data only: comments and the like are not repeated.

Laws
  A call is undecided until its name says whose it is, and what follows it waits so long, so that the client gets its
  calls in their order; the client's indexes have no gap where a call of ours was.
  A reply that broke off, failed or has several choices has no messages; nothing here raises.
  Usage that only Narrows asked for: the same request always gets the same bytes, and nothing but the option is added;
  the client receives every other byte as it came: the chunk that brings usage alone goes, others lose that member.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain, takewhile
from operator import is_
from typing import Any

import msgspec

from policies.dialects.common import RECALL_ALONE, Ours, as_json, list_at, member, object_at, objects, text_at
from policies.dialects.replies import (
    Allowance,
    ChoiceRounds,
    Json,
    Round,
    RoundsReply,
    UsageNames,
    derived_id,
    framed,
    is_plain,
    joined_text,
    read_event,
    text_of,
    valid_arguments,
)
from policies.model.rawjson import UnreadableError, members, spliced

_READ = frozenset({"role", "content", "tool_calls"})


class ChatCall:
    is_call = True
    text = ""

    def __init__(self, index: int, ours: Collection[str]) -> None:
        self.index = index
        self.id = ""
        self.ours: bool | None = None
        """None while the name may yet become that of a tool of ours."""
        self._ours = ours
        self.name = ""
        self._pieces: list[object] = []

    def receive(self, entry: object) -> None:
        self._pieces.append(entry)
        self.id = self.id or text_at(entry, "id")
        if self.ours:
            return
        self.name += name_of(entry)
        if self.ours is False:
            return
        if self.name in self._ours:
            self.ours = True
        elif (
            not isinstance(entry, dict)
            or not isinstance(entry.get("function", {}), dict | None)
            or entry.get("type") not in (None, "", "function")
            or not any(name.startswith(self.name) for name in self._ours)
        ):
            self.ours = False

    def release(self, ours_before: int) -> list[object]:
        """The part for the client now, as one entry; `ours_before`: how many calls of ours stand before it."""
        pieces, self._pieces = self._pieces, []
        if not pieces:
            return []
        entry = gathered(pieces, of_a_call)
        if ours_before and isinstance(entry, dict) and isinstance(entry.get("index"), int):
            entry = {**entry, "index": entry["index"] - ours_before}
        return [entry]

    def _whole(self) -> tuple[Json, Json]:
        call = gathered(self._pieces, of_a_call)
        return call if isinstance(call, dict) else {}, object_at(call, "function")

    @property
    def arguments(self) -> str | None:
        return valid_arguments(self._whole()[1].get("arguments"))

    def as_json(self, place: int) -> str:
        whole, function = self._whole()
        arguments = self.arguments or "{}"
        call = {
            **{key: value for key, value in whole.items() if key != "index"},
            "id": self.id or derived_id(place, arguments),
            "type": "function",
            "function": {**function, "name": self.name, "arguments": arguments},
        }
        return as_json(call).decode()


class ChatRound(Round[ChatCall]):
    def __init__(self, ours: Collection[str]) -> None:
        super().__init__()
        self._ours = ours
        self._calls: list[ChatCall] = []
        self.texts: list[str] = []
        self._fields: list[Json] = []

    def receive(self, message: Json) -> None:
        text = message.get("content")
        if isinstance(text, str):
            self.texts.append(text)
        if not message.keys() <= _READ:
            self._fields.append({key: value for key, value in message.items() if key not in _READ})

    def receive_calls(self, entries: Sequence[object], final: bool) -> list[object]:
        """The next pieces of its calls; returns those that the client gets now. `final`: no name grows any more."""
        for position, entry in enumerate(entries):
            self._call_of(entry, position).receive(entry)
        if final:
            for call in self._calls:
                call.ours = call.ours or False
        decided = takewhile(lambda call: call.ours is not None, self._calls)
        return [entry for call in decided if not call.ours for entry in call.release(self.ours_before(call.index))]

    def continues_theirs(self, entries: object) -> bool:
        """True where these are the next piece of a call that is the client's, and no call is ours."""
        entry = entries[0] if isinstance(entries, list) and len(entries) == 1 else None
        index = entry.get("index") if isinstance(entry, dict) else None
        call = self.by_index.get(index) if isinstance(index, int) else None
        return bool(call and call.id) and not name_of(entry) and all(each.ours is False for each in self._calls)

    def _call_of(self, entry: object, position: int) -> ChatCall:
        """The call that an entry belongs to. Servers without good indexes send each call whole: a new id and a name."""
        index = entry.get("index") if isinstance(entry, dict) else None
        index = index if isinstance(index, int) else position
        call, id_ = self.by_index.get(index), text_at(entry, "id")
        if call is None or (call.id not in ("", id_) and id_ and name_of(entry)):
            call = self.by_index[index] = ChatCall(index, self._ours)
            self._calls.append(call)
        return call

    @property
    def entries(self) -> list[ChatCall]:
        return sorted(self._calls, key=lambda call: call.index)

    @property
    def text(self) -> str:
        return joined_text(self.texts)

    def fields(self, entries: Sequence[ChatCall], alone: bool) -> str:
        """The fields of the message besides text and calls, as JSON; "" where there are none."""
        whole = gathered(self._fields, of_a_message)
        fields = {k: v for k, v in whole.items() if not is_blank(v)} if isinstance(whole, dict) else {}
        return as_json(fields).decode() if fields else ""


def name_of(entry: object) -> str:
    return text_at(object_at(entry, "function"), "name")


# --- values that come in pieces. No state, and nothing here raises on what it reads ---

Joins = Callable[[str], bool]
"""True where strings of this key are pieces of one string; of other strings the first that is not empty counts."""

_REPEATED_STRINGS = frozenset({"id", "type", "format", "role", "object"})


def of_a_message(key: str) -> bool:
    """In what a message carries all strings are pieces, but labels."""
    return key not in _REPEATED_STRINGS


def of_a_call(key: str) -> bool:
    """In a call only the name and the arguments come in pieces."""
    return key in ("name", "arguments")


def gathered(pieces: Sequence[Any], joins: Joins, key: str = "") -> object:
    """One value from its pieces, in time linear in them: strings joined, lists extended (items that carry an index
    merged by it), objects merged; of anything else the newest. None counts for nothing."""
    values = [piece for piece in pieces if piece is not None]
    if len(values) < 2:
        return values[0] if values else None
    kind = type(values[-1])
    if kind not in (str, dict, list) or any(type(value) is not kind for value in values):
        return values[-1]
    if kind is str:
        return joined_text(values) if joins(key) else next(filter(None, values), "")
    places: dict[object, list[object]] = {}
    if kind is dict:
        for name, value in chain.from_iterable(piece.items() for piece in values):
            places.setdefault(name, []).append(value)
        return {name: gathered(parts, joins, str(name)) for name, parts in places.items()}
    for item in chain.from_iterable(values):
        index = item.get("index") if isinstance(item, dict) else None
        place = index if isinstance(index, int) else (len(places),)  # a place of its own
        places.setdefault(place, []).append(item)
    return [gathered(parts, joins, key) for parts in places.values()]


def is_blank(value: object) -> bool:
    return value is None or value in ("", [], {})


# --- the reply ---

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
    index: int
    delta: Json
    finish_reason: None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_ChoicePiece]
    usage: None = None
    error: object = msgspec.UNSET


_CHUNKS = msgspec.json.Decoder(_Chunk)


class ChatChoice(ChoiceRounds[ChatRound]):
    def __init__(self, index: int, allowance: Allowance, ours: Collection[str]) -> None:
        super().__init__(partial(ChatRound, ours), allowance)
        self.index = index
        self._has_role = False
        self._finish: object = None

    @property
    def is_unsettled(self) -> bool:
        """True where the round has not ended, and the client has not got all of it."""
        return not self.ended and (self.round.has_ours or self.round.is_undecided)

    def passes(self, delta: Json) -> bool:
        """Receive a piece if the client surely gets it as it came: text, or the next piece of a call of its own."""
        entries = delta.get("tool_calls")
        if self.waiting or not (entries is None or self.round.continues_theirs(entries)):
            return False
        self.round.receive(delta)
        self._has_role = self._has_role or "role" in delta
        return True

    def receive(self, piece: Json, key: str) -> Json:
        """The part for the client of a piece, which has its content at `key`; the piece itself where all of it."""
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
    def __init__(self, rounds: int | None = None, ours: Ours = RECALL_ALONE) -> None:
        super().__init__(USAGE, rounds)
        self._ours = ours.names
        self._resumed: int | None = None
        """The choice that the round at hand is for; None in the first round."""
        self._envelope: Json = {}
        self._whole: dict[int, Json] = {}
        """The choices of a plain reply, as far as they have come."""
        self._failed = False

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

    def _feed_content(self, content: Json | None, event: bytes) -> list[bytes]:
        if content is None:
            return self._close(event)
        self._failed = self._failed or "error" in content
        pieces = content.get("choices")
        if pieces is None and "usage" in content and "error" not in content:
            pieces = []
        if not isinstance(pieces, list):
            return [event]
        if not all(isinstance(piece, dict) and isinstance(piece.get("index", 0), int) for piece in pieces):
            return [event]
        return self._plain(content, pieces, event) if is_plain(event) else self._streamed(content, pieces, event)

    def _close(self, event: bytes) -> list[bytes]:
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
            self._choices[index] = ChatChoice(index, self._allowance, self._ours)
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
    return len(left) == len(right) and all(map(is_, left, right))


def is_bare(piece: Json) -> bool:
    return not piece.get("finish_reason") and all(map(is_blank, object_at(piece, "delta").values()))


# --- the messages of a whole reply, as a client returns them with its next request ---

_FIELDS = ("role", "content", "refusal", "tool_calls")
_IN_PIECES = ("arguments", "input")


def whole_messages(reply: Json) -> list[Json]:
    choices = list(objects(reply.get("choices")))
    if len(choices) != 1 or not choices[0].get("finish_reason"):
        return []
    return [_message(object_at(choices[0], "message"))]


def _message(message: Json) -> Json:
    fields = {name: message[name] for name in _FIELDS if message.get(name)}
    return {"role": "assistant", "content": None, **fields}


def streamed_messages(events: list[Json]) -> list[Json]:
    texts: dict[str, list[str]] = {"content": [], "refusal": []}
    calls: dict[int, Json] = {}
    is_over = False
    for event in events:
        if "error" in event:
            return []
        for choice in objects(event.get("choices")):
            if choice.get("index", 0) != 0:
                return []
            delta = object_at(choice, "delta")
            for name, pieces in texts.items():
                pieces.append(text_at(delta, name))
            for place, piece in enumerate(objects(delta.get("tool_calls"))):
                index = piece.get("index", place)
                _add_call(calls.setdefault(index if isinstance(index, int) else place, {}), piece)
            is_over = is_over or bool(choice.get("finish_reason"))
    if not is_over:
        return []
    whole: Json = {name: joined_text(pieces) for name, pieces in texts.items()}
    return [_message({**whole, "tool_calls": [call for _, call in sorted(calls.items())]})]


def _add_call(call: Json, piece: Json) -> None:
    """Texts of what is called are added up, everything else is there once."""
    for name, value in piece.items():
        if isinstance(value, dict):
            before = object_at(call, name)
            grown = {key: text_at(before, key) + text_at(value, key) for key in _IN_PIECES if key in value}
            call[name] = {**value, **before, **grown}
        elif name != "index" and value is not None:
            call.setdefault(name, value)


# --- the usage of a stream, asked for in the place of a client that has not, and taken out of the stream again ---

OPTION = b"stream_options"
_USAGE_CHUNK_MEMBERS = frozenset(
    {"id", "object", "created", "model", "service_tier", "system_fingerprint", "choices", "usage"}
)


def asking_for_usage(body: bytes) -> bytes | None:
    try:
        spans = members(body)
        start, end = spans.get("stream_options", (0, 0))
        if member(body, spans, "stream") is not True:
            return None
        if not end:
            at = body.index(b"{") + 1
            return spliced(body, [((at, at), b'"stream_options":{"include_usage":true},')])
        if body[start:end] == b"null":
            return spliced(body, [((start, end), b'{"include_usage":true}')])
        options = members(body, start, end)
    except UnreadableError:
        return None
    wish = options.get("include_usage")
    if wish is None:
        return spliced(body, [((start + 1, start + 1), b'"include_usage":true' + (b"," if options else b""))])
    return spliced(body, [(wish, b"true")]) if body[slice(*wish)] in (b"false", b"null") else None


def without_usage(event: bytes) -> bytes:
    content = read_event(event) if b'"usage"' in event else None
    if content is None or "usage" not in content:
        return event
    if content["usage"] is not None and not list_at(content, "choices") and content.keys() <= _USAGE_CHUNK_MEMBERS:
        return b""
    start = event.index(b"{")
    text = event[start : event.rindex(b"}") + 1]
    try:
        value, end = members(text)["usage"]
        name = text.rfind(b'"usage"', 0, value)
        is_found = name >= 0 and text[name + len(b'"usage"') : value].strip() == b":"
    except UnreadableError:  # several lines of data
        is_found = False
    if not is_found:  # or an escaped name
        return framed({name: each for name, each in content.items() if name != "usage"})
    before, behind = text[:name].rstrip(), text[end:].lstrip()
    if before.endswith(b","):
        name = len(before) - 1
    elif behind.startswith(b","):
        end = len(text) - len(behind) + 1
    return event[:start] + text[:name] + text[end:] + event[start + len(text) :]

"""The reply of OpenAI Responses, streamed or not, over all its rounds.

The client gets one response: its id is the first round's, output tokens are summed, indexes and numbers have no gap,
and what no recall touches is the very bytes that came. Our tool is not in what the response repeats of the request.

Law: a reply that broke off, failed or has several choices has no messages; nothing here raises.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import msgspec

from policies.dialects.common import RECALL_ALONE, Ours, as_json, decoded, object_at, objects, text_at
from policies.dialects.openai_responses.request import CALLS, TOOL_NAMES, called, texts_of, type_of
from policies.dialects.replies import (
    ChoiceRounds,
    Json,
    Round,
    RoundsReply,
    UsageNames,
    derived_id,
    document,
    framed,
    is_plain,
    joined_text,
    read_event,
    text_of,
    valid_arguments,
)
from policies.model.rawjson import Path, UnreadableError, find, items, members, spliced
from policies.tools import RECALL, SEARCH

TEXT_DELTA = "response.output_text.delta"
_ASKING = frozenset({*CALLS, "local_shell_call", "computer_call", "mcp_approval_request"})
"""Items that the client has to answer, unless they were answered at the provider."""


class OutputItem:
    def __init__(self, index: int, item: Json, ours: Collection[str]) -> None:
        self.index = index
        self.item = item
        self._ours = ours
        self.ours: bool | None = _is_ours(item, ours)
        """None while the name is not known."""
        self._deltas: dict[int, list[str]] = {}

    def receive(self, event: Json) -> None:
        item = event.get("item")
        if isinstance(item, dict):
            self.complete(item)
        elif event.get("type") == TEXT_DELTA:
            self.receive_text(event.get("delta"), event.get("content_index"))

    def receive_text(self, delta: object, at: object) -> None:
        if isinstance(delta, str) and isinstance(at, int):
            self._deltas.setdefault(at, []).append(delta)

    def complete(self, item: Json) -> None:
        self.item, self._deltas = item, {}
        if self.ours is None:
            self.ours = _is_ours(item, self._ours) or False

    @property
    def text(self) -> str:
        texts = ["".join(texts_of(self.item))] if type_of(self.item) == "message" else []
        return joined_text([*texts, *(piece for at in sorted(self._deltas) for piece in self._deltas[at])])

    @property
    def id(self) -> str:
        return str(self.item.get("call_id") or "")

    @property
    def name(self) -> str:
        return text_at(self.item, "name") or TOOL_NAMES.get(type_of(self.item), "")

    @property
    def is_call(self) -> bool:
        return type_of(self.item) in CALLS or bool(self.ours)

    @property
    def asks(self) -> bool:
        if type_of(self.item) == "tool_search_call":
            return self.item.get("execution") == "client"
        return type_of(self.item) in _ASKING

    @property
    def arguments(self) -> str | None:
        return valid_arguments(self.item.get("arguments"))

    def as_json(self, place: int) -> str:
        arguments, call_id = self.arguments or "{}", self.item.get("call_id")
        if not (isinstance(call_id, str) and call_id):
            call_id = derived_id(place, arguments)
        if type_of(self.item) == "tool_search_call":
            return as_json({**self.item, "call_id": call_id, "arguments": document(arguments.encode())}).decode()
        return as_json({**self.item, "call_id": call_id, "name": RECALL, "arguments": arguments}).decode()


def _is_ours(item: Json, ours: Collection[str]) -> bool | None:
    if item.get("type") == "tool_search_call":
        return SEARCH in ours
    if item.get("type") != "function_call" or item.get("namespace"):
        return False
    return item["name"] == RECALL in ours if item.get("name") else None


class ResponseRound(Round[OutputItem]):
    def __init__(self, ours: Collection[str]) -> None:
        super().__init__()
        self._ours = ours

    def receive(self, event: Json, index: int) -> None:
        item = event.get("item")
        begins = event.get("type") == "response.output_item.added"
        if isinstance(item, dict) and (begins or index not in self.by_index):
            self.by_index[index] = OutputItem(index, item, self._ours)
        if index in self.by_index and not begins:
            self.by_index[index].receive(event)

    def close(self, output: object) -> None:
        """No more of it comes; `output` are its items as the provider sums them up. Some leave them out there."""
        for at, item in enumerate(output if isinstance(output, list) else ()):
            if isinstance(item, dict):
                self.by_index.setdefault(at, OutputItem(at, item, self._ours)).complete(item)
        for entry in self.by_index.values():
            entry.ours = entry.ours or False

    @property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(call_id for item in self.visible if (call_id := called(item)) is not None)

    @property
    def has_theirs(self) -> bool:
        entries = self.entries
        outputs = {entry.item.get("call_id") for entry in entries if type_of(entry.item).endswith("_output")}
        return any(not entry.ours and entry.asks and entry.item.get("call_id") not in outputs for entry in entries)

    @property
    def visible(self) -> list[Json]:
        return [entry.item for entry in self.entries if not entry.ours]

    def is_ours(self, index: int) -> bool:
        return index in self.by_index and bool(self.by_index[index].ours)

    def fields(self, entries: Sequence[OutputItem], alone: bool) -> str:
        """The items around the calls of ours (see openai_responses.exchange); "" where there are none."""
        layout: list[object] = []
        for entry in entries:
            item, kind = entry.item, type_of(entry.item)
            content = item.get("content")
            if entry.ours:
                layout.append(None)
            elif kind == "reasoning" and not (item.get("encrypted_content") or content):
                # not taken back, because the provider stores nothing to find it by ("Item with id 'rs_...' not found")
                continue
            elif kind in CALLS and not alone:
                layout.append(True)
            elif kind == "message" and isinstance(content, list):
                layout.append({**item, "content": list(map(_without_text, content))})
            else:
                layout.append(item)
        while alone and layout and layout[-1] is None:
            layout.pop()
        return as_json(layout).decode() if any(isinstance(entry, dict) for entry in layout) or not alone else ""


def _without_text(part: object) -> object:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        return part
    return {**{k: v for k, v in part.items() if k != "logprobs"}, "text": len(part["text"])}


# --- the reply ---

USAGE = UsageNames(
    prompt=("input_tokens",),
    completion="output_tokens",
    cached=("input_tokens_details", "cached_tokens"),
    cache_write=("input_tokens_details", "cache_write_tokens"),
    long_cache_write=("input_tokens_details", "cache_write_tokens_details", "ttl_12h_tokens"),
    summed=("output_tokens_details",),
)
_ENVELOPE = ("id", "created_at", "model", "service_tier", "max_output_tokens")
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_AT_LIMIT: Json = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


class _Delta(msgspec.Struct, gc=False):
    type: str
    output_index: int
    sequence_number: int
    delta: object = None
    content_index: object = None
    item: object = msgspec.UNSET
    response: object = msgspec.UNSET


_DELTAS = msgspec.json.Decoder(_Delta)


class ResponsesReply(RoundsReply[ChoiceRounds[ResponseRound]]):
    def __init__(self, rounds: int | None = None, ours: Ours = RECALL_ALONE) -> None:
        super().__init__(USAGE, rounds)
        self._ours = ours
        self._rounds = self._choices[0] = ChoiceRounds(partial(ResponseRound, ours.names), self._allowance)
        self._numbering = Numbering()
        self._undecided: list[tuple[Json, bytes]] = []
        """Events that wait until it is known whose a call is."""
        self._envelope: Json | None = None
        self._visible: list[Json] = []

    def last_event(self, failure: bytes) -> bytes:
        value = (document(failure) or {}).get("error")
        error: Mapping[str, object] = value if isinstance(value, dict) else {"message": str(value or "")}
        fields = {key: error.get(key) for key in ("code", "message", "param")}
        return framed({"type": "error", **fields, "sequence_number": self._numbering.next}, named=True)

    def resume(self, choice: int) -> None:
        self._visible += self._rounds.round.visible
        super().resume(choice)
        self._numbering.resume()

    def feed_all(self, events: bytes) -> list[bytes] | None:
        pieces = super().feed_all(events)
        if self._only_reads and pieces is not None:
            self._numbering.relay_unread(events)
        return pieces

    def feed(self, event: bytes) -> list[bytes]:
        if self._only_reads:
            self._numbering.relay_unread(event)
        return super().feed(event)

    def _usage_in(self, content: Json, event: bytes) -> object:
        return (content if is_plain(event) else object_at(content, "response")).get("usage")

    def _receive(self, text: bytes) -> bool:
        items = self._rounds.round.by_index
        if self._rounds.resumed or self._undecided or self._numbering.changes:
            return False
        if any(item.ours is not False for item in items.values()):
            return False
        delta = _DELTAS.decode(text)
        is_more = delta.item is msgspec.UNSET and delta.response is msgspec.UNSET and delta.type.endswith(".delta")
        if not (is_more and delta.output_index in items):
            return False
        if delta.type == TEXT_DELTA:
            items[delta.output_index].receive_text(delta.delta, delta.content_index)
        self._numbering.pass_on(delta.sequence_number)
        return True

    def _feed_content(self, content: Json | None, event: bytes) -> list[bytes]:
        if content is None:
            return [] if self._rounds.waiting and text_of(event).strip() == b"[DONE]" else [event]
        if self._rounds.waiting:
            return []
        if self._ours.deferred:
            content, event = undeferred(content, event, self._ours)
        if is_plain(event):
            return self._plain(content, event)
        response, index, round_ = object_at(content, "response"), content.get("output_index"), self._rounds.round
        if text_at(content, "type") in _ENDS and response:
            round_.close(response.get("output"))
            events, self._undecided = self._undecided, []
            pieces = [piece for each in events for piece in self._relay(*each)]
            return [*pieces, *self._end(content, response, event)]
        if type(index) is int:
            round_.receive(content, index)
        if self._undecided or round_.is_undecided:
            self._undecided.append((content, event))
            if round_.is_undecided:
                return []
            events, self._undecided = self._undecided, []
            return [piece for each in events for piece in self._relay(*each)]
        return self._relay(content, event)

    def _relay(self, content: Json, event: bytes) -> list[bytes]:
        index, response, round_ = content.get("output_index"), content.get("response"), self._rounds.round
        if type(index) is int and not round_.is_ours(index):
            place = len(self._visible) + index - round_.ours_before(index)
            return [self._numbering.relay(content, event, {"output_index": place})]
        if type(index) is int or (isinstance(response, dict) and self._rounds.resumed):
            self._numbering.skip(content)  # a response begins once, whatever number of rounds it takes
            return []
        relayed = self._numbering.relay(content, event, {})
        if not isinstance(response, dict):
            return [relayed]
        self._envelope = _envelope_of(response) if self._envelope is None else self._envelope
        return [without_tool(relayed, ("response", "tools"))]

    def _end(self, content: Json, response: Json, event: bytes) -> list[bytes]:
        whole = self._whole(response, broken=content.get("type") != "response.completed")
        if whole is None:
            self._numbering.skip(content)
            return []
        if whole is response:
            return [without_tool(self._numbering.relay(content, event, {}), ("response", "tools"))]
        kind = content["type"] if whole.get("status") == response.get("status") else "response.incomplete"
        return [self._numbering.relay(content, event, {"type": kind, "response": whole})]

    def _plain(self, body: Json, event: bytes) -> list[bytes]:
        if not isinstance(body.get("output"), list):
            return [event]
        self._rounds.round.close(body["output"])
        whole = self._whole(body, broken=body.get("status") not in ("completed", None))
        if whole is None:
            return []
        return [without_tool(event, ("tools",)) if whole is body else as_json(whole)]

    def _whole(self, response: Json, broken: bool) -> Json | None:
        """The response as the client gets it, itself where that is what came; None where there are rounds to come."""
        rounds = self._rounds
        self._envelope = _envelope_of(response) if self._envelope is None else self._envelope
        end = "as it came" if response.get("status") == "failed" else rounds.end(broken, cut=broken)
        if end == "waiting":
            return None
        if not rounds.round.has_ours and not rounds.resumed:
            return response
        limit = _AT_LIMIT if end == "limit" else {}
        whole: Json = {**response, **limit, "output": [*self._visible, *rounds.round.visible]}
        tools, usage = response.get("tools"), response.get("usage")
        if isinstance(tools, list):
            whole["tools"] = [tool for tool in tools if not (isinstance(tool, dict) and tool.get("name") == RECALL)]
        if rounds.resumed:
            whole |= self._envelope
            whole |= {"usage": self._usage.whole(usage)} if isinstance(usage, dict) else {}
        return whole


def _envelope_of(response: Json) -> Json:
    return {key: response[key] for key in _ENVELOPE if key in response}


# --- events written anew: the numbers of a stream from which events were taken, without a gap ---
# Law: as long as nothing is taken and nothing changes, an event is the very bytes that came.

_NUMBER = "sequence_number"
_BLANK = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_OURS = f'"{RECALL}"'.encode()


class Numbering:
    """Gives each event that is relayed the number after the one before it."""

    def __init__(self) -> None:
        self._shift = 0
        self._next = 0
        self._begins = False
        self._unread = b""

    @property
    def changes(self) -> bool:
        return self._shift != 0

    @property
    def next(self) -> int:
        """The number of the event that the client is to get next."""
        events = [event for event in _BLANK.split(self._unread) if _NUMBER.encode() in event]
        number = self._number(read_event(events[-1]) or {}) if events else None
        return self._next if number is None else number + 1

    def relay_unread(self, events: bytes) -> None:
        """The client gets whole events as they came. They are read only if the next number is asked for."""
        if _NUMBER.encode() in events:
            self._unread = events

    def pass_on(self, number: int) -> None:
        """The client gets the event of this number as it came."""
        self._next = number + self._shift + 1

    def resume(self) -> None:
        """The next round begins, which counts from its own beginning."""
        self._begins = True

    def skip(self, content: Mapping[str, object]) -> None:
        if self._number(content) is not None:
            self._shift -= 1

    def relay(self, content: Json, event: bytes, changes: Mapping[str, object]) -> bytes:
        """An event as the client gets it; itself where nothing changes. Its name stays."""
        number = self._number(content)
        new = dict(changes)
        if number is not None:
            self._next = number + self._shift + 1
            new[_NUMBER] = number + self._shift
        if all(content.get(key) == value for key, value in new.items()):
            return event
        return framed({**content, **new}, named=b"event:" in event[: event.find(b"data:")])

    def _number(self, content: Mapping[str, object]) -> int | None:
        number = content.get(_NUMBER)
        if type(number) is not int:
            return None
        if self._begins:
            self._shift, self._begins = self._next - number, False
        return number


def without_tool(event: bytes, path: Path) -> bytes:
    """The event, or the body, without our tool in what it repeats of the request: the tools at `path`."""
    text = text_of(event)
    if _OURS not in text or event.count(text) != 1:
        return event
    try:
        start, end = find(text, path)
        tools = items(text, start, end)
        theirs = [text[a:b] for a, b in tools if text[slice(*members(text, a, b).get("name", (0, 0)))] != _OURS]
    except (UnreadableError, KeyError):
        return event
    if len(theirs) == len(tools):
        return event
    return event.replace(text, spliced(text, [((start, end), b"[" + b",".join(theirs) + b"]")]))


def undeferred(content: Json, event: bytes, ours: Ours) -> tuple[Json, bytes]:
    """An event, or the body, as if nothing had been deferred: the tools that it repeats are those of the client, and a
    call of a function that was loaded has no namespace (which would be the name of the function)."""

    def unnamed(item: object) -> object:
        name = text_at(item, "name")
        if not isinstance(item, dict) or name not in ours.deferred or item.get("namespace") != name:
            return item
        return {key: value for key, value in item.items() if key != "namespace"}

    whole = content if is_plain(event) else object_at(content, "response")
    changes: Json = {"tools": decoded(ours.tools)} if isinstance(whole.get("tools"), list) else {}
    if isinstance(output := whole.get("output"), list):
        changes["output"] = [unnamed(each) for each in output]
    if is_plain(event):
        content = {**content, **changes}
        return content, as_json(content)
    changes = {"response": {**whole, **changes}} if changes else {}
    if isinstance(item := content.get("item"), dict):
        changes["item"] = unnamed(item)
    if all(content.get(key) == value for key, value in changes.items()):
        return content, event
    content = {**content, **changes}
    return content, framed(content, named=b"event:" in event[: event.find(b"data:")])


# --- the messages of a whole reply, as a client returns them with its next request ---

_WHOLE = ("completed", "incomplete", None)


def whole_messages(reply: Json) -> list[Json]:
    return list(objects(reply.get("output"))) if reply.get("status") in _WHOLE else []


def streamed_messages(events: list[Json]) -> list[Json]:
    items: list[Json] = []
    for event in events:
        kind = event.get("type")
        if kind == "response.output_item.done":
            items.append(object_at(event, "item"))
        elif kind in ("response.completed", "response.incomplete"):
            return list(objects(object_at(event, "response").get("output"))) or items
    return []

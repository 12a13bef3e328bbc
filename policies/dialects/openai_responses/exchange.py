"""The tools that are ours in OpenAI Responses: added to a request, and its exchanges put back where the model saw them.

The `fields` of a RecallRound are the items of its round as a list: each item with the length of its texts in place of
the texts, null for a call of ours, true for one of the client's. Calls of ours that have no null come last.
"""

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from policies.dialects.common import Added, Request, answered_calls, as_json, member, parsed
from policies.dialects.deferring import DeferralForm, Entry, without
from policies.dialects.openai import MARKS, MOST_TOOLS
from policies.dialects.openai_responses.request import CALLS, OF_SEARCH, Item, digest, read, texts_of, type_of
from policies.dialects.tool_lists import tool_names, with_tool
from policies.model.edits import RecallRound
from policies.model.rawjson import Path, UnreadableError, find, items, members, replaced
from policies.recall import DESCRIPTION, PARAMETERS, RecallAnswer
from policies.tools import RECALL, SEARCH

TOOL = (
    # strict is the default of this API, and wants every parameter required
    f'{{"type":"function","name":"{RECALL}","description":"{DESCRIPTION}","parameters":{PARAMETERS},"strict":false}}'
).encode()


def recall_tool(request: Request, always: bool) -> Added | None:
    if not may_have_rounds(request):
        return None
    return with_tool(request, tool_names(request.tool_list), TOOL, always, MOST_TOOLS)


def may_have_rounds(request: Request) -> bool:
    """Not where the provider stores the response: what is fetched by its id has to be what the client got."""
    fields = request.members
    return member(request.body, fields, "store") is False and not member(request.body, fields, "background")


def put_back(
    rounds: Sequence[RecallRound], answers: Sequence[Sequence[RecallAnswer]], text: str, reply: Sequence[bytes] | None
) -> list[bytes]:
    items: list[bytes] = []
    returned = ReturnedItems(reply or (), map(_layout, rounds))
    start = 0
    for exchange, each in zip(rounds, answers, strict=True):
        if not exchange.places:
            originals = _round(exchange, text[start : start + exchange.text])
            items += [*map(returned.move, originals), *_results(exchange, each)]
            start += exchange.text
    if reply is None:
        return items
    rest = returned.rest(start)
    for exchange, each in zip(rounds, answers, strict=True):
        if exchange.places:
            rest = [*_with_calls(rest, exchange), *_results(exchange, each)]
    return items + rest


def _layout(exchange: RecallRound) -> list[Any]:
    """The items of a round; where only the calls are stored, what they follow is a text or nothing."""
    if exchange.fields:
        layout: list[Any] = json.loads(exchange.fields)
        return layout
    if not exchange.places:
        message = {"type": "message", "role": "assistant", "content": exchange.text}
        return [message] if exchange.text else []
    return [None if place in exchange.places else True for place in range(max(exchange.places) + 1)]


def _round(exchange: RecallRound, text: str) -> Iterator[bytes]:
    """The items of a round of recalls alone, as the model wrote them."""
    calls = iter(exchange.calls)
    for item in _layout(exchange):
        if item is None:
            yield next(calls).encode()
            continue
        content = item.get("content")
        if isinstance(content, int):
            item, text = {**item, "content": text[:content]}, text[content:]
        elif type_of(item) == "message" and isinstance(content, list):
            parts = []
            for part in content:
                length = part.get("text") if isinstance(part, dict) else None
                if isinstance(length, int):
                    part, text = {**part, "text": text[:length]}, text[length:]
                parts.append(part)
            item = {**item, "content": parts}
        yield as_json(item)
    yield from (call.encode() for call in calls)


def _results(exchange: RecallRound, answers: Sequence[RecallAnswer]) -> Iterator[bytes]:
    """A search gets the definitions themselves: "echo the same `call_id` from the `tool_search_call` in your
    `tool_search_output`" (OpenAI guide, "Tool search")."""
    for call, answer in answered_calls(exchange, answers):
        name = call.get("call_id", "")
        if call["type"] == "tool_search_call":
            loaded = b",".join(each.raw[:-1] + b',"defer_loading":true}' for each in answer.tools)
            fields = as_json({"call_id": name, "status": "completed"})[1:-1]
            yield OF_SEARCH + fields + b',"tools":[' + loaded + b"]}"
            continue
        result = {"type": "function_call_output", "call_id": name, "output": answer.text}
        yield as_json(result | ({"caller": call["caller"]} if call.get("caller") else {}))


def _with_calls(reply: Sequence[bytes], exchange: RecallRound) -> Iterator[bytes]:
    """The reply with our calls among the client's, and with what else the client did not return."""
    layout = _layout(exchange)
    returned, calls, at = ReturnedItems(reply, [layout]), iter(exchange.calls), 0
    for entry in layout:
        place = None if entry is None else returned.place(entry, at)
        if place is not None:
            yield from reply[at : place + 1]
            at = max(at, place + 1)
        elif entry is None:
            yield next(calls).encode()
        elif entry is True:
            raise UnreadableError("a call of the reply is missing")
        elif type_of(entry) != "message":
            yield as_json(entry)
    yield from reply[at:]
    yield from (call.encode() for call in calls)


def called(call: str) -> tuple[str, str]:
    item = json.loads(call)
    if item["type"] == "tool_search_call":  # its arguments are no text, but an object
        return SEARCH, as_json(item["arguments"]).decode()
    return str(item["name"]), str(item["arguments"])


def next_round(body: bytes, tokens: int) -> bytes:
    fields = members(body)
    limit = body[slice(*fields["max_output_tokens"])] if "max_output_tokens" in fields else b""
    if not limit.isdigit():
        return body
    rest = max(16, int(limit) - tokens)  # "integer below minimum value. Expected a value >= 16"
    return replaced(body, {("max_output_tokens",): b"%d" % min(rest, int(limit))})


# --- a list of tools of which some are deferred ---
# "Only gpt-5.4 and later models support tool_search"; with `execution: "client"` the model emits a `tool_search_call`,
# and the tools in its `tool_search_output` are "injected at the end of the context window". Of a function that is
# declared with `defer_loading` "the model still sees the function name and description", so ours are not declared: a
# search that the client executes may return tools that the request has not. Once a function is loaded it is called
# by a namespace of its own name, and refused without; a call that stands before is not (OpenAI guide, "Tool search")

_VERSION = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?![\d.])")


def _takes(request: Request) -> bool:
    version = _VERSION.search(request.model.lower())
    is_new = version is not None and (int(version[1]), int(version[2] or 0)) >= (5, 4)
    return is_new and may_have_rounds(request)


def _definition(entry: Entry) -> Entry | None:
    return entry if entry.get("type") == "function" and entry.keys().isdisjoint(MARKS) else None


DEFERRAL = DeferralForm(
    takes=_takes,
    definition=_definition,
    tool=lambda description, schema: (
        f'{{"type":"tool_search","execution":"client","description":{description},"parameters":{schema}}}'.encode()
    ),
    listed=without,
    has_namespaces=True,
    refused=(b"tool_search",),
)


# --- what a client returned of a reply, matched with what was stored of its rounds ---
# Laws: a stored item is sent as the model saw it, whatever the client has left out of it or seals otherwise, and never
# are there two items with one id.

Layout = Sequence[Any]
"""The stored items of a round: null for a call of ours, true for one of the client's."""


class ReturnedItems:
    """The items of a reply. A stored one is the same if kind and id agree: clients leave fields out, and some
    upstreams seal reasoning anew in each event that holds it. Without an id it is recognized by all that it says."""

    def __init__(self, reply: Sequence[bytes], stored: Iterable[Layout]) -> None:
        self._rest = dict(enumerate(reply))
        self._items = list(map(parsed, reply))
        self._ids = {name for name in map(_id_of, self._items) if name}
        self._matched: set[int] = set()
        self._moved = 0
        """Characters of the messages that were moved."""
        stored_ids = {_id_of(entry) for layout in stored for entry in layout if isinstance(entry, dict)}
        self._places: dict[object, deque[int]] = defaultdict(deque)
        for at, item in enumerate(self._items):
            name = _id_of(item)
            if name:
                self._places[_id_and_text(item)].append(at)
            if not name or name not in stored_ids:  # one with the id of another stored one is not that which it equals
                self._places[_signature(item)].append(at)

    def move(self, raw: bytes) -> bytes:
        """An item of an earlier round as it is to be sent; the client's copy goes from the rest."""
        item = parsed(raw)
        at = self._find(item)
        if at is not None:
            self._moved += len(_text(self._items[at]))
            del self._rest[at]
            return raw
        # its text is in a message that the client has put together, under the same id
        return as_json({k: v for k, v in item.items() if k != "id"}) if _id_of(item) in self._ids else raw

    def rest(self, count: int) -> list[bytes]:
        """The items that stay, without the first `count` characters of text: those of the rounds before."""
        return list(_without_beginning(self._rest.values(), count - self._moved))

    def place(self, entry: Any, start: int) -> int | None:
        """The place of an entry, None where it was not returned; of a message or a client's call, from `start` on."""
        if entry is not True and type_of(entry) != "message":
            return self._find(entry)
        kinds = CALLS if entry is True else ("message",)
        return next((at for at in range(start, len(self._items)) if type_of(self._items[at]) in kinds), None)

    def _find(self, item: Item) -> int | None:
        for key in (_id_and_text(item), _signature(item)):
            places = self._places.get(key, deque())
            while places:
                at = places.popleft()
                if at not in self._matched:
                    self._matched.add(at)
                    return at
        return None


def _id_of(item: Item) -> tuple[str, str] | None:
    value = item.get("id")
    return (type_of(item), value) if isinstance(value, str) and value else None


def _id_and_text(item: Item) -> tuple[object, str]:
    """A message with other text is another one, though the id is the same: clients join several."""
    return _id_of(item), _text(item)


def _text(item: Item) -> str:
    return "".join(texts_of(item)) if type_of(item) == "message" else ""


def _signature(item: Item) -> bytes:
    """The seal of an item, or all that it says: an item without id is recognized by it."""
    sealed = item.get("encrypted_content")
    return sealed.encode("utf-8", "surrogatepass") if isinstance(sealed, str) and sealed else digest(item)


def _without_beginning(reply: Iterable[bytes], count: int) -> Iterator[bytes]:
    """The reply without the first `count` characters of its text, and without the messages that are empty then."""
    for raw in reply:
        if count <= 0:
            yield raw
            continue
        emptied: set[int] = set()
        changes: dict[Path, bytes] = {}
        for part in read(raw, len).parts:
            if part.kind == "assistant" and count:
                if len(part.text) <= count:
                    emptied.add(int(part.path[1]) if len(part.path) > 1 else 0)
                else:
                    changes[part.path] = as_json(part.text[count:])
                count -= min(count, len(part.text))
        rest = replaced(raw, changes) if changes else raw
        if emptied:
            start, end = find(rest, ("content",))
            parts = [] if rest.startswith(b'"', start) else items(rest, start, end)
            others = [rest[a:b] for at, (a, b) in enumerate(parts) if at not in emptied]
            rest = rest[:start] + b"[" + b",".join(others) + b"]" + rest[end:] if others else b""
        if rest:
            yield rest

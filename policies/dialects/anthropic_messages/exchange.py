"""The tools that are ours in Anthropic Messages: added to a request, and their exchanges put back where they stood.

The `fields` of a RecallRound are its blocks as a list, in order, with a text as its number of characters (it stands in
the client's message) and a call of ours as a block without id; "" where the round was one text and then calls.
"""

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence

from policies.dialects.anthropic_messages.request import MARK, QUOTED, SEALED, Json, bare, block_of
from policies.dialects.common import Added, Request, answered_calls, as_json, parsed, sorted_json
from policies.dialects.deferring import DeferralForm, Entry
from policies.dialects.tool_lists import tool_names, with_tool
from policies.model.edits import RecallRound
from policies.model.rawjson import Change, Path, Span, UnreadableError, find, items, members, replaced, spliced
from policies.recall import DESCRIPTION, PARAMETERS, RecallAnswer
from policies.tools import RECALL, SEARCH

# --- what a client returned of a reply, matched with what was stored of its rounds ---

_PLACE = {"type": "tool_use"}


def stored_fields(blocks: Sequence[Json | None]) -> str:
    """The `fields` of a round; None stands for a call of ours. No message may hold an empty text."""
    stored: list[Json] = []
    for block in blocks:
        text = block.get("text") if block else None
        if block is None:
            stored.append(_PLACE)
        elif text != "":
            is_text = block.get("type") == "text" and isinstance(text, str)
            stored.append({**block, "text": len(str(text))} if is_text else block)
    while stored and stored[-1] == _PLACE:
        stored.pop()
    plain = len(stored) == 1 and stored[0].keys() == {"type", "text"} and _length(stored[0]) is not None
    return as_json(stored).decode() if stored and not plain else ""


def _stored_blocks(exchange: RecallRound) -> list[tuple[Json, bytes]]:
    if not exchange.fields:
        return [({"type": "text", "text": exchange.text}, b"")]
    raw = exchange.fields.encode("utf-8", "surrogatepass")
    return [(json.loads(raw[a:b]), raw[a:b]) for a, b in items(raw)]


def _length(block: Json) -> int | None:
    text = block.get("text")
    return text if block.get("type") == "text" and isinstance(text, int) else None


def blocks_of(exchange: RecallRound, text: str) -> list[bytes]:
    """The content of the message that the model wrote in a round with this `text`."""
    blocks: list[bytes] = []
    calls = [call.encode("utf-8", "surrogatepass") for call in exchange.calls]
    start = 0
    for block, raw in _stored_blocks(exchange):
        length = _length(block)
        if block == _PLACE:
            blocks += calls[:1]
            calls = calls[1:]
        elif length is None:
            blocks.append(raw)
        else:
            piece = text[start : start + length]
            blocks += [as_json({**block, "text": piece})] if piece.strip() else []  # the API refuses blank ones
            start += length
    return [*blocks, *calls]


class ReturnedMessage:
    """The client's message, from which the rounds before the last are removed, as far as the client returned them."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        content = members(raw).get("content")
        if content is None:
            raise UnreadableError("the reply has no content")
        self._whole: str | None = None
        self._spans: list[Span] = []
        if raw[content[0] : content[0] + 1] == b'"':
            self._whole = str(parsed(raw).get("content"))
            self._blocks: list[Json] = [{"type": "text", "text": self._whole}]
        else:
            self._spans = items(raw, *content)
            self._blocks = [block_of(raw[a:b]) for a, b in self._spans]
        self._at = 0
        self._cut = 0
        """Characters that are removed from the text at hand."""
        self._calls: list[tuple[int, bytes]] = []

    def remove(self, exchange: RecallRound) -> None:
        for block, _ in _stored_blocks(exchange):
            length = _length(block)
            while length:
                self._skip_empty()
                if self._at == len(self._blocks):  # the end of a text may be stripped
                    break
                count = min(length, len(self._text()) - self._cut)
                length -= count
                self._cut += count
                if self._cut == len(self._text()):
                    self._at, self._cut = self._at + 1, 0
            if length is None and block != _PLACE:
                self._skip_empty()
                if not self._cut and self._at < len(self._blocks) and _same(self._blocks[self._at], block):
                    self._at += 1

    def _text(self) -> str:
        block = self._blocks[self._at]
        text = block.get("text")
        if block.get("type") != "text" or not isinstance(text, str):
            raise UnreadableError("the reply has another block in the place of a text")
        return text

    def _skip_empty(self) -> None:
        while self._at < len(self._blocks) and self._blocks[self._at] == {"type": "text", "text": ""}:
            self._at += 1

    def insert(self, exchange: RecallRound) -> None:
        """Insert our calls, which were made beside the client's, each in the place it had among all."""
        theirs = [at for at, block in enumerate(self._blocks) if at >= self._at and block.get("type") == "tool_use"]
        if not theirs:
            raise UnreadableError("the reply has no calls")
        for ours, (place, call) in enumerate(sorted(zip(exchange.places, exchange.calls, strict=True))):
            before = theirs[place - ours] if place - ours < len(theirs) else theirs[-1] + 1
            self._calls.append((before, call.encode("utf-8", "surrogatepass")))

    def rest(self) -> bytes:
        """The message without what was removed; empty where nothing is left."""
        self._skip_empty()
        if self._at == len(self._blocks) and not self._calls:
            return b""
        if not self._at and not self._cut and not self._calls:
            return self._raw
        if self._whole is not None:
            return replaced(self._raw, {("content",): as_json(self._whole[self._cut :])})
        start, end = self._spans[self._at]
        changes: list[Change] = [((self._spans[0][0], start), b"")] if self._at else []
        if self._cut:
            rest = replaced(self._raw[start:end], {("text",): as_json(self._text()[self._cut :])})
            changes.append(((start, end), rest))
        for before in dict.fromkeys(at for at, _ in self._calls):
            calls = b",".join(call for at, call in self._calls if at == before)
            is_last = before == len(self._spans)
            at = self._spans[-1][1] if is_last else self._spans[before][0]
            changes.append(((at, at), b"," + calls if is_last else calls + b","))
        return spliced(self._raw, changes)


def _same(block: Json, stored: Json) -> bool:
    """True where a block of the client's is the stored one: field order, cache marks and empty fields do not count, nor
    does the text of a thought that is signed or sealed alike."""
    kind = stored.get("type")
    seal = SEALED[kind][1] if isinstance(kind, str) and kind in SEALED else ""
    if seal and stored.get(seal) and block.get("type") == kind:
        return block.get(seal) == stored[seal]
    return _comparable(block) == _comparable(stored)


def _comparable(block: Json) -> bytes:
    fields = bare(block)
    pairs = fields.items() if isinstance(fields, dict) else ()
    return sorted_json({key: value for key, value in pairs if value is not None})


# --- the exchanges ---

TOOL = f'{{"name":"{RECALL}","description":"{DESCRIPTION}","input_schema":{PARAMETERS}}}'.encode()


def recall_tool(request: Request, always: bool) -> Added | None:
    return with_tool(request, tool_names(request.tool_list), TOOL, always, most=sys.maxsize)


def put_back(
    rounds: Sequence[RecallRound], answers: Sequence[Sequence[RecallAnswer]], text: str, reply: Sequence[bytes] | None
) -> list[bytes]:
    """Where the client's own calls were made beside ours, our results stand before theirs."""
    messages: list[bytes] = []
    returned = ReturnedMessage(reply[0]) if reply else None
    results: list[bytes] = []
    start = 0
    for exchange, each in zip(rounds, answers, strict=True):
        if exchange.places:
            if returned is not None:
                returned.insert(exchange)
            results += _results(exchange, each)
            continue
        blocks = blocks_of(exchange, text[start : start + exchange.text])
        messages += [_message("assistant", blocks), _message("user", _results(exchange, each))]
        start += exchange.text
        if returned is not None:
            returned.remove(exchange)
    if reply and returned is not None:
        messages += [raw for raw in (returned.rest(),) if raw]
        following = list(reply[1:])
        if results and following:  # all results that answer one message stand in the next, before any text
            start, _ = items(following[0], *find(following[0], ("content",)))[0]
            following[0] = following[0][:start] + b",".join(results) + b"," + following[0][start:]
        elif results:
            following = [_message("user", results)]
        messages += following
    return messages


def _message(role: str, blocks: Sequence[bytes]) -> bytes:
    return b'{"role":"' + role.encode() + b'","content":[' + b",".join(blocks) + b"]}"


def _results(exchange: RecallRound, answers: Sequence[RecallAnswer]) -> list[bytes]:
    """What a search has found is named: the API puts the definitions in the place of the names ("returning
    `tool_reference` blocks from your own search implementation", Claude docs, "Tool search")."""
    return [
        as_json({"type": "tool_result", "tool_use_id": call.get("id", ""), "content": _content(answer)})
        for call, answer in answered_calls(exchange, answers)
    ]


def _content(answer: RecallAnswer) -> object:
    return [{"type": "tool_reference", "tool_name": each.name} for each in answer.tools] or answer.text


def called(call: str) -> tuple[str, str]:
    block = json.loads(call)
    return str(block["name"]), as_json(block["input"]).decode()


def next_round(body: bytes, tokens: int) -> bytes:
    """A budget for thinking stays as long as it fits, because another one costs the prompt cache."""
    fields = members(body)
    limit = body[slice(*fields["max_tokens"])] if "max_tokens" in fields else b""
    if not limit.isdigit():
        return body
    rest = max(1, int(limit) - tokens)
    changes: dict[Path, bytes] = {}
    try:
        budget = body[slice(*find(body, ("thinking", "budget_tokens")))]
    except (UnreadableError, LookupError):
        budget = b""
    if budget.isdigit() and rest <= int(budget) < int(limit):  # a greater one is a client's that may have it
        rest = max(rest, 1025)  # the API takes no budget below 1024, and wants more than it for the whole answer
        changes["thinking", "budget_tokens"] = b"%d" % (rest - 1)
    return replaced(body, {**changes, ("max_tokens",): b"%d" % rest})


# --- a list of tools of which some are deferred ---
# "At least one tool must have defer_loading=false", and none that has it takes a mark; "deferred tools are not included
# in the system-prompt prefix", and each tool that is referenced needs its definition in the list (Claude docs, "Tool
# search", "Tool use with prompt caching"). It needs no beta header, and Opus, Sonnet and Haiku of 4.5 or later. Models
# by the names of Bedrock are left alone: only one of its two APIs takes it

_SEARCHES = re.compile(
    r"claude-(?:(?:fable|mythos)-|(?:opus|sonnet|haiku)-(?:4[-.][5-9](?!\d)|[5-9](?!\d)|\d\d(?!\d)))"
)
_OF_BEDROCK = re.compile(r"(?:^|[./:])anthropic\.claude|:bedrock:")


def _takes(request: Request) -> bool:
    model = request.model.lower()
    return _SEARCHES.search(model) is not None and _OF_BEDROCK.search(model) is None


def _definition(entry: Entry) -> Entry | None:
    return entry if "input_schema" in entry and entry.get("type") in (None, "custom") else None


def _listed(raws: Sequence[bytes], places: Collection[int], tool: bytes) -> list[bytes]:
    """The search tool stands first, so that there is a tool before each mark; the mark of a deferred one moves to the
    last that stays before it."""
    entries, last = [tool, *raws], 0
    for at, raw in enumerate(raws, 1):
        if at - 1 not in places:
            last = at
            continue
        fields = members(raw)
        entries[at] = raw
        if MARK in fields:
            entries[at], value = _without_mark(raw, fields), raw[slice(*fields[MARK])]
            if value != b"null" and MARK not in members(entries[last]):
                entries[last] = _with_member(entries[last], QUOTED + b":" + value)
        entries[at] = _with_member(entries[at], b'"defer_loading":true')
    return entries


def _with_member(raw: bytes, member: bytes) -> bytes:
    return raw[:-1] + b"," + member + raw[-1:]


def _without_mark(raw: bytes, fields: Mapping[str, Span]) -> bytes:
    start, end = fields[MARK]
    name = raw.rfind(QUOTED, 0, start)
    before, behind = raw[:name].rstrip(), raw[end:]
    if name < 0 or raw[name + len(QUOTED) : start].strip() != b":":
        raise UnreadableError("the name of a mark is escaped")
    if before.endswith(b","):
        return before[:-1] + behind
    return raw[:name] + behind.lstrip().removeprefix(b",")


DEFERRAL = DeferralForm(
    takes=_takes,
    definition=_definition,
    tool=lambda description, schema: (
        f'{{"name":"{SEARCH}","description":{description},"input_schema":{schema}}}'.encode()
    ),
    listed=_listed,
    counts_found=True,
    refused=(b"defer_loading", b"tool_reference"),
)

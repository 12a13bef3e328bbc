"""The rounds of a reply in blocks: written down, made again, and told apart in the one message that the client has.

What an exchange keeps of a round: a list of its blocks, in order, with a text as its number of characters (it stands in
the client's message) and a call of ours as a block without id. Empty where the round was one text and then calls.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from policies.dialects.anthropic_messages.blocks import SEALED, bare, block_of, written
from policies.dialects.common import as_json, parsed
from policies.model.edits import Exchange
from policies.model.rawjson import Span, UnreadableError, items, members, replaced, spliced

Json = Mapping[str, object]
_PLACE = {"type": "tool_use"}


def noted(blocks: Sequence[Json | None]) -> str:
    """What to keep of a round; None stands for a call of ours. An empty text says nothing, and no message may hold
    it."""
    found = [_noted(block) for block in blocks if block is None or block.get("text") != ""]
    while found and found[-1] == _PLACE:
        found.pop()
    plain = not found or (len(found) == 1 and found[0].keys() == {"type", "text"} and _length(found[0]) is not None)
    return "" if plain else as_json(found).decode()


def _noted(block: Json | None) -> Json:
    if block is None:
        return _PLACE
    text = block.get("text")
    return {**block, "text": len(text)} if block.get("type") == "text" and isinstance(text, str) else block


def _kept(exchange: Exchange) -> list[tuple[Json, bytes]]:
    """The blocks of a round as they were kept, each as it is written, too."""
    if not exchange.fields:
        return [({"type": "text", "text": exchange.text}, b"")]
    raw = exchange.fields.encode("utf-8", "surrogatepass")
    return [(json.loads(raw[a:b]), raw[a:b]) for a, b in items(raw)]


def _length(block: Json) -> int | None:
    """How long a text was; None for any other block."""
    text = block.get("text")
    return text if block.get("type") == "text" and isinstance(text, int) else None


def blocks_of(exchange: Exchange, said: str) -> list[bytes]:
    """The content of the message that the model made in a round, in which it `said` this."""
    found: list[bytes] = []
    calls = [call.encode("utf-8", "surrogatepass") for call in exchange.calls]
    start = 0
    for block, raw in _kept(exchange):
        length = _length(block)
        if block == _PLACE:
            found += calls[:1]
            calls = calls[1:]
        elif length is None:
            found.append(raw)
        else:
            text = said[start : start + length]
            found += [as_json({**block, "text": text})] if text.strip() else []  # the API refuses blank ones
            start += length
    return [*found, *calls]


class Left:
    """What is left of the client's message when the rounds before its own are taken out of it, block by block. A block
    that the client has not kept is passed over."""

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
        """Characters that are taken of the text at hand."""
        self._calls: list[tuple[int, bytes]] = []

    def take(self, exchange: Exchange) -> None:
        """The next round goes."""
        for block, _ in _kept(exchange):
            length = _length(block)
            if length is not None:
                self._take_text(length)
            elif block != _PLACE:
                self._skip_empty()
                if not self._cut and self._at < len(self._blocks) and _same(self._blocks[self._at], block):
                    self._at += 1

    def _take_text(self, length: int) -> None:
        while length:
            self._skip_empty()
            if self._at == len(self._blocks):  # the end of a text may be stripped
                return
            taken = min(length, len(self._text()) - self._cut)
            length -= taken
            self._cut += taken
            if self._cut == len(self._text()):
                self._at, self._cut = self._at + 1, 0

    def _text(self) -> str:
        block = self._blocks[self._at]
        text = block.get("text")
        if block.get("type") != "text" or not isinstance(text, str):
            raise UnreadableError("the reply has another block in the place of a text")
        return text

    def _skip_empty(self) -> None:
        while self._at < len(self._blocks) and self._blocks[self._at] == {"type": "text", "text": ""}:
            self._at += 1

    def insert(self, exchange: Exchange) -> None:
        """Our calls, which were made beside the client's, each in the place it had among all."""
        theirs = [at for at, block in enumerate(self._blocks) if at >= self._at and block.get("type") == "tool_use"]
        if not theirs:
            raise UnreadableError("the reply has no calls")
        for ours, (place, call) in enumerate(sorted(zip(exchange.places, exchange.calls, strict=True))):
            before = theirs[place - ours] if place - ours < len(theirs) else theirs[-1] + 1
            self._calls.append((before, call.encode("utf-8", "surrogatepass")))

    def message(self) -> bytes:
        """The message without the blocks that went; empty where none is left."""
        self._skip_empty()
        if self._at == len(self._blocks) and not self._calls:
            return b""
        if not self._at and not self._cut and not self._calls:
            return self._raw
        if self._whole is not None:
            return replaced(self._raw, {("content",): as_json(self._whole[self._cut :])})
        return spliced(self._raw, self._changes())

    def _changes(self) -> Iterator[tuple[Span, bytes]]:
        start, end = self._spans[self._at]
        if self._at:
            yield (self._spans[0][0], start), b""
        if self._cut:
            yield (start, end), replaced(self._raw[start:end], {("text",): as_json(self._text()[self._cut :])})
        for before in dict.fromkeys(at for at, _ in self._calls):
            calls = b",".join(call for at, call in self._calls if at == before)
            if before < len(self._spans):
                at = self._spans[before][0]
                yield (at, at), calls + b","
            else:
                at = self._spans[-1][1]
                yield (at, at), b"," + calls


def _same(block: Json, kept: Json) -> bool:
    """Whether a block of the client's is the one that was kept: field order, cache marks and empty fields say
    nothing, nor does the text of a thought that is signed or sealed alike."""
    kind = kept.get("type")
    seal = SEALED[kind][1] if isinstance(kind, str) and kind in SEALED else ""
    if seal and kept.get(seal) and block.get("type") == kind:
        return block.get(seal) == kept[seal]
    return _said(block) == _said(kept)


def _said(block: Json) -> bytes:
    found = bare(block)
    fields = found.items() if isinstance(found, dict) else ()
    return written({key: value for key, value in fields if value is not None})

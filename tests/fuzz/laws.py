"""What holds of any bytes: one function for each group of laws. A fault is an AssertionError, or any exception that is
not declared."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from policies.compact import Compacted, compact
from policies.dialects import DIALECTS, TooManyError
from policies.dialects.common import Reply, Request
from policies.digests import digested
from policies.laws import keeps_shape
from policies.model.conversation import Block
from policies.model.edits import Fold, Replace
from policies.model.rawjson import UnreadableError, find, items, members, replaced
from policies.recall import answer, original
from policies.rules.clip import Clip
from policies.rules.tidy import tidied
from policies.text.excerpt import excerpt
from policies.tools import ToolKind
from proxy.lab.provider import PREFIX, find_violation
from proxy.sse import ENCODINGS, Copy, Events, TooLargeError, UndecodableError, data, decoded, is_last
from tests.fuzz.draw import Draw
from tests.kit.forms import plain, to_anthropic, to_responses
from tests.kit.histories import CHEAP, EAGER, RECORDING, ROOMY, TIGHT, TOOLS, refs_in
from tests.kit.talk import letters

FORMS: Mapping[str, Callable[[Any], Any]] = {
    "openai_chat": lambda chat: chat,
    "anthropic_messages": lambda chat: {**to_anthropic(chat), "max_tokens": 100},
    "openai_responses": to_responses,
}
HISTORY = {"openai_chat": "messages", "anthropic_messages": "messages", "openai_responses": "input"}
SEPARATOR = b"\0\0"
KINDS: Sequence[ToolKind] = ("file", "search", "listing", "command", "data", "web")
SMALL = 2**20


def splitting(raw: bytes) -> None:
    """A body is split the same way whatever an earlier one showed, and joined to the same bytes; all of it is read."""
    draw = Draw(raw)
    dialect = DIALECTS[draw.one(list(FORMS))]
    earlier, between, body = draw.rest().partition(SEPARATOR)
    body = body if between else earlier
    try:
        before, request = dialect.split(earlier), dialect.split(body)
        resumed = dialect.split(body, before)
    except TooManyError:
        return
    assert (request is None) == (resumed is None)
    if request is None or resumed is None:
        return
    assert replace(resumed, shared=0) == request
    assert len(request.spans) <= body.count(b",") + 1
    assert all(start < end <= following for (start, end), (following, _) in pairwise(request.spans))
    same = {at: request.raw(at) for at in range(len(request.spans))}
    assert dialect.joined(request, same) == body
    assert dialect.joined(request, {}) == body
    for message in same.values():
        read = dialect.read(message, letters)
        assert read.raw == sha256(message).digest()
        assert len(read.parts) <= len(message)


def compacting(raw: bytes) -> None:
    """Any body is compacted, or is no request; what is sent is JSON, and the same again."""
    draw = Draw(raw)
    dialect, budget, recall = draw.one(list(FORMS)), draw.one((ROOMY, TIGHT)), draw.number(1) == 1
    body = draw.rest()
    chosen: dict[str, Any] = {"dialect": dialect, "policies": EAGER, "prices": CHEAP, "budget": budget}
    try:
        done = compact(body, recall=recall, **chosen)
    except ValueError:
        return
    assert _decodes(done.body) or not _decodes(body)
    _recallable(done)


def rendering(raw: bytes) -> None:
    """A valid session in any API stays valid, what is edited can be recalled, and the rest are the client's bytes."""
    draw = Draw(raw)
    name, budget, policies = draw.one(list(FORMS)), draw.one((ROOMY, TIGHT)), draw.one((EAGER, RECORDING))
    indent = draw.one((None, 1))
    chat = plain({"model": "m", "messages": draw.session(), "tools": list(TOOLS)})
    request = FORMS[name](chat)
    if find_violation(request, PREFIX, name) is not None:
        return
    body = json.dumps(request, indent=indent, ensure_ascii=draw.number(1) == 1).encode()
    done = compact(body, dialect=name, policies=policies, prices=CHEAP, budget=budget, recall=True)
    assert find_violation(json.loads(done.body), PREFIX, name) is None
    _recallable(done)
    _untouched(done, body)
    for edit in done.plan.edits:
        if isinstance(edit, Replace):
            assert keeps_shape(_block(done, edit.at), edit)


def clipping(raw: bytes) -> None:
    """Arguments that are clipped are JSON with the same keys and types."""
    draw = Draw(raw)
    over, is_text = draw.number(40), draw.number(1)
    arguments = draw.rest().decode("utf-8", "replace") if is_text else json.dumps(draw.json(5))
    call = {"id": "a", "type": "function", "function": {"name": "think", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
        *[{"role": role, "content": "and so on"} for role in ("assistant", "user") * 3],
    ]
    body = json.dumps({"model": "m", "messages": messages, "tools": list(TOOLS)}).encode()
    policies = (Clip(over=over, keep=1, keep_writes=1),)
    done = compact(body, policies=policies, prices=CHEAP, budget=ROOMY, recall=True)
    (new,) = json.loads(done.body)["messages"][1]["tool_calls"]
    assert new["id"] == "a"
    for edit in done.plan.edits:
        assert isinstance(edit, Replace)
        assert new["function"]["arguments"] == edit.text
        assert keeps_shape(_block(done, edit.at), edit)
        json.loads(edit.text)
    if not done.plan.edits:
        assert new["function"]["arguments"] == arguments
    _recallable(done)


def raw_json(raw: bytes) -> None:
    """A span holds what a decoder reads there; what is replaced changes nothing else."""
    for spans_of in (members, items):
        try:
            spans = spans_of(raw)
        except UnreadableError:
            continue
        if not _decodes(raw):  # texts that nobody looks into are not decoded
            continue
        value = json.loads(raw)
        steps: list[Any] = list(spans) if isinstance(spans, dict) else list(range(len(spans)))
        if steps != (list(value) if isinstance(value, dict) else list(range(len(value)))):
            assert rb"\ud" in raw.lower()  # halves of pairs, which no text that is sent on can name
            continue
        for step in steps:
            start, end = find(raw, (step,))
            assert json.loads(raw[start:end]) == value[step] or value[step] != value[step]
            new = replaced(raw, {(step,): b'"@@"'})
            assert new == raw[:start] + b'"@@"' + raw[end:]
            assert json.loads(new)[step] == "@@"


def digesting(raw: bytes) -> None:
    """Nothing grows, the same text gives the same digest, and what comes out can be sent."""
    draw = Draw(raw)
    kind, budget = draw.one(KINDS), draw.number(120) - 10
    mentioned = draw.one((frozenset[str](), frozenset({"a.py", "src/a.py", "x", "error"})))
    text = draw.rest().decode("utf-8", "replace")
    short = digested(text, kind, budget, mentioned, letters)
    assert len(short) <= len(text)
    assert short == digested(text, kind, budget, mentioned, letters)
    for each in (short, excerpt(text, budget, 0.5, mentioned, letters), tidied(text, kind)):
        each.encode()


def framing(raw: bytes) -> None:
    """Events are the bytes that came, however they were cut, and say the same."""
    draw = Draw(raw)
    cuts = [draw.number(255) for _ in range(draw.number(12))]
    stream = draw.rest()
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    whole, cut = Events(), Events()
    together = whole.feed(stream)
    apart = [event for piece in pieces for event in cut.feed(piece)]
    for events, framed in ((whole, together), (cut, apart)):
        assert b"".join(framed) + events.rest == stream
        assert len(events.rest) == events.size
    assert _texts(together) == _texts(apart)
    for event in together:
        is_last(event)
    shown: list[bytes] = []
    copy = Copy(shown.append, "text/event-stream", "", SMALL)
    for piece in pieces:
        copy.feed(piece)
    assert not copy.trouble
    assert b"".join(shown) + copy.rest == stream


def decoding(raw: bytes) -> None:
    """An encoded body is undone, refused or too large; nothing else."""
    draw = Draw(raw)
    encoding = draw.one(sorted(ENCODINGS))
    with suppress(UndecodableError, TooLargeError):
        assert len(decoded(draw.rest(), encoding, SMALL)) <= SMALL


def replies(raw: bytes) -> None:
    """A reply without recalls goes on as it came; whole events at once are read as one by one."""
    draw = Draw(raw)
    dialect, rounds = DIALECTS[draw.one(list(FORMS))], draw.one((None, 0, 2))
    events = Events()
    together = events.feed(draw.rest())
    alone, at_once = dialect.reply(rounds), dialect.reply(rounds)
    pieces = [piece for event in together for piece in _fed(alone, event)]
    if rounds is None:
        assert b"".join(pieces) == b"".join(together)
    stream = b"".join(together)
    received = at_once.feed_all(stream) if stream else None
    if received is not None:
        assert b"".join(received) == b"".join(pieces)
        assert _read(at_once) == _read(alone)
    _read(alone)


def _fed(reply: Reply, event: bytes) -> list[bytes]:
    return reply.feed(event)


def _read(reply: Reply) -> list[object]:
    results = [reply.result(choice) for choice in (0, 1)]
    return [results, list(reply.pending), list(reply.over), reply.usage, reply.completion, reply.last_event(b"{}")]


def _texts(events: Sequence[bytes]) -> list[bytes]:
    return [text for event in events if (text := data(event)) is not None]


def _decodes(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _block(done: Compacted, anchor: str) -> Block:
    return done.conversation.blocks[done.conversation.index[anchor]]


def _recallable(done: Compacted) -> None:
    """Each edit that hides something names a way back to all of it."""
    for edit in done.plan.edits:
        texts = [original(done.conversation, ref) for ref in refs_in(edit.text)]
        if isinstance(edit, Replace) and not edit.needs and texts and done.settings.recall:
            assert _block(done, edit.at).text in texts
        if isinstance(edit, Fold):
            assert None not in texts
        for ref in refs_in(edit.text):
            answer(done.conversation, json.dumps({"ref": ref}))


def _untouched(done: Compacted, body: bytes) -> None:
    """Messages that no edit touches are sent as they came, in their order."""
    if any(isinstance(edit, Fold) for edit in done.plan.edits):
        return
    touched = {_block(done, edit.at).message for edit in done.plan.edits if isinstance(edit, Replace)}
    request, new = (_split(done.dialect, each) for each in (body, done.body))
    assert len(request.spans) == len(new.spans)
    for at in range(len(request.spans)):
        assert at in touched or request.raw(at) == new.raw(at) or done.plan.marks


def _split(dialect: str, body: bytes) -> Request:
    request = DIALECTS[dialect].split(body)
    assert request is not None
    return request


_ALL = (splitting, compacting, rendering, clipping, raw_json, digesting, framing, decoding, replies)
LAWS: Mapping[str, Callable[[bytes], None]] = {law.__name__: law for law in _ALL}

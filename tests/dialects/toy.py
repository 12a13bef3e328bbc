"""A toy API: `POST /v1/turns`. `python -m tests.dialects.toy serve ...` is a Narrows that speaks it, too."""

import json
from collections.abc import Sequence
from hashlib import sha256

from policies.context import TokenCounter
from policies.dialects import DIALECTS, Request, replies
from policies.dialects.common import as_json, edited, message_of, object_at, objects, parsed, text_at
from policies.dialects.dialect import Dialect, Http, RecallForm
from policies.dialects.replies import ChoiceRounds, Json, Round, RoundsReply, UsageNames, framed, is_plain
from policies.dialects.splitting import RequestFields
from policies.dialects.tool_lists import tool_names, with_tool
from policies.model.conversation import Conversation, Kind, Message, Part
from policies.model.edits import Edit, RecallRound
from policies.recall import DESCRIPTION, PARAMETERS, RecallAnswer
from policies.text.layout import Piece
from policies.tools import RECALL

# a turn: {"by": "model", "text": "...", "calls": [{"id": "c1", "name": "...", "arguments": "{}"}]}, {"by": "tool", ...}
KINDS: dict[str, Kind] = {"rules": "system", "user": "user", "model": "assistant", "tool": "result"}
TOOL = f'{{"name":"{RECALL}","description":"{DESCRIPTION}","parameters":{PARAMETERS}}}'.encode()
USAGE = UsageNames(prompt=("read",), completion="written", cached=("cached",))


def read(raw: bytes, count: TokenCounter) -> Message:
    turn = parsed(raw)
    by, text = text_at(turn, "by"), text_at(turn, "text")
    parts = [Part(KINDS.get(by, "opaque"), text, ("text",), count(text), call_id=text_at(turn, "for"))]
    for at, call in enumerate(objects(turn.get("calls"))):
        name, arguments = text_at(call, "name"), text_at(call, "arguments")
        path = ("calls", at, "arguments")
        parts.append(Part("call", arguments, path, count(arguments), name, text_at(call, "id")))
    role = {"model": "assistant", "rules": "system"}.get(by, by)
    return message_of(raw, role, parts, sha256(as_json(turn)).digest(), 0)


def splice(request: Request, conversation: Conversation, edits: Sequence[Edit]) -> dict[int, bytes]:
    def stub(piece: Piece) -> bytes:
        return as_json({"by": "model" if piece.role == "assistant" else piece.role, "text": piece.text})

    def exchange(name: str, arguments: str, text: str) -> bytes:
        call = {"id": name, "name": RECALL, "arguments": arguments}
        answer = {"by": "tool", "for": name, "text": text}
        return as_json({"by": "model", "text": "", "calls": [call]}) + b"," + as_json(answer)

    return edited(request, conversation, edits, stub, exchange)


def put_back(
    rounds: Sequence[RecallRound], answers: Sequence[Sequence[RecallAnswer]], text: str, reply: Sequence[bytes] | None
) -> list[bytes]:
    turns, after, start = list[bytes](), list[bytes](), 0
    last = json.loads(reply[0]) if reply else None
    for exchange, texts in zip(rounds, answers, strict=True):
        calls = [json.loads(call) for call in exchange.calls]
        results = [
            as_json({"by": "tool", "for": call["id"], "text": each.text})
            for call, each in zip(calls, texts, strict=True)
        ]
        if not exchange.places:
            turns += [as_json({"by": "model", "text": text[start:][: exchange.text], "calls": calls}), *results]
            start += exchange.text
        elif last is not None:
            for place, call in sorted(zip(exchange.places, calls, strict=True)):
                last["calls"].insert(place, call)
            after += results
    return turns if last is None else [*turns, as_json({**last, "text": last["text"][start:]}), *after]


class ToyCall:
    is_call, text = True, ""

    def __init__(self, index: int, call: Json) -> None:
        self.index, self.call, self.id = index, call, text_at(call, "id")
        self.ours: bool | None = call.get("name") == RECALL

    @property
    def arguments(self) -> str | None:
        return replies.valid_arguments(self.call.get("arguments"))

    def as_json(self, place: int) -> str:
        return as_json({**self.call, "arguments": self.arguments or "{}"}).decode()


class ToyRound(Round[ToyCall]):
    text = ""


class ToyReply(RoundsReply[ChoiceRounds[ToyRound]]):
    """Events: {"text": "..."}, {"call": {...}}, {"end": "done", "usage": {...}}; whole: {"turn": {...}, "end": ...}."""

    def __init__(self, rounds: int | None = None, *_: object) -> None:
        super().__init__(USAGE, rounds)
        self._rounds = self._choices[0] = ChoiceRounds(ToyRound, self._allowance)

    def _feed_content(self, content: Json | None, event: bytes) -> list[bytes]:
        if content is None:
            return [event]
        round_, turn = self._rounds.round, object_at(content, "turn") or content
        calls = [*objects(turn.get("calls")), *objects([content.get("call")])]
        for call in calls:
            round_.by_index[len(round_.by_index)] = ToyCall(len(round_.by_index), call)
        round_.text += text_at(turn, "text")
        if "end" not in content:
            return [] if any(call.get("name") == RECALL for call in calls) else [event]
        end = self._rounds.end(broken=content["end"] == "limit", cut=content["end"] == "limit")
        if end == "waiting":
            return []
        if not (self._rounds.resumed or round_.has_ours):
            return [event]
        content = {**content, "end": "limit" if end == "limit" else content["end"]}
        content["usage"] = self._usage.whole(object_at(content, "usage"))
        if is_plain(event):
            theirs = [call for call in calls if call.get("name") != RECALL]
            return [as_json({**content, "turn": {**turn, "text": self.result(0).text, "calls": theirs}})]
        return [framed(content)]


def streamed_messages(events: list[Json]) -> list[Json]:
    text, calls = "".join(text_at(each, "text") for each in events), [each["call"] for each in events if "call" in each]
    return [{"by": "model", "text": text, "calls": calls}] if any("end" in each for each in events) else []


TOY = Dialect(
    name="toy_turns",
    label="turns",
    provider="toy",
    http=Http(path="/turns", credentials=("X-Toy-Key",), key=("X-Toy-Key", "")),
    fields=RequestFields("turns", reserve=("limit",)),
    read=read,
    splice=splice,
    looks_like=lambda fields: "turns" in fields,
    recall=RecallForm(
        tool=lambda request, always: with_tool(request, tool_names(request.tool_list), TOOL, always, 100),
        put_back=put_back,
        called=lambda call: (RECALL, str(json.loads(call)["arguments"])),
    ),
    usage=USAGE,
    reply=ToyReply,
    whole_messages=lambda reply: [object_at(reply, "turn")] if "end" in reply else [],
    streamed_messages=streamed_messages,
)

if __name__ == "__main__":
    DIALECTS[TOY.name] = TOY
    from proxy.console.cli import main

    main()

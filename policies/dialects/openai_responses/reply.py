"""The reply of OpenAI Responses, streamed or not, over all its rounds.

The client gets one response: its id is the first round's, output tokens are summed, indexes and numbers have no gap,
and what no recall touches is the very bytes that came. Our tool is not in what the response repeats of the request.
"""

from collections.abc import Mapping, Sequence

from policies.dialects.base import ChoiceResult
from policies.dialects.common import as_json
from policies.dialects.events import Json, document, is_plain, read_event, text_of
from policies.dialects.openai_responses.numbering import Numbering, without_tool
from policies.dialects.openai_responses.round import Round
from policies.dialects.openai_responses.usage import WORDS, read_usage
from policies.dialects.usage import Spent
from policies.model.edits import Exchange
from policies.money.prices import Usage
from policies.tools import RECALL

_ENVELOPE = ("id", "created_at", "model", "service_tier", "max_output_tokens")
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_CUT: Mapping[str, object] = {
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
}
_DONE = b"[DONE]"


class ResponsesReply:
    """Takes out the recall calls and joins the rounds; without the recall tool it only reads the usage."""

    def __init__(self, rounds: int | None = None) -> None:
        self.usage: Usage | None = None
        self._only_reads = rounds is None
        self._left = rounds or 0
        """How many more rounds the reply may take."""
        self._round = Round()
        self._numbering = Numbering()
        self._held: list[tuple[Json, bytes]] = []
        """What waits until it is known whose a call is."""
        self._envelope: Json | None = None
        self._shown: list[Json] = []
        """The items of the rounds before this one that the client has."""
        self._text: list[str] = []
        self._call_ids: tuple[str, ...] = ()
        self._exchanges: list[Exchange] = []
        self._spent = Spent(WORDS)
        self._billed: Json = {}
        self._resumed = self._waiting = self._over = False

    @property
    def pending(self) -> Sequence[int]:
        """The choices that ended in recall calls alone and wait for their next round, by index."""
        return [0] if self._waiting else []

    @property
    def over(self) -> Sequence[int]:
        """The choices that have come to their end, by index."""
        return [0] if self._over else []

    @property
    def completion(self) -> int:
        """Tokens that the provider billed for answers so far, over all rounds; 0 where it did not say."""
        return self._spent.completion + (self.usage.completion if self.usage else 0)

    def last_event(self, failure: bytes) -> bytes:
        """The body of an error reply as the event with which the stream breaks off here."""
        found = (document(failure) or {}).get("error")
        error: Mapping[str, object] = found if isinstance(found, dict) else {"message": str(found or "")}
        said = {key: error.get(key) for key in ("code", "message", "param")}
        data = {"type": "error", **said, "sequence_number": self._numbering.next}
        return b"event: error\ndata: " + as_json(data) + b"\n\n"

    def result(self, choice: int) -> ChoiceResult:
        """What the reply has said so far, and asked of the recall tool. There is one choice in this API."""
        if choice:
            return ChoiceResult("", (), ())
        ids = self._call_ids + self._round.call_ids
        return ChoiceResult("".join([*self._text, self._round.text]), ids, tuple(self._exchanges))

    def resume(self, choice: int) -> None:
        """What is fed from now on is the next round."""
        del choice
        self._spent.add(self._billed)
        self._billed, self.usage = {}, None
        self._shown += self._round.shown
        self._text.append(self._round.text)
        self._call_ids += self._round.call_ids
        self._round = Round()
        self._numbering.resume()
        self._resumed, self._waiting = True, False

    def feed(self, event: bytes) -> list[bytes]:
        """One server-sent event, or the whole of a JSON reply: what the client gets of it now."""
        if self._only_reads:
            self._numbering.hand_on(event)
            if b'"usage"' not in event:
                return [event]
        said = read_event(event)
        if said is None:
            return [] if self._waiting and text_of(event).strip() == _DONE else [event]
        found = said.get("response")
        response = said if is_plain(event) else found if isinstance(found, dict) else {}
        self._bill(response.get("usage"))
        if self._only_reads or self._waiting:
            return [event] if self._only_reads else []
        try:
            return self._plain(said, event) if is_plain(event) else self._streamed(said, response, event)
        except RecursionError:  # nested deeper than can be written
            return [event]

    def _bill(self, usage: object) -> None:
        if isinstance(usage, dict):
            self._billed = usage
            self.usage = read_usage(usage) or self.usage

    def _streamed(self, said: Json, response: Json, event: bytes) -> list[bytes]:
        index = said.get("output_index")
        if said.get("type") in _ENDS and response:
            self._round.end(response.get("output"))
            return [*self._released(), *self._ended(said, response, event)]
        if type(index) is int:
            self._round.hear(said, index)
        if self._held or self._round.undecided:
            self._held.append((said, event))
            return [] if self._round.undecided else self._released()
        return self._passed(said, event)

    def _released(self) -> list[bytes]:
        """What waited, once it is known whose each call is."""
        held, self._held = self._held, []
        return [piece for said, event in held for piece in self._passed(said, event)]

    def _passed(self, said: Json, event: bytes) -> list[bytes]:
        """An event amid the response, as the client gets it."""
        index, response = said.get("output_index"), said.get("response")
        if type(index) is int:
            return self._of_an_item(said, index, event)
        if isinstance(response, dict):
            return self._begun(said, response, event)
        return [self._numbering.put(said, event, {})]

    def _of_an_item(self, said: Json, index: int, event: bytes) -> list[bytes]:
        if self._round.is_ours(index):
            self._numbering.skip(said)
            return []
        place = len(self._shown) + index - self._round.below(index)
        return [self._numbering.put(said, event, {"output_index": place})]

    def _begun(self, said: Json, response: Json, event: bytes) -> list[bytes]:
        """A response begins once, whatever number of rounds it takes."""
        if self._resumed:
            self._numbering.skip(said)
            return []
        self._opened(response)
        return [without_tool(self._numbering.put(said, event, {}), ("response", "tools"))]

    def _opened(self, response: Json) -> None:
        if self._envelope is None:
            self._envelope = {key: response[key] for key in _ENVELOPE if key in response}

    def _ended(self, said: Json, response: Json, event: bytes) -> list[bytes]:
        self._opened(response)
        whole = self._whole(response, broken=said.get("type") != "response.completed")
        if whole is None:
            self._numbering.skip(said)
            return []
        if whole is response:
            return [without_tool(self._numbering.put(said, event, {}), ("response", "tools"))]
        kind = said["type"] if whole.get("status") == response.get("status") else "response.incomplete"
        return [self._numbering.put(said, event, {"type": kind, "response": whole})]

    def _plain(self, body: Json, event: bytes) -> list[bytes]:
        if not isinstance(body.get("output"), list):
            return [event]
        self._round.end(body["output"])
        self._opened(body)
        whole = self._whole(body, broken=body.get("status") not in ("completed", None))
        if whole is None:
            return []
        return [without_tool(event, ("tools",)) if whole is body else as_json(whole)]

    def _whole(self, response: Json, broken: bool) -> Json | None:
        """The response as the client gets it at the end of a round, itself where that is what came; None where there
        are rounds to come."""
        alone = bool(self._round.ours) and not self._round.is_mixed
        if alone and not broken and self._left:
            self._left -= 1
            self._waiting = True
            self._note(cut=False, alone=True)
            return None
        if self._round.is_mixed and response.get("status") != "failed":
            self._note(cut=broken, alone=False)
        self._over = response.get("status") != "failed"
        if not self._round.ours and not self._resumed:
            return response
        return self._joined(response, _CUT if alone and not broken else {})

    def _note(self, cut: bool, alone: bool) -> None:
        exchange = self._round.exchange(cut, alone, last=alone and not self._left)
        if exchange is not None:
            self._exchanges.append(exchange)

    def _joined(self, response: Json, end: Mapping[str, object]) -> Json:
        """The response of this round as that of all rounds."""
        whole: Json = {**response, **end, "output": [*self._shown, *self._round.shown]}
        tools, usage = response.get("tools"), response.get("usage")
        if isinstance(tools, list):
            whole["tools"] = [tool for tool in tools if not (isinstance(tool, dict) and tool.get("name") == RECALL)]
        if self._resumed:
            whole |= self._envelope or {}
            whole |= {"usage": self._spent.onto(usage)} if isinstance(usage, dict) else {}
        return whole


def reply(rounds: int | None = None) -> ResponsesReply:
    """A fresh reader."""
    return ResponsesReply(rounds)

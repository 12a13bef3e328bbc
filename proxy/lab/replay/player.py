"""The model of a replay: it says what was recorded, copies summaries together by rule, and recalls what it needs.

Laws: what it recalls follows from the turn and the text alone, so that a replay comes out the same every time; it
knows of a reference only what the request before it names; of each run only the newest turn is kept.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson

from policies.dialects import Reply
from policies.model.conversation import Part
from policies.model.tokens import Counter
from policies.money.prices import Usage
from policies.text.stubs import refs_named
from policies.tools import RECALL
from proxy.gateway.recall_loop import Compaction
from proxy.lab.client_apis import FORMS, read
from proxy.lab.provider import TURN_HEADER, Received, Say
from proxy.lab.provider.extractive import extract_digest, extract_summary
from proxy.lab.quality import Need, needed
from proxy.lab.replay.recorded import Session
from proxy.requests import ClientRequest, PlannedRequest, UpstreamRequest
from proxy.summaries.background import Waiting
from proxy.summaries.jobs import DIGEST_PROMPTS, PROMPTS


@dataclass(slots=True)
class Rounds:
    """What became of one request besides its last round: the usage of the others, and the recalls answered."""

    usage: list[Usage] = field(default_factory=list)
    answered: int = 0
    refused: int = 0
    """Recalls of what is not there."""


class Watching:
    """A compaction that can be looked at: the newest plan of each conversation, until it is forgotten."""

    def __init__(self, compaction: Compaction) -> None:
        self._compaction = compaction
        self.preview = compaction.preview
        self.reply = compaction.reply
        self.record = compaction.record
        self.remember_recalls = compaction.remember_recalls
        self.newest: dict[str, PlannedRequest | None] = {}
        """Of the first round; None where the request went as the client sent it."""
        self.rounds: dict[str, Rounds] = {}

    async def prepare(self, client_request: ClientRequest, waiting: Waiting | None = None, /) -> UpstreamRequest:
        """Prepare a request, and remember its plan."""
        upstream_request = await self._compaction.prepare(client_request, waiting)
        self.newest[client_request.conversation or ""] = upstream_request.planned
        self.rounds[client_request.conversation or ""] = Rounds()
        return upstream_request

    async def next_round(self, upstream_request: UpstreamRequest, reply: Reply, choice: int, /) -> UpstreamRequest:
        """Prepare a round, and note what the round before cost and what is answered now."""
        following = await self._compaction.next_round(upstream_request, reply, choice)
        rounds = self.rounds[upstream_request.client_request.conversation or ""]
        rounds.usage.append(reply.usage or Usage(0, 0, 0, 0))
        answers = following.planned.context.answers if following.planned is not None else ()
        rounds.answered += sum(answer.succeeded for answer in answers)
        rounds.refused += sum(not answer.succeeded for answer in answers)
        return following

    def forget(self, run: str) -> None:
        """Forget a conversation."""
        self.newest.pop(run, None)
        self.rounds.pop(run, None)


class Player:
    """The model of the built-in provider: says what was recorded, but may recall first what it is about to use.

    Of the uses of hidden text it recalls a share that follows from the turn and the reference alone: the whole text, or
    where it has recalled that before and did not see enough, the lines that it needs. A turn whose recalls are answered
    is played as recorded, whatever is still out of sight.
    """

    MOST = 4
    """Recalls of one turn, all in one message."""

    def __init__(self, watching: Watching, refetch: float, count: Counter) -> None:
        self._watching = watching
        self._refetch = refetch
        self._count = count
        self._plays: dict[str, tuple[str, Sequence[Sequence[Part]]]] = {}
        self.received: dict[str, list[Received]] = {}
        """By credential: the requests of the newest turn."""

    def play(self, credential: str, run: str, session: Session, count: Counter) -> None:
        """What this credential is going to be answered."""
        if self._refetch:
            self._plays[credential] = (run, session.spoken(count))

    def __call__(self, received: Received) -> Say | None:
        """A summary or a digest where one is asked for, else the recalls of a turn; None for what was recorded."""
        if received.dialect and received.violation is None and (written := _written(received, self._count)) is not None:
            return Say(written)
        credential, turn = received.credential, received.headers.get(TURN_HEADER, "")
        before = self.received.get(credential, [])
        is_round = bool(before) and before[-1].headers.get(TURN_HEADER) == turn
        self.received[credential] = [*(before if is_round else ()), received]
        if received.violation is not None or credential not in self._plays or not turn.isdecimal():
            return None
        run, answers = self._plays[credential]
        calls = self._calls(received, int(turn), run, answers[int(turn)])
        return Say(calls=calls) if calls and not _answers(received, calls[0]["id"]) else None

    def _calls(self, received: Received, turn: int, run: str, said: Sequence[Part]) -> list[dict[str, Any]]:
        planned = self._watching.newest[run]
        if planned is None:
            return []
        uses = needed(planned.context.conversation, planned.plan.edits, said)
        named = refs_named(received.body.decode("utf-8", "replace"))  # what the model can know
        due = [need for need in uses if self._is_due(turn, need) and need.ref in named]
        return [_call(turn, at, need, _recalls(received, need)) for at, need in enumerate(due[: self.MOST])]

    def _is_due(self, turn: int, need: Need) -> bool:
        digest = sha256(f"{turn} {need.ref}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self._refetch * 2**64

    def forget(self, credential: str) -> None:
        """Let go of what was kept of a credential."""
        self._plays.pop(credential, None)
        self.received.pop(credential, None)


def _written(received: Received, count: Counter) -> str | None:
    """What is written where a summary or a digest is asked for; None where none is."""
    instructions, material = next(_texts(received), ""), ""
    words = PROMPTS["compaction"].limit_in(instructions)
    characters = max(prompt.limit_in(instructions) for prompt in DIGEST_PROMPTS.values())
    if words or characters:
        material = deque(_texts(received), 1)[0]
    if words:
        return extract_summary(material, words, count)
    return extract_digest(material, characters, count) if characters else None


def _texts(received: Received) -> Iterator[str]:
    """What a request says, the text that leads it first."""
    if isinstance(lead := received.json.get(FORMS[received.dialect].lead), str):
        yield lead
    yield from (part.text for part in _parts(received))


def _parts(received: Received) -> Iterator[Part]:
    """What the history of a request says."""
    history = received.json.get(FORMS[received.dialect].history)
    entries = [{"role": "user", "content": history}] if isinstance(history, str) else history or ()
    return (part for entry in entries for part in read(received.dialect, entry).parts)


def _recalls(received: Received, need: Need) -> bool:
    """Whether the hidden text was recalled before, as far as the request shows."""
    return any(part.kind == "call" and part.tool == RECALL and need.ref in part.text for part in _parts(received))


def _call(turn: int, at: int, need: Need, again: bool) -> dict[str, Any]:
    arguments = {"ref": need.ref, "part": f"find {_pattern(need.items)}"} if again else {"ref": need.ref}
    function = {"name": RECALL, "arguments": orjson.dumps(arguments).decode()}
    return {"id": f"recall_{turn}_{at}", "type": "function", "function": function}


def _pattern(items: Sequence[str]) -> str:
    """Finds the lines in which the first of these begin; short, because of a long pattern only the start counts."""
    return "|".join(re.escape(item.strip().split("\n")[0][:60]) for item in items[:2])


def _answers(received: Received, call_id: str) -> bool:
    """Whether the request brings what this call asked for."""
    return any(part.kind == "result" and part.call_id == call_id for part in _parts(received))

"""The model of a replay: it answers what was recorded, copies summaries together by rule, and recalls what it needs.

Laws: what it recalls follows from the turn and the text alone, so that a replay comes out the same every time; it
recalls only references that the request names; of each run only the newest turn is stored.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson
from multidict import CIMultiDict

from policies.dialects import DIALECTS
from policies.model.conversation import Part
from policies.model.tokens import Counter
from policies.money.prices import Usage
from policies.text.stubs import refs_named
from policies.tools import RECALL
from proxy.kernel.addons import Addon, Exchange
from proxy.lab.client_apis import read
from proxy.lab.provider import TURN_HEADER, Received, Say
from proxy.lab.provider.extractive import extract_digest, extract_summary
from proxy.lab.quality import needed
from proxy.lab.replay.recorded import Session
from proxy.requests import PlannedRequest
from proxy.summaries.jobs import DIGEST_PROMPTS, PROMPTS


@dataclass(slots=True)
class RecallRounds:
    """What became of one request besides its last round: the usage of the others, and the recalls answered."""

    usage: list[Usage] = field(default_factory=list)
    answered: int = 0
    refused: int = 0
    """Recalls of what is not there."""


class PlanObserver(Addon):
    """Remembers the newest plan of each conversation, until it is forgotten."""

    def __init__(self) -> None:
        self.newest: dict[str, PlannedRequest | None] = {}
        """Of the first round; None where the request went as the client sent it."""
        self.rounds: dict[str, RecallRounds] = {}

    async def planned(self, exchange: Exchange) -> None:
        if exchange.kind == "chat" and exchange.upstream_request is not None:
            run = exchange.upstream_request.client_request.conversation or ""
            self.newest[run], self.rounds[run] = exchange.upstream_request.planned, RecallRounds()

    async def answered(self, exchange: Exchange, status: int, headers: CIMultiDict[str]) -> None:
        """Count the usage of the round before, and the recalls that were answered for this one."""
        sent = exchange.upstream_request
        rounds = self.rounds.get(sent.client_request.conversation or "") if sent is not None else None
        if sent is None or rounds is None or len(exchange.rounds) <= len(rounds.usage):
            return
        rounds.usage.append(exchange.rounds[-1].usage or Usage(0, 0, 0, 0))
        answers = sent.planned.context.answers if sent.planned is not None else ()
        rounds.answered += sum(answer.succeeded for answer in answers)
        rounds.refused += sum(not answer.succeeded for answer in answers)

    def forget(self, run: str) -> None:
        self.newest.pop(run, None)
        self.rounds.pop(run, None)


class Player:
    """The model of the built-in provider: answers what was recorded, but may recall first what it is about to use.

    Of the uses of hidden text it recalls a share that follows from the turn and the reference alone: the whole text, or
    where it has recalled that before and did not see enough, the lines that it needs. A turn whose recalls are answered
    is played as recorded, whatever is still out of sight.
    """

    MOST = 4
    """Recalls of one turn, all in one message."""

    def __init__(self, observer: PlanObserver, refetch: float, count: Counter) -> None:
        self._observer = observer
        self._refetch = refetch
        self._count = count
        self._plays: dict[str, tuple[str, Sequence[Sequence[Part]]]] = {}
        self.received: dict[str, list[Received]] = {}
        """By credential: the requests of the newest turn."""

    def play(self, credential: str, run: str, session: Session) -> None:
        """Answer this credential with the replies of a session."""
        if self._refetch:
            self._plays[credential] = (run, session.replies(self._count))

    def __call__(self, received: Received) -> Say | None:
        """A summary or a digest where one is asked for, else the recalls of a turn; None for what was recorded, and for
        the list of models, which is no request of a turn."""
        if received.method == "GET":
            return None
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
        is_answered = calls and any(p.kind == "result" and p.call_id == calls[0]["id"] for p in _parts(received))
        return Say(calls=calls) if calls and not is_answered else None

    def _calls(self, received: Received, turn: int, run: str, answer: Sequence[Part]) -> list[dict[str, Any]]:
        """The recalls of a turn, before it is answered as recorded."""
        planned = self._observer.newest[run]
        if planned is None:
            return []
        refs = refs_named(received.body.decode("utf-8", "replace"))  # what the model can know
        recalls = [part.text for part in _parts(received) if part.kind == "call" and part.tool == RECALL]
        calls: list[dict[str, Any]] = []
        for need in needed(planned.context.conversation, planned.plan.edits, answer):
            digest = sha256(f"{turn} {need.ref}".encode()).digest()
            is_due = int.from_bytes(digest[:8], "big") < self._refetch * 2**64
            if is_due and need.ref in refs and len(calls) < self.MOST:
                arguments = {"ref": need.ref}
                if any(need.ref in text for text in recalls):
                    # the lines in which the first items begin; of a long pattern only the start counts
                    starts = (item.strip().split("\n")[0][:60] for item in need.items[:2])
                    arguments["part"] = f"find {'|'.join(map(re.escape, starts))}"
                function = {"name": RECALL, "arguments": orjson.dumps(arguments).decode()}
                calls.append({"id": f"recall_{turn}_{len(calls)}", "type": "function", "function": function})
        return calls

    def forget(self, credential: str) -> None:
        self._plays.pop(credential, None)
        self.received.pop(credential, None)


def _written(received: Received, count: Counter) -> str | None:
    """The summary or the digest that a request asks for; None where it asks for none."""
    lead = received.json.get(DIALECTS[received.dialect].fields.lead)
    instructions = lead if isinstance(lead, str) else next((part.text for part in _parts(received)), "")
    words = PROMPTS["compaction"].limit_in(instructions)
    characters = max(prompt.limit_in(instructions) for prompt in DIGEST_PROMPTS.values())
    if not (words or characters):
        return None
    *_, source = (instructions, *(part.text for part in _parts(received)))
    return extract_summary(source, words, count) if words else extract_digest(source, characters, count)


def _parts(received: Received) -> Iterator[Part]:
    """The parts of the history of a request."""
    history = received.json.get(DIALECTS[received.dialect].fields.history)
    entries = [{"role": "user", "content": history}] if isinstance(history, str) else history or ()
    return (part for entry in entries for part in read(received.dialect, entry).parts)

"""What became of the prompt's prefix: a comparison with the digests of what was sent before, not a claim.

The words: first (nothing was sent before), extended (the request begins with the whole of the last one), tail-cut (it
does up to the last step), checkpoint:REASON (a declared rewrite), client-changed (the client's own history changed),
checkpoint:replayed (what was sent before is not known any more).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import sha256

from policies.model.conversation import Conversation, Message
from policies.model.memory import Sent, StepRecord


class Chains:
    """Digests of a request's messages, as given and as sent: of its beginnings, when one is asked for."""

    def __init__(self, messages: Sequence[Message], changed: Mapping[int, bytes]) -> None:
        """`changed` says what is made of a message; empty where it goes."""
        self._kept = [i for i in range(len(messages)) if changed.get(i) != b""]
        self._given = b"".join([message.digest for message in messages])
        self._sent = b"".join(
            [
                sha256(messages[i].digest + changed[i]).digest() if i in changed else messages[i].digest
                for i in self._kept
            ]
        )
        self.given, self.sent = len(messages), len(self._kept)
        """How many messages there are."""

    def given_first(self, count: int) -> str:
        """The digest of the first `count` messages that the client gave."""
        return _digest(self._given, count)

    def sent_first(self, count: int) -> str:
        """The digest of the first `count` messages that are sent."""
        return _digest(self._sent, count)

    def sent_before(self, message: int) -> int:
        """How many messages were sent that stand before the client's message of this index."""
        return bisect_left(self._kept, message)


def _digest(digests: bytes, count: int) -> str:
    """Empty where there are not so many."""
    return sha256(digests[: 32 * count]).hexdigest()[:32] if len(digests) >= 32 * count else ""


def sent_record(conversation: Conversation, chains: Chains, head: str, setup: str) -> Sent:
    """What to remember of a request, to compare the next one with."""
    step = conversation.steps - 1
    tail = 0
    if step:
        tail = chains.sent_before(conversation.blocks[conversation.ends[step - 1]].message)
    return Sent(
        messages=chains.sent,
        digest=chains.sent_first(chains.sent),
        tail=tail,
        tail_digest=chains.sent_first(tail),
        received=chains.given,
        received_digest=chains.given_first(chains.given),
        head=head,
        settings=setup,
    )


def outcome(previous: StepRecord | None, newest: StepRecord | None, now: Sent, chains: Chains, reason: str) -> str:
    """The word for this request. `previous` is the record of the step before; where there is none, `newest`, the last
    one of this conversation that is known, tells whether the client's own history is another one now.
    """
    before = previous.sent if previous else None
    if before is None:
        last = newest.sent if newest else None
        moved = last and (last.head != now.head or chains.given_first(last.received) != last.received_digest)
        return "client-changed" if moved else "checkpoint:replayed"
    if before.head != now.head or chains.given_first(before.received) != before.received_digest:
        return "client-changed"
    if chains.sent_first(before.messages) == before.digest:
        return "extended"
    if reason == "tail-cut" and chains.sent_first(before.tail) == before.tail_digest:
        return "tail-cut"
    if reason.startswith("checkpoint:"):
        return reason
    return "checkpoint:config" if before.settings != now.settings else "checkpoint:replayed"

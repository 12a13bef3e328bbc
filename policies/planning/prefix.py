"""What happened to the prompt's prefix: a comparison with the digests of what was sent before, not a claim.

The outcomes: first (nothing was sent before), extended (the request begins with the whole of the last one), tail-cut
(it does up to the last step), checkpoint:REASON (a declared rewrite), client-changed (the client's own history
changed), checkpoint:replayed (neither this process nor the store can say what was sent before).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import sha256

from policies.model.conversation import Conversation, Message
from policies.model.memory import Sent, StepRecord


class Chains:
    """Digests of the beginnings of a request, as the client sent it and as it was sent on; computed on demand."""

    def __init__(self, messages: Sequence[Message], changed: Mapping[int, bytes]) -> None:
        """`changed` has the new bytes of changed messages, by index; empty bytes for a message that is removed."""
        self._indexes = [i for i in range(len(messages)) if changed.get(i) != b""]
        self._received = b"".join(message.digest for message in messages)
        self._sent = b"".join(
            sha256(messages[i].digest + changed[i]).digest() if i in changed else messages[i].digest
            for i in self._indexes
        )
        self.received, self.sent = len(messages), len(self._indexes)

    def received_digest(self, count: int) -> str:
        """The digest of the first `count` messages that the client sent; empty where there are fewer."""
        return _digest(self._received, count)

    def sent_digest(self, count: int) -> str:
        """The digest of the first `count` messages as they were sent on; empty where there are fewer."""
        return _digest(self._sent, count)

    def sent_before(self, message: int) -> int:
        """How many of the messages sent come before the client's message of this index."""
        return bisect_left(self._indexes, message)


def _digest(digests: bytes, count: int) -> str:
    return sha256(digests[: 32 * count]).hexdigest()[:32] if len(digests) >= 32 * count else ""


def sent_record(conversation: Conversation, chains: Chains, head: str, settings: str) -> Sent:
    """What to store of a request, to compare the next one with."""
    before = conversation.ends[-2] if conversation.steps > 1 else None
    tail = 0 if before is None else chains.sent_before(conversation.blocks[before].message)
    return Sent(
        messages=chains.sent,
        digest=chains.sent_digest(chains.sent),
        tail=tail,
        tail_digest=chains.sent_digest(tail),
        received=chains.received,
        received_digest=chains.received_digest(chains.received),
        head=head,
        settings=settings,
    )


def outcome(previous: StepRecord | None, newest: StepRecord | None, now: Sent, chains: Chains, reason: str) -> str:
    """The outcome for this request. `previous` is the record of the step before; where there is none, `newest`, the
    last record of this conversation, tells whether the client's own history has changed."""
    before = previous.sent if previous else None
    last = before or (newest.sent if newest else None)
    if last and (last.head != now.head or chains.received_digest(last.received) != last.received_digest):
        return "client-changed"
    if before is None:
        return "checkpoint:replayed"
    if chains.sent_digest(before.messages) == before.digest:
        return "extended"
    if reason == "tail-cut" and chains.sent_digest(before.tail) == before.tail_digest:
        return "tail-cut"
    if reason.startswith("checkpoint:"):
        return reason
    return "checkpoint:config" if before.settings != now.settings else "checkpoint:replayed"

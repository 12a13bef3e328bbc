"""What became of the prompt's prefix: a comparison with the digests of what was sent before, not a claim.

The words: first (nothing was sent before), extended (the request begins with the whole of the last one), tail-cut (it
does up to the last step), checkpoint:REASON (a declared rewrite), client-changed (the client's own history changed),
checkpoint:replayed (what was sent before is not known any more).
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from policies.context import Sent, StepRecord
from policies.conversation import Conversation, Message


class Chains:
    """Running digests over the messages of a request, as given and as sent."""

    def __init__(self, messages: Sequence[Message], changed: Mapping[int, bytes]) -> None:
        self.given = _chain([message.digest for message in messages])
        self._kept = [i for i in range(len(messages)) if changed.get(i) != b""]
        self.sent = _chain(
            [
                sha256(messages[i].digest + changed[i]).digest() if i in changed else messages[i].digest
                for i in self._kept
            ]
        )

    def sent_before(self, message: int) -> int:
        """How many messages were sent that stand before the client's message of this index."""
        return sum(1 for i in self._kept if i < message)


def _chain(digests: Sequence[bytes]) -> list[str]:
    """`chain[n]` is the digest of the first n."""
    state, chain = b"", [""]
    for digest in digests:
        state = sha256(state + digest).digest()
        chain.append(state.hex()[:32])
    return chain


def sent_record(conversation: Conversation, chains: Chains, head: str, setup: str) -> Sent:
    """What to remember of a request, to compare the next one with."""
    step = conversation.steps - 1
    tail = 0
    if step:
        tail = chains.sent_before(conversation.blocks[conversation.ends[step - 1]].message)
    sent, given = len(chains.sent) - 1, len(chains.given) - 1
    return Sent(sent, chains.sent[-1], tail, chains.sent[tail], given, chains.given[-1], head, setup)


def outcome(previous: StepRecord | None, known: bool, now: Sent, chains: Chains, reason: str) -> str:
    """The word for this request. `previous` is the record of the step before; `known` whether any earlier step is."""
    before = previous.sent if previous else None
    if before is None:
        return "client-changed" if known else "checkpoint:replayed"
    if before.head != now.head or _at(chains.given, before.given) != before.given_digest:
        return "client-changed"
    if _at(chains.sent, before.messages) == before.digest:
        return "extended"
    if reason == "tail-cut" and _at(chains.sent, before.tail) == before.tail_digest:
        return "tail-cut"
    if reason.startswith("checkpoint:"):
        return reason
    return "checkpoint:config" if before.setup != now.setup else "checkpoint:replayed"


def _at(chain: Sequence[str], length: int) -> str | None:
    return chain[length] if length < len(chain) else None

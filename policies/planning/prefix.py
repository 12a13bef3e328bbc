"""The fate of the prompt's prefix: a comparison with the digests of what was sent before, not a claim.

The outcomes: first (nothing was sent before), extended (the request begins with the whole of the last one), tail-cut
(it does up to the last step), checkpoint:REASON (a declared rewrite), client-changed (the client's own history
changed), checkpoint:tools (others of the same tools are deferred), checkpoint:replayed (neither this process nor the
store can say what was sent before; checkpoint:shed where nothing was planned either).
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from policies.model.conversation import Conversation, Message
from policies.model.memory import FRESH, CacheLife, Sent, StepRecord
from policies.model.summary_record import NO_USE, SummaryUse

SHED = "checkpoint:shed"
LIST_AT, OF_CLIENT_AT = 16, 32
"""Where, in the digest of a head, the parts begin that tell lists of the same tools apart, and that are of the client's
own bytes alone: releases before 0.3 wrote no such part."""
_STRIDE = 64
"""Digests between two places at which the hash of a chain is remembered."""


class _Chain:
    """The digests of all beginnings of a list of digests; those of an earlier chain are not hashed again."""

    def __init__(self, before: "_Chain | None", same: int, new: Iterable[bytes]) -> None:
        self._digests: list[bytes] = [*before._digests[:same], *new] if before else [*new]
        self._hashes: list[hashlib._Hash] = before._hashes[: same // _STRIDE + 1] if before else [sha256()]
        """Of the first 0, 64, 128, ... digests; none is updated once it is here."""

    def __reduce__(self) -> tuple[object, ...]:
        return _Chain, (None, 0, self._digests)  # a hash cannot go to another process

    def digest(self, count: int) -> str:
        if count > len(self._digests):
            return ""
        while len(self._hashes) <= count // _STRIDE:
            self._hashes.append(self._hashed(len(self._hashes) * _STRIDE))
        return self._hashed(count).hexdigest()[:32]

    def _hashed(self, count: int) -> "hashlib._Hash":
        nearest = min(count // _STRIDE, len(self._hashes) - 1)
        result = self._hashes[nearest].copy()
        result.update(b"".join(self._digests[nearest * _STRIDE : count]))
        return result


def life_of(record: StepRecord) -> CacheLife:
    """The life of the cache behind a step; FRESH where nobody has written it down."""
    return record.sent.life if record.sent is not None else FRESH


def last_use(record: StepRecord) -> float:
    """When the provider's cache of a request was used last, in seconds since 1970."""
    return max(record.at, record.sent.warmed_at if record.sent is not None else 0.0)


class Chains:
    """Digests of the beginnings of a request, as the client sent it and as it was sent on; computed on demand."""

    def __init__(
        self, messages: Sequence[Message], changed: Mapping[int, bytes], before: "Chains | None" = None, same: int = 0
    ) -> None:
        """`changed` has the new bytes of changed messages, by index; empty bytes for a message that is removed. The
        first `same` messages are received and sent as they were `before`."""
        new = range(same, len(messages))
        indexes: list[int] = before._indexes[: before.sent_before(same)] if before else []
        self._received: _Chain = _Chain(before._received if before else None, same, (messages[i].digest for i in new))
        # of a message as it is sent; empty where it is removed
        digests = (
            messages[i].digest if (raw := changed.get(i)) is None else raw and sha256(messages[i].digest + raw).digest()
            for i in new
        )
        self._sent: _Chain = _Chain(before._sent if before else None, len(indexes), filter(None, digests))
        self._indexes: list[int] = indexes + [i for i in new if changed.get(i) != b""]
        self.received, self.sent = len(messages), len(self._indexes)

    def received_digest(self, count: int) -> str:
        return self._received.digest(count)

    def sent_digest(self, count: int) -> str:
        return self._sent.digest(count)

    def sent_before(self, message: int) -> int:
        """How many of the messages sent come before the client's message of this index."""
        return bisect_left(self._indexes, message)


def sent_record(
    conversation: Conversation,
    chains: Chains,
    head: str,
    settings: str,
    use: SummaryUse = NO_USE,
    life: CacheLife = FRESH,
) -> Sent:
    """The record of a request, to compare the next one with."""
    tail = chains.sent_before(_received(conversation, conversation.steps - 2))
    return Sent(
        messages=chains.sent,
        digest=chains.sent_digest(chains.sent),
        tail=tail,
        tail_digest=chains.sent_digest(tail),
        received=chains.received,
        received_digest=chains.received_digest(chains.received),
        head=head,
        settings=settings,
        use=use,
        life=life,
    )


def untouched(sent: Sent) -> Sent:
    """The record of a request that was sent as the client wrote it: one digest of it all."""
    digest = sha256(f"{sent.head[:OF_CLIENT_AT]}{sent.received_digest}".encode()).hexdigest()[:32]
    return Sent(messages=0, digest=digest, tail=0, tail_digest="", received=0, received_digest="", head="", settings="")


def untouched_before(conversation: Conversation, chains: Chains, now: Sent, stored: Sent, last: int) -> Sent | None:
    """The last request of this history as sent; `stored`: of the step `last`, or of this; `now`: this one as sent."""
    for step, count in ((last, 0), (conversation.steps - 1, chains.received)):
        count, tail = count or _received(conversation, step), _received(conversation, step - 1)
        digest = chains.received_digest(count)
        sent = replace(now, messages=count, digest=digest, received=count, received_digest=digest, use=NO_USE)
        if untouched(sent) == stored:
            return replace(sent, tail=tail, tail_digest=chains.received_digest(tail))
    return None


def _received(conversation: Conversation, step: int) -> int:
    return conversation.blocks[conversation.ends[step]].message if 0 <= step < conversation.steps - 1 else 0


def outcome(previous: StepRecord | None, newest: StepRecord | None, now: Sent, chains: Chains, reason: str) -> str:
    """The outcome for this request. `previous` is the record of the step before; where there is none, `newest`, the
    last record of this conversation, tells whether the client's own history has changed."""
    before = previous.sent if previous else None
    last = before or (newest.sent if newest else None)
    part = slice(OF_CLIENT_AT, None) if last and last.head[OF_CLIENT_AT:] else slice(LIST_AT)
    if last and (last.head[part] != now.head[part] or chains.received_digest(last.received) != last.received_digest):
        return "client-changed"
    if before is None:
        return reason if reason == SHED else "checkpoint:replayed"
    if not now.head.startswith(before.head):
        ours = "checkpoint:tools" if before.head[:LIST_AT] == now.head[:LIST_AT] else "checkpoint:config"
        return reason if reason.startswith("checkpoint:") else ours
    if chains.sent_digest(before.messages) == before.digest:
        return "extended"
    if reason == "tail-cut" and chains.sent_digest(before.tail) == before.tail_digest:
        return "tail-cut"
    if reason.startswith("checkpoint:"):
        return reason
    return "checkpoint:config" if before.settings != now.settings else "checkpoint:replayed"

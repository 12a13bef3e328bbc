"""Recall exchanges put back into a request, so that it says again what the model was sent.

Laws
  An exchange is put back only where the same history led to the same reply; anywhere else it is left out.
  The answers are found again in the history: same history, same calls, same bytes.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from policies.context import TokenCounter
from policies.conversation import Conversation, Message, converse
from policies.dialects.base import Dialect, Request
from policies.edits import Exchange, Insert
from policies.rawjson import UnreadableError
from policies.recall import Answer, answer

Restored = tuple[bytes, ...]
"""The messages that stand for one: the exchange, and what is left of the reply."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A request as its client sent it, and what it takes to read more of its kind."""

    dialect: Dialect
    request: Request
    conversation: Conversation
    count: TokenCounter


@dataclass(frozen=True, slots=True)
class Flight:
    """The reply that is being given: what one choice has said so far, and asked of the recall tool."""

    said: str
    rounds: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """The body with every exchange in its place. `lost`: the newest reply had one, and came back as another reply.
    `answers` are those of the last round in flight."""

    body: bytes
    lost: bool
    answers: tuple[Answer, ...] = ()


def reply_digest(text: str, call_ids: Sequence[str]) -> str:
    """What tells a reply again when the client returns it. Clients strip the end of a text."""
    said = "\0".join([text.rstrip(), *call_ids])
    return sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def restore(
    reading: Reading,
    inserts: Mapping[str, Sequence[Insert]],
    known: MutableMapping[tuple[object, ...], Restored],
    flight: Flight | None = None,
) -> Whole:
    """The request with its exchanges put back; `known` remembers what became of a message."""
    request = reading.request
    changed: dict[int, Restored] = {}
    lost = -1
    for message, insert in _matched(reading.conversation, inserts):
        raws = _known(reading, changed, message, insert, known) if insert else ()
        if raws:
            changed[message] = raws
        else:
            lost = message
    answers: tuple[Answer, ...] = ()
    if flight is not None:
        newest = len(request.spans) - 1
        before = changed.get(newest, (request.raw(newest),))
        raws, answers = _in_flight(reading, changed, flight)
        changed[newest] = (*before, *raws)
    joined = {message: b",".join(raws) for message, raws in changed.items()}
    body = reading.dialect.joined(request, joined) if joined else request.body
    return Whole(body, lost >= 0 and _is_newest(reading.conversation, lost), answers)


def _matched(
    conversation: Conversation, inserts: Mapping[str, Sequence[Insert]]
) -> Iterator[tuple[int, Insert | None]]:
    """The replies with an exchange behind them, and which; None where none of those known fits the reply."""
    for step in range(conversation.steps - 1):
        there = inserts.get(conversation.end_anchor(step))
        if there:
            message = conversation.blocks[conversation.ends[step]].message
            digest = digest_of(conversation.messages[message])
            yield message, next((insert for insert in there if insert.reply == digest), None)


def digest_of(message: Message) -> str:
    """The digest of a reply that the client returned."""
    ids = [part.call_id for part in message.parts if part.kind == "call"]
    return reply_digest(_text(message), ids)


def _text(message: Message) -> str:
    return "".join(part.text for part in message.parts if part.kind == "assistant")


def _is_newest(conversation: Conversation, message: int) -> bool:
    """Whether no reply came after this one."""
    return all(later.role != "assistant" for later in conversation.messages[message + 1 :])


def _known(
    reading: Reading,
    changed: Mapping[int, Restored],
    message: int,
    insert: Insert,
    known: MutableMapping[tuple[object, ...], Restored],
) -> Restored:
    """What stands for the message; nothing where its exchange cannot be put back."""
    name = (insert, reading.request.raw(message), tuple(changed.values()))
    try:
        if name not in known:
            known[name] = _put_back(reading, changed, message, insert)
        return known[name]
    except UnreadableError:
        return ()


def _put_back(reading: Reading, changed: Mapping[int, Restored], message: int, insert: Insert) -> Restored:
    rounds, answers = insert.rounds, _answers(reading, changed, message, insert.rounds)
    said = _text(reading.conversation.messages[message])
    texts = [[answer.text for answer in some] for some in answers]
    return tuple(reading.dialect.put_back(rounds, texts, said, reading.request.raw(message)))


def _in_flight(
    reading: Reading, changed: Mapping[int, Restored], flight: Flight
) -> tuple[Restored, tuple[Answer, ...]]:
    answers = _answers(reading, changed, len(reading.request.spans), flight.rounds)
    texts = [[answer.text for answer in some] for some in answers]
    return tuple(reading.dialect.put_back(flight.rounds, texts, flight.said, None)), answers[-1]


def _answers(
    reading: Reading, changed: Mapping[int, Restored], end: int, rounds: Sequence[Exchange]
) -> list[tuple[Answer, ...]]:
    """What the calls of a reply were answered, from the history before the message `end`."""
    history = converse(list(_messages(reading, changed, end)), reading.conversation)
    calls = [[reading.dialect.arguments(call) for call in exchange.calls] for exchange in rounds]
    return [
        tuple(answer(history, arguments, exchange.last) for arguments in asked)
        for exchange, asked in zip(rounds, calls, strict=True)
    ]


def _messages(reading: Reading, changed: Mapping[int, Restored], end: int) -> Iterator[Message]:
    for i in range(end):
        if i in changed:
            yield from (reading.dialect.read(raw, reading.count) for raw in changed[i])
        else:
            yield reading.conversation.messages[i]

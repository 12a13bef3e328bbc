"""Recall exchanges put back into a request, so that it says again what the model was sent.

Laws
  An exchange is put back only where the same history led to the same reply; anywhere else it is left out.
  The answers are found again in the history: same history, same calls, same bytes.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from policies.context import TokenCounter
from policies.dialects.base import Dialect, Request
from policies.model.conversation import Conversation, Message, converse
from policies.model.edits import Exchange, Insert
from policies.model.rawjson import UnreadableError
from policies.recall import Answer, answer


@dataclass(frozen=True, slots=True)
class Restored:
    """The messages that stand for one, as they are sent and as they are read: the exchange, and what is left of the
    reply."""

    raws: tuple[bytes, ...]
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """A request as its client sent it, and what it takes to read more of its kind."""

    dialect: Dialect
    request: Request
    conversation: Conversation
    count: TokenCounter


@dataclass(frozen=True, slots=True)
class ReplyInProgress:
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
    flight: ReplyInProgress | None = None,
) -> Whole:
    """The request with its exchanges put back; `known` remembers what became of a message."""
    request = reading.request
    past = _Past(reading)
    lost = -1
    for reply, insert in _matched(reading.conversation, inserts):
        there = _answered(reading.conversation, reply, insert) if insert else reply
        restored = _known(reading, past, there, insert, known) if insert else None
        if restored:
            past.put(there, restored)
        else:
            lost = reply[-1]
    changed = {message: restored.raws for message, restored in past.changed.items()}
    answers: tuple[Answer, ...] = ()
    if flight is not None:
        newest = len(request.spans) - 1
        before = changed.get(newest, (request.raw(newest),))
        raws, answers = _in_flight(reading, past, flight)
        changed[newest] = (*before, *raws)
    joined = {message: b",".join(raws) for message, raws in changed.items()}
    body = reading.dialect.joined(request, joined) if joined else request.body
    return Whole(body, lost >= 0 and _is_newest(reading.conversation, lost), answers)


class _Past:
    """The history as the model knows it, up to where somebody asks for it: it grows as exchanges are put back."""

    def __init__(self, reading: Reading) -> None:
        self.changed: dict[int, Restored] = {}
        self.stamp = b""
        """A digest of all that was put back."""
        self._given = reading.conversation.messages
        self._messages: list[Message] = []
        self._end = -1
        self._history = reading.conversation

    def put(self, reply: range, restored: Restored) -> None:
        """What stands for a reply that nobody has asked beyond yet."""
        self.changed |= dict.fromkeys(reply[1:], Restored((), ())) | {reply.start: restored}
        lengths = b",".join(b"%d" % len(raw) for raw in restored.raws)
        self.stamp = sha256(b"\0".join([self.stamp, b"%d" % reply.start, lengths, *restored.raws])).digest()

    def before(self, end: int) -> Conversation:
        """The history before a message of the client's."""
        for at in range(max(0, self._end), end):
            self._messages += self.changed[at].messages if at in self.changed else (self._given[at],)
        if end > self._end:
            self._end, self._history = end, converse(self._messages, self._history)
        return self._history


def _matched(
    conversation: Conversation, inserts: Mapping[str, Sequence[Insert]]
) -> Iterator[tuple[range, Insert | None]]:
    """The replies with an exchange behind them, each as its messages, and which; None where none of those known fits
    the reply."""
    for step in range(conversation.steps - 1):
        there = inserts.get(conversation.end_anchor(step))
        if there:
            reply = conversation.reply(step)
            digest = digest_of(conversation.messages[reply.start : reply.stop])
            yield reply, next((insert for insert in there if insert.reply == digest), None)


def digest_of(reply: Sequence[Message]) -> str:
    """The digest of a reply that the client returned."""
    ids = [part.call_id for message in reply for part in message.parts if part.kind == "call"]
    return reply_digest(_text(reply), ids)


def _text(reply: Sequence[Message]) -> str:
    return "".join(part.text for message in reply for part in message.parts if part.kind == "assistant")


def _is_newest(conversation: Conversation, message: int) -> bool:
    """Whether no reply came after this one."""
    return all(later.role != "assistant" for later in conversation.messages[message + 1 :])


def _answered(conversation: Conversation, reply: range, insert: Insert) -> range:
    """The messages that an exchange changes: the reply; where an API has a user bring the results of its calls, and
    some were made beside ours, that message too."""
    following = conversation.messages[reply.stop : reply.stop + 1]
    brought = [message for message in following if message.role == "user" and any(p.call_id for p in message.parts)]
    mixed = any(exchange.places for exchange in insert.rounds)
    return range(reply.start, reply.stop + 1) if mixed and brought else reply


def _known(
    reading: Reading,
    past: _Past,
    reply: range,
    insert: Insert,
    known: MutableMapping[tuple[object, ...], Restored],
) -> Restored | None:
    """What stands for the reply; None where its exchange cannot be put back."""
    name = (insert, *map(reading.request.raw, reply), past.stamp)
    try:
        if name not in known:
            known[name] = _put_back(reading, past, reply, insert)
        return known[name]
    except UnreadableError:
        return None


def _put_back(reading: Reading, past: _Past, reply: range, insert: Insert) -> Restored:
    rounds, said = insert.rounds, _text(reading.conversation.messages[reply.start : reply.stop])
    answers = _answers(reading, past.before(reply.start), rounds, said)
    texts = [[answer.text for answer in some] for some in answers]
    raws = tuple(reading.dialect.put_back(rounds, texts, said, [reading.request.raw(i) for i in reply]))
    return Restored(raws, tuple(reading.dialect.read(raw, reading.count) for raw in raws))


def _in_flight(reading: Reading, past: _Past, flight: ReplyInProgress) -> tuple[tuple[bytes, ...], tuple[Answer, ...]]:
    answers = _answers(reading, past.before(len(reading.request.spans)), flight.rounds, flight.said)
    texts = [[answer.text for answer in some] for some in answers]
    return tuple(reading.dialect.put_back(flight.rounds, texts, flight.said, None)), answers[-1]


def _answers(
    reading: Reading, history: Conversation, rounds: Sequence[Exchange], said: str
) -> list[tuple[Answer, ...]]:
    """What the calls of a reply were answered: from the history before it, and from its own rounds before."""
    found: list[tuple[Answer, ...]] = []
    for exchange in rounds:
        asked = (reading.dialect.arguments(call) for call in exchange.calls)
        found.append(tuple(answer(history, arguments, exchange.last) for arguments in asked))
        if len(found) < len(rounds):
            texts = [[answer.text for answer in found[-1]]]
            raws = reading.dialect.put_back([exchange], texts, said[: exchange.text], None)
            messages = [reading.dialect.read(raw, reading.count) for raw in raws]
            history, said = converse([*history.messages, *messages], history), said[exchange.text :]
    return found

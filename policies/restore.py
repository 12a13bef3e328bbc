"""Recall exchanges put back into a request, so that it says again what the model was sent.

Laws
  An exchange is put back only where the same history led to the same reply; anywhere else it is left out.
  The answers are derived again from the history: same history, same calls, same bytes.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from policies.context import TokenCounter
from policies.dialects import Dialect, Request
from policies.dialects.deferring import DeferredTools
from policies.model.conversation import Conversation, Message, converse
from policies.model.edits import Insert, RecallRound
from policies.model.rawjson import UnreadableError
from policies.recall import RecallAnswer, answer
from policies.tools import SEARCH


@dataclass(frozen=True, slots=True)
class RestoredMessages:
    """The messages that take the place of one, as bytes and as read: the exchange, and the rest of the reply."""

    raws: tuple[bytes, ...]
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class DialectRequest:
    dialect: Dialect
    request: Request
    conversation: Conversation
    count: TokenCounter
    tools: DeferredTools | None = None
    """Where definitions are deferred: what answers the calls that look for them."""


@dataclass(frozen=True, slots=True)
class ReplyInProgress:
    """One choice of the reply that is being sent: its text so far, and its calls of the recall tool."""

    text: str
    rounds: tuple[RecallRound, ...]


@dataclass(frozen=True, slots=True)
class RestoredBody:
    """The body with every exchange in its place; `lost`: one could not be. `answers`: of the reply in progress."""

    body: bytes
    lost: bool
    answers: tuple[RecallAnswer, ...] = ()


Cache = MutableMapping[tuple[object, ...], RestoredMessages]
"""Replacements of messages, from before; a pure function of the key."""


def reply_digest(text: str, call_ids: Sequence[str]) -> str:
    """Identifies a reply that the client returns. Clients strip the end of a text."""
    return sha256("\0".join([text.rstrip(), *call_ids]).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def digest_of(reply: Sequence[Message]) -> str:
    ids = [part.call_id for message in reply for part in message.parts if part.kind == "call"]
    return reply_digest(_text(reply), ids)


def _text(reply: Sequence[Message]) -> str:
    return "".join(part.text for message in reply for part in message.parts if part.kind == "assistant")


def restore(
    source: DialectRequest,
    inserts: Mapping[str, Sequence[Insert]],
    cache: Cache,
    in_progress: ReplyInProgress | None = None,
) -> RestoredBody:
    request, conversation = source.request, source.conversation
    history, lost = _History(source), -1
    for reply, insert in _matched(conversation, inserts):
        restored = _restored(source, history, reply, insert, cache) if insert else None
        if restored:
            history.put(reply, restored)
        else:
            lost = reply[-1]
    changed = {message: restored.raws for message, restored in history.changed.items()}
    answers: tuple[RecallAnswer, ...] = ()
    if in_progress is not None:
        newest, text, rounds = len(request.spans) - 1, in_progress.text, in_progress.rounds
        every = _answers(source, history.before(len(request.spans)), rounds, text)
        raws = source.dialect.recall.put_back(rounds, every, text, None)
        changed[newest] = (*changed.get(newest, (request.raw(newest),)), *raws)
        answers = every[-1]
    joined = {message: b",".join(raws) for message, raws in changed.items()}
    body = source.dialect.joined(request, joined, None, ()) if joined else request.body
    is_newest = all(later.role != "assistant" for later in conversation.messages[lost + 1 :])
    return RestoredBody(body, lost >= 0 and is_newest, answers)


class _History:
    def __init__(self, source: DialectRequest) -> None:
        self.changed: dict[int, RestoredMessages] = {}
        self.stamp = b""
        """A digest of all that was put back."""
        self._originals = source.conversation.messages
        self._messages: list[Message] = []
        self._end = -1
        self._conversation = source.conversation

    def put(self, reply: range, restored: RestoredMessages) -> None:
        """Replace a reply; nothing behind it was read before."""
        self.changed |= dict.fromkeys(reply[1:], RestoredMessages((), ())) | {reply.start: restored}
        lengths = b",".join(b"%d" % len(raw) for raw in restored.raws)
        self.stamp = sha256(b"\0".join([self.stamp, b"%d" % reply.start, lengths, *restored.raws])).digest()

    def before(self, end: int) -> Conversation:
        for at in range(max(0, self._end), end):
            self._messages += self.changed[at].messages if at in self.changed else (self._originals[at],)
        if end > self._end:
            self._end, self._conversation = end, converse(self._messages, self._conversation, lends=False)
        return self._conversation


def _matched(
    conversation: Conversation, inserts: Mapping[str, Sequence[Insert]]
) -> Iterator[tuple[range, Insert | None]]:
    """The messages of each reply that has exchanges, and the exchange that fits it; None where none does. Where an API
    has a user bring the results of its calls, and some were made beside ours, that message is among them."""
    for step in range(conversation.steps - 1):
        candidates = inserts.get(conversation.end_anchor(step))
        if candidates:
            reply = conversation.reply(step)
            digest = digest_of(conversation.messages[reply.start : reply.stop])
            insert = next((insert for insert in candidates if insert.reply == digest), None)
            if insert and any(exchange.places for exchange in insert.rounds):
                following = conversation.messages[reply.stop : reply.stop + 1]
                if any(each.role == "user" and any(part.call_id for part in each.parts) for each in following):
                    reply = range(reply.start, reply.stop + 1)
            yield reply, insert


def _restored(
    source: DialectRequest, history: _History, reply: range, insert: Insert, cache: Cache
) -> RestoredMessages | None:
    originals = [source.request.raw(i) for i in reply]
    tools = source.tools and (source.tools.catalog.digest, source.tools.places)
    name = (insert, *originals, history.stamp, tools)
    try:
        if name not in cache:
            text = _text(source.conversation.messages[reply.start : reply.stop])
            answers = _answers(source, history.before(reply.start), insert.rounds, text)
            raws = tuple(source.dialect.recall.put_back(insert.rounds, answers, text, originals))
            cache[name] = RestoredMessages(raws, tuple(source.dialect.read(raw, source.count) for raw in raws))
        return cache[name]
    except UnreadableError:
        return None


def _answers(
    source: DialectRequest, history: Conversation, rounds: Sequence[RecallRound], text: str
) -> list[tuple[RecallAnswer, ...]]:
    """The answers to the calls of each round: from the history before the reply, and from its own earlier rounds."""
    answers: list[tuple[RecallAnswer, ...]] = []
    for exchange in rounds:
        answers.append(tuple(_answer(source, history, call, exchange.last) for call in exchange.calls))
        if len(answers) < len(rounds):
            raws = source.dialect.recall.put_back([exchange], answers[-1:], text[: exchange.text], None)
            messages = [source.dialect.read(raw, source.count) for raw in raws]
            history, text = converse([*history.messages, *messages], history, lends=False), text[exchange.text :]
    return answers


def _answer(source: DialectRequest, history: Conversation, call: str, last: bool) -> RecallAnswer:
    tool, arguments = source.dialect.recall.called(call)
    if tool == SEARCH and source.tools is not None:
        return source.tools.answer(arguments, last)
    return answer(history, arguments, last)

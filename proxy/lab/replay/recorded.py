"""Recorded sessions, in the form of any API: the history that a client had in the end, and the requests that it must
have sent for it.

A session with N replies of the model is N requests, each the history before one of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import permutations
from pathlib import Path
from typing import Any

import orjson

from policies.context import TokenCounter
from policies.dialects import DEFAULT, DIALECTS, Request, dialect_of
from policies.dialects.common import as_json
from policies.model.conversation import Conversation, Message, Part, converse
from proxy.lab.provider import APIS, PREFIX, find_violation
from proxy.lab.provider.api import ClientApi
from proxy.lab.replay.times import NONE, RECORDED, RequestTimes, times_in, times_of
from proxy.lab.request_file import content_of, refusal, request_in

Json = Mapping[str, Any]
_USAGE = ".usage.json"
CHAIN = "chain"
"""The group of sessions that were made one."""
MOST_IN_EVERY_ORDER = 4
"""Sessions that are chained in every order: that makes 24 chains."""


@dataclass(frozen=True, slots=True)
class ClientEdit:
    """A person's message that the client changes midway: from a request (counted from 1) on it has another text."""

    request: int
    message: int
    content: str


@dataclass(frozen=True, slots=True)
class Session:
    name: str
    model: str
    messages: tuple[Json, ...]
    tools: tuple[Json, ...]
    dialect: str = DEFAULT
    lead: Any = None
    """The text that leads the prompt, in an API that has it outside the history."""
    cache_marks: bool = True
    group: str = ""
    """The group that it is averaged with; where empty, that of its protocol and length."""
    changes: str = ""
    """Parts of the recording that were left out, in a sentence."""
    edit: ClientEdit | None = None
    times: tuple[RequestTimes, ...] = ()
    """One for each request; none where they were not recorded."""
    started_at: float | None = None
    """When it began, in seconds since 1970, where that was recorded."""

    def conversation(self, count: TokenCounter = len, end: int | None = None) -> Conversation:
        """Its history, or what stands before an entry."""
        return converse([read(self.dialect, message, count) for message in self.messages[:end]])

    @property
    def turns(self) -> list[int]:
        """Where the replies of the model begin: the answers of its requests."""
        history = self.conversation()
        return [history.reply(step).start for step in range(history.steps - 1)]

    def replies(self, count: TokenCounter = len) -> list[Sequence[Part]]:
        history = self.conversation(count)
        spans = (history.reply(step) for step in range(history.steps - 1))
        return [[part for at in span for part in history.messages[at].parts] for span in spans]


def load(path: Path) -> Session:
    """A session from its file. Raises ValueError, which says what the file must hold."""
    return session_of(content_of(str(path)), path.stem, str(path))


def session_of(content: bytes, name: str, place: str) -> Session:
    """The session that a recording, or the body of a request, holds. Raises ValueError, which says what it must hold;
    `place` is how that names it."""
    _, recording = request_in(content, place)
    try:
        dialect = dialect_of(recording)
        api = CLIENT_APIS[dialect]
        model = recording.get("model") or "unknown"
        fields = api.dialect.fields
        session = Session(name, model, tuple(recording[fields.history]), (), dialect, recording.get(fields.lead))
        session = replace(session, cache_marks=recording.get("cache_marks") is not False)
        # where the recording left the tools out, the barest: its client must have brought what was called
        calls = (part.tool for reply in session.replies() for part in reply if part.kind == "call")
        tools = recording.get("tools") or map(api.tool, dict.fromkeys(calls))
        session = replace(session, tools=tuple(tools))
        orjson.dumps([recording, session.tools])
        session = replace(session, **_times(recording, len(session.turns)))
        fault = _fault(session)
    except (ValueError, TypeError, RecursionError) as error:  # there is JSON that cannot be written again
        raise ValueError(refusal(place, f"it holds what cannot be sent ({error})")) from error
    if fault:
        raise ValueError(f"{place} cannot be replayed: {fault}")
    return session


def _times(recording: Json, requests: int) -> dict[str, Any]:
    """Raises ValueError, which names the fault alone."""
    started_at = recording.get("started_at")
    is_time = isinstance(started_at, int | float) and not isinstance(started_at, bool)
    times = times_of(recording["times"], requests) if recording.get("times") is not None else ()
    return {"times": times, "started_at": started_at if is_time else None}


def _fault(session: Session) -> str:
    """Why a strict provider would refuse the session's own requests; "" where it would not."""
    turns = session.turns
    if not turns:
        return "it has no message of the assistant, so no request was answered; `narrows explain` takes a single one"
    bodies = (_request(session, end, session.model, marks=False) for end in (turns[0], turns[-1]))
    violation = next(filter(None, (find_violation(body, PREFIX, session.dialect) for body in bodies)), None)
    return f"its own requests are not valid ({violation.message})" if violation else ""


def load_all(paths: Sequence[Path]) -> list[Session]:
    """The sessions among the files; those called *.usage.json hold the usage of another. Raises ValueError."""
    sessions = [load(path) for path in paths if not path.name.endswith(_USAGE)]
    if not sessions:
        raise ValueError(f"there is no session among the files: those called *{_USAGE} are recorded usage")
    return sessions


def timed(session: Session, pauses: str) -> Session:
    """The session with its times as recorded, none, or those of a file. Raises ValueError."""
    if pauses == RECORDED:
        return session
    times = () if pauses == NONE else times_in(pauses, session.name, len(session.turns))
    return replace(session, times=times)


def grouped(sessions: Sequence[Session], groups: Sequence[str]) -> list[Session]:
    """The sessions, each in the first group, given as NAME=GLOB, whose pattern fits its name. Raises ValueError."""
    patterns = [group.partition("=")[::2] for group in groups]
    if wrong := [group for group, (name, glob) in zip(groups, patterns, strict=True) if not name or not glob]:
        raise ValueError(f"--group {wrong[0]} is no NAME=GLOB, such as mcp='mcp-*'")
    return [
        replace(session, group=next((name for name, glob in patterns if fnmatchcase(session.name, glob)), ""))
        for session in sessions
    ]


def chains(sessions: Sequence[Session]) -> list[Session]:
    """The sessions as one conversation, in every order; of more than `MOST_IN_EVERY_ORDER` each begins one."""
    if len(sessions) <= MOST_IN_EVERY_ORDER:
        return [chained(order) for order in permutations(sessions)]
    return [chained([*sessions[first:], *sessions[:first]]) for first in range(len(sessions))]


def chained(sessions: Sequence[Session]) -> Session:
    """The sessions as one conversation: the next task given where the last one ended. A reply at the end of a session
    whose calls were never answered is left out.

    Raises ValueError where they do not make a valid one.
    """
    dialects = dict.fromkeys(session.dialect for session in sessions)
    if len(dialects) > 1:
        apis = " and ".join(dialects)
        raise ValueError(f"these sessions cannot be chained: they are of {apis}; chain those of one API")
    first = sessions[0]
    histories = [_without_open_calls(session) for session in sessions]
    messages = list(histories[0])
    for history in histories[1:]:
        messages += [message for message in history if message.get("role") not in ("system", "developer")]
    cut = [each.name for each, history in zip(sessions, histories, strict=True) if len(history) < len(each.messages)]
    chain = replace(
        first,
        name="+".join(session.name for session in sessions),
        messages=tuple(messages),
        group=CHAIN if len(sessions) > 1 else first.group,
        times=first.times if len(sessions) == 1 else (),  # nobody knows what passed between them
        changes=f"The last reply of {', '.join(sorted(cut))} is left out: its calls have no results." if cut else "",
    )
    fault = _fault(chain)
    if fault:
        raise ValueError(f"these sessions cannot be chained: {fault}")
    return chain


def _without_open_calls(session: Session) -> Sequence[Json]:
    """The history of a session up to its last reply, where that has calls without results; else all of it."""
    history = session.conversation()
    reply = history.reply(history.steps - 2) if history.steps > 1 else range(0)
    calls = {part.call_id for at in reply for part in history.messages[at].parts if part.kind == "call"}
    behind = (part for message in history.messages[reply.start :] for part in message.parts)
    is_open = calls - {part.call_id for part in behind if part.kind == "result"}
    return session.messages[: reply.start] if is_open else session.messages


def requests(session: Session, model: str, marks: bool) -> Iterator[Json]:
    """The bodies that the session's client sent; with `marks` with cache marks, where real clients set them,
    unless the recording says that its own sets none."""
    edit, edited = session.edit, session
    if edit is not None:
        messages = list(session.messages)
        messages[edit.message] = {**messages[edit.message], "content": edit.content}
        edited = replace(session, messages=tuple(messages))
    for number, end in enumerate(session.turns, 1):
        current = edited if edit is not None and number >= edit.request else session
        yield _request(current, end, model, marks and session.cache_marks)


def _request(session: Session, end: int, model: str, marks: bool) -> Json:
    api = CLIENT_APIS[session.dialect]
    body: dict[str, Any] = {"model": model}
    if session.lead is not None:
        body[api.dialect.fields.lead] = session.lead
    body[api.dialect.fields.history] = [dict(message) for message in session.messages[:end]]
    if session.tools:
        body["tools"] = list(session.tools)
    return {**(api.marked(body) if marks else body), **api.options}


class RequestReader:
    """Reads the requests of a session, one after the other, as the planner gets them; what they share is read once."""

    def __init__(self, dialect: str, count: TokenCounter) -> None:
        self._api = DIALECTS[dialect]
        self._count = count
        self._messages: dict[bytes, Message] = {}
        self._request: Request | None = None
        self._conversation: Conversation | None = None

    def read(self, body: Json) -> tuple[Request, Conversation]:
        self._request = request = self._api.split(orjson.dumps(body), self._request, False)
        assert request is not None  # a recording that is not valid is refused when it is loaded
        raws = [request.raw(at) for at in range(len(request.spans))]
        self._messages |= {raw: self._api.read(raw, self._count) for raw in raws if raw not in self._messages}
        self._conversation = converse([self._messages[raw] for raw in raws], self._conversation)
        return request, self._conversation


CLIENT_APIS: Mapping[str, ClientApi] = {name: api.client for name, api in APIS.items()}


def read(dialect: str, entry: object, count: Callable[[str], int] = len) -> Message:
    return DIALECTS[dialect].read(as_json(entry), count)


def newest_reply(dialect: str, history: Sequence[object]) -> int:
    """Where the newest reply of the model begins; the end of the history where there is none."""

    def is_reply(entry: object) -> bool:
        return read(dialect, entry).role == "assistant"

    at = next((at for at in reversed(range(len(history))) if is_reply(history[at])), len(history))
    while 0 < at < len(history) and read(dialect, history[at]).partial and is_reply(history[at - 1]):
        at -= 1
    return at

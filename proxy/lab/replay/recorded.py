"""Recorded sessions, in the form of any API: the history that a client had in the end, and the requests that it must
have sent for it.

A session with N replies of the model is N requests, each the history before one of them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from policies.context import TokenCounter
from policies.dialects.detect import dialect_of
from policies.model.conversation import Conversation, Part, converse
from proxy.lab.client_apis import CLIENT_APIS, read
from proxy.lab.provider import PREFIX, find_violation

Json = Mapping[str, Any]
_USAGE = ".usage.json"


@dataclass(frozen=True, slots=True)
class Session:
    name: str
    model: str
    messages: tuple[Json, ...]
    """The entries of its history, as the API has them."""
    tools: tuple[Json, ...]
    dialect: str = "openai_chat"
    lead: Any = None
    """The text that leads the prompt, in an API that has it outside the history."""

    def conversation(self, count: TokenCounter = len, end: int | None = None) -> Conversation:
        """Its history, or what stands before an entry."""
        return converse([read(self.dialect, message, count) for message in self.messages[:end]])

    @property
    def turns(self) -> list[int]:
        """Where the replies of the model begin: the answers of its requests."""
        history = self.conversation()
        return [history.reply(step).start for step in range(history.steps - 1)]

    def replies(self, count: TokenCounter = len) -> list[Sequence[Part]]:
        """The parts of each reply, turn by turn."""
        history = self.conversation(count)
        spans = (history.reply(step) for step in range(history.steps - 1))
        return [[part for at in span for part in history.messages[at].parts] for span in spans]


def load(path: Path) -> Session:
    """A session from its file. Raises ValueError, which says what the file must hold."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror}); name a file with a recorded session") from error
    return session_of(content, path.stem, str(path))


def session_of(content: bytes, name: str, place: str) -> Session:
    """The session that a recording, or the body of a request, holds. Raises ValueError, which says what it must hold;
    `place` is how that names it."""
    try:
        recording = json.loads(content)
        dialect = dialect_of(recording)
        api = CLIENT_APIS[dialect]
        messages = tuple(recording[api.history])
        model = str(recording.get("model") or "unknown")
        session = Session(name, model, messages, (), dialect, recording.get(api.lead))
        # where the recording left the tools out, the barest: its client must have brought what was called
        calls = (part.tool for reply in session.replies() for part in reply if part.kind == "call")
        tools = recording.get("tools") or map(api.tool, dict.fromkeys(calls))
        session = replace(session, tools=tuple(tools))
        fault = _fault(session)
    except RecursionError as error:
        raise ValueError(f"{place} is not a session: it is nested too deeply") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        needs = " or ".join(f"{{'{api.history}': [...]}}" for api in CLIENT_APIS.values() if api.lead != "system")
        raise ValueError(f"{place} is not a session: it needs {needs} ({error!r})") from error
    if fault:
        raise ValueError(f"{place} cannot be replayed: {fault}")
    return session


def _fault(session: Session) -> str:
    """Why a strict provider would refuse the session's own requests; "" where it would not."""
    turns = session.turns
    if not turns:
        return "it has no assistant message, so it holds no request"
    bodies = (_request(session, end, session.model, marks=False) for end in (turns[0], turns[-1]))
    violation = next(filter(None, (find_violation(body, PREFIX, session.dialect) for body in bodies)), None)
    return f"its own requests are not valid ({violation.message})" if violation else ""


def load_all(paths: Sequence[Path]) -> list[Session]:
    """The sessions among the files; those called *.usage.json hold the usage of another. Raises ValueError."""
    sessions = [load(path) for path in paths if not path.name.endswith(_USAGE)]
    if not sessions:
        raise ValueError(f"there is no session among the files: those called *{_USAGE} are recorded usage")
    return sessions


def chained(sessions: Sequence[Session]) -> Session:
    """The sessions as one conversation: the next task given where the last one ended.

    Raises ValueError where they do not make a valid one.
    """
    first = sessions[0]
    dialects = dict.fromkeys(session.dialect for session in sessions)
    if len(dialects) > 1:
        apis = " and ".join(dialects)
        raise ValueError(f"these sessions cannot be chained: they are of {apis}; chain those of one API")
    messages = list(first.messages)
    for session in sessions[1:]:
        messages += [message for message in session.messages if message.get("role") not in ("system", "developer")]
    chain = replace(first, name="+".join(s.name for s in sessions), messages=tuple(messages))
    fault = _fault(chain)
    if fault:
        raise ValueError(f"these sessions cannot be chained: {fault}")
    return chain


def requests(session: Session, model: str, marks: bool) -> Iterator[Json]:
    """The bodies that the session's client sent; with `marks` with cache marks, where real clients set them."""
    return (_request(session, end, model, marks) for end in session.turns)


def _request(session: Session, end: int, model: str, marks: bool) -> Json:
    api = CLIENT_APIS[session.dialect]
    body: dict[str, Any] = {"model": model}
    if session.lead is not None:
        body[api.lead] = session.lead
    body[api.history] = [dict(message) for message in session.messages[:end]]
    if session.tools:
        body["tools"] = list(session.tools)
    return {**(api.marked(body) if marks else body), **api.options}

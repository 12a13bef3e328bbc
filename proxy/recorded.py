"""Recorded sessions: what a client said and was answered, and the requests that it must have sent for it.

A session with N assistant turns is N requests, each the history before one of them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.provider import violations

Json = Mapping[str, Any]
UNKNOWN = "unknown"
"""The model of a session that names none."""
_MARK = {"cache_control": {"type": "ephemeral"}}
_USAGE = ".usage.json"


@dataclass(frozen=True, slots=True)
class Session:
    """A recorded session in the form of chat completions."""

    name: str
    model: str
    messages: tuple[Json, ...]
    tools: tuple[Json, ...]

    @property
    def turns(self) -> list[int]:
        """Where the assistant messages stand: the answers of its requests."""
        return [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]


def load(path: Path) -> Session:
    """A session from its file. Raises ValueError, which says what the file must hold."""
    try:
        found = json.loads(path.read_bytes())
        messages = tuple(found["messages"])
        tools = tuple(found.get("tools") or _called(messages))
        session = Session(path.stem, str(found.get("model") or UNKNOWN), messages, tools)
        fault = _fault(session)
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror}); name a file with a recorded session") from error
    except RecursionError as error:
        raise ValueError(f"{path} is not a session: it is nested too deeply") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a session: it needs {{'messages': [...]}} ({error!r})") from error
    if fault:
        raise ValueError(f"{path} cannot be replayed: {fault}")
    return session


def _called(messages: Sequence[Json]) -> Iterator[Json]:
    """The barest tools for a session whose recording left them out: its client must have brought what was called."""
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    for name in dict.fromkeys(call["function"]["name"] for call in calls):
        yield {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def _fault(session: Session) -> str:
    """Why a strict provider would refuse the session's own requests; "" where it would not."""
    if not session.turns:
        return "it has no assistant message, so it holds no request"
    first, last = (_request(session, end, session.model, marks=False) for end in (session.turns[0], session.turns[-1]))
    violation = violations(first) or violations(last)
    return f"its own requests are not valid ({violation.message})" if violation else ""


def load_all(paths: Sequence[Path]) -> list[Session]:
    """The sessions among the files: what is called .usage.json holds the recorded usage of another."""
    sessions = [load(path) for path in paths if not path.name.endswith(_USAGE)]
    if not sessions:
        raise ValueError(f"there is no session among the files: those called *{_USAGE} are recorded usage")
    return sessions


def chained(sessions: Sequence[Session]) -> Session:
    """The sessions as one conversation: the next task given where the last one ended.

    Raises ValueError where they do not make a valid one.
    """
    first = sessions[0]
    messages = list(first.messages)
    for session in sessions[1:]:
        messages += [message for message in session.messages if message["role"] not in ("system", "developer")]
    chain = Session("+".join(s.name for s in sessions), first.model, tuple(messages), first.tools)
    fault = _fault(chain)
    if fault:
        raise ValueError(f"these sessions cannot be chained: {fault}")
    return chain


def requests(session: Session, model: str, marks: bool) -> Iterator[dict[str, Any]]:
    """The bodies that the session's client sent; with `marks` it marks the system text and its newest message."""
    return (_request(session, end, model, marks) for end in session.turns)


def _request(session: Session, end: int, model: str, marks: bool) -> dict[str, Any]:
    messages = [dict(message) for message in session.messages[:end]]
    if marks:
        for message in (messages[0], messages[-1]):
            message["content"] = _marked(message.get("content"))
    body: dict[str, Any] = {"model": model, "messages": messages}
    if session.tools:
        body["tools"] = list(session.tools)
    return body | {"stream": True, "stream_options": {"include_usage": True}}


def _marked(content: Any) -> Any:
    if isinstance(content, str) and content:
        return [{"type": "text", "text": content, **_MARK}]
    if isinstance(content, list) and content and content[-1].get("type") == "text":
        return [*content[:-1], {**content[-1], **_MARK}]
    return content

"""Recorded sessions, as `narrows replay`, `explain` and `load` read them: a request of a client, and the reply to it.

Law: cache marks move from request to request, and a replay sets them where clients do, so a session has none; it says
where its client set none at all.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from policies.dialects.openai import MARKS

HISTORY: Mapping[str, str] = {
    "openai_chat": "messages",
    "anthropic_messages": "messages",
    "openai_responses": "input",
}
"""The field of a request that has the messages, by API."""
_HOLDERS = ("content", "source", "output", "function")
"""Fields that hold what may carry a mark; what a model wrote as arguments is none of them."""


def session_of(dialect: str, body: str | bytes, replies: Sequence[str | bytes]) -> Mapping[str, Any]:
    """The session of a request's body and the messages of its reply."""
    session: dict[str, Any] = json.loads(body)
    field = HISTORY[dialect]
    history = session[field]
    if not isinstance(history, list):
        history = [{"role": "user", "content": history}]
    session[field] = [*history, *map(json.loads, replies)]
    bare = {name: _bare(value) if name in ("system", "tools", field) else value for name, value in session.items()}
    has_marks = bare != session or any(mark in session for mark in MARKS)
    bare = {name: value for name, value in bare.items() if name not in (*MARKS, "stream", "stream_options")}
    return bare if has_marks else {**bare, "cache_marks": False}


def _bare(value: Any) -> Any:
    """Without cache marks."""
    if isinstance(value, list):
        return [_bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _bare(each) if name in _HOLDERS else each for name, each in value.items() if name not in MARKS}

"""When the requests of a recorded session came, and when their replies began and ended.

Laws
  A session has a row for each of its requests, in the order of their times; null where nobody knows.
  Times are no text: nothing of them is left out.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from policies.dialects import DIALECTS
from policies.dialects.common import as_json
from policies.model.conversation import converse
from proxy.addons.archive.texts import common_items


class RequestMoments(NamedTuple):
    """In seconds since 1970; None for what has not been, or was not seen."""

    came: float
    began: float | None = None
    ended: float | None = None


Moments = Mapping[int, RequestMoments]
"""Of requests, by their places in a session, from 0."""


def reply_starts(dialect: str, session: Any) -> Sequence[int]:
    """Where in its history the replies of the model begin: each is the answer to a request."""
    history = session.get(DIALECTS[dialect].fields.history) if isinstance(session, dict) else None
    if not isinstance(history, list):
        return ()
    conversation = converse([DIALECTS[dialect].read(as_json(entry), len) for entry in history])
    return [conversation.reply(step).start for step in range(conversation.steps - 1)]


def time_fields(moments: Moments, requests: int) -> dict[str, Any]:
    """Fields of so many requests: seconds since the first whose time is known, in milliseconds; none without times."""
    places = [at for at in range(requests) if at in moments]
    if not places:
        return {}
    rows: list[list[float | None] | None] = [None] * requests
    began = newest = moments[places[0]].came
    for at in places:
        newest = latest = max(newest, moments[at].came)  # clocks are set, and replicas have their own
        rows[at] = row = []
        for moment in moments[at]:
            latest = latest if moment is None else max(latest, moment)
            row.append(None if moment is None else round(latest - began, 3))
    return {"started_at": round(began, 3), "times": rows}


def shared_moments(content: bytes, dialect: str, session: Mapping[str, Any], starts: Sequence[int]) -> Moments:
    """The times in another recording, of the requests that both have; none where it cannot be read."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):  # a person may have changed it
        other, history = json.loads(content), DIALECTS[dialect].fields.history
        common, began = common_items(session[history], other[history]), other["started_at"]
        rows = zip(starts, other["times"], strict=False)
        return {
            at: RequestMoments(began + row[0], *(None if each is None else began + each for each in row[1:]))
            for at, (start, row) in enumerate(rows)
            if row is not None and start <= common
        }
    return {}

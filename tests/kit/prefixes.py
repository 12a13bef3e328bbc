"""Law 2's check over each API: what was sent, request by request, against what the replies declare of it; and requests
as bytes that no SDK would write.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from policies.model.rawjson import items
from policies.tools import RECALL
from proxy.app import App
from proxy.lab.replay.recorded import newest_reply
from tests.kit.apis import Api, entries, tools_of
from tests.kit.histories import TOOLS, Json
from tests.kit.spacing import indented
from tests.kit.speaking import post
from tests.kit.stage import Exchange, Stage, ends

_MARKS = ("cache_control", "prompt_cache_breakpoint")
LIGHT: Json = {"tools": TOOLS}


def spaced(body: Json) -> bytes:
    """A body with spaces that no library writes."""
    return indented(body, " ,", ":  ")


async def ask(
    stage: Stage, app: App, api: Api, messages: Sequence[Any], *headers: tuple[str, str], **fields: Any
) -> Exchange:
    """Send these messages, which are in the form of chat completions, as a client with its own spacing would."""
    return await post(stage, app, api, spaced(api.body(messages, **{**LIGHT, **fields})), *headers)


async def grow(
    stage: Stage, app: App, api: Api, session: Sequence[Json], *headers: tuple[str, str], **fields: Any
) -> list[Exchange]:
    """Every request of a session, in its order."""
    return [await ask(stage, app, api, session[:end], *headers, **fields) for end in ends(session)]


def sent(api: Api, exchange: Exchange) -> list[Json]:
    """The history that the upstream received, in chat completions."""
    return api.messages_in(json.loads(exchange.sent))


def unaided(api: Api, body: bytes) -> bytes:
    """The body without the recall tool: the last of the tools, once, or not there."""
    tools = tools_of(api, body)
    start = body.index(tools) if tools else 0
    *_, (first, end) = [(0, 0), *(items(body, start, start + len(tools)) if tools else ())]
    if RECALL.encode() not in body[first:end]:
        assert b'"' + RECALL.encode() not in body
        return body
    bare = body[: first - 1] + body[end:]
    assert body[first - 1 : first] == b","
    assert RECALL.encode() not in bare
    return bare


def moved(api: Api, exchanges: Sequence[Exchange]) -> list[int]:
    """The requests that do not extend the one before, byte for byte, though the reply declares nothing (law 2, S2)."""
    return [i for i, (old, new) in enumerate(pairwise(exchanges), 1) if not _as_declared(api, old, new)]


def _as_declared(api: Api, old: Exchange, new: Exchange) -> bool:
    if new.prefix.startswith("checkpoint:") or new.prefix == "client-changed":
        return True
    before, after = entries(api, old.sent), entries(api, new.sent)
    if tools_of(api, old.sent) != tools_of(api, new.sent):
        return False
    if new.prefix == "tail-cut":
        before = before[: newest_reply(api.dialect, json.loads(old.sent)[api.history])]
    elif new.prefix != "extended":
        return False
    return len(before) <= len(after) and all(map(_same, before, after))


def _same(old: bytes, new: bytes) -> bool:
    """Byte for byte, but that cache marks are compared apart: a mark may come and go."""
    return old == new or (bool(marks(old + new)) and _unmarked(json.loads(old)) == _unmarked(json.loads(new)))


def marks(raw: bytes) -> int:
    """How many marks stand in it."""
    return sum(raw.count(f'"{mark}"'.encode()) for mark in _MARKS)


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        bare = [_unmarked(entry) for entry in value]
        alone = len(bare) == 1 and isinstance(bare[0], dict) and bare[0].keys() == {"type", "text"}
        return bare[0]["text"] if alone else bare
    if isinstance(value, dict):
        return {key: _unmarked(entry) for key, entry in value.items() if key not in _MARKS}
    return value

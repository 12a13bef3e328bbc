"""What a client says before the body: who it is, how it wants to be served, and the headers that go upstream.

Laws
  By its mode, and by what is to stay as it is, a request can only lessen what is done with it. By its preset it can
  choose among those that `request_presets` names, and no other, and by its aim and size only where `request_aim`
  allows that; these count before the rules. A key of this gateway may name presets beside those, and a mode beside its
  client's own.
  What was read of one head counts for the next one of its connection only where both have the same lines.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import get_args

from aiohttp import web
from msgspec import Struct
from multidict import CIMultiDict

from policies.context import Aim
from policies.keep import Patterns, patterns_of
from policies.model.parameters import MOST
from proxy.config import KeyRow, Settings
from proxy.config.rules import FEWEST_TOKENS, KEY_SHAPE, Mode
from proxy.errors import ApiError
from proxy.identity.credential import auth_of, is_plain_key
from proxy.identity.who import IDENTITY, Identity, who
from proxy.requests import RequestOptions
from proxy.upstreams.upstream import readable_encodings, request_headers

MODES: tuple[Mode, ...] = ("on", "observe", "off")
"""From the mode that does most to the one that does least."""
_NUMBER = re.compile(r"[0-9]{1,18}")
_FRAMING = frozenset({b"content-length"})
_KEY_SHAPE, _PUNCTUATION = re.compile(KEY_SHAPE.pattern.encode()), re.compile("[^a-z0-9]")


_WISHES = ("x-narrows", "x-narrows-preset", "x-narrows-aim", "x-narrows-context-tokens", "x-narrows-keep")
_NO_WISHES, _MODES = RequestOptions("on"), {str(mode): mode for mode in MODES}


class RequestHead(Struct, frozen=True):
    """The head of a request, read but for the length of its body. As a rule all requests of a connection have one."""

    lines: tuple[tuple[bytes, bytes], ...]
    wishes: RequestOptions
    conversation: str | None
    """The id that a header gives the conversation."""
    access: Identity
    settings: Settings
    """Under which it was read."""
    auth: Mapping[str, str]
    is_plain_key: bool
    forwarded: CIMultiDict[str]
    """The headers that go upstream, but for the length of the body. To be copied, never changed."""


def head_of(request: web.BaseRequest, before: RequestHead | None, settings: Settings, secret: bytes) -> RequestHead:
    """The head of a request; `before` is that of the one before on its connection. Raises ApiError."""
    lines = tuple(line for line in request.raw_headers if line[0].lower() != b"content-length")
    access: Identity | None = request.get(IDENTITY)
    if before is not None and before.lines == lines and before.settings is settings and access in (None, before.access):
        return before
    access = who(request, settings, secret)
    asks = _wishes(request, settings, access.key)
    conversation = request.headers.get("x-narrows-conversation")
    if conversation is not None and not is_name(conversation):
        message = "x-narrows-conversation must have 1 to 200 printable characters."
        raise ApiError(400, message, "bad_header", "x-narrows-conversation")
    forwarded = forwarded_headers(request, lines, settings, _FRAMING)
    readable_encodings(forwarded)
    return RequestHead(
        lines=lines,
        wishes=asks,
        conversation=conversation or session_of(request.headers),
        access=access,
        settings=settings,
        auth=auth_of(request, has_key=access.key is not None),
        is_plain_key=is_plain_key(request),
        forwarded=forwarded,
    )


def forwarded_headers(
    request: web.BaseRequest, lines: Iterable[tuple[bytes, bytes]], settings: Settings, but: Collection[bytes] = ()
) -> CIMultiDict[str]:
    """The headers that go upstream, without those in `but`: no key of this gateway, and no name of a person."""
    if settings.auth != "passthrough":
        lines = [line for line in lines if not _KEY_SHAPE.search(line[1])]
    if IDENTITY in request:
        but = {*but, *(_PUNCTUATION.sub("-", name.lower()).encode() for name in settings.tenant_headers)}
    return request_headers(lines, but)


def _wishes(request: web.BaseRequest, settings: Settings, key: KeyRow | None) -> RequestOptions:
    """What the headers of a request ask for. Raises ApiError where they may not, or cannot be meant."""
    headers, least = request.headers, (key and key.mode) or "on"
    if not any(name in headers for name in _WISHES):
        return _NO_WISHES if least == "on" else RequestOptions(least)
    values = [value.strip().lower() for value in headers.getall("x-narrows", ())]
    modes = [_MODES[value] for value in values if value in _MODES]
    if len(modes) != len(values):
        raise ApiError(400, "The header x-narrows must be on, observe or off.", "bad_header", "x-narrows")
    presets, allowed = headers.getall("x-narrows-preset", ()), settings.request_presets
    if presets and key is not None:
        allowed += tuple(name for name in key.presets if name in settings.all_presets())
    preset = presets[0].strip() if presets else ""
    if len(presets) > 1 or (presets and preset not in allowed):
        may = f"must be one of {', '.join(allowed)}" if allowed else "may not be sent: `request_presets` allows none"
        raise ApiError(400, f"The header x-narrows-preset {may}.", "bad_header", "x-narrows-preset")
    aims = [value.strip().lower() for value in headers.getall("x-narrows-aim", ())]
    sizes = [value.strip() for value in headers.getall("x-narrows-context-tokens", ())]
    for name, values in (("x-narrows-aim", aims), ("x-narrows-context-tokens", sizes)):
        if values and not settings.request_aim:
            raise ApiError(400, f"The header {name} is not allowed: `request_aim` is off.", "bad_header", name)
    aim = next((each for each in get_args(Aim) if [each] == aims), None)
    if aims and aim is None:
        raise ApiError(400, "The header x-narrows-aim must be bill or context.", "bad_header", "x-narrows-aim")
    size = int(sizes[0]) if sizes and _NUMBER.fullmatch(sizes[0]) else 0
    if sizes and (len(sizes) > 1 or not FEWEST_TOKENS <= size <= MOST):
        message = f"The header x-narrows-context-tokens must be one number, {FEWEST_TOKENS:,} or more."
        raise ApiError(400, message, "bad_header", "x-narrows-context-tokens")
    keep = _patterns(headers.getall("x-narrows-keep", ()))
    return RequestOptions(max([least, *modes], key=MODES.index), preset, aim, size or None, keep=keep)


def _patterns(lines: Sequence[str]) -> Patterns:
    """What is to stay as it is, with commas between. Raises ApiError."""
    try:
        return patterns_of(pattern for line in lines for pattern in line.split(",") if pattern.strip())
    except ValueError as error:
        raise ApiError(400, f"The header x-narrows-keep: {error}.", "bad_header", "x-narrows-keep") from error


# --- names that clients give their conversations in headers of their own ---
# Laws
#   A name that is given to Narrows, as in `x-narrows-conversation`, counts before these.
#   A header only names. Histories that share a name stay apart, because each is recognized by its own messages.

LONGEST = 200
SESSIONS: tuple[tuple[str, str | None], ...] = (
    ("x-claude-code-session-id", "x-claude-code-agent-id"),  # Claude Code
    ("x-openwebui-chat-id", None),  # Open WebUI
    ("x-session-affinity", None),  # opencode
)
"""The header that names a session, and the one that names an agent within it, which has a history of its own."""


def is_name(value: str) -> bool:
    """Whether a header may name a conversation."""
    return 0 < len(value) <= LONGEST and value.isprintable()


def session_of(headers: Mapping[str, str]) -> str | None:
    """The name that a client in this table gives its conversation; values that cannot be names are ignored."""
    for header, within in SESSIONS:
        name = headers.get(header)
        if name is None or not is_name(name):
            continue
        agent = headers.get(within) if within else None
        return f"{name}:{agent}" if agent and is_name(agent) else name
    return None

"""What one request is served by: its preset and its mode, of what it asks for, the rules, and the settings.

Laws
  By its mode a request can only lessen what is done with it.
  By its preset it can choose among those that `request_presets` names, and no other; that counts before the rules.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from policies.dialects.common import member
from policies.dialects.limits import TooManyError, check_size
from policies.model.rawjson import UnreadableError, members
from proxy.config import Settings
from proxy.config.rules import Mode, first_fitting
from proxy.errors import ApiError

_CAREFUL: tuple[Mode, ...] = ("on", "observe", "off")
"""From the boldest mode to the most careful one."""
_COLD_BYTES = 2**22
"""A larger body is looked through in a thread, so that nobody else waits."""
_MANY_KEYS = 20_000
"""Colons in a body that may be as many keys; finding each member takes some 0.5 microseconds."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a request is served by; an empty preset is that of the settings."""

    mode: Mode
    preset: str = ""


def asked(request: web.BaseRequest, settings: Settings) -> Choice:
    """What the head of a request asks for. Raises ApiError where it may not."""
    return Choice(_mode_asked(request.headers.getall("x-narrows", ())), _preset_asked(request, settings))


async def chosen(asked: Choice, settings: Settings, dialect: str, credential: str, body: bytes) -> Choice:
    """What a request in this API is served by."""
    by_model = any(rule.model for rule in settings.rules)
    model = await _model(body) if by_model else ""
    rule = first_fitting(settings.rules, dialect, credential, model)
    mode = (rule and rule.mode) or settings.mode
    preset = asked.preset or (rule and rule.preset) or ""
    return Choice(max(asked.mode, mode, key=_CAREFUL.index), "" if preset == settings.preset else preset)


def _mode_asked(values: Sequence[str]) -> Mode:
    given = [mode for value in values for mode in _CAREFUL if mode == value.strip().lower()]
    if len(given) != len(values):
        raise ApiError(400, "The header x-narrows must be on, observe or off.", "bad_header", "x-narrows")
    return max(given, key=_CAREFUL.index, default="on")


def _preset_asked(request: web.BaseRequest, settings: Settings) -> str:
    values = request.headers.getall("x-narrows-preset", ())
    if not values:
        return ""
    allowed = settings.request_presets
    if len(values) == 1 and values[0].strip() in allowed:
        return values[0].strip()
    may = f"must be one of {', '.join(allowed)}" if allowed else "may not be sent: `request_presets` allows none"
    raise ApiError(400, f"The header x-narrows-preset {may}.", "bad_header", "x-narrows-preset")


async def _model(body: bytes) -> str:
    """The model that a request asks; empty where it cannot be read."""
    return _read_model(body) if len(body) <= _COLD_BYTES else await asyncio.to_thread(_read_model, body)


def _read_model(body: bytes) -> str:
    try:
        if body.count(b":") > _MANY_KEYS:
            check_size(body)
        model = member(body, members(body), "model")
    except (UnreadableError, TooManyError):  # what is no request of the API is relayed as it is
        return ""
    return model if isinstance(model, str) else ""


def conversation_of(request: web.BaseRequest) -> str | None:
    value = request.headers.get("x-narrows-conversation")
    if value is not None and not (0 < len(value) <= 200 and value.isprintable()):
        message = "x-narrows-conversation must have 1 to 200 printable characters."
        raise ApiError(400, message, "bad_header", "x-narrows-conversation")
    return value

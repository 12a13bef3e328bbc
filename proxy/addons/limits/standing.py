"""How much of its limits a key has used, and what its clients read of that: headers and refusals in their API's words.

Laws
  What remains is what remained when the request was let in: neither the request's own tokens nor those of others in
  flight are taken off.
  A client that waits as long as it is told is let in then, if nobody else has used what came free. Where that takes
  longer than a minute, it is told not to try again by itself.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from math import ceil
from typing import Literal, NamedTuple

from policies.dialects import DIALECTS, Dialect, Fault
from proxy.config.keys import KeyRow
from proxy.errors import ApiError

MINUTE, _DAY = 60, 86_400
"""Seconds in which requests and tokens are counted, and dollars."""
Limit = Literal["rpm", "tpm", "usd_per_day", "concurrency"]
"""The fields of a key that limit what it uses."""
RATE_HEADERS = tuple({api.http.rate.partition("{")[0] for api in DIALECTS.values()})
"""How the headers begin by which providers say how much of a limit remains."""


class Standing(NamedTuple):
    """What a key has used in the last minute of the limits that it has. Waits are seconds."""

    is_within: bool = True
    """Whether the request was within the limit of requests, and is counted."""
    requests: int = 0
    """This one counted."""
    request_wait: float = 0.0
    """Until the oldest of them no longer counts."""
    tokens: int = 0
    token_wait: float = 0.0
    """Until they are below the limit."""
    tokens_wait: float = 0.0
    """Until none of them counts."""


def duration(seconds: float) -> str:
    """As in OpenAI's headers: 250ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms"
    minutes, rest = divmod(ceil(seconds * 1000) / 1000, 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


def instant(at: float) -> str:
    """As in Anthropic's headers, by seconds since 1970."""
    return datetime.fromtimestamp(ceil(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rate_headers(dialect: str, key: KeyRow, standing: Standing, now: float) -> dict[str, str]:
    """What remains of a key's requests and tokens. The reset is when there is something again, where nothing remains;
    else when there is all of it again."""
    api, headers = DIALECTS[dialect].http, dict[str, str]()
    used = (
        ("requests", key.rpm, standing.requests, standing.request_wait, float(MINUTE)),
        ("tokens", key.tpm, standing.tokens, standing.token_wait, standing.tokens_wait),
    )
    for what, limit, count, wait, whole in used:
        if limit is not None:
            seconds = wait if count >= limit else whole
            reset = instant(now + seconds) if api.rate_reset == "instant" else duration(seconds)
            values = {"limit": str(limit), "remaining": str(max(0, limit - count)), "reset": reset}
            headers |= {api.rate.format(what=each, of=what): value for each, value in values.items()}
    return headers


class Refusal(NamedTuple):
    """Why a key's requests are refused, and until when (seconds since 1970): nothing comes free before."""

    limit: Limit
    allowed: float
    """The limit as it was: where the key has another one, this counts no more."""
    until: float
    standing: Standing
    since: float = 0.0
    """When it was found, where that matters."""


def refusal_of(key: KeyRow, standing: Standing, is_used_up: bool, now: float) -> Refusal | None:
    """Why a request is not let in; None where it is. Of several reasons the one that lasts longest."""
    if key.usd_per_day is not None and is_used_up:
        return Refusal("usd_per_day", key.usd_per_day, now + _DAY - now % _DAY, standing, now)
    if key.tpm is not None and standing.tokens >= key.tpm:
        return Refusal("tpm", key.tpm, now + standing.token_wait, standing)
    if key.rpm is not None and not standing.is_within:
        return Refusal("rpm", key.rpm, now + min(standing.request_wait, MINUTE), standing)
    return None


_REFUSALS: Mapping[Limit, tuple[str, str, str]] = {
    "rpm": ("rate_limit_exceeded", "requests", "Rate limit reached: {limit:,} requests a minute."),
    "tpm": ("rate_limit_exceeded", "tokens", "Rate limit reached: {limit:,} tokens a minute."),
    "usd_per_day": ("insufficient_quota", "insufficient_quota", "The budget of the day (UTC) is used up: ${limit:,g}."),
    "concurrency": ("rate_limit_exceeded", "requests", "Too many requests at once: {limit:,} may be in flight."),
}
"""Code, type (of OpenAI's errors) and message."""


class LimitError(ApiError):
    """429: a limit of a key is reached. `wait`: seconds until enough of it is free."""

    def __init__(self, key: KeyRow, limit: Limit, wait: float, headers: Mapping[str, str]) -> None:
        code, self._kind, reason = _REFUSALS[limit]
        seconds = max(1, ceil(wait))
        retry = {"Retry-After": str(seconds), "retry-after-ms": str(max(1, ceil(wait * 1000)))}
        if wait > MINUTE:
            retry["x-should-retry"] = "false"
        reason = reason.format(limit=getattr(key, limit))
        message = f"{reason} It is the limit `{limit}` of the key `{key.name}`; try again in {duration(seconds)}."
        super().__init__(429, message, code, headers={**headers, **retry})

    def body(self, dialect: Dialect) -> bytes:
        return dialect.failure(Fault(self.status, self.message, self.code, self.param, self._kind))

"""Which model a request names, before anything else is read of it."""

import asyncio

from policies.dialects.common import member
from policies.dialects.limits import TooManyError, check_size
from policies.model.rawjson import UnreadableError, members
from proxy.errors import ApiError

_MANY_KEYS = 20_000
"""Colons in a body that may be as many keys; finding each member takes some 0.5 microseconds."""
_LARGE_BYTES = 2**22
"""A larger body is searched for its model in a thread, so that nobody else waits."""


def check_named(deployment: str, named: str) -> None:
    """Raises ApiError where an upstream that knows no deployments would be asked another model than the path says."""
    if named != deployment:
        message = "This upstream reads the model in the body, not in the path: name the deployment there too."
        raise ApiError(400, message, "model_mismatch", "model")


async def named_model(body: bytes, strictly: bool = False) -> str:
    """The model that a request names; "" where that cannot be read, because what is no request is relayed as it is.
    `strictly`: also where an upstream that does not tell capitals from small letters might read another one."""
    if len(body) <= _LARGE_BYTES:
        return _model(body, strictly)
    return await asyncio.to_thread(_model, body, strictly)


def _model(body: bytes, strictly: bool) -> str:
    try:
        if body.count(b":") > _MANY_KEYS:
            check_size(body)
        spans = members(body)
        model = member(body, spans, "model")
        if strictly and sum(name.casefold() == "model" for name in spans) > 1:
            return ""
    except (UnreadableError, TooManyError):
        return ""
    return model if isinstance(model, str) else ""

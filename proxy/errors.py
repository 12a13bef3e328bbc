"""Errors that clients read, in the form of their API: a status, a message, a code and the field at fault."""

import json
from collections.abc import Mapping

from policies.dialects import Dialect, Fault


class ApiError(Exception):
    """An error response that a client receives in the form of its API. `param` names the field or header at fault."""

    def __init__(
        self, status: int, message: str, code: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = headers or {}
        """Headers that belong to the status, for example `Allow` with 405."""

    def body(self, dialect: Dialect) -> bytes:
        return dialect.failure(Fault(self.status, self.message, self.code, self.param))


class FailedError(ApiError):
    """Narrows itself failed to continue a reply; the cause is for the log."""


class RefusedError(ApiError):
    """The upstream refused to continue a reply whose response has begun: its error goes into the stream."""

    def __init__(self, status: int, upstream_body: bytes, code: str = "upstream_refused") -> None:
        what = "no event stream" if status == 200 else str(status)
        super().__init__(max(status, 502), f"The upstream answered {what} after the response had begun.", code)
        self._upstream_body = upstream_body

    def body(self, dialect: Dialect) -> bytes:
        """The upstream's own error on one line where its body is one, else ours."""
        try:
            error = json.loads(self._upstream_body)
            return json.dumps(error).encode() if error["error"] else super().body(dialect)
        except (ValueError, KeyError, TypeError, RecursionError):
            return super().body(dialect)


def internal_error() -> ApiError:
    return ApiError(500, "Narrows failed on this request; its log says why.", "narrows_failed")


def shutting_down() -> ApiError:
    return ApiError(503, "Narrows is shutting down; try again.", "shutting_down", headers={"Retry-After": "1"})


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"The body is larger than {limit} bytes; see `body_limit`.", "body_too_large")


def not_planned() -> ApiError:
    """The response to a prompt that is too long as it is, where there was no time to shorten it."""
    message = "The prompt is too long for the model, and Narrows is too busy to shorten it; try again."
    return ApiError(503, message, "planning_shed", headers={"Retry-After": "2"})

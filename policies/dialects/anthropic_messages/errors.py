"""Errors in the words of Anthropic's API (API reference, errors)."""

from collections.abc import Mapping

from policies.dialects.base import Fault
from policies.dialects.common import as_json

_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def failure(fault: Fault) -> bytes:
    kind = _KINDS.get(fault.status, "api_error" if fault.status >= 500 else "invalid_request_error")
    details = {"error_code": fault.code, **({"param": fault.param} if fault.param else {})}
    return as_json({"type": "error", "error": {"type": kind, "message": fault.message, "details": details}})

"""Rules of a strict provider, whose breach it answers with 400: those that its APIs have in common.

Laws
  A request is judged by its body and by how its model's cache is marked, and by nothing else.
  The first violation in the order of an API's checks is the one reported; a check may rely on those before it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from policies.money.caches import CacheRule
from proxy.lab.provider import jsontext

Json = Mapping[str, Any]

MAX_TOOLS = 128
MAX_MARKS = 4
BREAKPOINT = "prompt_cache_breakpoint"


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a request is refused. `param` and `code` are reported where the API has a place for them."""

    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400


Violations = Iterator[Violation]
Check = Callable[[Json, CacheRule], Violations]


def first_violation(checks: Iterable[Check], body: object, rule: CacheRule) -> Violation | None:
    if not isinstance(body, Mapping):
        return Violation("The body must be a JSON object.")
    return next((violation for check in checks for violation in check(body, rule)), None)


# --- values ---

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": (int, float),
    "object": dict,
    "dictionary": dict,
    "array": list,
    "list": list,
    "string or list": (str, list),
    "string or an array of items": (str, list),
}


def fits(value: object, kind: str) -> bool:
    """True where a value is of a kind, which is written as the API's errors name it. A boolean is no number."""
    kind = kind.removeprefix("a ").removeprefix("an ")
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind == "positive integer":
        return isinstance(value, int) and value >= 1
    return isinstance(value, _TYPES[kind])


def holds_object(text: str) -> bool:
    try:
        return isinstance(jsontext.read(text), dict)
    except jsontext.NotJSONError:
        return False


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# --- in the words of OpenAI's APIs ---


def missing(param: str) -> Violation:
    return Violation(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def invalid(param: str, why: str) -> Violation:
    return Violation(f"Invalid value for '{param}': {why}.", param, "invalid_value")


def wrong_type(param: str, expected: str) -> Violation:
    return Violation(f"Invalid type for '{param}': expected {expected}.", param, "invalid_type")


def unknown(param: str) -> Violation:
    return Violation(f"Unknown parameter: '{param}'.", param, "unknown_parameter")


def empty(param: str, what: str) -> Violation:
    return Violation(f"'{param}' must hold at least one {what}.", param, "empty_array")


def model_named(body: Json, _: CacheRule) -> Violations:
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield missing("model")


def misfits(body: Json, fields: Mapping[str, str]) -> Violations:
    """Fields that are there and of another kind than `fields` says."""
    for name, kind in fields.items():
        if body.get(name) is not None and not fits(body[name], kind):
            yield wrong_type(name, kind)


def check_breakpoint(at: str, holder: Json, allowed: bool) -> Violations:
    """Faults of the cache breakpoint that an object carries, if it carries one."""
    if holder.get(BREAKPOINT) is None:
        return
    if not allowed:
        yield unknown(f"{at}.{BREAKPOINT}")
    elif mapping(holder[BREAKPOINT]).get("mode") != "explicit":
        yield invalid(f"{at}.{BREAKPOINT}", "the mode must be 'explicit'")
    elif holder.get("text") == "":
        yield invalid(f"{at}.{BREAKPOINT}", "an empty text cannot be marked")


def cache_options(body: Json, rule: CacheRule) -> Violations:
    """`prompt_cache_options` are for models whose cache has breakpoints."""
    options = body.get("prompt_cache_options")
    if options is not None and rule.mark != BREAKPOINT:
        yield unknown("prompt_cache_options")
    elif options is not None and options.get("mode", "implicit") not in ("implicit", "explicit"):
        yield invalid("prompt_cache_options.mode", "expected one of implicit, explicit")


# --- in the words of Anthropic's API: the field first, then why ---


def refusal(at: str, why: str) -> Violation:
    """Something is wrong with a field; with the request as a whole where `at` is empty."""
    return Violation(f"{at}: {why}" if at else why, at or None)


def required(at: str) -> Violation:
    return refusal(at, "Field required")


def extra(at: str) -> Violation:
    return refusal(at, "Extra inputs are not permitted")


def expected(at: str, kind: str) -> Violation:
    return refusal(at, f"Input should be a valid {kind}")

"""How the Messages API says what is wrong: the field first, then why."""

from proxy.lab.provider.rules import Violation


def fault(at: str, why: str) -> Violation:
    """Something is wrong with a field; with the request as a whole where none is named."""
    return Violation(f"{at}: {why}" if at else why, at or None)


def required(at: str) -> Violation:
    """A field is not there."""
    return fault(at, "Field required")


def extra(at: str) -> Violation:
    """There is no such field."""
    return fault(at, "Extra inputs are not permitted")


def expected(at: str, kind: str) -> Violation:
    """A field is of another type."""
    return fault(at, f"Input should be a valid {kind}")

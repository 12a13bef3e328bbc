"""The parameters behind the question mark of a store's URL.

Law: what cannot be is refused with ValueError that says what to write.
"""

import re
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl

TTL = 30 * 86_400
"""Seconds after which what was not used is deleted."""

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parameters(query: str, names: Collection[str]) -> Mapping[str, str]:
    """The parameters, of which only these names may stand there."""
    values = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(values.keys() - set(names)):
        raise ValueError(f"there is no parameter {unknown[0]!r}: known are {', '.join(sorted(names))}")
    return values


def ttl(values: Mapping[str, str]) -> int:
    """The time to live, in seconds."""
    text = values.get("ttl", f"{TTL}s")
    if not (match := re.fullmatch(r"([1-9]\d{0,8})([smhd]?)", text)):
        raise ValueError(f"ttl {text!r} is no time: write 3600s, 90m, 12h or 30d")
    return int(match[1]) * _UNITS[match[2] or "s"]

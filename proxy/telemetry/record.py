"""The line of a request, for people at a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

ID_HEADER = "x-narrows-request-id"
DOLLARS = frozenset({"baseline", "dollars", "paid", "saved"})
_LEAST = 0.0005
"""Dollars that are none on a terminal."""
_DIGEST = 32


def in_words(line: Mapping[str, Any]) -> str:
    """A line for people, from its fields that are not empty:
    `chat gpt-5.4  27.2k -> 11.0k  extended  $0.014 less  24 ms  conv b026`."""
    return "  ".join(_words(line))


def _words(line: Mapping[str, Any]) -> Iterator[str]:
    is_chat = line["route"] == "chat"
    yield f"{line['route']} {line.get('model', '' if is_chat else line['method'])}".rstrip()
    if line.get("before") or line.get("after"):
        yield " -> ".join(dict.fromkeys(_thousands(line[name]) for name in ("before", "after")))
    if "prefix" in line:
        yield line["prefix"]
    if line.get("mode") == "observed":  # the tokens behind the arrow are those that would have been sent
        yield line["mode"]
    if "paid" in line:
        yield _money(line["paid"], line["saved"])
    if line.get("rounds"):
        yield f"{line['rounds']} recall{'' if line['rounds'] == 1 else 's'}"
    yield f"{line['added_ms' if is_chat else 'ms']:.0f} ms"
    if line.get("conversation"):
        name = line["conversation"]
        yield f"conv {name[:4] if len(name) == _DIGEST else name}"
    if line["status"] // 100 != 2:
        yield f"status {line['status']}"
    if "trouble" in line:
        yield line["trouble"]


def _thousands(tokens: int) -> str:
    return str(tokens) if tokens < 1_000 else f"{tokens / 1_000:.1f}k"


def _money(paid: float, saved: float) -> str:
    """The difference, and where there is none the price."""
    if abs(saved) < _LEAST:
        return f"${paid:.3f}"
    return f"${abs(saved):.3f} {'less' if saved > 0 else 'more'}"

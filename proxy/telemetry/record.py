"""What one request came to: the fields of the `request` line, and the line itself for people at a terminal."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from policies.money.bills import RequestBill

ID_HEADER = "x-narrows-request-id"
DOLLARS = frozenset({"baseline", "dollars", "paid", "saved"})
"""Fields that are dollars, of which the log says millionths."""
_LEAST = 0.0005
"""Dollars that are none on a terminal."""
_DIGEST = 32
"""Characters of the id of a conversation that no client has named: its first few tell it from others."""


@dataclass(slots=True)
class RequestRecord:
    """What one request came to, filled in on its way."""

    method: str
    route: str = "other"
    """chat, count, relay or page."""
    request_id: str = ""
    mode: str = "relayed"
    prefix: str = ""
    tenant: str = ""
    key: str = ""
    """The name of the key of this gateway that was shown."""
    upstream: str = ""
    """The name of the upstream that was asked."""
    conversation: str = ""
    status: int = 0
    before: int = 0
    after: int = 0
    """Tokens before and after compaction, as the reply's headers report them."""
    edits: str = ""
    summary: str = ""
    rounds: int = 0
    """How often the upstream was asked again to answer recalls."""
    model: str = ""
    paid: float | None = None
    """Dollars for all rounds; None where they are not known."""
    baseline: float | None = None
    """Dollars that doing nothing would have cost, an estimate."""
    saved: float | None = None
    received: int = 0
    replied: int = 0
    """Bytes of the bodies, as they were on the wire."""
    added_ms: float = 0.0
    ms: float = 0.0
    trouble: str = ""
    unread: str = ""
    """Why the reply could not be read while it was forwarded."""

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Copy what the x-narrows-* headers of the reply report."""
        self.mode = headers.get("x-narrows-mode", self.mode)
        self.prefix = headers.get("x-narrows-prefix", "")
        self.conversation = headers.get("x-narrows-conversation", "")
        self.before = _number(headers.get("x-narrows-tokens-before", ""))
        self.after = _number(headers.get("x-narrows-tokens-after", ""))
        self.edits = headers.get("x-narrows-edits", "")
        self.summary = headers.get("x-narrows-summary", "")

    def read_bill(self, bill: RequestBill | None) -> None:
        """Copy what the reply cost, if anything was billed."""
        if bill is not None:
            self.model = bill.labels.model
            if not bill.sums.unpriced:
                self.paid, self.baseline, self.saved = bill.sums.paid, bill.sums.baseline, bill.sums.saved

    def line(self) -> dict[str, Any]:
        """The fields of the log line."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "event": "request"}


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


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 0

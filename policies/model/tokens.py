"""How many tokens a text has: exact for OpenAI's vocabularies, calibrated by reports for all others.

Laws
  Counting never downloads: the vocabularies are compiled into toktok, whose ids are those of tiktoken.
  Decisions are taken on these exact counts, so every replica takes the same ones; calibration serves the
  hard marks and the reports.
  A report that cannot be true changes nothing: a learned ratio stays within [LOWEST, HIGHEST].
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import toktok  # type: ignore[import-untyped]  # the wheel carries no type hints
from tiktoken.model import encoding_name_for_model

DEFAULT_ENCODING = "o200k_base"
LOWEST, HIGHEST = 0.5, 3.0
"""Reported tokens per counted token; a report further off is ignored."""
UNSEEN = 8_192
"""Tokens that a report may hold besides the text of the request: the provider's own instructions, images."""
_REMEMBERED_CHARACTERS = 40
_PIECE = 2**18
"""Characters that are counted at once: toktok keeps memory for the longest text that it has seen."""
_BOUNDARY = re.compile(r"""[^\W_](?=[ \t\r\n,.;:"(){}<>/=\[\]\\])""")
"""A letter or digit before something else, where no vocabulary has a token across; marks and apostrophes may go on."""
_SPAN = 2_000
"""Counted tokens that two reports must lie apart before their difference says more than their size."""


def encoding_for(model: str) -> str:
    """The vocabulary that counts for `model`; vendors put in front (`openai/gpt-4o`) do not matter."""
    try:
        encoding = encoding_name_for_model(model.rpartition("/")[2].lower())
    except KeyError:
        return DEFAULT_ENCODING
    # o200k_harmony has the same merges as o200k_base; its special tokens differ, but none is counted
    return encoding if encoding == "cl100k_base" else DEFAULT_ENCODING


def well_formed(text: str) -> str:
    """`text` with lone surrogates replaced: JSON can spell them, UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


OTHER = "other"
"""In sums, what comes after as many names as are told apart."""
_LONGEST_LABEL = 100


def tool_label(name: str) -> str:
    """The name of a tool, which comes from a client, as it is counted."""
    return well_formed(name[:_LONGEST_LABEL]) or OTHER


class Counter:
    """Counts exactly, special tokens as the ordinary text they are in a message. Making one loads its vocabulary
    (o200k_base: half a second). Counting releases the GIL and is linear in the text: some 10 ms for a megabyte, 0.7 s
    at worst (one run of dashes)."""

    def __init__(self, encoding: str = DEFAULT_ENCODING) -> None:
        self.encoding = encoding
        self("")

    def __call__(self, text: str, /) -> int:
        if len(text) > _PIECE:
            return sum(_tokens(piece, self.encoding) for piece in pieces(text, _PIECE))
        return (_of_short_text if len(text) <= _REMEMBERED_CHARACTERS else _tokens)(text, self.encoding)


def pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of about this size, which have as many tokens together as the whole; one that has no boundary
    for so long is cut nowhere there."""
    start = 0
    while len(text) - start > size:
        boundary = _BOUNDARY.search(text, start + size)
        if boundary is None:
            break
        yield text[start : boundary.end()]
        start = boundary.end()
    yield text[start:]


def _tokens(text: str, encoding: str) -> int:
    # truncate() reports the tokens of the whole text; batch_count() sets up threads on each call (25 us).
    try:
        total: int = toktok.truncate(text, 0, encoding)[1]
    except UnicodeEncodeError:
        total = toktok.truncate(well_formed(text), 0, encoding)[1]
    return total


_of_short_text = lru_cache(maxsize=8_192)(_tokens)  # a pure function; names and stubs come again and again


class TokenReport(NamedTuple):
    """One request: its exact count, and the prompt tokens that the provider reported for it."""

    counted: int
    reported: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """How the provider's counts relate to ours, learned from the reports of one conversation. A new one begins with
    the ratio last learned for its model."""

    ratio: float = 1.0
    """Reported tokens per counted token of a request's growth."""
    first: TokenReport | None = None
    newest: TokenReport | None = None

    def learn(self, counted: int, reported: int) -> "Calibration":
        if counted <= 0 or _bounded(reported, counted) != reported:
            return self
        newest = TokenReport(counted, reported)
        first = self.first or newest
        # from the growth where there is some: it is free of what the provider adds once; else from the size
        grown = counted - first.counted
        ratio = (reported - first.reported) / grown if grown >= _SPAN else reported / counted
        return Calibration(ratio if LOWEST <= ratio <= HIGHEST else self.ratio, first, newest)

    def estimate(self, counted: int) -> int:
        """The prompt tokens to report for a request of `counted` tokens: the newest report, and what came since."""
        last = self.newest or TokenReport(0, 0)
        return round(_bounded(last.reported + self.ratio * (counted - last.counted), counted))


def _bounded(reported: float, counted: int) -> float:
    """The nearest number that may be true of a request with `counted` tokens."""
    counted = max(counted, 0)
    return min(max(reported, LOWEST * counted), HIGHEST * counted + UNSEEN)

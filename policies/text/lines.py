"""Texts as lines: where each stands, the number that its tool printed before it, and its words without that number.

Laws: the lines of a text and what stands between them are the text; linear in it. A text with next to no line ends of
its own that holds many in escaped form (JSON, a printed object) has the lines of the texts inside.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import lt

import msgspec

from policies.tools.arguments import OLD, arguments_of, spelled

_NUMBER = r" *(\d{1,7})(?:\t|\\+t|→|[:|-]| \| ?)", r" *(\d{1,7})[:|-] "
"""As a rule, and where a blank follows every number, as in `12: text`."""
_NUMBERED = [re.compile(number) for number in _NUMBER]
_NUMBERS = [[re.compile(f"{begin}{number}", re.M) for number in _NUMBER] for begin in ("^", r"(?:\A|(?<=\\n))")]
_FEWEST_NUMBERS = 3
_ESCAPED_END = re.compile(r"\\+n")
_ESCAPED_FOR_EACH = 8
"""So many escaped line ends for each other one make a text one of escaped lines."""
_BARE_QUOTE = re.compile(r'(?<!\\)"')


class Line(msgspec.Struct, frozen=True, gc=False):
    start: int
    end: int
    number: int
    """The number that is printed before it; 0 where none is."""
    words: str | None
    """None where it is no line inside one string of a JSON text."""


@dataclass(frozen=True, slots=True)
class LineLayout:
    escaped: bool
    number: re.Pattern[str] | None
    """What stands before lines, where the numbers there rise from the first to the last, so that each names one."""
    json: bool


def layout_of(text: str) -> LineLayout:
    escaped = text.count("\\n") > _ESCAPED_FOR_EACH * (text.count("\n") + 1)
    any_number, with_blank = _NUMBERS[escaped]
    numbers = [*map(int, any_number.findall(text))]
    rise = len(numbers) >= _FEWEST_NUMBERS and all(map(lt, numbers, numbers[1:]))
    blanks = rise and len(with_blank.findall(text)) == len(numbers)
    return LineLayout(escaped, _NUMBERED[blanks] if rise else None, escaped and is_json(text))


def lines_of(text: str, layout: LineLayout, start: int = 0) -> Iterator[Line]:
    """The lines from the one that begins at `start` on."""
    while start >= 0:
        if layout.escaped:
            hit = _ESCAPED_END.search(text, start)
            end, following = hit.span() if hit else (len(text), -1)
        else:
            end = text.find("\n", start)
            following = end + 1 or -1
            end = end if following > 0 else len(text)
        number = layout.number.match(text, start, end) if layout.number else None
        words = text[number.end() if number else start : end].rstrip("\r")
        bare = layout.json and _BARE_QUOTE.search(words)
        yield Line(start, end, int(number[1]) if number else 0, None if bare else words)
        start = following


@lru_cache(maxsize=64)  # a pure function, so the cache changes nothing but the time it takes
def written_by(arguments: str) -> str:
    """The longest text among the arguments of a call, but what an edit replaces: what it writes, where it writes."""
    texts = (value for name, value in arguments_of(arguments).items() if spelled(name) not in OLD)
    return max((text for text in texts if isinstance(text, str)), key=len, default="")


def is_json(text: str) -> bool:
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True

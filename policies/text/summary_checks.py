"""Whether a summary may be used, by what it says and how it ended.

Laws
  Only what was said may be named: a path, an identifier or a number of three digits or more that no source holds is
  taken for invented. How a name is written (case, `12,500` or `12500`, `Class.method`) is no invention.
  Linear in the sources: each is searched once for each name at most, and a summary is short.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from policies.model.identifiers import identifiers_in
from policies.text.stubs import framed

End = Literal["stop", "length", "refusal", "calls", "reasoning", "other"]
"""How an answer ended: whole, cut off, or as something that is no answer."""

SHORTEST = 200
"""Characters. What is shorter says less than the summary before it."""
_LONGER = 1.25
"""How many times the tokens asked for an answer may have."""
_FEW = 4_000
"""Characters of an answer that can be a call."""

_REFUSES = re.compile(
    r"\W*(?:(?:i[’']?m|i am) (?:very |really |truly |so )?sorry|sorry[,.!]|i apologi[sz]e|my apologies"
    r"|(?:unfortunately,? |i[’']?m afraid )?i (?:can[’']?t|cannot|can not|won[’']?t|will not|am unable|am not able)\b"
    r"|i[’']?m (?:unable|not able)\b|as an? (?:ai|language model)\b)",
    re.I,
)
_CALLS = re.compile(
    r"</?(?:tool_?calls?|function_?calls?|invoke|antml:\w+)\b|<function=|<\|(?:tool|python_tag|channel|recipient)"
    r"|<｜tool|\[TOOL_CALLS?\]|\[TOOL_REQUEST\]|^```tool_(?:code|call)",
    re.I | re.M,
)
_JSON = re.compile(r"\s*(?:```\w*\s*)?[{\[]")
_CALL_KEYS = re.compile(
    r'"(?:tool_calls?|tool_name|tool_input|tool_use|function_call|function|arguments|parameters)"\s*:'
)
_THINKS = re.compile(r"</?think(?:ing)?>", re.I)

_GROUPED = re.compile(r"(?<![\w.,])\d{1,3}(?:[,_'’\u00a0\u202f]\d{3}){1,6}(?![\w]|[.,]\d)")
_SEPARATORS = (",", "_", "'", "’", ".", " ", "\u00a0", "\u202f")
_ENDING = re.compile(r"\.[a-z]{1,4}\Z")


def verdict(
    text: str, end: End, sources: Sequence[str], before: int, after: int, most: int, shortest: int = SHORTEST
) -> str:
    """Why a summary must not be used, in one word; empty where it may be.

    It stands for `before` tokens (or characters) with `after`, and was to have `most`; in fewer characters than
    `shortest` it says too little. `sources` is all that it was made of.
    """
    return (
        _by_end(end)
        or _by_form(text, shortest)
        or ("long" if after > _LONGER * most else "")
        or ("larger" if after >= before else "")
        or ("invented" if invented(text, sources) else "")
    )


def invented(text: str, sources: Sequence[str]) -> str:
    """The first name in `text` that no source holds; empty where there is none."""
    held = _Held(sources)
    grouped = _GROUPED.findall(text)
    plain = _GROUPED.sub(" ", text)
    missing = (name for name in (*grouped, *sorted(identifiers_in(plain))) if not held.named(name))
    return next(missing, "")


def _by_end(end: End) -> str:
    return "" if end == "stop" else {"length": "cut"}.get(end, end)


def _by_form(text: str, shortest: int) -> str:
    """What the text is instead of a summary."""
    said = text.strip()
    if not said:
        return "empty"
    if _REFUSES.match(said):
        return "refusal"
    if _CALLS.search(said) or (_JSON.match(said) and _CALL_KEYS.search(said[:_FEW])):
        return "calls"
    if _THINKS.search(said):
        return "reasoning"
    if framed(said):
        return "frame"
    return "short" if len(said) < shortest else ""


class _Held:
    """What the sources hold, as text."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = sources
        self._lower: tuple[str, ...] | None = None

    def named(self, name: str) -> bool:
        """Whether any source holds the name, or all that it is put together from."""
        if any(self._holds(form) for form in _forms(name)):
            return True
        parts = _parts(name)
        return bool(parts) and all(self._holds(part) for part in parts)

    def _holds(self, form: str) -> bool:
        if any(form in source for source in self._sources):
            return True
        if form.isdecimal():
            return False
        if self._lower is None:
            self._lower = tuple(source.lower() for source in self._sources)
        low = form.lower()
        return any(low in source for source in self._lower)


def _forms(name: str) -> Iterator[str]:
    """How a source may write it."""
    yield name
    digits = re.sub(r"\D", "", name) if name[0].isdecimal() else ""
    if digits and (digits == name or _GROUPED.fullmatch(name)):
        yield digits
        grouped = f"{int(digits):,}"
        yield from (grouped.replace(",", mark) for mark in _SEPARATORS if "," in grouped)
    if name.startswith("./"):
        yield name[2:]


def _parts(name: str) -> tuple[str, ...]:
    """What a name is put together from, where writers put names together: `Class.method`, `read/write`, `120,150`."""
    if _GROUPED.fullmatch(name):
        numbers = tuple(re.split(r"\D", name))
        return numbers if all(len(number) == 3 for number in numbers) else ()
    words = tuple(name.split("/"))
    if len(words) == 2:
        return words if all(word.isalpha() for word in words) else ()
    dotted = tuple(name.split("."))
    return dotted if len(dotted) > 1 and all(dotted) and "/" not in name and not _ENDING.search(name) else ()

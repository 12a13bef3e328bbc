"""Whether a summary may be used, judged by its text and by how the answer ended.

Laws
  Only names from the sources may appear: an address, a path, an identifier or a number of three digits or more that no
  source holds is taken for invented, and so is an image. How a name is written (case, `12,500` or `12500`,
  `Class.method`) is no invention.
  Of a summary for the prompt, nothing that the model wrote is used (policies.text.quotations).
  Linear in the sources: each is searched once for each name at most, and a summary is short.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal

from policies.model.identifiers import identifiers_in
from policies.text.stubs import framed

End = Literal["stop", "length", "refusal", "calls", "reasoning", "other"]
"""How an answer ended: complete, cut off, or without a text that can be used."""

SHORTEST = 200
"""Characters: a shorter summary says less than the one before it."""
_LONGER = 1.25
"""How many times its limit an answer may be long."""
_CALL_CHARACTERS = 4_000
"""Characters at the beginning of an answer in which the keys of a call are looked for."""

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

_IMAGE = re.compile(
    r"!\[[^\]\n]{0,400}\]\s?[(\[][^)\]\n]{0,2000}[)\]]?|<(?:img|picture|svg|iframe|object|embed)\b[^>]{0,2000}>?", re.I
)
_ADDRESS = re.compile(
    r"(?:\b[a-z][a-z0-9+.-]{1,20}:|(?<![\w/:.]))//[^\s<>\"'`)\]]{0,2000}[\w/=&#%~+-]|\b(?:data|mailto|javascript):[^\s<>\"'`)\]]{1,2000}[\w/=]",
    re.I,
)
_GROUPED = re.compile(r"(?<![\w.,])\d{1,3}(?:[,_'’\u00a0\u202f]\d{3}){1,6}(?![\w]|[.,]\d)")
_SEPARATORS = (",", "_", "'", "’", ".", " ", "\u00a0", "\u202f")
_ENDING = re.compile(r"\.[a-z]{1,4}\Z")


def verdict(
    text: str,
    end: End,
    sources: Sequence[str],
    before: int,
    after: int,
    most: int,
    *,
    content: str | None = None,
    shortest: int = SHORTEST,
) -> str:
    """Why a summary must not be used, in one word; empty where it may be.

    `text` is the answer. Where only lines of it are used, `content` are these, copied from the sources. It stands for
    `before` tokens (or characters) with `after` of them, and was to have at most `most`; with fewer characters than
    `shortest` it says too little. `sources` are all texts that it was written from.
    """
    stripped = text.strip()
    if end != "stop":
        return "cut" if end == "length" else end
    if not stripped:
        return "empty"
    if _REFUSES.match(stripped):
        return "refusal"
    if _CALLS.search(stripped) or (_JSON.match(stripped) and _CALL_KEYS.search(stripped[:_CALL_CHARACTERS])):
        return "calls"
    if _THINKS.search(stripped):
        return "reasoning"
    if framed(stripped) or framed(unmasked(stripped)):
        return "frame"
    if content == "" and len(stripped) >= shortest:
        return "form"
    if len(stripped if content is None else content) < shortest:
        return "short"
    if after > _LONGER * most:
        return "long"
    if after >= before:
        return "larger"
    return "invented" if content is None and invented(text, sources) else ""


def invented(text: str, sources: Sequence[str]) -> str:
    """The first name, address or image in `text` that no source holds; empty where there is none."""
    for image in _IMAGE.findall(text):
        if not any(image in source for source in sources):
            return str(image)
    for address in _ADDRESS.findall(text):
        if not any(address in _ADDRESS.findall(source) for source in sources):
            return str(address)
    lower = cache(lambda: [source.lower() for source in sources])

    def stands(form: str) -> bool:
        if any(form in source for source in sources):
            return True
        return not form.isdecimal() and any(form.lower() in source for source in lower())

    numbers: list[str] = _GROUPED.findall(text)
    for name in (*numbers, *sorted(identifiers_in(_GROUPED.sub(" ", text)))):
        parts = _parts(name)
        if not any(map(stands, _forms(name))) and not (parts and all(map(stands, parts))):
            return name
    return ""


def _forms(name: str) -> Iterator[str]:
    """The ways in which a source may write the name."""
    yield name
    digits = re.sub(r"\D", "", name) if name[0].isdecimal() else ""
    if digits and (digits == name or _GROUPED.fullmatch(name)):
        yield digits
        grouped = f"{int(digits):,}"
        yield from (grouped.replace(",", mark) for mark in _SEPARATORS if "," in grouped)
    if name.startswith("./"):
        yield name[2:]


def _parts(name: str) -> tuple[str, ...]:
    """The parts of a name that is put together as in `Class.method`, `read/write` or `120,150`."""
    if _GROUPED.fullmatch(name):
        numbers = tuple(re.split(r"\D", name))
        return numbers if all(len(number) == 3 for number in numbers) else ()
    words = tuple(name.split("/"))
    if len(words) == 2:
        return words if all(word.isalpha() for word in words) else ()
    dotted = tuple(name.split("."))
    return dotted if len(dotted) > 1 and all(dotted) and "/" not in name and not _ENDING.search(name) else ()


_LOOK_ALIKES = str.maketrans("АВЕЅІЈКМНОРСТУХаеѕіјорсухΑΒΕΖΗΙΚΜΝΟΡΤΥΧο", "ABESIJKMHOPCTYXaesijopcyxABEZHIKMNOPTYXo")
_TAGS = 0xE0000
"""Where the characters of tags begin, which nobody sees: each stands for one of ASCII."""


def unmasked(text: str) -> str:
    """The text as a model reads it: without what has no shape, and with letters for those that only look like them."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text)
    letters = (chr(ord(c) - _TAGS) if 0x20 <= ord(c) - _TAGS < 0x7F else c for c in text)
    return "".join(c for c in letters if unicodedata.category(c) != "Cf").translate(_LOOK_ALIKES)

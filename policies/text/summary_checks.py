"""Checks of a summary, by its text and by how the answer ended; and its lines: sentences of the messages that it stands
for, each with its message and who wrote it.

A model only chooses what stays. It answers with lines: the number of a message, and words of it. The sentence that has
these words is copied from the message. So a line says nothing that its message does not say, turns nothing around and
puts nothing into another mouth, whatever the language, and whatever the model was talked into.

Laws
  Only names from the sources may appear: an address, a path, an identifier or a number of three digits or more that no
  source holds is taken for invented, and so is an image. How a name is written (case, `12,500` or `12500`,
  `Class.method`) is no invention. A name that its messages do not have drops a line.
  Of a summary for the prompt nothing that the model wrote stays: a line is a number, a rank, and text of that message.
  What a person wrote is found word for word or not at all; of other texts, the sentence that has most of the words.
  Of a person's message whole paragraphs are copied, with what introduces them ("Never do this:"), so no negation is cut
  off; one that is too long is left out, as people's words stand beside the summary. Of other texts whole sentences are,
  with the lines that introduce them.
  Linear in the sources: each is searched once for each name at most, and a summary is short.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Literal

from policies.context import TokenCounter
from policies.model.conversation import Block
from policies.model.identifiers import identifiers_in
from policies.text.stubs import framed
from policies.tools import OURS

End = Literal["stop", "length", "refusal", "calls", "reasoning", "other"]
"""How an answer ended: complete, cut off, or without a text that can be used."""

SHORTEST = 200
"""Characters: a shorter summary says less than the one before it."""
_LONGER = 1.25
"""How many times its limit an answer may be long."""
_CALL_CHARACTERS = 4_000

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


# --- the lines of a summary ---

Rank = Literal["system", "user", "assistant", "tool"]

_LONGEST_COPY = 400
_SHARE, _FEWEST = 0.6, 3
"""The share of a line's words that a sentence must have, and how many of them at least."""
_END = 64_000
_MOST_LINES = 400
_FINDS, _SEARCHED = 100, 8_000_000
"""Places of a line's words in a text, and characters that are searched for one answer, at most."""

_CITES = re.compile(
    r"\s{0,8}(?:\d{1,3}[.)])?[^\w\[]{0,8}\[(?:[^\W\d]{1,20} )?(\d{1,9}(?:, ?\d{1,9}){0,9})\]:?\s{0,4}(.*)"
)
_LABEL = re.compile(r"(?:system|user|assistant|(?:call|tool)(?: [\w.:/-]{1,64})?): ")
_RANK = re.compile(r"\[\d{1,9}\] (system|user|assistant|tool)\b")
_QUOTES = "“”„‟«»‹›‘’`「」『』"
_PLAIN = str.maketrans(dict.fromkeys(_QUOTES, "'") | {'"': "'"})
_AROUND = f"{_QUOTES}\"' \t.…"
"""A model may write these around the words that it copies."""
_SENTENCE = re.compile(r"(?<=[.!?…])(?<!\b[^\W\d]\.)(?<!\b[^\W\d]{2}\.)\s+|(?<=[。！？।])\s*")
"""Where a sentence ends: not after one or two letters, as in `e.g.` or `Dr.`."""
_CLOSED = re.compile(r"[.!?…。！？।][^\w:：]{0,4}$")
"""How a paragraph ends after which another matter may begin."""
_ITEM = re.compile(r"(?:[-*+•–]|\d{1,3}[.)])\s")
_UNSAFE = re.compile(r"[^\w.:/-]")
_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(r"[\u0e00-\u109f\u1780-\u17ff\u3040-\u9fff\uf900-\ufaff]{2,}")
"""Scripts without spaces between words: pairs of their characters are compared."""


@dataclass(frozen=True, slots=True)
class _Sentence:
    lead: str
    """The line that introduces it; empty where there is none."""
    text: str


class _Source:
    def __init__(self, block: Block) -> None:
        of_tool = block.kind == "result" or (block.kind != "call" and block.answers is not None)
        self.rank: Rank = "tool" if of_tool else _RANKS.get(block.kind, "tool")
        self.text = block.text
        tool = _UNSAFE.sub("_", block.tool)[:64]
        title = "call" if block.kind == "call" else self.rank
        self.label = f"[{block.message}] {title}{f' {tool}' if tool else ''}: "

    @cached_property
    def sentences(self) -> Sequence[_Sentence]:
        is_cut = len(self.text) > 2 * _END
        if self.rank == "user":
            paragraphs = [*_paragraphs(self.text[: 2 * _END])]
            return paragraphs[:-1] if is_cut else paragraphs
        return tuple(_sentences(f"{self.text[:_END]}\n\n{self.text[-_END:]}" if is_cut else self.text))

    @cached_property
    def _plain(self) -> Sequence[str]:
        return [f"{_plain(sentence.text)} " for sentence in self.sentences]

    @cached_property
    def _starts(self) -> Sequence[int]:
        return [0, *accumulate(map(len, self._plain))]

    @cached_property
    def _whole(self) -> str:
        return "".join(self._plain)

    @cached_property
    def _words(self) -> Sequence[frozenset[str]]:
        pairs = zip(self.sentences, self._plain, strict=True)
        return [_words(f"{_plain(sentence.lead)} {plain}") for sentence, plain in pairs]

    def word_for_word(self, words: str) -> str:
        """The sentences in which these plain words stand; of one that is too long, a name alone."""
        at = -1
        for _ in range(_FINDS):
            at = self._whole.find(words, at + 1)
            if at < 0:
                return ""
            end = at + len(words)
            if not (_joins(self._whole[at - 1 : at], words[0]) or _joins(words[-1], self._whole[end : end + 1])):
                break
        else:
            return ""
        first = bisect_right(self._starts, at) - 1
        chosen = self.sentences[first : bisect_right(self._starts, at + len(words) - 1)]
        befores = [(), *((each.lead, each.text) for each in chosen)]
        copied = " ".join(_led(each, before) for each, before in zip(chosen, befores, strict=False))
        if len(copied) <= _LONGEST_COPY:
            return copied
        name = next((name for each in chosen for name in identifiers_in(each.text) if _plain(name) == words), "")
        return "" if self.rank == "user" else name

    def nearest(self, words: frozenset[str]) -> tuple[float, str]:
        """The largest share of these words in a sentence, and the shortest such sentence; none below `_SHARE`."""
        shares = (len(words & each) / len(words) for each in self._words)
        pairs = zip(shares, self.sentences, strict=True)
        led = ((share, _led(sentence, ())) for share, sentence in pairs if share >= _SHARE)
        fitting = (pair for pair in led if len(pair[1]) <= _LONGEST_COPY)
        return max(fitting, key=lambda pair: (pair[0], -len(pair[1])), default=(0.0, ""))


_RANKS: Mapping[str, Rank] = {"system": "system", "user": "user", "assistant": "assistant", "call": "assistant"}


class Quotations:
    """The messages that may be quoted, by their numbers, and the lines of the summary before."""

    def __init__(self, blocks: Iterable[Block], previous: str = "") -> None:
        self._sources: dict[int, list[_Source]] = {}
        for block in blocks:
            if block.kind != "opaque" and block.tool not in OURS and block.text.strip():
                self._sources.setdefault(block.message, []).append(_Source(block))
        self._lines = {_plain(line): line for line in previous.splitlines()}
        self._room = 0
        """Characters that may still be searched for this answer."""

    def of(self, answer: str, most: int, count: TokenCounter) -> str:
        """The lines that an answer chooses, in the order of their messages; the first `most` tokens of them, and
        one at least. Empty where it has none in the form that was asked for."""
        lines: dict[str, int] = {}
        self._room = _SEARCHED
        for answer_line in answer.splitlines()[:_MOST_LINES]:
            line = self._line(answer_line)
            if line and line not in lines and not framed(line) and not framed(unmasked(line)):
                most -= count(line) + 1
                if most < 0 and lines:
                    break
                lines[line] = int(line[1 : line.index("]")])
        return "\n".join(sorted(lines, key=lines.__getitem__))

    def _line(self, written: str) -> str:
        """The line for one of an answer; empty where its messages do not say it."""
        match = _CITES.match(written)
        if match is None:
            return ""
        if line := self._lines.get(_plain(written[written.index("[") :])):
            return line
        numbers = dict.fromkeys(map(int, match[1].split(",")))
        sources = [source for number in numbers for source in self._sources.get(number, ())]
        self._room -= sum(len(source.text) for source in sources)
        if self._room < 0:
            return ""
        texts = dict.fromkeys(text.strip(_AROUND) for text in (match[2], _LABEL.sub("", match[2], count=1)))
        for plain in filter(None, map(_plain, texts)):
            for source in sources:
                if copied := source.word_for_word(plain):
                    return source.label + copied
        *_, text = texts
        words = _words(_plain(text))
        others = [source for source in sources if source.rank != "user"]
        if len(words) < _FEWEST or not others or invented(text, [source.text for source in others]):
            return ""
        (share, copied), source = max(
            ((source.nearest(words), source) for source in others), key=lambda pair: (pair[0][0], -len(pair[0][1]))
        )
        return source.label + copied if share else ""


def without(content: str, ranks: Collection[Rank]) -> str:
    lines = content.splitlines()
    return "\n".join(line for line in lines if not ((match := _RANK.match(line)) and match[1] in ranks))


def _paragraphs(text: str) -> Iterator[_Sentence]:
    """The paragraphs of a text, each on one line; one goes on behind a gap where a list or no new sentence follows."""
    lines: list[str] = []
    is_after_gap = False
    for line in text.splitlines():
        stripped = line.strip()
        goes_on = not is_after_gap or line[:1].isspace() or _ITEM.match(stripped)
        if stripped and lines and not goes_on and _CLOSED.search(lines[-1]):
            yield _Sentence("", " ".join(lines))
            lines = []
        if stripped:
            lines.append(stripped)
        is_after_gap = not stripped
    if lines:
        yield _Sentence("", " ".join(lines))


def _sentences(text: str) -> Iterator[_Sentence]:
    """The sentences of a text; a line with a colon at its end introduces what follows or is indented below it."""
    leads: list[tuple[tuple[int, bool], str]] = []
    is_after_gap = False
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped:
            is_after_gap = True
            continue
        item = _ITEM.match(stripped)
        depth = (len(line) - len(line.lstrip()), item is not None)
        while leads and (leads[-1][0] > depth or (leads[-1][0] == depth and (is_after_gap or depth[1]))):
            leads.pop()
        lead = " ".join(lead for _, lead in leads)
        begin = item.end() if item else 0  # the number of an item is no sentence
        parts = [part for part in _SENTENCE.split(stripped[begin:]) if part] or [""]
        parts[0] = stripped[:begin] + parts[0]
        yield from (_Sentence(lead, part) for part in parts)
        if stripped.endswith((":", "：")) and len(lead) <= _LONGEST_COPY:  # what is below a longer one is never copied
            leads.append((depth, parts[-1][: _LONGEST_COPY + 1]))
        is_after_gap = False


def _led(sentence: _Sentence, before: Sequence[str]) -> str:
    return sentence.text if not sentence.lead or sentence.lead in before else f"{sentence.lead} {sentence.text}"


def _plain(text: str) -> str:
    """A text as it is compared: without case, marks that are not seen, kinds of quotation marks and of blanks."""
    return " ".join(unmasked(text).casefold().translate(_PLAIN).split())


def _words(plain: str) -> frozenset[str]:
    runs = _UNSPACED.findall(plain)
    pairs = (run[i : i + 2] for run in runs for i in range(len(run) - 1))
    return frozenset(_WORD.findall(_UNSPACED.sub(" ", plain))).union(pairs)


def _joins(left: str, right: str) -> bool:
    """True where two characters are inside one word."""
    return (left + right).isascii() and left.isalnum() and right.isalnum()

"""Shortens a text to a budget, line by line: errors and mentioned identifiers first, then its head and tail.

The home of everything that policies and digests do with lines: which are searched, what they cost, which are chosen,
and how the gaps between them are marked.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from unicodedata import category

from policies.model.identifiers import all_identifiers_in, identifier_counts, identifiers_in
from policies.text.stubs import omitted


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Patterns by the letters with which all that they match begins: a text is searched for these, in lower case."""

    patterns: Mapping[str, re.Pattern[str]]

    def places(self, text: str) -> Iterator[int]:
        low = text.replace("\u0130", "i").lower()  # the one letter whose lower case is longer
        for letters in filter(low.__contains__, self.patterns):  # nearly always none
            yield from (at for at in places_of(letters, low) if self.patterns[letters].match(text, at))

    def search(self, text: str) -> bool:
        return any(True for _ in self.places(text))


def _patterns(words: str, before: str = "", after: str = "") -> Mapping[str, re.Pattern[str]]:
    entries = {re.split(r"[\\(\[?{.]", entry.strip(" \n^"))[0]: entry.strip() for entry in words.split(";")}
    return {letters: re.compile(f"{before}(?:{entry}){after}", re.I | re.M) for letters, entry in entries.items()}


_WORDS = r"""
traceback; fatal; panic(?:ked)?; assert(?:ion)?; fail(?:ed|s|ing|ures?)?; cannot; can't; can not; unable;
could not; couldn't; does not (?:exist|match|appear|have); doesn't; didn't; denied; refus(?:ed|ing);
forbidden; reject(?:ed|s); unauthorized; unavailable; unreachable; unresolved; undeclared; unrecogni[sz]ed;
unhealthy; unmet; unexpected; unschedulable; unmerged;
not (?:ok \d.*|something|found|permitted|allowed|supported|installed|recogni[sz]ed|available|used|trusted);
no such; no space; no match(?:ing)?; no module; no rule; no route; no required; undefined(?: \w+|:.*);
unknown \w.*; missing; invalid; illegal; malformed; corrupt(?:ed)?; mismatch(?:ed)?; conflict(?:s|ing)?;
incompatible; insufficient; exceed(?:ed|s); too many; toomanyrequests; expired; timed[ -]?out; i/o timeout;
gateway time(?:-?out); kill(?:ed); oomkilled; terminated; interrupted; abort(?:ed|ing)?; core dumped;
segmentation fault; segfault; out of memory; crash(?:ed|loopbackoff)?; imagepullbackoff; errimagepull;
evicted; notready; deadlock; data race; broken; connection (?:reset|closed|lost);
already (?:in use|allocated|bound); file exists; redeclared; is a directory; multiple definition; overwritten;
violat(?:es|ed|ion); non-zero; nonzero; bad (?:gateway|request).*; expected .{1,80}(?:got|found|but).*;
wrong \w.*; econn\w+; etimedout; enotfound; eacces; eperm; enospc; eaddrinuse; eresolve; eintegrity; e40\d;
http(?:/[\d.]+)?"? [45]\d\d; status(?: code)?[:=]? [45]\d\d; ✕; ✖; ✗; ✘; ❌
"""
_SOME = r"(?<!\b0 )(?<!\bno )(?<!\bwithout )"
_NO_NAME = r"""(?![\w/-]|\.\w|["']?[:=] ?0\b)"""
ERROR = Vocabulary(
    {
        **_patterns(r"error(?:s)?; exception", rf"(?:(?<![^\W_])(?<![/-])|(?-i:(?=E))){_SOME}", _NO_NAME),
        **_patterns(_WORDS, rf"(?<![\w./-]){_SOME}", _NO_NAME),
        **_patterns(r": 40[134](?=\s*$); : 429(?=\s*$); : 50[234](?=\s*$); ^e  (?:); ^e: \S; ^err:\d; ^curl: \("),
    }
)
STATUS = Vocabulary(_patterns("exit (?:code|status); exited with; return code; returncode; <exit; ^process .*exit"))
DEFINES = re.compile(r"^\s*(\d+[\s:|]*)?(async def|def|class|func|fn|pub|function|interface|struct|impl)\b")

_LAST_STATUS, _LAST_ERROR = 20, 60
"""Tokens that stay of an output's exit status, and of its last error, whatever the budget."""
_MARK_TOKENS = 8
_JOINER = "\u200d"
_FRONT = 400
"""Characters at the beginning of a text in one line that say whether it is an error."""
_LOOKED_AT = 64_000
_MOST_LINES = 4_000
_MOST_MENTIONS = 200
_FEW_LINES, _SHARE_OF_LINES = 8, 0.3
"""A name on more lines, and on a larger share of them, is no reason to choose one."""
_REMEMBERED_CHARACTERS = 16_000
_FEW = 500
"""So many identifiers are searched for one by one; with more, all identifiers of the text are collected."""

_SCHEME, _ADDRESS = 20, 400
"""Characters that are looked at before and behind a name that may be a part of an address."""
_BEFORE_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:$")
_AFTER_ADDRESS = re.compile(r"[^\s\"'`<>\\{}|^\])]*[^\s\"'`<>\\{}|^\]).,;:!?]")

Cost = Callable[[str], int]


_ESCAPED_LINE = re.compile(r"(?s).*?\\n|.+")


def excerpt(text: str, budget: int, head: float, mentioned: frozenset[str], cost: Cost) -> str:
    """`text` cut to about `budget` (as `cost` counts), each gap marked; the share `head` comes from the beginning.
    Lines with errors, the exit status and `mentioned` identifiers go before the rest of both ends."""
    lines = lines_of(text)
    if len(lines) > 2 * _MOST_LINES:
        lines = [*lines[:_MOST_LINES], "".join(lines[_MOST_LINES:-_MOST_LINES]), *lines[-_MOST_LINES:]]
    return of_lines(lines, budget, head, mentioned, cost)


def of_lines(lines: Sequence[str], budget: int, head: float, mentioned: frozenset[str], cost: Cost) -> str:
    if len(lines) >= 2:
        searchable = readable(lines)
        scores = mention_counts(searchable, identifiers_present(searchable, mentioned))
        wrong = error_lines(searchable)
        scores.update(dict.fromkeys(wrong, _MOST_MENTIONS))
        telling = sorted(scores, key=lambda i: (-scores[i] - bool(DEFINES.match(searchable[i])), i))
        if chosen := choose_lines(lines, wrong, (telling, ends(len(lines), head)), budget, cost):
            return join_lines(lines, chosen)
    is_error = len(lines) == 1 and ERROR.search(lines[0][:_FRONT])
    return cut_inside("".join(lines), max(budget, _LAST_ERROR) if is_error else budget, head, cost)


def lines_of(text: str) -> list[str]:
    """Lines with their ends; the middle of a very long text is one line, which costs too much to be chosen. A text in
    one line, as clients show what a tool returned in a structure, has the lines of its escaped line ends."""
    if len(text) <= 2 * _LOOKED_AT:
        lines = text.splitlines(keepends=True)
        return _ESCAPED_LINE.findall(text) if len(lines) == 1 and "\\n" in text else lines
    front = text.rfind("\n", 0, _LOOKED_AT) + 1 or _LOOKED_AT
    back = text.find("\n", len(text) - _LOOKED_AT) + 1 or len(text) - _LOOKED_AT
    return [*text[:front].splitlines(keepends=True), text[front:back], *text[back:].splitlines(keepends=True)]


def readable(lines: Sequence[str]) -> list[str]:
    """The lines as they are searched: one that is too long to be chosen is empty, because to search it takes long."""
    return [line if len(line) <= 2_000 else "\n" for line in lines]


def identifiers_present(lines: Sequence[str], mentioned: frozenset[str]) -> list[str]:
    """Those `mentioned` that the lines hold, at most 200."""
    text = "".join(lines)
    if len(text) <= _REMEMBERED_CHARACTERS:  # most often identifiers of all of it were asked for before
        return sorted(mentioned & identifiers_in(text))[:_MOST_MENTIONS] if mentioned else []
    if len(mentioned) > _FEW:
        return sorted(mentioned & all_identifiers_in(text))[:_MOST_MENTIONS]
    near = {name: span for name in mentioned for span in islice(_lines_with(name, text), 1)}
    identifiers = {span: all_identifiers_in(text[slice(*span)]) for span in near.values()}
    # where a name is only a part of another one in its first line, all lines with it are searched
    parts_of = {name for name, span in near.items() if name not in identifiers[span]}
    elsewhere = "".join(text[slice(*span)] for span in {span for name in parts_of for span in _lines_with(name, text)})
    return sorted(near.keys() - parts_of | (parts_of & all_identifiers_in(elsewhere)))[:_MOST_MENTIONS]


def _lines_with(name: str, text: str) -> Iterator[tuple[int, int]]:
    end = 0
    while (at := text.find(name, end)) >= 0:
        start, end = text.rfind("\n", end, at) + 1 or end, text.find("\n", at) + 1 or len(text)
        yield start, end


def line_cost(line: str, cost: Cost | None = None) -> int:
    """About the tokens of a line; four characters are one where they are ASCII, or nothing measures others."""
    return len(line) // 4 + 1 if cost is None or line.isascii() else cost(line)


def choose_lines(
    lines: Sequence[str], wrong: Sequence[int], orders: Iterable[Iterable[int]], budget: int, cost: Cost
) -> Mapping[int, str]:
    """The lines that fit `budget`, ascending, each with what is shown of it: of those that tell what went `wrong` the
    exit status, the last and the first error; the others of them; then those of each order, one after another. A last
    error of 60 tokens, or an exit status of 20, stays even beyond the budget; of a longer error the beginning does."""
    costs = [line_cost(line, cost) for line in lines]
    status = next((i for i in reversed(wrong) if STATUS.search(lines[i])), -1)
    last, first = (next((i for i in order if ERROR.search(lines[i])), -1) for order in (reversed(wrong), wrong))
    chosen, room = dict[int, str](), budget - _MARK_TOKENS
    for i, most in ((status, _LAST_STATUS), (last, _LAST_ERROR), (first, _LAST_ERROR)):
        if i < 0 or i in chosen or costs[i] > most == _LAST_STATUS:
            continue
        line = lines[i] if costs[i] <= room else beginning(lines[i], most, cost)
        if i in (status, last) or line_cost(line, cost) <= room:
            chosen[i] = line
            room -= line_cost(line, cost)
    for order in orders:
        for i in order:
            gap = _MARK_TOKENS * ((i - 1 not in chosen) and (i + 1 not in chosen) and bool(chosen))
            if i not in chosen and costs[i] + gap <= room:
                chosen[i] = lines[i]
                room -= costs[i] + gap
            elif room < 6:
                break
    if last in chosen and chosen[last] != lines[last] and room > 0:
        chosen[last] = beginning(lines[last], _LAST_ERROR + room, cost)
    return dict(sorted(chosen.items()))


def beginning(line: str, most: int, cost: Cost) -> str:
    """A line, or the words at its beginning that fit `most` tokens with the mark of a gap behind them."""
    if cost(line) <= most:
        return line
    room = 16 * most  # a token has at most 16 characters
    while room and cost(line[:room]) > most - _MARK_TOKENS:
        room -= room // 8 + 1
    words = line[:room].rstrip() if line[room : room + 1].isspace() else line[:room].rpartition(" ")[0].rstrip()
    return words or line[:room]


def matching(lines: Sequence[str], words: Vocabulary) -> list[int]:
    """The lines that match, ascending."""
    starts = [0, *accumulate(map(len, lines))]
    return sorted({bisect_right(starts, at) - 1 for at in words.places("".join(lines))})


def error_lines(lines: Sequence[str]) -> list[int]:
    """The lines that tell what went wrong, or of the exit status, ascending."""
    return sorted({*matching(lines, STATUS), *matching(lines, ERROR)})


def mention_counts(lines: Sequence[str], names: Sequence[str]) -> Counter[int]:
    """How many of the names each line holds; names on a large share of the lines tell none from another."""
    text, starts = "".join(lines), [0, *accumulate(map(len, lines))]
    counts: Counter[int] = Counter()
    for name in names:
        holding = {bisect_right(starts, at) - 1 for at in places_of(name, text)}
        if len(holding) <= max(_FEW_LINES, _SHARE_OF_LINES * len(lines)):
            counts.update(holding)
    return counts


def places_of(name: str, text: str) -> Iterator[int]:
    at = text.find(name)
    while at >= 0:
        yield at
        at = text.find(name, at + len(name))


_ALSO = "also: "
"""It tells such a list from a line of the text, and from one of all names."""


def hidden_identifiers(text: str, shown_text: str, mentioned: frozenset[str], budget: int, cost: Cost) -> str:
    """Some of the identifiers that `shown_text` lacks: those `mentioned` first, then the rarest; addresses whole."""
    budget -= cost(_ALSO)
    if budget < 3:
        return ""
    often = identifier_counts(text)
    hidden = often.keys() - all_identifiers_in(shown_text)
    listed, addresses = list[str](), list[str]()
    for name in sorted(hidden, key=lambda n: (n not in mentioned, n.isdigit(), often[n], n)):
        if budget < 3:
            break
        if name in shown_text or any(name in address for address in addresses):
            continue
        whole = _whole_name(text, name)
        if (tokens := cost(whole) + 1) <= budget:
            listed.append(whole)
            addresses += [whole] if whole != name else []
            budget -= tokens
    return f"{_ALSO}{', '.join(listed)}" if listed else ""


def _whole_name(text: str, name: str) -> str:
    """A name as it first stands in a text: an address with scheme and query, the name of a package with its `@`."""
    if "/" not in name:
        return name
    start = text.find(name)
    end = start + len(name)
    before, after = text[max(0, start - _SCHEME) : start], text[end : end + _ADDRESS]
    if name.startswith("//") and (scheme := _BEFORE_ADDRESS.search(before)):
        rest = _AFTER_ADDRESS.match(after)
        return f"{scheme[0]}{name}{rest[0] if rest else ''}"
    return f"@{name}" if before.endswith("@") and not before[-2:-1].isalnum() else name


def ends(count: int, head: float) -> Iterable[int]:
    front, back = 0, count - 1
    while front <= back:
        if front <= head * (front + count - back):
            yield front
            front += 1
        else:
            yield back
            back -= 1


def join_lines(lines: Sequence[str], chosen: Mapping[int, str], sizes: Sequence[int] = ()) -> str:
    """The text shown of the lines `chosen`, ascending, each gap marked with the characters that it hides: by its lines
    or `sizes`. The rest of a line belongs to the gap behind it."""
    pieces, start, rest = list[str](), 0, ""
    for i in [*chosen, len(lines)]:
        gap = rest + "".join(lines[start:i])
        marked = omitted(len(rest) + sum(sizes[start:i]) if sizes else len(gap)) + ("\n" if i < len(lines) else "")
        piece = chosen.get(i, "")
        pieces += [min(gap, marked, key=len), piece]
        start, rest = i + 1, lines[i][len(piece) :] if i < len(lines) else ""
    return "".join(pieces)


def cut_inside(text: str, budget: int, head: float, cost: Cost) -> str:
    """For text without lines: cut at characters, never inside one."""
    sample = text[:_LOOKED_AT]
    letters = len(sample) / max(1, cost(sample))
    room = min(len(text), int(max(0, budget - 8) * (int(letters) or letters)))
    front = _whole(text, int(room * head))
    back = _whole(text, len(text) - room + front)
    return min(text, text[:front] + omitted(back - front) + text[back:], key=len)


def _whole(text: str, at: int) -> int:
    """Where to cut at the latest, so that accents, and what is joined to one sign, stay together."""
    while 0 < at < len(text) and (text[at - 1] == _JOINER or text[at] == _JOINER or category(text[at])[0] == "M"):
        at -= 1
    return at

"""Shortens a text to a budget, line by line: errors and mentioned identifiers first, then its head and tail.

The home of everything that policies and digests do with lines: which are searched, what they cost, which are chosen,
and how the gaps between them are marked.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain

from policies.model.identifiers import all_identifiers_in, identifier_counts, identifiers_in
from policies.text.stubs import omitted

ERROR = re.compile(r"\b(error|exception|traceback|failed|failure|fatal|panic|assert(ion)?)\b|^E  |Error\b", re.I | re.M)
STATUS = re.compile(r"exit (code|status)|return ?code|exited with|<exit|^[ \t]*Process .*exit", re.I | re.M)
DEFINES = re.compile(r"^\s*(\d+[\s:|]*)?(async def|def|class|func|fn|pub|function|interface|struct|impl)\b")

_WORDS = {
    ERROR: ("error", "exception", "traceback", "failed", "failure", "fatal", "panic", "assert", "\ne  "),
    STATUS: ("exit", "returncode", "return code"),
}
"""Each line that such a pattern matches has one of these words, in lower case, with the line end before it."""
_TELLING = (*_WORDS[ERROR][:-1], "e  ", "exit", "return", "status")
_LAST_STATUS, _LAST_ERROR = 20, 60
"""Tokens that stay of an output's exit status, and of its last error, whatever the budget."""
_MARK_TOKENS = 8
_FRONT = 400
"""Characters at the beginning of a text in one line that say whether it is an error."""
_LOOKED_AT = 64_000
_MOST_LINES = 4_000
_MOST_MENTIONS = 200
_PART = 100
"""Characters of the parts of a text that are searched for patterns, or not, at least."""
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
        lines = [
            *lines[:_MOST_LINES],
            "".join(lines[_MOST_LINES:-_MOST_LINES]),
            *lines[-_MOST_LINES:],
        ]
    return of_lines(lines, budget, head, mentioned, cost)


def of_lines(lines: Sequence[str], budget: int, head: float, mentioned: frozenset[str], cost: Cost) -> str:
    if len(lines) >= 2:
        searchable = readable(lines)
        scores = mention_counts(searchable, identifiers_present(searchable, mentioned))
        for worth, pattern in ((4, STATUS), (3, ERROR)):
            scores.update(dict.fromkeys(matching(searchable, pattern), worth))
        telling = sorted(scores, key=lambda i: (-scores[i] - bool(DEFINES.match(searchable[i])), i))
        if chosen := choose_lines(lines, (telling, ends(len(lines), head)), budget, cost):
            return join_lines(lines, chosen)
    is_error = len(lines) == 1 and ERROR.search(lines[0], 0, _FRONT)
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
    near = {
        name: (text.rfind("\n", 0, at) + 1, text.find("\n", at) + 1 or len(text))
        for name in mentioned
        if (at := text.find(name)) >= 0
    }
    identifiers = {span: all_identifiers_in(text[slice(*span)]) for span in near.values()}
    # where a name is only a part of another one in its first line, all lines with it are searched
    parts_of = {name for name, span in near.items() if name not in identifiers[span]}
    elsewhere = "".join(text[slice(*span)] for span in _holding(text, [name.lower() for name in parts_of]))
    return sorted(near.keys() - parts_of | (parts_of & all_identifiers_in(elsewhere)))[:_MOST_MENTIONS]


def line_cost(line: str) -> int:
    return len(line) // 4 + 1


def choose_lines(lines: Sequence[str], orders: Iterable[Iterable[int]], budget: int, cost: Cost) -> Mapping[int, str]:
    """The lines that fit `budget`, ascending, each with what is shown of it: the last error and the exit status, then
    those of each order, one after another. A last error of 60 tokens, or an exit status of 20, stays even beyond the
    budget; of a longer error the beginning does."""
    costs = list(map(line_cost, lines))
    searchable = readable(lines)
    text, starts = "".join(searchable), [0, *accumulate(map(len, searchable))]
    chosen, cut, room = dict[int, str](), list[int](), budget - _MARK_TOKENS
    for pattern, most in ((STATUS, _LAST_STATUS), (ERROR, _LAST_ERROR)):
        for span in reversed([*_holding(text, _WORDS[pattern])]):
            if matches := [match.start() for match in pattern.finditer(text, *span)]:
                last = bisect_right(starts, matches[-1]) - 1
                if last not in chosen and (costs[last] <= most or pattern is ERROR):
                    chosen[last] = lines[last] if costs[last] <= room else beginning(lines[last], most, cost)
                    room -= line_cost(chosen[last])
                    cut += [last] if chosen[last] != lines[last] else []
                break
    for order in orders:
        for i in order:
            gap = _MARK_TOKENS * ((i - 1 not in chosen) and (i + 1 not in chosen) and bool(chosen))
            if i not in chosen and costs[i] + gap <= room:
                chosen[i] = lines[i]
                room -= costs[i] + gap
            elif room < 6:
                break
    if cut and room > 0:
        chosen[cut[-1]] = beginning(lines[cut[-1]], _LAST_ERROR + room, cost)
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


def matching(lines: Sequence[str], pattern: re.Pattern[str]) -> list[int]:
    text, starts = "".join(lines), [0, *accumulate(map(len, lines))]
    matches = chain.from_iterable(pattern.finditer(text, *span) for span in _holding(text, _WORDS[pattern]))
    return [bisect_right(starts, match.start()) - 1 for match in matches]


def tells(line: str) -> bool:
    """True where a line may tell of an error or of a status: a quick check that most lines fail."""
    low = line.lower()
    return any(word in low for word in _TELLING)


def _holding(text: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    low = "\n" + text.replace("\u0130", "i").lower()  # the one letter whose lower case is longer
    words = [word for word in words if word in low]  # nearly always none
    start = 0 if words else len(text)
    while start < len(text):
        end = text.find("\n", start + _PART) + 1 or len(text)
        for word in words:
            if low.find(word, start, end + 1) >= 0:
                yield start, end
                break
        start = end


def mention_counts(lines: Sequence[str], names: Sequence[str]) -> Counter[int]:
    text, starts = "".join(lines), [0, *accumulate(map(len, lines))]
    counts: Counter[int] = Counter()
    for name in names:
        counts.update({bisect_right(starts, at) - 1 for at in places_of(name, text)})
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
    hidden = (name for name in often if name not in shown_text)
    listed, addresses = list[str](), list[str]()
    for name in sorted(hidden, key=lambda n: (n not in mentioned, n.isdigit(), often[n], n)):
        if budget < 3:
            break
        if any(name in address for address in addresses):
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
    """For text without lines: cut at characters (code points, so never inside one)."""
    sample = text[:_LOOKED_AT]
    room = max(0, budget - 8) * max(1, len(sample) // max(1, cost(sample)))
    gap = omitted(len(text) - room)
    if room + len(gap) >= len(text):
        return text
    front = int(room * head)
    return text[:front] + gap + text[len(text) - room + front :]

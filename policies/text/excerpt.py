"""Shortening a text to a budget: at line boundaries, head and tail by kind, errors and mentioned lines first."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain

from policies.model.identifiers import all_identifiers_in, identifier_counts
from policies.text.stubs import omitted

ERROR = re.compile(r"\b(error|exception|traceback|failed|failure|fatal|panic|assert(ion)?)\b|^E  |Error\b", re.I | re.M)
STATUS = re.compile(r"exit (code|status)|return ?code|exited with|<exit|^[ \t]*Process .*exit", re.I | re.M)
DEFINES = re.compile(r"^\s*(\d+[\s:|]*)?(async def|def|class|func|fn|pub|function|interface|struct|impl)\b")

_WORDS = {
    ERROR: ("error", "exception", "traceback", "failed", "failure", "fatal", "panic", "assert", "e  "),
    STATUS: ("exit", "returncode", "return code"),
}
"""What stands, in small letters, in each line in which such a pattern is found."""
_TELLING = (*_WORDS[ERROR], "exit", "return", "status")
_LOOKED_AT = 64_000
_LONG_LINE = 2_000
_LINES = 4_000
"""So many are looked at at either end: a text of more has next to nothing in each."""
_PART = 500
"""Characters that are looked at in turn."""
URGENT = 20
"""Tokens (about) of a line that is kept beyond the budget."""
_TERMS = 200
"""How many mentioned terms are looked for: beyond it there is no telling which lines matter."""
_FEW = 500
"""So many terms are looked for one by one; of more, and of what is a part of others, all terms of the text tell."""

Cost = Callable[[str], int]


def excerpt(text: str, budget: int, head: float, mentioned: frozenset[str], cost: Cost) -> str:
    """`text` cut to about `budget` (as `cost` counts), each gap marked; the share `head` comes from the beginning.

    Lines with errors, the exit status and what `mentioned` names go before the rest of both ends.
    """
    return of_lines(_fewer(lines_of(text)), budget, head, mentioned, cost)


def of_lines(lines: Sequence[str], budget: int, head: float, mentioned: frozenset[str], cost: Cost) -> str:
    """As `excerpt`, of the lines of a text."""
    if len(lines) < 3:
        return cut_inside("".join(lines), budget, head, cost)
    seen = readable(lines)
    kept = choose_lines(lines, (_telling(seen, identifiers_present(seen, mentioned)), ends(len(lines), head)), budget)
    return join_lines(lines, sorted(kept)) if kept else cut_inside("".join(lines), budget, head, cost)


def _fewer(lines: list[str]) -> list[str]:
    """Of very many lines those at both ends; the middle is one of them."""
    if len(lines) <= 2 * _LINES:
        return lines
    return [*lines[:_LINES], "".join(lines[_LINES:-_LINES]), *lines[-_LINES:]]


def readable(lines: Sequence[str]) -> list[str]:
    """The lines as they are searched: one of megabytes, too long to be chosen, would hold up everybody."""
    return [line if len(line) <= _LONG_LINE else "\n" for line in lines]


def identifiers_present(seen: Sequence[str], mentioned: frozenset[str]) -> list[str]:
    """What of `mentioned` the lines hold, at most 200 terms."""
    text = "".join(seen)
    if len(mentioned) > _FEW:
        return sorted(mentioned & all_identifiers_in(text))[:_TERMS]
    near = {term: _line_at(text, at) for term in mentioned if (at := text.find(term)) >= 0}
    lines = {span: all_identifiers_in(text[slice(*span)]) for span in near.values()}
    parts_of = {term for term, span in near.items() if term not in lines[span]}
    elsewhere = "".join(text[slice(*span)] for span in _holding(text, [term.lower() for term in parts_of]))
    return sorted(near.keys() - parts_of | (parts_of & all_identifiers_in(elsewhere)))[:_TERMS]


def _line_at(text: str, at: int) -> tuple[int, int]:
    """Where the line that holds this place begins and ends."""
    end = text.find("\n", at) + 1
    return text.rfind("\n", 0, at) + 1, end or len(text)


def line_cost(line: str) -> int:
    """About how many tokens a line takes."""
    return len(line) // 4 + 1


def choose_lines(lines: Sequence[str], orders: Iterable[Iterable[int]], budget: int) -> set[int]:
    """The lines that fit `budget`: the last error and the exit status, then what the orders give, one after another."""
    prices = list(map(line_cost, lines))
    kept = _urgent(readable(lines), prices)
    left = budget - 8 - sum(prices[i] for i in kept)
    for wanted in orders:
        for i in wanted:
            gap = 8 * ((i - 1 not in kept) and (i + 1 not in kept) and bool(kept))
            if i not in kept and prices[i] + gap <= left:
                kept.add(i)
                left -= prices[i] + gap
            elif left < 6:
                break
    return kept


def _urgent(lines: Sequence[str], prices: Sequence[int]) -> set[int]:
    """The exit status and the last error, which stay even beyond the budget where they are short."""
    kept: set[int] = set()
    text, starts = "".join(lines), _starts(lines)
    for pattern in (STATUS, ERROR):
        last = [bisect_right(starts, at) - 1 for at in _last(text, pattern)]
        kept.update(i for i in last if prices[i] <= URGENT)
    return kept


def matching(lines: Sequence[str], pattern: re.Pattern[str]) -> list[int]:
    """The lines in which matches begin, one for each match."""
    text, starts = "".join(lines), _starts(lines)
    matches = chain.from_iterable(pattern.finditer(text, *span) for span in _holding(text, _WORDS[pattern]))
    return [bisect_right(starts, match.start()) - 1 for match in matches]


def _last(text: str, pattern: re.Pattern[str]) -> list[int]:
    """Where the last match begins, if there is one."""
    for span in reversed([*_holding(text, _WORDS[pattern])]):
        if matches := [match.start() for match in pattern.finditer(text, *span)]:
            return matches[-1:]
    return []


def tells(line: str) -> bool:
    """Whether a line may tell of an error or of a status: most hold none of the words for it."""
    low = line.lower()
    return any(word in low for word in _TELLING)


def _holding(text: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where the parts of a text, of whole lines, begin and end that hold one of the words, in any case."""
    low = text.replace("\u0130", "i").lower()  # the one letter whose small form is longer
    start = 0
    while start < len(low):
        end = low.find("\n", start + _PART) + 1 or len(low)
        if any(low.find(word, start, end) >= 0 for word in words):
            yield start, end
        start = end


def mention_counts(lines: Sequence[str], wanted: Sequence[str]) -> Counter[int]:
    """How many of the terms each line holds."""
    text, starts = "".join(lines), _starts(lines)
    scores: Counter[int] = Counter()
    for term in wanted:
        scores.update({bisect_right(starts, at) - 1 for at in _places(text, term)})
    return scores


def _starts(lines: Sequence[str]) -> list[int]:
    return [0, *accumulate(map(len, lines))]


def hidden_identifiers(text: str, shown: str, mentioned: frozenset[str], budget: int, cost: Cost) -> str:
    """A list of the terms of `text` that `shown` does not show: those `mentioned` first, then the rarest."""
    often = identifier_counts(text)
    hidden = (term for term in often if term not in shown)
    listed = []
    for term in sorted(hidden, key=lambda t: (t not in mentioned, t.isdigit(), often[t], t)):
        if budget < 3:
            break
        paid = cost(term) + 1
        if paid <= budget:
            listed.append(term)
            budget -= paid
    return ", ".join(listed)


def lines_of(text: str) -> list[str]:
    """Lines with their ends; the middle of a very long text is one line, too dear to be chosen."""
    if len(text) <= 2 * _LOOKED_AT:
        return text.splitlines(keepends=True)
    front = text.rfind("\n", 0, _LOOKED_AT) + 1 or _LOOKED_AT
    back = text.find("\n", len(text) - _LOOKED_AT) + 1 or len(text) - _LOOKED_AT
    return [*text[:front].splitlines(keepends=True), text[front:back], *text[back:].splitlines(keepends=True)]


def _telling(lines: Sequence[str], mentioned: Sequence[str]) -> list[int]:
    """The lines that say something, most telling first: the status, errors, what is mentioned, definitions."""
    scores = mention_counts(lines, mentioned)
    for worth, pattern in ((4, STATUS), (3, ERROR)):
        scores.update(dict.fromkeys(matching(lines, pattern), worth))
    return sorted(scores, key=lambda i: (-scores[i] - bool(DEFINES.match(lines[i])), i))


def _places(text: str, term: str) -> list[int]:
    places, at = [], text.find(term)
    while at >= 0:
        places.append(at)
        at = text.find(term, at + len(term))
    return places


def ends(count: int, head: float) -> Iterable[int]:
    """Line numbers from both ends inwards, in the proportion of `head`."""
    front, back = 0, count - 1
    while front <= back:
        if front <= head * (front + count - back):
            yield front
            front += 1
        else:
            yield back
            back -= 1


def join_lines(lines: Sequence[str], kept: Sequence[int], sizes: Sequence[int] = ()) -> str:
    """The lines `kept`, each gap marked with the characters that it hides: those of its lines, or their `sizes`."""
    pieces, done = [], 0
    for i in [*kept, len(lines)]:
        gap = "".join(lines[done:i])
        marked = omitted(sum(sizes[done:i]) if sizes else len(gap)) + ("\n" if i < len(lines) else "")
        pieces.append(min(gap, marked, key=len))
        if i < len(lines):
            pieces.append(lines[i])
        done = i + 1
    return "".join(pieces)


def cut_inside(text: str, budget: int, head: float, cost: Cost) -> str:
    """For text without lines: by characters (code points, so never inside one)."""
    known = text[:_LOOKED_AT]
    room = max(0, budget - 8) * max(1, len(known) // max(1, cost(known)))
    gap = omitted(len(text) - room)
    if room + len(gap) >= len(text):
        return text
    front = int(room * head)
    return text[:front] + gap + text[len(text) - room + front :]

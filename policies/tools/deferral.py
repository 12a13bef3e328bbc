"""Definitions of tools that a conversation does without until the model looks for them: which are deferred, and what a
search finds among them.

Laws
  Only functions are deferred, and only those with a plain name that no other tool of the list has.
  What is deferred follows from the list, the history up to then, what others have called, and prices.
  What a search finds follows from the list and the words alone: the same call always has the same answer.
  A definition is the text of whoever wrote the tool. It is compared with words and handed on as bytes, never quoted.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

ToolLists = Literal["keep", "defer"]
"""What becomes of the definitions of tools that a request brings."""

LEAST_LIST = 3_000
"""Tokens of definitions below which a list stays as it is."""
LEAST = 1_000
"""Tokens that have to go, the search tool taken off."""
SEARCHES = 2
"""Searches that have to be paid for where each has all of the prompt written anew."""
_FOUND, _ANSWER = 800, 400
"""What a search costs beside the prompt that is read again: about so many tokens of definitions that it brings, and the
price of its call in tokens of input."""
MOST_CALLED = 64
"""Names of tools that earlier conversations have called which count, the most called first."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""What APIs take for a name; any other may be anything."""
_WORD = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Definition:
    """An entry of a list of tools, as its client wrote it; without a name where it has to stay."""

    raw: bytes
    tokens: int
    name: str = ""
    description: str = ""
    parameters: str = ""
    """The names of its parameters, one after the other."""


@dataclass(frozen=True, eq=False)
class Catalog:
    """A list of tools."""

    definitions: tuple[Definition, ...]
    digest: str
    is_searched: bool
    """True where its client has the model search by itself."""

    @cached_property
    def words(self) -> Sequence[tuple[Collection[str], ...]]:
        """The words of each definition: of its name, its parameters and its description."""
        return [
            (set(_words(each.name)), set(_words(each.parameters)), set(_words(each.description)))
            for each in self.definitions
        ]


def unambiguous(definitions: Sequence[Definition]) -> tuple[Definition, ...]:
    """The same list, in which only those keep their name that can be deferred under it."""
    names = [each.name for each in definitions]
    twice = {name for name, before in zip(sorted(names), sorted(names)[1:], strict=False) if name == before}
    return tuple(
        each if _PLAIN.fullmatch(each.name) and each.name not in twice else Definition(each.raw, each.tokens)
        for each in definitions
    )


# --- which are deferred ---


@dataclass(frozen=True, slots=True)
class Terms:
    read: float
    write: float
    """Prices of a token that is read from the cache or written to it, relative to plain input."""
    prompt: int
    """Tokens of the prompt without any definition."""
    requests: int
    """So far: as many more are to be expected."""
    is_rewritten: bool
    """True where what a search finds stands before the messages, so that all of the prompt is written anew."""


def named_in(catalog: Catalog, texts: Iterable[str]) -> set[str]:
    """The tools that a text names as a whole word, or, behind the prefix of its server, by a name of several words."""
    words = {word.lower() for text in texts for word in _WORD.findall(text)}
    return {each.name for each in catalog.definitions if each.name and not words.isdisjoint(_spoken(each.name))}


def _spoken(name: str) -> Iterator[str]:
    yield name.lower()
    short = name.rpartition("__")[2].lower()
    if "_" in short.strip("_") or "-" in short.strip("-"):
        yield short


def deferred(catalog: Catalog, fixed: Collection[str], terms: Terms, search: int) -> tuple[int, ...]:
    """The places of the definitions that are deferred: none where that does not pay. `fixed`: the names that have to
    stay; `search`: tokens of the search tool."""
    if catalog.is_searched or sum(each.tokens for each in catalog.definitions) < LEAST_LIST:
        return ()
    places = tuple(at for at, each in enumerate(catalog.definitions) if each.name and each.name not in fixed)
    hidden = sum(catalog.definitions[at].tokens for at in places) - search
    return places if hidden >= LEAST and _pays(hidden, terms) else ()


def _pays(hidden: int, terms: Terms) -> bool:
    """True where the definitions cost more than the searches that may be needed, if the conversation goes on for as
    long again as it has: a definition that is there is written now and read with each request, and the prompt of the
    searches may be twice as long by then."""
    lasts = terms.write + terms.requests * terms.read
    if terms.is_rewritten:
        return SEARCHES * 2 * terms.prompt * terms.write <= hidden * lasts
    return (hidden - _FOUND) * lasts > terms.prompt * terms.read + _ANSWER


def is_last(searches: int, hidden: int, terms: Terms) -> bool:
    """True where a search that has all of the prompt written anew brings all that is left: it is one more than was
    counted on, or as many at this prompt cost more than the definitions by now. So what a list loses is bounded,
    whatever its order: the prompts of so few searches, written anew."""
    lasts = terms.write + terms.requests * terms.read
    return searches > SEARCHES or searches * terms.prompt * terms.write > hidden * lasts


def most_called(counts: Mapping[str, int]) -> dict[str, int]:
    """The names that count, with how many conversations have called each."""
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:MOST_CALLED])


# --- what a search finds ---

_HITS = 5
_HIT_TOKENS = 4_000
"""Tokens of definitions that a search brings; the best one, and those that it names, whatever they take."""
_NAME, _PARAMETER, _TEXT = 8, 4, 2
"""The weight of a word by where a definition has it."""
_PARTS = 4
"""The least number of parts of a list that searches with all neighbours bring it in."""
_WORSE = 4
"""A definition whose score is smaller by more than this factor than that of the best is not found."""
_MOST_WORDS, _LONGEST = 64, 2_000
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@lru_cache(maxsize=256)
def search(catalog: Catalog, places: tuple[int, ...], query: str) -> tuple[Definition, ...]:
    """The definitions at these places that match the words best, or are named; the best one first."""
    words, names = [*dict.fromkeys(_words(query))][:_MOST_WORDS], set(_WORD.findall(query[:_LONGEST]))
    common = {word: sum(any(word in some for some in catalog.words[at]) for at in places) for word in words}
    rarity = {word: (len(places) // count).bit_length() for word, count in common.items() if count}
    scores: dict[int, int] = {}
    for at in sorted(places):
        fields = zip((_NAME, _PARAMETER, _TEXT), catalog.words[at], strict=True)
        scores[at] = sum(weight * rarity[word] for weight, some in fields for word in rarity.keys() & some)
    named = {at for at in scores if catalog.definitions[at].name in names}
    ranked = sorted(
        (at for at in scores if scores[at] or at in named), key=lambda at: (at not in named, -scores[at], at)
    )
    hits: list[Definition] = []
    for at in ranked[:_HITS]:
        each = catalog.definitions[at]
        if at not in named and scores[at] * _WORSE < max(scores.values()):
            break
        if not hits or at in named or sum(hit.tokens for hit in hits) + each.tokens <= _HIT_TOKENS:
            hits.append(each)
    return tuple(hits)


def beside(catalog: Catalog, places: Sequence[int], hits: Sequence[Definition], room: int) -> tuple[Definition, ...]:
    """What stands next to hits at these places, as far as it fits with them into so many tokens and into a share of the
    list, the nearest first: tools of one server stand together in it, and who needs one of them needs others."""
    room = min(room, sum(catalog.definitions[at].tokens for at in places) // _PARTS)
    room -= sum(hit.tokens for hit in hits)
    centers, near = [at for at in places if catalog.definitions[at] in hits], list[Definition]()
    for at in sorted({*places}.difference(centers), key=lambda at: (min(abs(at - each) for each in centers), at)):
        if (tokens := catalog.definitions[at].tokens) <= room:
            near.append(catalog.definitions[at])
            room -= tokens
    return tuple(near)


def _words(text: str) -> Iterator[str]:
    """The words of a text, or of a name written in one, in lower case and the singular."""
    for piece in _PIECE.findall(text[:_LONGEST]):
        word = piece.lower()
        if len(word) > 1 or word.isdigit():
            yield word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


_LISTED = 3_000
"""Characters of names that the description of the search tool lists."""


def names_of(catalog: Catalog, places: Iterable[int]) -> str:
    """The names at these places in a sentence: as many as there is room for."""
    names, room = list[str](), _LISTED
    waiting = [catalog.definitions[at].name for at in places]
    for name in waiting:
        room -= len(name) + 2
        if room < 0:
            break
        names.append(name)
    left = len(waiting) - len(names)
    return ", ".join(names) + (f" and {left} more" if left else "")

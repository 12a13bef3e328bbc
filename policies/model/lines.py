"""An index of the lines in the outputs of a history, by which a new output finds lines that it repeats.

Laws
  What is found before a block follows from the blocks before it alone, whatever comes later.
  Each output is read once; a request that extends another reads what is new.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

SHORT = 4
"""A line with fewer characters (a bracket, `else`) is no landmark: it may stand anywhere."""
_MOST = 50_000
"""Lines of one output that are remembered."""
_NEWEST = 6
"""Places of one line that are looked at, beside its first one."""

Place = tuple[int, int, int]
"""A block, the character at which a line begins there, and the number of that line, from 1 on."""
_BLOCK, _START = 2**52, 2**20
"""A place is one integer in memory, and most lines have one place: a long session has some ten thousand of them."""


@dataclass(frozen=True, slots=True)
class LinePlaces:
    """The places of the lines of outputs, one of each line in a block, by the hash of the line: what is found has to be
    compared."""

    places: dict[int, int | list[int]] = field(default_factory=dict)

    def add(self, block: int, text: str) -> None:
        """Add an output that stands behind all others."""
        first = block * _BLOCK
        for start, number, line in landmarks(text):
            key, place = hash(line), first + start * _START + number
            before = self.places.setdefault(key, place)
            if before is place:
                continue
            if isinstance(before, list):
                if before[-1] < first:
                    before.append(place)
            elif before < first:
                self.places[key] = [before, place]

    def remove(self, text: str) -> None:
        """Remove the last output."""
        for key in {hash(line) for _, _, line in landmarks(text)}:
            places = self.places.pop(key)
            if isinstance(places, list):
                self.places[key] = places[:-1] if len(places) > 2 else places[0]

    def before(self, block: int, line: str) -> Sequence[Place]:
        """Where a line may stand in the blocks before this one: the newest places and the first."""
        there = self.places.get(hash(line))
        places = there if isinstance(there, list) else () if there is None or there >= block * _BLOCK else (there,)
        end = bisect_left(places, block * _BLOCK)
        nearest = (*reversed(places[max(0, end - _NEWEST) : end]), *places[: end > _NEWEST])
        return [(place // _BLOCK, place % _BLOCK // _START, place % _START) for place in nearest]


def landmarks(text: str) -> Iterator[tuple[int, int, str]]:
    """The first lines of a text that are long enough, each with the character at which it begins, and its number."""
    start = 0
    for number, line in enumerate(islice(text.split("\n", _MOST), _MOST), 1):
        if len(line.strip()) >= SHORT:
            yield start, number, line
        start += len(line) + 1
